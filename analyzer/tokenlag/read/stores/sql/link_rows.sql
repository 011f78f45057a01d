-- The links of the spans whose are wanted, the first few of each, as events.
select lower(TraceId) as trace_id, lower(SpanId) as span_id,
    toUnixTimestamp64Nano(Timestamp) as time_ns, {link:String} as name,
    lower(linked.1) as `link.trace_id`, lower(linked.2) as `link.span_id`
from ${TABLE} as t
array join arraySlice(arrayZip(`Links.TraceId`, `Links.SpanId`), 1, {max_links:UInt32}) as linked
where SpanName in {link_names:Array(String)}
    and match(TraceId, '^[0-9a-fA-F]{32}$') and match(SpanId, '^[0-9a-fA-F]{16}$')
    and match(linked.1, '^[0-9a-fA-F]{32}$') and match(linked.2, '^[0-9a-fA-F]{16}$')
    and ${WHICH}
