-- The trace contract's engine steps and phases, and what its engines are, to staging.

insert into st_steps by name
select
    coalesce(engine_id, res_service_instance_id, res_host_name, res_service_name, 'engine') as engine_id,
    engine_epoch as epoch, res_config_hash as config_hash,
    step_index, start_ns, end_ns,
    step_prefill_requests as prefill_requests, step_prefill_tokens as prefill_tokens,
    step_prefill_context as prefill_context,
    step_decode_count as decode_count, step_decode_joined as joined, step_decode_left as left_,
    step_decode_requests as members, step_decode_new_tokens as new_tokens,
    step_context_tokens as n_context_tokens,
    step_running as n_running, step_waiting as n_waiting,
    step_waiting_tokens as n_waiting_tokens, step_oldest_wait_ns as oldest_wait_ns,
    step_kv_usage as kv_usage, step_kv_reserved as kv_reserved, step_preempted as preempted,
    step_admit_bound as admit_bound, step_graph as graph,
    step_drafted as n_drafted, step_accepted as n_accepted, step_device_ns as device_ns,
    step_dropped as n_dropped, step_skipped as n_skipped
from spans
where name = ${SPAN_ENGINE_STEP} and step_index is not null
  and start_ns is not null and end_ns >= start_ns;

-- --- what the engines are -------------------------------------------------------------------

insert into st_engines by name
select
    coalesce(engine_id, res_service_instance_id, res_host_name, res_service_name, 'engine') as engine_id,
    engine_epoch as epoch, res_config_hash as config_hash,
    any_value(res_engine_name) as engine_name,
    any_value(res_engine_version) as engine_version,
    any_value(res_engine_max_batch_tokens) as max_batch_tokens,
    any_value(res_engine_max_seqs) as max_seqs,
    any_value(res_engine_kv_tokens) as kv_tokens,
    any_value(res_engine_chunked_prefill) as is_chunked_prefill,
    any_value(res_engine_prefix_caching) as is_prefix_caching,
    any_value(res_engine_tensor_parallel) as n_tensor_parallel,
    any_value(res_engine_pipeline_parallel) as n_pipeline_parallel,
    any_value(res_model_name) as model_name,
    any_value(res_model_parameters) as n_parameters,
    any_value(res_model_active_parameters) as n_active_parameters,
    any_value(res_model_weight_bytes) as weight_bytes,
    any_value(res_model_kv_bytes_per_token) as kv_bytes_per_token,
    any_value(res_device_name) as device_name,
    any_value(res_device_count) as n_devices,
    any_value(res_device_memory_bandwidth) as memory_bandwidth,
    any_value(res_device_peak_flops) as peak_flops
from spans
where name in (${SPAN_ENGINE_STEP}, ${SPAN_ENGINE_REQUEST})
   or (name = ${SPAN_REQUEST} and (request_index is not null or engine_id is not null))
group by all;

-- --- phases as written ---------------------------------------------------------------------

create table staging.c_phase as
select
    hash(trace_id, span_id) as sid, hash(trace_id) as tid,
    hash(trace_id, nullif(parent_id, '')) as pid, name, start_ns, end_ns,
    res_host_name as host, request_id,
    direction, clock, stage, queue_reason, prefill_tokens, prefill_recompute,
    step_index, chunk_tokens, chunk_context, decode_first_step, decode_last_step, decode_tokens
from spans
where name in (${SPAN_NETWORK}, ${SPAN_FRONTEND}, ${SPAN_QUEUE}, ${SPAN_PREFILL},
               ${SPAN_PREFILL_CHUNK}, ${SPAN_DECODE})
  and start_ns is not null;
