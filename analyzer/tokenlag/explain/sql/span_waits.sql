-- Waits and prefills of requests whose engine left no steps. Where the front end's part is only
-- what the other parts leave over, it may hold the wait for a step in flight, so it counts as wait.
select f.request_key, coalesce(f.engine_id, '') || ' ' || f.window_name as engine, f.n_new,
       case when f.is_frontend_measured then r.scheduled_ns - cast(coalesce(f.queue_ms, 0) * 1e6 as bigint)
            else f.arrival_ns end as queued_ns,
       r.scheduled_ns, r.prefilled_ns
from request_facts f join requests r using (request_key)
where f.n_new > 0 and r.scheduled_ns is not null and r.prefilled_ns is not null
  and (f.epoch_key is null or f.epoch_key not in (select epoch_key from steps));
