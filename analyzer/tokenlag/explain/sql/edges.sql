-- What the client saw against what the server did, request by request. Across hosts a clock
-- may be off by a constant: only what is above the fastest requests counts there, and no more
-- than the round trip, which is a difference of two durations and knows no skew.
insert into edges
with told as (
    select request_key,
           -- The first phase on the way in says whether one clock gave both stamps.
           arg_min(clock, start_ns) filter (kind = 'network_in') as clock,
           sum((end_ns - start_ns) / 1e6) filter (kind = 'network_in') as network_in_ms,
           sum((end_ns - start_ns) / 1e6)
               filter (kind = 'frontend' and detail is distinct from 'detokenize') as frontend_ms,
           bool_or(origin = 'derived')
               filter (kind = 'frontend' and detail is distinct from 'detokenize') as is_frontend_derived
    from phases
    group by request_key
),
-- What gateways held it, by their own clocks: neither the network's nor the way back's.
held as (
    select request_key, sum(upstream_ns - start_ns) / 1e6 as hold_ms
    from hops where upstream_ns is not null group by request_key
),
raw as (
    select f.request_key, f.window_name, r.dataset, r.n_prompt,
           case when r.client_first_ns >= r.sent_ns then (r.client_first_ns - r.sent_ns) / 1e6 end as client_ttft_ms,
           case when r.client_end_ns >= r.sent_ns then (r.client_end_ns - r.sent_ns) / 1e6 end as client_e2e_ms,
           -- Requests that only a client told of have no server to compare with.
           f.ttft_ms, case when f.is_aborted then null else (r.end_ns - r.arrival_ns) / 1e6 end as e2e_ms,
           r.engine_ns is not null or r.first_token_ns is not null as has_server,
           coalesce((r.arrival_ns - r.sent_ns) / 1e6, t.network_in_ms) as way_in_ms,
           coalesce(t.clock = 'same', false) as is_same_clock,
           r.client_gap_p50_ms, coalesce(h.hold_ms, 0) as hold_ms,
           t.frontend_ms, t.is_frontend_derived,
           -- A server of one span has no stamp of its own for the engine.
           case when r.engine_ns > r.arrival_ns then (r.engine_ns - r.arrival_ns) / 1e6 end as handed_ms
    from request_facts f
    join requests r using (request_key)
    left join told t using (request_key)
    left join held h using (request_key)
),
late as (
    select * replace (case when has_server or hold_ms = 0 then way_in_ms - hold_ms end as way_in_ms),
           case when has_server then client_ttft_ms - ttft_ms - hold_ms end as late_first_ms,
           case when has_server then client_e2e_ms - e2e_ms - hold_ms end as late_end_ms,
           coalesce(frontend_ms, handed_ms) as front_ms,
           case when frontend_ms is not null then if(is_frontend_derived, 'derived', 'measured')
                when handed_ms is not null then 'between stamps' end as front_basis
    from raw
),
floors as (
    select dataset,
           quantile_cont(way_in_ms, 0.01) filter (not is_same_clock) as way_in_ms,
           greatest(quantile_cont(least(late_first_ms, late_end_ms), 0.01), 0) as way_ms
    from late
    group by dataset
),
fronts as (
    -- The fastest of its length: with nobody ahead. A few requests of a length say little.
    select dataset, tokens_class(n_prompt) as shape,
           case when count(*) >= 20 then quantile_cont(front_ms, 0.02) end as floor_ms
    from late
    where front_ms is not null
    group by dataset, tokens_class(n_prompt)
),
front as (
    select dataset, quantile_cont(front_ms, 0.02) as floor_ms from late where front_ms is not null group by dataset
),
ways as (
    select l.*, s.floor_ms as shape_floor_ms, a.floor_ms as any_floor_ms,
           case when l.is_same_clock then 0 else f.way_ms end as base_ms,
           case when l.is_same_clock then greatest(l.way_in_ms, 0)
                else least(greatest(l.way_in_ms - f.way_in_ms, 0), coalesce(greatest(l.late_end_ms, 0), 1e18)) end as in_ms,
           case when l.way_in_ms is null then null when l.is_same_clock then 'same clock'
                when l.late_end_ms is not null then 'above the fastest, within the round trip'
                else 'above the fastest' end as in_basis
    from late l
    join floors f using (dataset)
    left join fronts s on s.dataset = l.dataset and s.shape is not distinct from tokens_class(l.n_prompt)
    left join front a on a.dataset = l.dataset
)
select request_key, window_name, client_ttft_ms, client_e2e_ms, late_first_ms, late_end_ms,
       in_ms, in_basis,
       greatest(late_first_ms - base_ms - coalesce(in_ms, 0), 0),
       greatest(late_end_ms - base_ms - coalesce(in_ms, 0), 0),
       client_gap_p50_ms, front_ms, front_basis, coalesce(shape_floor_ms, any_floor_ms)
from ways;
