-- Traces that an engine's own spans are in, or that tell of a request of theirs by its id: the
-- two sides may be traces of their own.
(
    TraceId global in (
        select TraceId from ${TABLE} as t
        where Timestamp >= fromUnixTimestamp64Nano({from_ns:Int64} - {reach_ns:Int64})
            and Timestamp < fromUnixTimestamp64Nano({to_ns:Int64} + {reach_ns:Int64})
            and SpanName in {sequence_names:Array(String)} and ${ENGINE} in {engines:Array(String)}
    )
    or ${REQUEST_ID} global in (
        select ${REQUEST_ID} from ${TABLE} as t
        where Timestamp >= fromUnixTimestamp64Nano({from_ns:Int64} - {reach_ns:Int64})
            and Timestamp < fromUnixTimestamp64Nano({to_ns:Int64} + {reach_ns:Int64})
            and SpanName in {sequence_names:Array(String)} and ${ENGINE} in {engines:Array(String)}
            and ${REQUEST_ID} != ''
    )
)
