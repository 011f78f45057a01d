-- The requests of one window as a load test would list them; what the server saw.
select f.arrival_ns, f.ttft_ms, f.e2e_ms, f.n_prompt, f.n_output, f.is_aborted, f.weight,
    w.from_ns, w.to_ns, r.model
from request_facts f join requests r using (request_key) join windows w on w.name = f.window_name
where f.window_name = ? and not f.is_open
order by f.arrival_ns, f.request_key
