-- Each request's longest gap between tokens, from `worst_gaps`.
update request_facts as f
set itl_max_ms = greatest(coalesce(f.itl_max_ms, 0), g.itl_max_ms)
from (select s.request_key, max(w.itl_max_ms) as itl_max_ms
      from worst_gaps w join sequences s using (seq_key) group by s.request_key) as g
where f.request_key = g.request_key and g.itl_max_ms > 0;
