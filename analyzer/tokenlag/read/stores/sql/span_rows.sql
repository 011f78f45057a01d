select
    {source:String} as source,
    lower(TraceId) as trace_id,
    lower(SpanId) as span_id,
    nullIf(lower(ParentSpanId), '') as parent_id,
    SpanName as name,
    toInt8(transform(
        lower(replaceOne(SpanKind, 'SPAN_KIND_', '')),
        ['internal', 'server', 'client', 'producer', 'consumer'], [1, 2, 3, 4, 5], 0)) as kind,
    nullIf(toUnixTimestamp64Nano(Timestamp), 0) as start_ns,
    nullIf(toUnixTimestamp64Nano(Timestamp), 0) + toInt64(Duration) as end_ns,
    toInt8(transform(lower(replaceOne(StatusCode, 'STATUS_CODE_', '')), ['ok', 'error'], [1, 2], 0)) as status_code,
    nullIf(${SCOPE}, '') as scope,
    ${COLUMNS}
from ${TABLE} as t
where match(TraceId, '^[0-9a-fA-F]{32}$') and match(SpanId, '^[0-9a-fA-F]{16}$')
    and ${WHICH}
