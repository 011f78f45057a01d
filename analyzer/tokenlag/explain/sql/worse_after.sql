-- Whether anything that clients see is slower, on average, for requests that came from $1 on than
-- for those before; true where nothing of it is known.
with sides as (
    select avg(ttft_ms) filter (arrival_ns >= $1) > avg(ttft_ms) filter (arrival_ns < $1) as ttft,
           avg(tpot_ms) filter (arrival_ns >= $1) > avg(tpot_ms) filter (arrival_ns < $1) as tpot,
           avg(e2e_ms) filter (arrival_ns >= $1) > avg(e2e_ms) filter (arrival_ns < $1) as e2e
    from request_facts where window_name = 'current'
)
select coalesce(ttft or tpot or e2e, true) from sides
