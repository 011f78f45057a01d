-- Everything of the windows' requests that figures are made of.
select f.window_name, f.request_key, f.arrival_ns, f.end_ns, f.weight, f.is_aborted, f.is_open, f.is_prefill_only,
       f.is_first_wave, f.engine_id, f.tenant, f.n_prompt, f.n_new, f.n_output, f.network_in_ms, f.frontend_ms,
       f.queue_ms, f.requeue_ms, f.prefill_ms, f.decode_ms, f.delivery_ms, f.uncovered_ms, f.ttft_ms, f.e2e_ms,
       f.tpot_ms, f.itl_max_ms, f.alone_ttft_ms, f.alone_prefill_ms, f.alone_itl_ms, f.alone_e2e_ms,
       f.behind_long_ms, e.client_ttft_ms, e.late_first_ms, e.client_e2e_ms, e.late_end_ms
from request_facts f
left join edges e on e.request_key = f.request_key and e.window_name = f.window_name
order by f.arrival_ns, f.request_key;
