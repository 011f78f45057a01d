-- NVIDIA Dynamo's worker side, where the engine's own spans are not there to tell more:
-- `engine.generate` with times in milliseconds, or the records of its request trace.

create table staging.y_request as
select hash(trace_id, span_id) as rid, hash(trace_id) as tid,
    case when nullif(parent_id, '') is not null then hash(trace_id, parent_id) end as pid,
    trace_id, start_ns, case when end_ns >= start_ns then end_ns end as end_ns, status_code,
    coalesce(request_model, plain_model) as model, coalesce(usage_input_tokens, plain_input_tokens) as n_prompt,
    coalesce(usage_output_tokens, plain_output_tokens) as n_output,
    case when plain_ttft_ms >= 0 and plain_ttft_ms * 1e6 <= coalesce(end_ns - start_ns, 3.6e12)
        then start_ns + (plain_ttft_ms * 1e6)::bigint end as first_ns,
    plain_ttft_ms, request_id, conversation_id, usage_cached_tokens as n_cached, nullif(disagg_role, 'aggregated') as role, plain_finish_reason, error_type, res_host_name as host,
    coalesce(res_service_instance_id, res_host_name, res_service_name, 'dynamo') as engine
from spans
where name in ('engine.generate', 'dynamo.request') and start_ns is not null
  and hash(trace_id) not in (
      select hash(trace_id) from spans where name in ('llm_request', ${SPAN_REQUEST}, ${SPAN_ENGINE_REQUEST}));

-- A prefill worker's and a decode worker's part are one request.
create table staging.y_member as
select *, first_value(rid) over (partition by tid order by start_ns, rid) as request_rid,
    row_number() over (partition by tid order by start_ns, rid) - 1 as sequence
from y_request;

insert into st_requests by name
select request_rid as rid, 'dynamo' as dialect, 5 as trust, any_value(tid) as tid,
    arg_min(pid, start_ns) as pid, any_value(trace_id) as trace_id, any_value(request_id) as request_id,
    any_value(conversation_id) as conversation_id, max(n_cached) as n_cached, any_value(model) as model, max(n_prompt) as n_prompt,
    max(n_output) as n_output, min(start_ns) as arrival_ns,
    -- The decode worker's first token is the user's; the prefill worker's alone is not.
    coalesce(min(first_ns) filter (role is distinct from 'prefill'), min(first_ns)) as first_token_ns,
    max(case when plain_ttft_ms is not null then end_ns end) as last_token_ns, max(end_ns) as end_ns,
    (max(end_ns) - min(start_ns)) / 1e6 as e2e_ms, case when max(end_ns) is not null then 'measured' end as e2e_origin,
    any_value(plain_finish_reason) as finish_reason, any_value(error_type) as error_type,
    coalesce(bool_or(status_code = ${STATUS_ERROR}), false) as is_error, max(end_ns) is null as is_open,
    any_value(host) as host
from y_member group by request_rid;

insert into st_sequences by name
select rid as qid, request_rid as rid, 'dynamo' as dialect, 5 as trust, engine as engine_id, sequence,
    case when role in ('prefill', 'decode') then role end as role, start_ns, end_ns, n_prompt, n_output
from y_member;

insert into st_engines by name
select engine as engine_id, 'dynamo' as engine_name, any_value(model) as model_name from y_request group by engine;
