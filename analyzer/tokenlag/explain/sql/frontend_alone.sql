-- A request that is alone passes the front end as well: the fastest of its kind show what that takes.
update request_facts as f
set alone_ttft_ms = f.alone_ttft_ms + e.frontend_floor_ms,
    alone_e2e_ms = f.alone_e2e_ms + e.frontend_floor_ms
from edges e
where e.request_key = f.request_key and e.frontend_floor_ms is not null;
