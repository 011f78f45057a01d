-- What each engine's steps sum up to, and the products of which a least-squares fit is made:
-- x = (1, decoding requests, prompt tokens, prompt attention, context tokens), y = the step's time.
-- Steps after a hole in the record, and those of many times the usual length, shape no fit.
select
    engine,
    count() as n_steps,
    sum(cadence_ms) as busy_ms,
    sumIf(cadence_ms, cadence_ms > {long_factor:Float64} * usual_ms and tokens = 0) as stopped_ms,
    countIf(is_usable) as n_fitted,
    sumIf(cadence_ms, is_usable) as y,
    sumForEach(arrayMap(v -> if(is_usable, v, 0.), x)) as x_sums,
    sumForEach(arrayMap(v -> if(is_usable, v * cadence_ms, 0.), x)) as xy,
    sumForEach(arrayMap(v -> if(is_usable, v, 0.), arrayFlatten(arrayMap(a -> arrayMap(b -> a * b, x), x)))) as xx
from (
    select
        *,
        [1., toFloat64(decoding), toFloat64(tokens), attention, toFloat64(context)] as x,
        cadence_ms > 0 and step_index = index_before + 1
            and cadence_ms <= {long_factor:Float64} * usual_ms as is_usable
    from (
        select
            engine, step_index, decoding, tokens, attention, context,
            lagInFrame(step_index, 1, step_index) over earlier as index_before,
            greatest(end_ns - greatest(start_ns, lagInFrame(end_ns, 1, start_ns) over earlier), 0) / 1e6 as cadence_ms,
            quantileTDigest(0.5)((end_ns - start_ns) / 1e6) over (partition by engine) as usual_ms
        from (
            select
                ${ENGINE} as engine,
                ifNull(${EPOCH}, 0) as epoch,
                ifNull(${STEP_INDEX}, -1) as step_index,
                toUnixTimestamp64Nano(Timestamp) as start_ns,
                ${END_NS} as end_ns,
                ifNull(${DECODING}, 0) as decoding,
                ${CHUNK_TOKENS} as chunk_tokens,
                ${CHUNK_CONTEXT} as chunk_context,
                arraySum(chunk_tokens) as tokens,
                toFloat64(arraySum(arrayMap(
                    (c, k) -> c * (k + c / 2), chunk_tokens,
                    arrayResize(chunk_context, length(chunk_tokens), 0)))) as attention,
                ifNull(${CONTEXT}, 0) as context
            from ${TABLE} as t
            where SpanName = {step_name:String}
                and Timestamp >= fromUnixTimestamp64Nano({from_ns:Int64})
                and Timestamp < fromUnixTimestamp64Nano({to_ns:Int64})
                and Duration > 0
        )
        window earlier as (
            partition by engine, epoch order by step_index
            rows between unbounded preceding and unbounded following
        )
    )
)
group by engine
