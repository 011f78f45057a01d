-- When there is anything to diagnose: first and last moment, and how many spans.
select
    count() as n, toUnixTimestamp64Nano(min(Timestamp)) as first_ns, max(${END_NS}) as last_ns
from ${TABLE} as t
where ${IS_SEED} or SpanName = {step_name:String}
