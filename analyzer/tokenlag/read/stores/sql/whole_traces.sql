-- Traces of dialects that read what hangs below their spans, whatever its name.
select TraceId from ${TABLE} as t
where Timestamp >= fromUnixTimestamp64Nano({first_ns:Int64})
    and Timestamp < fromUnixTimestamp64Nano({last_ns:Int64})
    and match(SpanName, {patterns:String})
