-- Traces of requests that were under way in the window.
select TraceId from (${SEEDS}) group by TraceId
