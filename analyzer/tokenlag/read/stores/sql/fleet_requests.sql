-- What each engine's requests that began in the window saw. A request's spans may be of two
-- traces, which its id joins; a queue span has no id, and goes with its trace's only one.
select
    engine,
    count() as n_requests,
    countIf(is_error) as n_errors,
    quantilesTDigest(0.5, 0.9)(ttft_ms) as ttft_ms,
    quantilesTDigest(0.5, 0.9)(e2e_ms) as e2e_ms,
    quantilesTDigest(0.5, 0.9)(queue_ms) as queue_ms,
    quantilesTDigest(0.5, 0.9)(tpot_ms) as tpot_ms
from (
    select
        argMinIf(engine_of_span, Timestamp, is_sequence) as engine,
        countIf(is_sequence) as n_sequences,
        min(Timestamp) as began,
        max(first_ms) as ttft_ms,
        maxIf(Duration, is_request) / 1e6 as e2e_ms,
        greatest(sumIf(Duration, SpanName = {queue_name:String}) / 1e6, max(waited_ms)) as queue_ms,
        if(max(n_output) > 1 and ttft_ms > 0, (e2e_ms - ttft_ms) / (max(n_output) - 1), null) as tpot_ms,
        max(is_failed) as is_error
    from (
        select
            *,
            coalesce(id, if(min(id) over of_trace = max(id) over of_trace, max(id) over of_trace, null), TraceId) as request
        from (
            select
                Timestamp, TraceId, SpanName, Duration,
                ${ENGINE} as engine_of_span,
                nullIf(${REQUEST_ID}, '') as id,
                SpanName = {engine_request_name:String} or ${INDEX} != '' or ${ENGINE_ID} != ''
                    or SpanName = 'llm_request' as is_sequence,
                SpanName in {sequence_names:Array(String)} as is_request,
                coalesce(${FIRST_TOKEN_NS} / 1e6, ${FIRST_TOKEN_S} * 1e3) as first_ms,
                ifNull(${QUEUE_S} * 1e3, 0) as waited_ms,
                coalesce(${OUTPUT_TOKENS}, ${OUTPUT_TOKENS_OLD}) as n_output,
                SpanName in {sequence_names:Array(String)}
                    and lower(StatusCode) in ('error', 'status_code_error') as is_failed
            from ${TABLE} as t
            where Timestamp >= fromUnixTimestamp64Nano({from_ns:Int64})
                and Timestamp < fromUnixTimestamp64Nano({to_ns:Int64} + {reach_ns:Int64})
                and (SpanName in {sequence_names:Array(String)} or SpanName = {queue_name:String})
        )
        window of_trace as (partition by TraceId)
    )
    group by request
    having n_sequences > 0 and began < fromUnixTimestamp64Nano({to_ns:Int64})
)
group by engine
