-- The steps of one epoch, in order.
select step_index, start_ns, end_ns, cadence_ms, idle_ms, n_prefill_tokens, n_chunks,
       attention_work, n_decode, n_context_tokens, n_running, n_waiting, kv_usage_frac,
       kv_reserved_frac, admit_bound, is_after_hole
from steps where epoch_key = ? order by step_index
