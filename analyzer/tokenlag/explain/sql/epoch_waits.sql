-- First waits of one epoch's requests, with how much they had to compute.
select s.request_index, p.start_ns, p.end_ns, f.n_new
from phases p
join sequences s using (seq_key)
join request_facts f on f.request_key = p.request_key
where s.epoch_key = ? and p.kind = 'queue' and p.end_ns > p.start_ns and f.n_new is not null
