-- Step models of the epochs that the current window touches.
select engine_id, level, reason, n_steps, n_mixed_steps, error_decode_frac, error_mixed_frac,
       base_ms, per_seq_ms, per_token_ms, per_context_ms, knee_tokens
from step_fit
where epoch_key in (select distinct epoch_key from step_costs where window_name = 'current')
order by engine_id, epoch_key;
