-- From when to when the window's traces go, by the table that the exporter keeps for that.
select
    count() as n, toInt64(toUnixTimestamp(min(Start))) as first_s, toInt64(toUnixTimestamp(max(End))) as last_s
from ${LOOKUP}
where Start >= fromUnixTimestamp64Nano({from_ns:Int64} - {far_ns:Int64})
    and Start < fromUnixTimestamp64Nano({to_ns:Int64} + {far_ns:Int64})
    and TraceId global in (${TRACES})
