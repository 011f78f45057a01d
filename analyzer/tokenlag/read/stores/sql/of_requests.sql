-- GLOBAL: where the table is one of a cluster, each part is held against the traces of all.
Timestamp >= fromUnixTimestamp64Nano({first_ns:Int64})
    and Timestamp < fromUnixTimestamp64Nano({last_ns:Int64})
    and SpanName != {step_name:String}
    and (${IS_SEED} or TraceId global in (${WHOLE_TRACES}))
    and TraceId global in (${TRACES})
