-- text-generation-inference's batches → engine steps with their members. A batch is what spans
-- `infer` have links to; its own span, a trace by itself, tells its times and size where it is
-- there. Nothing tells how long a prompt was, unless the request does: of a batch that took
-- prompts of unknown length there is no step, but a hole in the indexes.

create table staging.t_begun as
select h.engine, t.batch, min(t.start_ns) as start_ns
from t_turn t join t_handle h using (rid) group by all;

-- Which batch something that was sent came of: it is sent before the next begins. Where prompts
-- are chunked, streams are in the batches of others' prompts without a span `infer` of their own,
-- and send under that of the batch before.
create table staging.t_took as
select t.rid, b.batch, min(s.start_ns) as sent_ns
from t_sent s join t_turn t using (sid) join t_handle h using (rid)
asof join t_begun b on b.engine = h.engine and b.start_ns <= s.start_ns
group by t.rid, b.batch;

create table staging.t_member as
with pairs as (select rid, batch from t_turn union select rid, batch from t_took),
told as (
    select rid, batch, b.start_ns, coalesce(k.sent_ns, t.end_ns) as end_ns, k.sent_ns,
        row_number() over (partition by rid order by b.start_ns, batch) as turn
    from pairs join t_handle h using (rid) join t_begun b using (batch, engine)
    left join t_turn t using (rid, batch) left join t_took k using (rid, batch)
),
prompts as (
    select rid, coalesce(min(turn) filter (where sent_ns is not null), any_value(f.n_prompt_turns), 1) as n
    from told left join t_first f using (rid) group by rid
)
select t.batch, h.engine, h.request_index, t.start_ns, t.end_ns, t.turn <= p.n as is_prompt,
    (r.n_prompt // p.n)::bigint as n_tokens, (r.n_prompt // p.n * (t.turn - 1))::bigint as n_context
from told t join prompts p using (rid) join t_handle h using (rid) join t_request r using (rid);

create table staging.t_batch as
with made as (
    select batch, engine, min(start_ns) as start_ns, min(end_ns) as end_ns,
        list(request_index order by request_index) filter (where is_prompt) as prompts,
        list(n_tokens order by request_index) filter (where is_prompt and n_tokens is not null) as prompt_tokens,
        list(n_context order by request_index) filter (where is_prompt and n_tokens is not null) as prompt_context,
        list(request_index order by request_index) filter (where not is_prompt) as decoding
    from t_member group by batch, engine
),
own as (
    select hash(trace_id, span_id) as batch, start_ns, end_ns, tgi_batch_size as n
    from spans
    where name = 'batch' and start_ns is not null and end_ns >= start_ns
      and (select count(*) from t_turn) > 0
)
select m.batch, m.engine, coalesce(o.start_ns, m.start_ns) as start_ns, coalesce(o.end_ns, m.end_ns) as end_ns,
    m.prompts, m.prompt_tokens, m.prompt_context, m.decoding,
    coalesce(len(m.prompts), 0) as n_prompts, coalesce(len(m.decoding), 0) as n_decoding,
    -- Requests that the batch had and no span here is of: they were not sampled, or are lost.
    greatest(o.n - coalesce(len(m.prompts), 0) - coalesce(len(m.decoding), 0), 0) as n_others
from made m left join own o using (batch);

-- A server runs one batch after the other. Where they overlap, several servers have one name.
create table staging.t_mixed as
select engine
from (
    select engine, start_ns + 1_000_000 < max(end_ns) over (
        partition by engine order by start_ns rows between unbounded preceding and 1 preceding) as is_over
    from t_batch
)
group by engine
having count(*) filter (where is_over) > 0.02 * count(*);

create table staging.t_step as
select *,
    row_number() over (partition by engine order by start_ns, batch) - 1 as step_index,
    n_prompts = 0 or (n_others = 0 and coalesce(len(prompt_tokens), 0) = n_prompts) as is_told
from t_batch
where engine not in (from t_mixed)
  and engine not in (select engine_id from st_steps);  -- somebody else tells of its steps

-- Where streams decode in batches that are no steps, the tokens that they got there would be
-- missing, and what is between their others twice as long as it was.
create table staging.t_vague as
select engine, count(*) as n from t_step
group by engine
having count(*) filter (where not is_told and n_decoding > 0) > 0.02 * count(*);

delete from t_step where engine in (select engine from t_vague);

insert into st_steps by name
select engine as engine_id, step_index, start_ns, end_ns,
    prompts as prefill_requests, prompt_tokens as prefill_tokens, prompt_context as prefill_context,
    n_decoding + coalesce(n_others, 0) as decode_count,
    count(*) filter (where not is_told) over (partition by engine order by step_index) as n_skipped,
    case when n_decoding > 0 and coalesce(n_others, 0) = 0 then list_aggregate(decoding, 'string_agg', ',') end as members
from t_step qualify is_told;

-- Whose spans are here is known of each, also where a batch had others.
insert into st_decodes by name
select rid as qid, min(step_index) as first_step, max(step_index) as last_step
from (
    select h.rid, s.step_index, s.step_index - row_number() over (partition by h.rid order by s.step_index) as run
    from t_member m join t_step s using (batch, engine) join t_handle h using (engine, request_index)
    where not m.is_prompt
)
group by rid, run;

insert into st_notes
select 'tgi_batches', 'tgi', count(*),
    count(*) || ' batches of text-generation-inference took prompts of which nothing says how long they were: they are no steps'
from t_step where not is_told having count(*) > 0
union all
select 'tgi_batches', 'tgi', count(*),
    count(*) || ' batches of text-generation-inference had requests of which no span is here: who was in them is not known'
from t_step where n_others > 0 having count(*) > 0
union all
select 'tgi_batches', engine, n,
    n || ' batches of ' || engine || ' are no steps: streams decode in batches with prompts of which nothing says how long they were'
from t_vague
union all
select 'tgi_servers', engine, 1,
    'batches of ' || engine || ' overlap: several servers have this name, so none of their batches is a step'
from t_mixed
union all
select 'tgi_batches', 'tgi', count(*),
    count(*) || ' batch spans of text-generation-inference are not used: nothing says which requests were in them'
from spans where name = 'batch' and (select count(*) from t_turn) = 0 and (select count(*) from t_request) > 0
having count(*) > 0;
