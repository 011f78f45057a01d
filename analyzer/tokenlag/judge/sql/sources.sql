-- How many of the window's requests each dialect told of.
select dialect, count(*) from (
    select unnest(string_split(r.dialects, ',')) as dialect
    from requests r join request_facts f using (request_key)
    where f.window_name = 'current')
group by 1 order by 2 desc, 1;
