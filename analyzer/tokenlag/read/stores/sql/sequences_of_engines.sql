-- The same times as in `traces.sql`, and after the window.
select ${TOLD} from ${TABLE} as t
where Timestamp >= fromUnixTimestamp64Nano({from_ns:Int64} - {reach_ns:Int64})
    and Timestamp < fromUnixTimestamp64Nano({to_ns:Int64} + {reach_ns:Int64})
    and SpanName in {sequence_names:Array(String)} and ${ENGINE} in {engines:Array(String)}
    and ${TOLD} != ''
union all
select ${TOLD} from ${TABLE} as t
where Timestamp >= fromUnixTimestamp64Nano({from_ns:Int64} - {far_ns:Int64})
    and Timestamp < fromUnixTimestamp64Nano({from_ns:Int64} - {reach_ns:Int64})
    and Duration >= {reach_ns:UInt64}
    and SpanName in {sequence_names:Array(String)} and ${ENGINE} in {engines:Array(String)}
    and ${TOLD} != ''
