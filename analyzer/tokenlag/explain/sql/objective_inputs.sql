-- The figures that objectives limit, a row a request.
select ttft_ms, tpot_ms, e2e_ms
from request_facts
where window_name = 'current' and not is_aborted;
