-- From when to when the spans go by which the window's traces were found.
select count() as n, min(start_ns) as first_ns, max(end_ns) as last_ns from (${SEEDS})
