-- What the requests of the window ask for, in order of arrival.
select arrival_ns, n_prompt, n_new, n_output
from request_facts
where window_name = 'current' and not is_aborted
order by arrival_ns, request_key;
