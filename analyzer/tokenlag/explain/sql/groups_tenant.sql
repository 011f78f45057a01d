-- Groups of the current window's requests, the largest first.
select tenant, count(*) from request_facts
where window_name = 'current' and tenant is not null
group by 1 order by 2 desc, 1;
