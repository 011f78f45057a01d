SpanName = {step_name:String}
    and Timestamp >= fromUnixTimestamp64Nano({from_ns:Int64})
    and Timestamp < fromUnixTimestamp64Nano({to_ns:Int64})
    and ${OF_ENGINES}
