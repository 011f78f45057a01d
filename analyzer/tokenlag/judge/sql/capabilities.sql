-- What the traces of the current window can show: one row, a boolean a capability.
select
    exists (select 1 from request_facts where window_name = 'current' and queue_ms is not null) as queue,
    exists (select 1 from phases p join request_facts f using (request_key)
            where f.window_name = 'current' and p.kind = 'queue' and p.detail is not null) as queue_reasons,
    exists (select 1 from request_facts where window_name = 'current' and prefill_ms is not null) as prefill,
    exists (select 1 from request_facts where window_name = 'current' and decode_ms is not null) as decode,
    exists (select 1 from step_costs where window_name = 'current') as steps,
    exists (select 1 from step_fit f join step_costs c using (epoch_key)
            where c.window_name = 'current' and f.level in ('hinge', 'linear')) as step_model,
    exists (select 1 from request_facts where window_name = 'current' and n_preemptions is not null)
        or exists (select 1 from preemptions) as preemptions,
    exists (select 1 from request_facts where window_name = 'current' and n_cached is not null) as cached_tokens,
    exists (select 1 from request_facts where window_name = 'current' and tenant is not null) as tenant,
    exists (select 1 from request_facts where window_name = 'current' and network_in_ms is not null) as network,
    exists (select 1 from request_facts where window_name = 'current' and frontend_ms is not null) as frontend,
    exists (select 1 from requests r join request_facts f using (request_key)
            where f.window_name = 'current' and r.client_end_ns is not null) as client,
    exists (select 1 from hops h join request_facts f using (request_key)
            where f.window_name = 'current' and h.upstream_ns is not null) as gateway,
    exists (select 1 from requests r join request_facts f using (request_key)
            where f.window_name = 'current' and r.finish_reason is not null) as finish_reasons,
    -- Engines that ran and were given nothing count, for they could have taken more; those that prefill for others could not.
    (select count(distinct engine_id) > 1 from request_facts where window_name = 'current')
        or (select count(*) > 1 from engine_load where window_name = 'current')
            and not exists (select 1 from sequences where role is not null) as engines,
    exists (select 1 from windows where name = 'baseline') as baseline,
    exists (select 1 from objectives) as objective,
    exists (select 1 from request_facts where window_name = 'current' and conversation_id is not null) as sessions,
    exists (select 1 from step_costs where window_name = 'current' and is_bound_told) as admit_bound,
    exists (select 1 from steps s join step_costs c using (epoch_key, step_index)
            where c.window_name = 'current' and s.kv_usage_frac is not null) as kv,
    exists (select 1 from steps s join step_costs c using (epoch_key, step_index)
            where c.window_name = 'current' and s.n_drafted is not null) as drafts,
    exists (select 1 from sequences where role is not null) as roles,
    exists (select 1 from epochs where memory_bandwidth is not null or device_name is not null) as device;
