-- How many requests began in the window, and when the last of what began in it ended.
select
    countIf(SpanName not in {phase_names:Array(String)}) as n_arrivals, max(${END_NS}) as last_ns
from ${TABLE} as t
where Timestamp >= fromUnixTimestamp64Nano({from_ns:Int64})
    and Timestamp < fromUnixTimestamp64Nano({to_ns:Int64})
    and ${IS_SEED} and ${OF_ENGINES}
