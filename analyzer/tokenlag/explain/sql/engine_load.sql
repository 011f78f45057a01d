-- What each engine was given and had in hand.
insert into engine_load
with price as (
    -- A request's work in mean requests: prompt and output tokens by the engine's time that each takes.
    select window_name, coalesce(prefill_share_frac, 0.5) as prefill_frac,
           nullif(mean_new, 0) as mean_new, nullif(mean_output, 0) as mean_output
    from demand
),
engines as (
    select distinct w.name as window_name, w.from_ns, w.to_ns, e.engine_id
    from windows w
    join epochs e on e.dataset = w.dataset
        and coalesce(e.start_ns, w.from_ns) < w.to_ns and coalesce(e.end_ns, w.to_ns) >= w.from_ns
),
commonest as (
    select window_name, mode(prefix_id) as prefix_id from request_facts where prefix_id is not null group by window_name
),
given as (
    select f.window_name, f.engine_id, f.weight, f.queue_ms, f.n_cached, f.n_prompt,
           f.prefix_id is not null and f.prefix_id = c.prefix_id as has_common,
           p.prefill_frac * coalesce(f.n_new / p.mean_new, 1)
               + (1 - p.prefill_frac) * coalesce(f.n_output / p.mean_output, 1) as work,
           coalesce(f.n_prompt, 0) + coalesce(f.n_output, 0) as n_tokens,
           -- In the engine's hands from when the front end is done with it.
           f.arrival_ns + cast(coalesce(f.frontend_ms, 0) * 1e6 as bigint) as from_ns,
           coalesce(f.end_ns, w.to_ns) as to_ns
    from request_facts f
    join windows w on w.name = f.window_name
    left join price p on p.window_name = f.window_name
    left join commonest c on c.window_name = f.window_name
    where f.engine_id is not null
),
bins as (
    select window_name, engine_id, bin,
           from_ns + (to_ns - from_ns) * bin // 20 as bin_from_ns,
           from_ns + (to_ns - from_ns) * (bin + 1) // 20 as bin_to_ns
    from engines cross join (select unnest(range(20)) as bin)
),
held as (
    select b.window_name, b.engine_id, b.bin, b.bin_to_ns - b.bin_from_ns as span_ns,
           coalesce(sum(g.weight * (least(g.to_ns, b.bin_to_ns) - greatest(g.from_ns, b.bin_from_ns))), 0) as request_ns,
           coalesce(sum(g.weight * g.n_tokens * (least(g.to_ns, b.bin_to_ns) - greatest(g.from_ns, b.bin_from_ns))), 0) as token_ns
    from bins b
    left join given g on g.window_name = b.window_name and g.engine_id = b.engine_id
        and g.from_ns < b.bin_to_ns and g.to_ns > b.bin_from_ns
    group by b.window_name, b.engine_id, b.bin, b.bin_from_ns, b.bin_to_ns
),
against as (
    select *, (sum(token_ns) over (partition by window_name, bin) - token_ns)
        / nullif(count(*) over (partition by window_name, bin) - 1, 0) as others_ns
    from held
),
in_hand as (
    select window_name, engine_id, sum(request_ns) / sum(span_ns) as in_flight,
           sum(token_ns) / sum(span_ns) as in_flight_tokens,
           avg((token_ns > 2 * others_ns)::int) as hot_frac
    from against
    group by window_name, engine_id
),
shares as (
    select window_name, engine_id, sum(weight) as n_requests,
           sum(weight * work) / nullif(sum(sum(weight * work)) over (partition by window_name), 0) as work_frac,
           sum(weight * queue_ms) / nullif(sum(weight) filter (queue_ms is not null), 0) as queue_ms,
           sum(weight * n_cached) / nullif(sum(weight * n_prompt) filter (n_cached is not null), 0) as cached_frac,
           sum(weight) filter (has_common) / nullif(sum(weight), 0) as prefix_frac,
           sum(weight) filter (has_common)
               / nullif(sum(sum(weight) filter (has_common)) over (partition by window_name), 0) as prefix_here_frac
    from given
    group by window_name, engine_id
)
select h.window_name, h.engine_id, coalesce(s.n_requests, 0), coalesce(s.work_frac, 0),
       h.in_flight, h.in_flight_tokens, coalesce(h.hot_frac, 0), s.queue_ms, s.cached_frac,
       coalesce(s.prefix_frac, 0), coalesce(s.prefix_here_frac, 0)
from in_hand h
left join shares s on s.window_name = h.window_name and s.engine_id = h.engine_id;
