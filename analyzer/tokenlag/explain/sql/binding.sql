-- What kept requests waiting. Steps tell, or let it be inferred; from request spans alone: if
-- the number that run is nearly always the same while another waits, that number is the slot limit,
-- unless the engines tell of far more slots: then who or what holds the others was not recorded.
insert into binding
with by_step as (
    select window_name, bound, sum(n_waiting * wall_ms) as waited_ms, bool_and(is_bound_told) as is_told
    from step_costs
    where bound is not null and bound <> 'none' and n_waiting > 0
    group by window_name, bound
),
stepped as (
    select window_name, arg_max(bound, waited_ms) as bound, max(waited_ms) / sum(waited_ms) as share_frac,
           arg_max(is_told, waited_ms) as is_told
    from by_step
    group by window_name
),
full_kv as (
    select c.window_name, avg(s.kv_usage_frac) as kv_frac
    from steps s join step_costs c using (epoch_key, step_index)
    where c.n_waiting > 0
    group by c.window_name
),
waits as (
    select window_name, end_ns,
           arrival_ns + cast(coalesce(frontend_ms, 0) * 1e6 as bigint) as queued_ns,
           arrival_ns + cast((coalesce(frontend_ms, 0) + queue_ms) * 1e6 as bigint) as scheduled_ns
    from request_facts
    where queue_ms is not null and end_ns is not null
),
edges as (
    select window_name, queued_ns as at_ns, 0 as run, 1 as wait from waits
    union all
    select window_name, scheduled_ns, 1, -1 from waits
    union all
    select window_name, end_ns, -1, 0 from waits
),
crowd as (
    select window_name, at_ns, sum(run) over w as n_running, sum(wait) over w as n_waiting,
           lead(at_ns) over (partition by window_name order by at_ns) - at_ns as held_ns
    from edges
    window w as (partition by window_name order by at_ns range unbounded preceding)
),
by_count as (
    select window_name, n_running, sum(held_ns * n_waiting) as waited
    from crowd
    where n_waiting > 0 and held_ns > 0
    group by window_name, n_running
),
pinned as (
    -- One beside the usual number is where the count stands whenever a slot changes hands.
    select window_name, any_value(usual) as n_pinned,
           sum(waited) filter (abs(n_running - usual) <= 1) / sum(waited) as share_frac
    from (select *, arg_max(n_running, waited) over (partition by window_name) as usual from by_count)
    group by window_name
),
slots as (
    -- Of all engines that served requests of the window; NULL if one of them does not tell.
    select window_name, case when count(*) = count(max_seqs) then sum(max_seqs) end as n_slots
    from (select f.window_name, e.engine_id, max(e.max_seqs) as max_seqs
          from request_facts f join epochs e using (epoch_key) group by f.window_name, e.engine_id)
    group by window_name
),
-- A few waits are pinned to some number by chance.
many as (
    select window_name, count(*) filter (scheduled_ns > queued_ns) >= 20 as is_enough
    from waits group by window_name
)
select p.window_name,
       coalesce(s.bound, case when p.share_frac >= 0.8 and m.is_enough and p.n_pinned >= 0.9 * coalesce(l.n_slots, 0)
                              then 'slots' else 'capacity' end),
       case when s.bound is null then 'inferred from concurrency'
            when s.is_told then 'told by the engine' else 'inferred from steps' end,
       coalesce(s.share_frac, p.share_frac),
       case when p.share_frac >= 0.8 and m.is_enough then p.n_pinned end,
       k.kv_frac
from pinned p
join many m using (window_name)
left join slots l using (window_name)
left join stepped s using (window_name)
left join full_kv k using (window_name);
