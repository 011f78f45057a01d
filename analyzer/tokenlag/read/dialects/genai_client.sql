-- GenAI CLIENT spans: what the sender saw. Where the server told of the request too, the
-- row joins its; else it is a request with end-to-end and time to first chunk only.

create table staging.g_client as
select
    hash(trace_id, span_id) as rid, hash(trace_id) as tid,
    case when nullif(parent_id, '') is not null then hash(trace_id, parent_id) end as pid,
    trace_id, start_ns, case when end_ns >= start_ns then end_ns end as end_ns,
    status_code, scope, res_host_name as host, request_id,
    coalesce(operation_name, case
        when llm_request_type = 'embedding' or openinference_kind = 'EMBEDDING' then 'embeddings'
        when llm_request_type = 'completion' then 'text_completion'
        when llm_request_type is not null or openinference_kind is not null then 'chat' end) as operation_name,
    coalesce(request_model, response_model, llm_request_model, openinference_model, vercel_model) as model,
    coalesce(conversation_id, session_id) as conversation_id,
    coalesce(usage_input_tokens, prompt_tokens, openinference_prompt, vercel_prompt) as n_prompt,
    coalesce(usage_output_tokens, completion_tokens, openinference_completion, vercel_completion) as n_output,
    coalesce(usage_cached_tokens, cached_tokens_underscore, openinference_cached) as n_cached,
    request_max_tokens, request_choice_count, finish_reasons, error_type, tenant, prefix_id,
    -- Some writers put nonsense here (milliseconds, absolute times): only a moment that
    -- lies within the span is believed.
    case when first_chunk_s >= 0 and first_chunk_s * 1e9 <= coalesce(end_ns - start_ns, 3.6e12)
        then start_ns + (first_chunk_s * 1e9)::bigint end as first_ns,
    start_ns - client_intended_ns as intended_ns, client_gap_p50_ns, client_gap_max_ns,
    client_chunks, sample_weight
from (
    select *, coalesce(time_to_first_chunk, server_first_token_s, vercel_first_chunk_ms / 1e3) as first_chunk_s
    from spans
)
where start_ns is not null
  and ((kind = ${KIND_CLIENT}
        and (operation_name in ('chat', 'text_completion', 'generate_content', 'embeddings')
             or (operation_name is null and coalesce(request_model, llm_request_model) is not null)))
       -- Instrumentations that write their calls as internal spans.
       or openinference_kind in ('LLM', 'EMBEDDING')
       or (kind <> ${KIND_SERVER} and llm_request_type in ('chat', 'completion', 'embedding'))
       or (name in ('ai.streamText.doStream', 'ai.generateText.doGenerate')
           and coalesce(vercel_model, request_model) is not null));

-- A client's span may hold a gateway's: the outermost is what the user saw.
create table staging.g_chain as
with recursive up(rid, top) as (
    select rid, rid from g_client where pid is null or pid not in (select rid from g_client)
    union all
    select c.rid, up.top from g_client c join up on c.pid = up.rid
)
select rid, any_value(top) as top from up group by rid;

insert into st_requests by name
select
    g.rid, case when g.scope like 'load test%' then 'load-test' else 'genai-client' end as dialect, 9 as trust, g.tid, g.pid, g.trace_id, g.request_id,
    g.operation_name as operation, g.model, g.conversation_id, g.n_prompt, g.n_output,
    g.n_cached, g.request_max_tokens as n_max_output, g.request_choice_count as n_choices,
    g.tenant, g.prefix_id,
    g.start_ns as sent_ns, g.intended_ns, g.first_ns as client_first_ns,
    g.end_ns as client_end_ns,
    g.client_gap_p50_ns / 1e6 as client_gap_p50_ms, g.client_gap_max_ns / 1e6 as client_gap_max_ms,
    g.client_chunks as n_client_chunks,
    array_to_string(list_distinct(g.finish_reasons), ',') as finish_reason, g.error_type,
    coalesce(g.status_code = ${STATUS_ERROR}, false) as is_error, g.end_ns is null as is_open,
    g.sample_weight as weight, g.host, g.scope
from g_client g join g_chain c on c.rid = g.rid and c.top = g.rid;
