-- text-generation-inference: a handler's span tells a request's parts as Rust prints durations
-- ('1.5ms', '20µs'). Queue and inference are told, the moment of the first token is not: one
-- phase holds prefill and decode. Spans `batch` say how many shared a step and nothing of tokens.

create or replace temp macro rust_ns(text) as try_cast(regexp_extract(text, '^([0-9.]+)(ns|µs|μs|us|ms|s)$', 1) as double)
    * case regexp_extract(text, '^([0-9.]+)(ns|µs|μs|us|ms|s)$', 2)
        when 'ns' then 1 when 'ms' then 1e6 when 's' then 1e9 when '' then null else 1e3 end;

create table staging.t_request as
select hash(trace_id, span_id) as rid, hash(trace_id) as tid,
    case when nullif(parent_id, '') is not null then hash(trace_id, parent_id) end as pid,
    trace_id, start_ns, case when end_ns >= start_ns then end_ns end as end_ns, status_code,
    rust_ns(tgi_validation_time)::bigint as validation_ns, rust_ns(tgi_queue_time)::bigint as queue_ns,
    rust_ns(tgi_inference_time)::bigint as inference_ns, rust_ns(tgi_time_per_token) as per_token_ns,
    try_cast(tgi_prompt_tokens as bigint) as n_prompt, try_cast(tgi_generated_tokens as bigint) as n_told,
    error_type, res_host_name as host,
    coalesce(res_service_instance_id, res_host_name, res_service_name, 'text-generation-inference') as engine
from spans
where start_ns is not null and tgi_queue_time is not null and tgi_inference_time is not null
  and name in ('generate', 'generate_stream', 'completions', 'chat_completions', 'compat_generate');

-- The time per token is the inference's over all tokens, the first too.
alter table staging.t_request add column n_output bigint;
update t_request set n_output = coalesce(n_told, case when per_token_ns > 0 then round(inference_ns / per_token_ns)::bigint end);

insert into st_requests by name
select rid, 'tgi' as dialect, 4 as trust, tid, pid, trace_id, 'text_completion' as operation, n_prompt, n_output,
    start_ns as arrival_ns, end_ns, (end_ns - start_ns) / 1e6 as e2e_ms,
    case when end_ns is not null then 'measured' end as e2e_origin, error_type,
    coalesce(status_code = ${STATUS_ERROR}, false) as is_error, end_ns is null as is_open, host
from t_request;

insert into st_sequences by name
select rid as qid, rid, 'tgi' as dialect, 4 as trust, engine as engine_id, 0 as sequence,
    start_ns + coalesce(validation_ns, 0) as start_ns, end_ns, n_prompt, n_output
from t_request;

insert into st_engines by name
select distinct engine as engine_id, 'tgi' as engine_name from t_request;

insert into st_phases by name
select rid, 'tgi' as dialect, 4 as trust, 'frontend' as side, 'frontend' as kind, 'preprocess' as detail,
    start_ns, start_ns + validation_ns as end_ns, 'measured' as origin
from t_request where validation_ns > 0
union all by name
select rid, rid as qid, 'tgi' as dialect, 4 as trust, 'engine' as side, 'queue' as kind, 'arrival' as detail,
    start_ns + coalesce(validation_ns, 0) as start_ns,
    start_ns + coalesce(validation_ns, 0) + queue_ns as end_ns, 'measured' as origin
from t_request where queue_ns is not null
union all by name
select rid, rid as qid, 'tgi' as dialect, 4 as trust, 'engine' as side, 'decode' as kind, 'includes prefill' as detail,
    start_ns + coalesce(validation_ns, 0) + queue_ns as start_ns,
    start_ns + coalesce(validation_ns, 0) + queue_ns + inference_ns as end_ns, 'measured' as origin
from t_request where queue_ns is not null and inference_ns is not null;

insert into st_notes
select 'tgi_batches', 'tgi', count(*),
    count(*) || ' batch spans of text-generation-inference are not used: they do not say whose tokens they computed'
from spans where name = 'batch' having count(*) > 0;

insert into st_notes
select 'tgi_first_token', 'tgi', count(*),
    count(*) || ' requests of text-generation-inference do not say when their first token came: prefill and decode are one phase'
from t_request having count(*) > 0;
