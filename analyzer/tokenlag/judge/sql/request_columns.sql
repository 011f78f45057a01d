-- Everything of the windows' requests that figures are made of.
select window_name, request_key, arrival_ns, end_ns, weight, is_aborted, is_open, is_prefill_only,
       is_first_wave, engine_id, tenant, n_prompt, n_new, n_output, network_in_ms, frontend_ms,
       queue_ms, requeue_ms, prefill_ms, decode_ms, delivery_ms, uncovered_ms, ttft_ms, e2e_ms,
       tpot_ms, itl_max_ms, alone_ttft_ms, alone_prefill_ms, alone_itl_ms, alone_e2e_ms,
       behind_long_ms
from request_facts
order by arrival_ns, request_key;
