-- The front end's time where no span of it was written, from the stamps on either side.
update request_facts as f
set frontend_ms = e.frontend_ms
from edges e
where e.request_key = f.request_key and f.frontend_ms is null and e.frontend_basis = 'between stamps';
