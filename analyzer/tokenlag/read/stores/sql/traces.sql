-- Traces of requests that were under way in the window. One that began more than an hour before
-- is not looked for.
select TraceId
from ${TABLE} as t
where Timestamp >= fromUnixTimestamp64Nano({from_ns:Int64} - {reach_ns:Int64})
    and Timestamp < fromUnixTimestamp64Nano({to_ns:Int64})
    and ${END_NS} >= {from_ns:Int64}
    and ${IS_SEED}
    and ${OF_ENGINES}
group by TraceId
