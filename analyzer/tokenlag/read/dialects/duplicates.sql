-- Spans that were exported twice (retries, two pipelines into one folder). Only a query
-- over the ids while nothing is wrong.
create table staging.duplicate_rows as
with suspects as (  -- by a hash, which is a third of the work of comparing ids
    select hash(trace_id, span_id) as sid from raw_spans
    where trace_id is not null and span_id is not null
    group by sid having count(*) > 1
)
select r.filename, r.file_row_number
from raw_spans r semi join suspects s on s.sid = hash(r.trace_id, r.span_id)
where r.trace_id is not null and r.span_id is not null
qualify row_number() over (
    -- The copy that has an end knows more.
    partition by trace_id, span_id order by end_ns desc nulls last, filename, file_row_number
) > 1;

insert into st_notes
select 'duplicate_spans', null, count(*),
    count(*) || ' spans came more than once; one of each is kept'
from duplicate_rows having count(*) > 0;
