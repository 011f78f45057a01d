-- Steps with work in hand of the windows, by engine, in order.
select c.window_name, e.engine_id, c.epoch_key, c.step_index, c.end_ns, c.wall_ms, c.n_prefill_tokens,
       c.n_decode, s.attention_work, coalesce(s.n_context_tokens, 0) as n_context_tokens, c.n_streams,
       c.n_streams + coalesce(c.n_waiting, 0) as n_victims,
       c.fitted_ms, c.wall_ms - c.fitted_ms as excess_ms,
       (c.end_ns - e.start_ns) / 1e9 as age_s
from step_costs c
join steps s using (epoch_key, step_index)
join epochs e using (epoch_key)
where c.n_streams > 0 or c.n_prefill_tokens > 0
order by e.engine_id, c.epoch_key, c.step_index;
