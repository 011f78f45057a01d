-- Requests that came before the current window and were not over when it began.
select count(*)
from requests r join windows w on w.name = 'current' and w.dataset = r.dataset
where r.arrival_ns < w.from_ns and coalesce(r.end_ns, w.to_ns) > w.from_ns;
