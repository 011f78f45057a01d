-- request_facts: one row for each request of a window, before the costs are known.
-- A request belongs to the window of its arrival.
insert into request_facts
with spent as (
    select request_key,
           sum((end_ns - start_ns) / 1e6) filter (kind = 'network_in') as network_in_ms,
           sum((end_ns - start_ns) / 1e6) filter (kind = 'frontend')   as frontend_ms,
           sum((end_ns - start_ns) / 1e6) filter (kind = 'queue')      as queue_ms,
           sum((end_ns - start_ns) / 1e6) filter (kind = 'requeue')    as requeue_ms,
           sum((end_ns - start_ns) / 1e6) filter (kind = 'prefill')    as prefill_ms,
           sum((end_ns - start_ns) / 1e6) filter (kind = 'decode')     as decode_ms,
           sum((end_ns - start_ns) / 1e6) filter (kind = 'delivery')   as delivery_ms,
           sum((end_ns - start_ns) / 1e6) filter (kind = 'uncovered')  as uncovered_ms,
           -- A prefill that may hold the queue as well says nothing about prefill.
           bool_or(kind = 'prefill' and detail = 'includes queue')     as is_prefill_mixed,
           coalesce(bool_and(origin = 'measured') filter (kind = 'frontend'), true) as is_frontend_measured
    from phases
    group by request_key
),
deciding as (
    -- With several sequences the last to finish decides the request's times.
    select request_key,
           arg_max(seq_key, coalesce(end_ns, 9223372036854775807))   as seq_key,
           arg_max(epoch_key, coalesce(end_ns, 9223372036854775807)) as epoch_key
    from sequences
    where request_key is not null
    group by request_key
)
select r.request_key, w.name, d.seq_key, d.epoch_key, e.engine_id, r.request_id, r.trace_id,
       r.tenant, r.prefix_id, r.conversation_id, r.arrival_ns, r.end_ns,
       r.n_prompt, r.n_cached,
       case when r.n_prompt is not null then greatest(r.n_prompt - coalesce(r.n_cached, 0), 0) end as n_new,
       r.n_computed, r.n_output, r.n_preemptions,
       r.is_aborted, r.is_open, r.is_prefill_only, coalesce(s.is_frontend_measured, true), false, r.weight,
       s.network_in_ms, s.frontend_ms, s.queue_ms, s.requeue_ms,
       case when s.is_prefill_mixed then null else s.prefill_ms end,
       s.decode_ms, s.delivery_ms, s.uncovered_ms,
       -- What is still open counts with its time so far: a lower bound, better than leaving it out.
       coalesce(r.ttft_ms, case when r.is_open and r.first_token_ns is null and not r.is_prefill_only
                                then (w.to_ns - r.arrival_ns) / 1e6 end),
       coalesce(r.e2e_ms, case when r.is_open then (w.to_ns - r.arrival_ns) / 1e6 end),
       r.tpot_ms,
       null, null, null, null, null, null, null, null
from requests r
join windows w
  on w.dataset = r.dataset and r.arrival_ns >= w.from_ns and r.arrival_ns < w.to_ns
left join spent s using (request_key)
left join deciding d using (request_key)
left join epochs e using (epoch_key);
