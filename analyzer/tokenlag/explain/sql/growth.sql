-- How the offered work grew from baseline to window, by factor.
insert into growth
with limits as (
    select f.window_name, min(e.max_seqs) as max_seqs, min(e.max_batch_tokens) as max_batch_tokens,
           min(e.kv_tokens) as kv_tokens
    from request_facts f join epochs e using (epoch_key)
    group by f.window_name
),
shrunk as (
    -- A limit matters as far as it fell, and only if requests wait.
    select greatest(coalesce(ln(b.max_seqs / nullif(c.max_seqs, 0)), 0),
                    coalesce(ln(b.max_batch_tokens / nullif(c.max_batch_tokens, 0)), 0),
                    coalesce(ln(b.kv_tokens / nullif(c.kv_tokens, 0)), 0)) as fell
    from limits c, limits b
    where c.window_name = 'current' and b.window_name = 'baseline'
),
grew as (
    select ln(c.requests_per_s / b.requests_per_s) as arrivals,
           ln(greatest(c.mean_prompt, 1) / greatest(b.mean_prompt, 1)) as prompt,
           ln(greatest(c.mean_new / greatest(c.mean_prompt, 1), 0.001)
              / greatest(b.mean_new / greatest(b.mean_prompt, 1), 0.001)) as uncached,
           ln(greatest(c.mean_output, 1) / greatest(b.mean_output, 1)) as output,
           ln(c.prefill_ms_per_token / b.prefill_ms_per_token) as price,
           -- Mean of both windows: what grew a lot weighs with what it came to take.
           (coalesce(b.prefill_share_frac, 0.5) + coalesce(c.prefill_share_frac, 0.5)) / 2 as weight
    from demand c, demand b
    where c.window_name = 'current' and b.window_name = 'baseline'
),
factors as (
    select unnest([
        {'factor': 'arrivals', 'log_growth': arrivals},
        {'factor': 'prompts', 'log_growth': prompt * weight},
        {'factor': 'cache', 'log_growth': uncached * weight},
        {'factor': 'outputs', 'log_growth': output * (1 - weight)},
        {'factor': 'speed', 'log_growth': price * weight},
        {'factor': 'limit', 'log_growth': coalesce((select fell from shrunk), 0)}
    ]) as f
    from grew
)
select f.factor, f.log_growth,
       coalesce(greatest(f.log_growth, 0) / nullif(sum(greatest(f.log_growth, 0)) over (), 0), 0)
from factors
where f.log_growth is not null and isfinite(f.log_growth);
