-- Engine runs with steps in the current window.
select distinct s.epoch_key
from steps s join epochs e using (epoch_key) join windows w using (dataset)
where w.name = 'current' and s.end_ns >= w.from_ns and s.end_ns < w.to_ns
order by 1;
