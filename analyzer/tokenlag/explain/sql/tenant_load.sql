-- What each tenant asked for, in mean requests of the baseline (without one: of the window).
insert into tenant_load
with price as (
    select window_name, span_s, coalesce(prefill_share_frac, 0.5) as prefill_frac,
           coalesce(first_value(mean_new) over by_age, mean_new) as mean_new,
           coalesce(first_value(mean_output) over by_age, mean_output) as mean_output
    from demand
    window by_age as (order by window_name = 'current')
)
select f.window_name, f.tenant, sum(f.weight), sum(f.weight) / any_value(p.span_s),
       sum(f.weight * (p.prefill_frac * coalesce(f.n_new / nullif(p.mean_new, 0), 1)
                       + (1 - p.prefill_frac) * coalesce(f.n_output / nullif(p.mean_output, 0), 1)))
           / any_value(p.span_s),
       sum(f.weight * f.queue_ms) / nullif(sum(f.weight) filter (f.queue_ms is not null), 0),
       sum(f.weight * f.ttft_ms) / nullif(sum(f.weight) filter (f.ttft_ms is not null), 0)
from request_facts f
join price p on p.window_name = f.window_name
where f.tenant is not null and p.span_s > 0
group by f.window_name, f.tenant;
