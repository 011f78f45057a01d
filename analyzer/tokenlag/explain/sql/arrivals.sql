-- Requests of one dataset by arrival, as the load's client saw them.
select request_key, coalesce(sent_ns, arrival_ns) as arrival_ns,
       coalesce(client_end_ns, end_ns) as end_ns, coalesce(first_token_ns, client_first_ns) as first_token_ns
from requests
where dataset = ?
order by 2, 1;
