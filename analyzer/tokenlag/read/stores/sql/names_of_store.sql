select SpanName as name, count() as n from ${TABLE} group by name order by n desc, name limit 4
