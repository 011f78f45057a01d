-- The same way, as far as the canonical tables need it: every declared attribute that occurs, and
-- each line's first resource and scope. Looking dozens of keys up in a map of each span takes
-- minutes, so attributes become rows, which a grouping turns into columns. {data} and {out} are
-- file paths, {columns} the attributes as aggregates, {resources} the resource's columns, {wanted}
-- the list of declared keys.
copy (
    with lines as (
        select
            json_extract(json, '$.resourceSpans[*].scopeSpans[*].spans[*]') as spans,
            map_from_entries(json_transform(json_extract(json, '$.resourceSpans[0].resource.attributes'),
                '[{{"key": "VARCHAR", "value": {{"stringValue": "VARCHAR", "intValue": "BIGINT",
                   "doubleValue": "DOUBLE", "boolValue": "BOOLEAN"}}}}]')) as resource,
            json_extract_string(json, '$.resourceSpans[0].scopeSpans[0].scope.name') as scope
        from read_ndjson_objects('{data}')
    ),
    origins as (
        select spans, scope, {resources} from lines
    ),
    typed as (
        select * exclude (spans), json_transform(unnest(spans), '{{
            "traceId": "VARCHAR", "spanId": "VARCHAR", "parentSpanId": "VARCHAR",
            "name": "VARCHAR", "kind": "TINYINT",
            "startTimeUnixNano": "BIGINT", "endTimeUnixNano": "BIGINT",
            "status": {{"code": "TINYINT"}},
            "attributes": [{{"key": "VARCHAR", "value": {{
                "stringValue": "VARCHAR", "intValue": "BIGINT",
                "doubleValue": "DOUBLE", "boolValue": "BOOLEAN",
                "arrayValue": {{"values": [{{"stringValue": "VARCHAR", "intValue": "BIGINT"}}]}}}}}}]}}') as s
        from origins
    ),
    told as materialized (
        select hash(s.traceId, s.spanId) as sid, * from typed
    ),
    attributes as (
        select sid, a.key, a.value.stringValue as s, a.value.intValue as i, a.value.doubleValue as d,
            a.value.boolValue as b, a.value.arrayValue.values as l
        from (select sid, unnest(s.attributes) as a from told)
        where a.key in ({wanted})
    ),
    grouped as (
        select sid, {columns} from attributes group by sid
    )
    select
        '{data}' as source,
        s.traceId as trace_id,
        s.spanId as span_id,
        nullif(s.parentSpanId, '') as parent_id,
        s.name,
        s.kind,
        s.startTimeUnixNano as start_ns,
        s.endTimeUnixNano as end_ns,
        coalesce(s.status.code, 0) as status_code,
        told.* exclude (sid, s),
        grouped.* exclude (sid)
    from told left join grouped using (sid)
) to '{out}' (format parquet, compression lz4)
