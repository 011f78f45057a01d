select lower(TraceId) as trace_id, lower(SpanId) as span_id,
    toUnixTimestamp64Nano(event_time) as time_ns, event_name as name ${COLUMNS}
from ${TABLE} as t
array join `Events.Timestamp` as event_time, `Events.Name` as event_name, `Events.Attributes` as event_held
where event_name in {event_names:Array(String)}
    and match(TraceId, '^[0-9a-fA-F]{32}$') and match(SpanId, '^[0-9a-fA-F]{16}$')
    and ${WHICH}
