-- The window's requests, as examples to look at.
select trace_id, request_id, ttft_ms, e2e_ms, request_key
from request_facts
where window_name = 'current';
