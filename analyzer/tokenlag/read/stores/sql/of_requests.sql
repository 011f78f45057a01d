Timestamp >= fromUnixTimestamp64Nano({first_ns:Int64})
    and Timestamp < fromUnixTimestamp64Nano({last_ns:Int64})
    and SpanName != {step_name:String}
    and (${IS_SEED} or TraceId in (${WHOLE_TRACES}))
    and TraceId in (${TRACES})
