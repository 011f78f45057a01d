-- What is known of the sequences that one epoch's steps name by handle.
select s.request_index, s.seq_key, s.request_key, r.request_id, r.tenant, f.window_name,
       coalesce(f.n_new, s.n_prompt - coalesce(s.n_cached, 0)) as n_new
from sequences s
left join requests r using (request_key)
left join request_facts f using (request_key)
where s.epoch_key = ? and s.request_index is not null
