-- The part of each wait behind a much longer prompt, from `behind`.
update request_facts as f
set behind_long_ms = b.behind_ms, behind_key = b.behind_key
from (select request_key, sum(behind_ms) as behind_ms, arg_max(behind_key, behind_ms) as behind_key
      from behind where request_key >= 0 group by request_key) as b
where f.request_key = b.request_key;
