-- Per request, what the comparison of windows is made of.
select window_name, arrival_ns, weight, n_prompt, n_new, n_output, network_in_ms, frontend_ms,
       queue_ms, requeue_ms, prefill_ms, decode_ms, delivery_ms, uncovered_ms, ttft_ms, e2e_ms
from request_facts
where not is_open and not is_aborted
order by arrival_ns;
