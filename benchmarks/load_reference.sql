-- DuckDB's fastest way from OTLP JSON lines to flat rows: whole lines, one unnest over a
-- path, one typed cast for each span. {data} and {out} are file paths.
copy (
    with spans as (
        select unnest(json_extract(json, '$.resourceSpans[*].scopeSpans[*].spans[*]')) as span
        from read_ndjson_objects('{data}')
    ),
    typed as (
        select json_transform(span, '{{
            "traceId": "VARCHAR", "spanId": "VARCHAR", "parentSpanId": "VARCHAR",
            "name": "VARCHAR", "kind": "INTEGER",
            "startTimeUnixNano": "BIGINT", "endTimeUnixNano": "BIGINT",
            "attributes": [{{"key": "VARCHAR", "value": {{
                "stringValue": "VARCHAR", "intValue": "BIGINT",
                "doubleValue": "DOUBLE", "boolValue": "BOOLEAN"}}}}]}}') as s
        from spans
    ),
    mapped as (
        select s, map_from_entries(s.attributes) as attribute from typed
    )
    select
        s.traceId as trace_id,
        s.spanId as span_id,
        s.parentSpanId as parent_id,
        s.name,
        s.kind,
        s.startTimeUnixNano as start_ns,
        s.endTimeUnixNano as end_ns,
        attribute['gen_ai.request.id'].stringValue as request_id,
        attribute['gen_ai.usage.input_tokens'].intValue as n_prompt,
        attribute['tokenlag.engine.id'].stringValue as engine_id,
        attribute['tokenlag.step.index'].intValue as step_index,
        attribute['tokenlag.step.decode.count'].intValue as n_decode,
        attribute['tokenlag.step.kv_usage'].doubleValue as kv_usage_frac
    from mapped
) to '{out}' (format parquet, compression zstd)
