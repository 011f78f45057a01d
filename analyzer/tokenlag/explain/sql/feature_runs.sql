-- Decode runs of the requests that carry a feature, by engine run and feature.
select m.epoch_key, unnest(string_split(r.features, ',')) as feature, m.first_step, m.last_step
from memberships m
join sequences q using (seq_key)
join requests r on r.request_key = q.request_key
where r.features is not null and r.features <> '';
