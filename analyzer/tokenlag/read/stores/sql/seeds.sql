-- Spans of requests that were under way in the window. What began long before it took longer
-- than requests do: few rows are so, and an index on durations finds them. What began more than
-- a day before is not looked for.
select ${TOLD}
from ${TABLE} as t
where Timestamp >= fromUnixTimestamp64Nano({from_ns:Int64} - {reach_ns:Int64})
    and Timestamp < fromUnixTimestamp64Nano({to_ns:Int64})
    and ${END_NS} >= {from_ns:Int64}
    and ${IS_SEED}
    and ${OF_ENGINES}
union all
select ${TOLD}
from ${TABLE} as t
where Timestamp >= fromUnixTimestamp64Nano({from_ns:Int64} - {far_ns:Int64})
    and Timestamp < fromUnixTimestamp64Nano({from_ns:Int64} - {reach_ns:Int64})
    and Duration >= {reach_ns:UInt64}
    and ${END_NS} >= {from_ns:Int64}
    and ${IS_SEED}
    and ${OF_ENGINES}
