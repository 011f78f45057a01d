-- What the requests of the window ask for, and what they wait outside the engine, in order of arrival.
select f.arrival_ns, f.n_prompt, f.n_new, f.n_output, f.network_in_ms, f.frontend_ms, f.delivery_ms,
       -- Beyond what the server took: a difference of two durations, which knows no skew of clocks.
       case when r.client_first_ns >= r.sent_ns then (r.client_first_ns - r.sent_ns) / 1e6 - f.ttft_ms end as client_late_ms
from request_facts f
join requests r using (request_key)
where f.window_name = 'current' and not f.is_aborted
order by f.arrival_ns, f.request_key;
