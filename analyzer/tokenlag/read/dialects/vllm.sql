-- vLLM's own `llm_request` spans (V1, and V0's older names), in seconds, made after the
-- request is done. No engine, no steps. TTFT and e2e are the front end's wall clock; queue,
-- prefill and decode the engine's monotonic one, so they do not add up to TTFT: the rest is
-- the front end's time. −1 and missing are "not measured".

create table staging.v_span as
with raw as (
    select
        hash(trace_id, span_id) as qid, hash(trace_id) as tid,
        case when nullif(parent_id, '') is not null then hash(trace_id, parent_id) end as pid,
        trace_id, start_ns, case when end_ns >= start_ns then end_ns end as end_ns, status_code,
        (case when end_ns >= start_ns then end_ns - start_ns end) / 1e9 as duration_s,
        request_id, operation_name, coalesce(request_model, response_model) as model,
        request_max_tokens, coalesce(request_choice_count, n_choices_asked) as n_choices,
        coalesce(usage_input_tokens, prompt_tokens) as n_prompt,
        coalesce(usage_output_tokens, completion_tokens) as n_output,
        coalesce(usage_cached_tokens, cached_tokens) as n_cached,
        finish_reasons, error_type, res_host_name as host,
        coalesce(engine_id, res_service_instance_id,
                 'process ' || res_vllm_process_id, res_host_name, res_service_name, 'vllm') as engine,
        scope like 'vllm%' or res_vllm_process_id is not null as is_vllm,
        time_to_first_token_s as ttft_s, e2e_s, time_in_queue_s as queue_s,
        time_in_prefill_s as prefill_s, time_in_decode_s as decode_s, kv_transfer_s,
        scope like '%tensorrt%' or kv_transfer_s is not null as is_tensorrt
    from spans
    where name = 'llm_request' and start_ns is not null
      and (scope like 'vllm%' or res_vllm_process_id is not null
           or time_to_first_token_s is not null or e2e_s is not null or time_in_queue_s is not null)
),
-- A writer that means milliseconds shows: its values are a thousand times too long for the
-- span, and fit when divided.
scaled as (
    select *,
        case when coalesce(e2e_s, ttft_s) > 2 * duration_s + 1
              and coalesce(e2e_s, ttft_s) / 1000 <= duration_s * 1.1 + 0.01
            then 0.001 else 1 end as unit
    from raw
)
select * exclude (ttft_s, queue_s, prefill_s, decode_s, kv_transfer_s),
    (case when kv_transfer_s > 0 and kv_transfer_s * unit <= coalesce(duration_s, 1e9)
        then kv_transfer_s * unit * 1e9 end)::bigint as transfer_ns,
    -- Longer than the span is not a duration within it.
    (case when ttft_s >= 0 and ttft_s * unit <= coalesce(duration_s, 1e9) * 1.05 + 0.05
        then ttft_s * unit * 1e9 end)::bigint as ttft_ns,
    (case when queue_s >= 0 and queue_s * unit <= coalesce(duration_s, 1e9) * 1.05 + 0.05
        then queue_s * unit * 1e9 end)::bigint as queue_ns,
    (case when prefill_s >= 0 and prefill_s * unit <= coalesce(duration_s, 1e9) * 1.05 + 0.05
        then prefill_s * unit * 1e9 end)::bigint as prefill_ns,
    (case when decode_s >= 0 and decode_s * unit <= coalesce(duration_s, 1e9) * 1.05 + 0.05
        then decode_s * unit * 1e9 end)::bigint as decode_ns
from scaled;

insert into st_notes
select 'milliseconds', 'vllm', count(*),
    count(*) || ' llm_request spans give milliseconds where seconds belong; they are read as milliseconds'
from v_span where unit < 1 having count(*) > 0;

-- n > 1: one span a sequence, each with the caller's id and the same arrival, and saying n = 1.
create table staging.v_member as
select *,
    first_value(qid) over together as rid,
    row_number() over together - 1 as sequence
from v_span
window together as (
    partition by tid, pid, coalesce(request_id, qid::varchar), start_ns order by qid
);

insert into st_requests by name
select
    rid, 'vllm' as dialect, 2 as trust, any_value(tid) as tid, any_value(pid) as pid,
    any_value(trace_id) as trace_id, any_value(request_id) as request_id,
    any_value(operation_name) as operation, any_value(model) as model,
    greatest(max(n_choices), count(*)) as n_choices, max(request_max_tokens) as n_max_output,
    max(n_prompt) as n_prompt, min(n_cached) as n_cached, sum(n_output) as n_output,
    min(start_ns) as arrival_ns, min(start_ns + ttft_ns) as first_token_ns,
    max(case when ttft_ns is not null then end_ns end) as last_token_ns, max(end_ns) as end_ns,
    min(ttft_ns) / 1e6 as ttft_ms, (max(end_ns) - min(start_ns)) / 1e6 as e2e_ms,
    case when max(end_ns) is not null then 'measured' end as e2e_origin,
    array_to_string(list_distinct(flatten(list(finish_reasons))), ',') as finish_reason,
    any_value(error_type) as error_type,
    coalesce(bool_or(status_code = ${STATUS_ERROR}), false) as is_error,
    max(end_ns) is null as is_open, any_value(host) as host
from v_member group by rid;

insert into st_sequences by name
select
    qid, rid, 'vllm' as dialect, 2 as trust, engine as engine_id, sequence,
    start_ns + coalesce(greatest(ttft_ns - queue_ns - prefill_ns, 0), 0) as start_ns, end_ns,
    n_prompt, n_cached, n_output
from v_member;

insert into st_engines by name
select engine as engine_id, case when bool_or(is_vllm) then 'vllm' when bool_or(is_tensorrt) then 'tensorrt-llm' end as engine_name,
    any_value(model) as model_name
from v_span group by engine;

-- Children that a vLLM pull request (#44402) draws: better than what attributes say.
create table staging.v_child as
select m.rid, m.qid, c.name, c.start_ns, c.end_ns
from spans c join v_member m on m.qid = hash(c.trace_id, nullif(c.parent_id, ''))
where c.name in ('vllm_queue', 'vllm_async_kv_transfer', 'vllm_prefill', 'vllm_decode') and c.start_ns is not null;

insert into st_phases by name
select rid, qid, 'vllm' as dialect, 2 as trust, 'engine' as side,
    case name when 'vllm_async_kv_transfer' then 'queue' else replace(name, 'vllm_', '') end as kind,
    case name when 'vllm_async_kv_transfer' then 'kv_transfer' end as detail, start_ns, end_ns, 'measured' as origin
from v_child;

create table staging.v_told as
select v_member.*,
    ttft_ns - queue_ns - prefill_ns as rest_ns,
    greatest(coalesce(ttft_ns - queue_ns - prefill_ns, 0), 0) as lead_ns
from v_member
where qid not in (select qid from v_child);

insert into st_phases by name
select rid, 'vllm' as dialect, 2 as trust, 'frontend' as side, 'frontend' as kind,
    -- vLLM takes requests in between two steps only, and stamps them queued then: behind a
    -- long step, that wait is here too.
    'includes handover' as detail, start_ns, start_ns + rest_ns as end_ns, 'derived' as origin
from v_told where rest_ns > 0;

insert into st_phases by name
select rid, qid, 'vllm' as dialect, 2 as trust, 'engine' as side, 'queue' as kind,
    start_ns + lead_ns as start_ns, start_ns + lead_ns + queue_ns as end_ns, 'measured' as origin
from v_told where queue_ns is not null
union all by name
select rid, qid, 'vllm' as dialect, 2 as trust, 'engine' as side, 'prefill' as kind,
    start_ns + lead_ns + coalesce(queue_ns, 0) as start_ns,
    start_ns + lead_ns + coalesce(queue_ns, 0) + prefill_ns as end_ns, 'measured' as origin
from v_told where prefill_ns is not null and queue_ns is not null
union all by name
-- The queue is not known: all that can be said is when the prefill ended.
select rid, qid, 'vllm' as dialect, 2 as trust, 'engine' as side, 'prefill' as kind,
    greatest(start_ns, start_ns + ttft_ns - prefill_ns) as start_ns,
    start_ns + ttft_ns as end_ns, 'measured' as origin
from v_told where prefill_ns is not null and queue_ns is null and ttft_ns is not null
union all by name
-- V0 and TensorRT-LLM give no prefill: it is what the first token took beyond the queue.
select rid, qid, 'vllm' as dialect, 2 as trust, 'engine' as side, 'prefill' as kind,
    'includes frontend' as detail, start_ns + queue_ns + coalesce(transfer_ns, 0) as start_ns,
    start_ns + ttft_ns as end_ns, 'derived' as origin
from v_told where prefill_ns is null and queue_ns is not null and ttft_ns > queue_ns + coalesce(transfer_ns, 0)
union all by name
-- TensorRT-LLM's split: the KV that a prefill engine computed comes over before the first token.
select rid, qid, 'vllm' as dialect, 2 as trust, 'engine' as side, 'queue' as kind,
    'kv_transfer' as detail, start_ns + queue_ns as start_ns,
    start_ns + queue_ns + transfer_ns as end_ns, 'measured' as origin
from v_told where prefill_ns is null and queue_ns is not null and ttft_ns > queue_ns + transfer_ns
union all by name
select rid, qid, 'vllm' as dialect, 2 as trust, 'engine' as side, 'decode' as kind,
    start_ns + ttft_ns as start_ns,
    coalesce(start_ns + ttft_ns + decode_ns, end_ns) as end_ns,
    n_output - 1 as n_tokens,
    case when decode_ns is null then 'derived' else 'measured' end as origin
from v_told where ttft_ns is not null and (decode_ns is not null or end_ns is not null)
  and (n_output > 1 or decode_ns > 0);

insert into st_notes
select 'startup_spans', 'vllm', count(*),
    count(*) || ' spans of vLLM''s own start-up are set aside'
from spans
where name not in ('llm_request', 'vllm_queue', 'vllm_async_kv_transfer', 'vllm_prefill', 'vllm_decode',
                   'vllm_step_execution')
  and (scope like 'vllm.%' or res_vllm_module is not null)
having count(*) > 0;
