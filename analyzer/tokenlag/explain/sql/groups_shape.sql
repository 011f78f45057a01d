-- Groups of the current window's requests, the largest first.
select shape_of(n_prompt, n_output), count(*) from request_facts
where window_name = 'current' and shape_of(n_prompt, n_output) is not null
group by 1 order by 2 desc, 1;
