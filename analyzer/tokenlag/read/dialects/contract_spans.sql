-- The trace contract, in full and compact form, to staging: its requests and sequences as
-- written. (contract_steps.sql takes steps and phases.)

insert into st_notes
with counted as (
    select
        count(*) filter (name = ${SPAN_ENGINE_STEP} and (
            step_index is null or start_ns is null or end_ns is null or end_ns < start_ns)) as n_steps,
        count(*) filter (name <> ${SPAN_ENGINE_STEP} and (start_ns is null or end_ns < start_ns)) as n_others
    from spans
    where name in (${SPAN_ENGINE_STEP}, ${SPAN_REQUEST}, ${SPAN_ENGINE_REQUEST}, ${SPAN_FRONTEND},
                   ${SPAN_QUEUE}, ${SPAN_PREFILL}, ${SPAN_PREFILL_CHUNK}, ${SPAN_DECODE})
)
select 'bad_steps', 'contract', n_steps,
    n_steps || ' step spans have no index, no times, or end before they start; they are set aside'
from counted where n_steps > 0
union all
select 'bad_spans', 'contract', n_others,
    n_others || ' spans have no start, or end before they start; what they say of time is not used'
from counted where n_others > 0;

-- --- requests and sequences ------------------------------------------------------------------

create table staging.c_request as
select
    hash(trace_id, span_id) as rid, hash(trace_id) as tid,
    hash(trace_id, nullif(parent_id, '')) as pid, nullif(parent_id, '') is null as is_root,
    trace_id, start_ns, case when end_ns >= start_ns then end_ns end as end_ns, status_code,
    res_host_name as host,
    coalesce(engine_id, res_service_instance_id, res_host_name, res_service_name, 'engine') as engine,
    engine_epoch, res_config_hash as config_hash, request_index, sequence, role,
    engine_id is not null or request_index is not null as has_engine,
    request_id, operation_name, request_model, tenant, prefix_id, conversation_id,
    request_features, adapter, priority, request_choice_count, request_max_tokens,
    usage_input_tokens, usage_cached_tokens, usage_output_tokens,
    first_token_ns, last_token_ns, preemptions, finish_reasons, error_type, sample_weight
from spans
where name = ${SPAN_REQUEST} and start_ns is not null
  and (kind = ${KIND_SERVER} or scope = ${SCOPE_NAME} or first_token_ns is not null
       or request_index is not null);

create table staging.c_engine as
select
    hash(trace_id, span_id) as qid, hash(trace_id) as tid,
    hash(trace_id, nullif(parent_id, '')) as pid, trace_id, start_ns,
    case when end_ns >= start_ns then end_ns end as end_ns, status_code, res_host_name as host,
    coalesce(engine_id, res_service_instance_id, res_host_name, res_service_name, 'engine') as engine,
    engine_epoch, res_config_hash as config_hash, request_index, sequence, role, request_id,
    operation_name, request_model, usage_input_tokens, usage_cached_tokens,
    usage_output_tokens, preemptions, finish_reasons, error_type, sample_weight
from spans
where name = ${SPAN_ENGINE_REQUEST} and start_ns is not null;
