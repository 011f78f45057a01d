-- Steps of one engine run in the current window.
select c.cadence_ms, c.n_prefill_tokens, c.n_decode, s.n_context_tokens
from step_costs c join steps s using (epoch_key, step_index)
where c.epoch_key = ? and c.window_name = 'current' and c.cadence_ms > 0;
