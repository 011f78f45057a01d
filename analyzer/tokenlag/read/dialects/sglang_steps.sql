-- SGLang's engine steps, rebuilt from its requests. At trace level 3, its default, a request
-- has an event `schedule` for each batch that it was in, with the batch's id and size, and a
-- slice for each chunk of its prompt and each token. An event hangs on the slice that ended
-- next, which with overlapped scheduling is the step before: so a request's events are paired
-- with its slices by their order, never by where they hang. A step begins with its members'
-- first event and ends with their first result. How long each chunk of a prompt was is told
-- nowhere: a budget is filled greedily, as the scheduler does.

create table staging.g_event as
select n.root, v.time_ns, v.bid, v.batch_size, coalesce(v.forward_mode, '') = 'decode' as is_decode
from span_events v
join s_below b on b.sid = hash(v.trace_id, v.span_id)
join s_engine n on n.thread = b.thread
where v.name = 'schedule' and v.bid is not null and v.time_ns is not null
  and coalesce(v.forward_mode, '') <> 'prebuilt';  -- a prompt that another engine computed

-- An id has eight digits and comes back by chance: events of one batch are together in time.
create table staging.g_member as
with marked as (
    select e.*, h.engine, h.request_index,
        e.time_ns - lag(e.time_ns) over (partition by h.engine, e.bid order by e.time_ns) > 1_000_000_000 as is_other
    from g_event e join s_handle h on h.sid = e.root
)
select * exclude (is_other),
    coalesce(sum(is_other::int) over (partition by engine, bid order by time_ns
        rows between unbounded preceding and current row), 0) as turn
from marked;

-- --- which slice an event began -----------------------------------------------------------------------

create table staging.g_loops as
select root, list(end_ns order by end_ns) as ends
from s_slice where name = 'decode_loop' and end_ns is not null group by root;

-- Each computing of a prompt, with the ends of its chunks. One after a preemption computes what
-- had come out, too; what a cache kept of it is told nowhere.
create table staging.g_prompt as
with pass as (
    select root, start_ns, end_ns, row_number() over (partition by root order by start_ns) as nth
    from s_slice where name in ('prefill_forward', 'prefill')
)
select p.root, p.nth, any_value(p.start_ns) as start_ns,
    coalesce(list(c.end_ns order by c.end_ns) filter (c.end_ns is not null), [any_value(p.end_ns)]) as ends,
    any_value(case when p.nth > 1 then coalesce(len(list_filter(l.ends, lambda e: e <= p.start_ns)), 0) + 1 else 0 end) as n_out
from pass p
left join s_slice c on c.root = p.root and c.name = 'chunked_prefill'
    and c.start_ns >= p.start_ns and c.end_ns <= p.end_ns
left join g_loops l on l.root = p.root
group by p.root, p.nth;

-- The first events of a prompt's pass, as many as it has chunks, are its own. Others that do
-- not say `decode` are of batches with prompts of others, in which this request decodes.
create table staging.g_turn as
with placed as (
    select m.*, p.nth, p.ends, p.n_out,
        row_number() over (partition by m.root, p.nth order by m.time_ns) as n_th_of_pass
    from g_member m
    -- The event may be stamped a little before the slice.
    asof left join g_prompt p on p.root = m.root and m.time_ns + 20_000_000 >= p.start_ns
    where not m.is_decode
),
told as (
    select *, coalesce(n_th_of_pass <= len(ends), false) as is_prompt from placed
    union all by name
    select *, false as is_prompt from g_member where is_decode
),
counted as (
    select *, row_number() over (partition by root, is_prompt order by time_ns) as n_th from told
)
select c.root, c.engine, c.request_index, c.bid, c.turn, c.batch_size, c.time_ns, c.is_prompt,
    case when c.is_prompt then c.ends[c.n_th_of_pass] else l.ends[c.n_th] end as end_ns,
    case when not c.is_prompt then c.n_th end as n_decoded,
    -- Scheduled before the engine knew that it had ended.
    not c.is_prompt and c.n_th > coalesce(len(l.ends), 0) as is_wasted,
    c.nth, c.n_th_of_pass as chunk, len(c.ends) as n_chunks,
    case when c.is_prompt and c.nth = 1 then coalesce(m.n_cached, 0) else 0 end as n_cached,
    case when c.is_prompt then greatest(m.n_prompt + c.n_out - case when c.nth = 1 then coalesce(m.n_cached, 0) else 0 end, 1) end as n_all
from counted c left join g_loops l using (root) join s_member m on m.sid = c.root;

-- --- how long each chunk was --------------------------------------------------------------------------

create table staging.g_whole as  -- prompts that are computed in one piece
select engine, bid, turn, sum(n_all) as n_tokens
from g_turn where is_prompt and n_chunks = 1 group by engine, bid, turn;

-- A budget cuts a prompt of n tokens in k chunks: it is n / k or more, and as people set it.
create table staging.g_budget as
select engine, (2 ** ceil(log2(max(ceil(n_all / n_chunks)))))::bigint as n_tokens
from g_turn where is_prompt and n_chunks > 1 and n_all is not null group by engine;

-- All but the last chunk fill the room that whole prompts leave. What leaves too little or too
-- much for the last is spread evenly instead: then other limits cut it.
create table staging.g_chunk as
with room as (
    select t.*, greatest(b.n_tokens - coalesce(w.n_tokens, 0), 1) as n_room
    from g_turn t
    left join g_budget b using (engine) left join g_whole w using (engine, bid, turn)
    where t.is_prompt and t.n_all is not null
),
filled as (
    select *, coalesce(sum(n_room) filter (chunk < n_chunks) over passes, 0) as n_early,
        max(n_room) over passes as n_most
    from room window passes as (partition by root, nth)
),
cut as (
    select root, bid, turn, nth, chunk, n_cached,
        case when n_chunks = 1 then n_all
            when n_all - n_early between 1 and n_most
                then case when chunk < n_chunks then n_room else n_all - n_early end
            else n_all * chunk // n_chunks - n_all * (chunk - 1) // n_chunks end::bigint as n_tokens
    from filled
)
select root, bid, turn, n_tokens,
    (n_cached + coalesce(sum(n_tokens) over (partition by root, nth order by chunk
        rows between unbounded preceding and 1 preceding), 0))::bigint as n_context
from cut;

-- --- steps ----------------------------------------------------------------------------------------------

create table staging.g_step as
with made as (
    select t.engine, t.bid, t.turn, min(t.time_ns) as start_ns, min(t.end_ns) as end_ns,
        max(t.batch_size) as batch_size, count(*) as n_seen,
        list(t.request_index order by t.request_index) filter (t.is_prompt) as prompts,
        list(c.n_tokens order by t.request_index) filter (c.n_tokens is not null) as prompt_tokens,
        list(c.n_context order by t.request_index) filter (c.n_tokens is not null) as prompt_context,
        list(t.request_index order by t.request_index) filter (not t.is_prompt and not t.is_wasted) as decoding,
        sum(m.n_prompt + t.n_decoded) filter (not t.is_prompt and not t.is_wasted) as n_context
    from g_turn t join s_member m on m.sid = t.root
    left join g_chunk c on t.is_prompt and c.root = t.root and c.bid = t.bid and c.turn = t.turn
    group by t.engine, t.bid, t.turn
),
usual as (
    select engine, median(end_ns - start_ns) as usual_ns from made where end_ns > start_ns group by engine
)
select m.*, coalesce(len(m.prompts), 0) as n_prompts, coalesce(len(m.decoding), 0) as n_decoding,
    -- Requests that the batch had and no span here is of: they were not sampled, or are lost.
    greatest(m.batch_size - m.n_seen, 0) as n_others,
    -- Of a step whose every member had ended nobody tells the end.
    greatest(m.start_ns, coalesce(m.end_ns, least(
        lead(m.start_ns) over (partition by m.engine order by m.start_ns, m.bid), m.start_ns + u.usual_ns::bigint))) as until_ns
from made m left join usual u using (engine);

create table staging.g_told as
select *, row_number() over (partition by engine order by start_ns, bid) - 1 as step_index,
    n_prompts = 0 or (n_others = 0 and coalesce(len(prompt_tokens), 0) = n_prompts) as is_told
from g_step
where until_ns is not null
  and engine not in (select engine_id from st_steps);  -- somebody else tells of its steps

insert into st_steps by name
with before as (
    select m.engine, h.request_index, r.time_ns
    from s_retract r join s_member m on m.sid = r.root join s_handle h on h.sid = r.root
),
put_back as (
    select b.engine, g.step_index, list(distinct b.request_index) as preempted
    from before b asof join g_told g on g.engine = b.engine and b.time_ns <= g.start_ns
    where g.is_told
    group by b.engine, g.step_index
)
select g.engine as engine_id, g.step_index, g.start_ns, g.until_ns as end_ns,
    g.prompts as prefill_requests, g.prompt_tokens as prefill_tokens, g.prompt_context as prefill_context,
    g.n_decoding + case when g.n_prompts = 0 then g.n_others else 0 end as decode_count,
    case when g.n_others = 0 then g.n_context end as n_context_tokens,
    count(*) filter (not g.is_told) over (partition by g.engine order by g.step_index) as n_skipped,
    case when g.n_decoding > 0 and g.n_others = 0 then list_aggregate(g.decoding, 'string_agg', ',') end as members,
    p.preempted
from g_told g left join put_back p on p.engine = g.engine and p.step_index = g.step_index
qualify g.is_told;

insert into st_notes
select 'reconstructed_steps', 'sglang', count(*),
    count(*) || ' engine steps are reconstructed from SGLang''s requests: who was in them is told, when they ended is their members'' first result, and how a long prompt was cut is inferred'
from g_told where is_told having count(*) > 0
union all
select 'hidden_steps', 'sglang', count(*),
    count(*) || ' batches of SGLang took prompts of requests that are not here, or of unknown length: they are no steps'
from g_told where not is_told having count(*) > 0;
