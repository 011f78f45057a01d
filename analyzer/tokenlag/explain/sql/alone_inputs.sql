-- What the alone cost of a request depends on.
select request_key, window_name, epoch_key, n_prompt, n_new, n_output, prefill_ms, tpot_ms,
       is_prefill_only
from request_facts
order by request_key;
