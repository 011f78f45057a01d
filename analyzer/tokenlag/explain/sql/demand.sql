-- What each window asked of the engines, and what a unit of work cost there.
insert into demand
with asked as (
    select window_name,
           sum(weight) as n_requests,
           sum(weight * n_prompt) / nullif(sum(weight) filter (n_prompt is not null), 0) as mean_prompt,
           sum(weight * n_new) / nullif(sum(weight) filter (n_new is not null), 0)       as mean_new,
           sum(weight * n_cached) / nullif(sum(weight * n_prompt) filter (n_cached is not null), 0)
               as mean_cached_frac,
           sum(weight * n_output) / nullif(sum(weight) filter (n_output is not null), 0) as mean_output,
           sum(decode_ms) filter (n_output >= 2)
               / nullif(sum(n_output - 1) filter (n_output >= 2 and decode_ms is not null), 0) as itl_ms
    from request_facts
    group by window_name
),
priced as (
    -- Prefill per token by the median request: a few stretched ones do not move it.
    select window_name, median(prefill_ms / n_new) as prefill_ms_per_token
    from request_facts
    where prefill_ms is not null and n_new > 0
    group by window_name
),
stepped as (
    select window_name,
           sum(n_decode * n_decode)::double / nullif(sum(n_decode), 0)        as mean_batch,
           sum(prefill_ms) / nullif(sum(cadence_ms), 0)                       as prefill_share_frac,
           sum(cadence_ms)                                                    as busy_ms,
           count(distinct epoch_key)                                          as n_epochs
    from step_costs
    group by window_name
),
crowd as (
    select c.window_name,
           sum(s.n_running * c.wall_ms) / nullif(sum(c.wall_ms) filter (s.n_running is not null), 0) as mean_running,
           sum(s.n_waiting * c.wall_ms) / nullif(sum(c.wall_ms) filter (s.n_waiting is not null), 0) as mean_waiting
    from step_costs c join steps s using (epoch_key, step_index)
    group by c.window_name
)
select w.name, (w.to_ns - w.from_ns) / 1e9, a.n_requests,
       a.n_requests / ((w.to_ns - w.from_ns) / 1e9),
       a.mean_prompt, a.mean_new, a.mean_cached_frac, a.mean_output,
       p.prefill_ms_per_token, a.itl_ms, s.mean_batch, s.prefill_share_frac,
       least(1.0, s.busy_ms / nullif(s.n_epochs * (w.to_ns - w.from_ns) / 1e6, 0)),
       c.mean_running, c.mean_waiting, false
from windows w
join asked a on a.window_name = w.name
left join priced p on p.window_name = w.name
left join stepped s on s.window_name = w.name
left join crowd c on c.window_name = w.name;
