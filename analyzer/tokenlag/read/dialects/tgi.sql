-- text-generation-inference: a handler's span tells a request's parts as Rust prints durations
-- ('1.5ms', '20µs'), but not the moment of its first token. Below it hangs one span `infer` for
-- each batch that the request was in, with a link to that batch, and below that one span
-- `send_generation` when its token went out; `tgi_batches.sql` makes steps of them. Where none
-- of those tell when the first token came, one phase holds prefill and decode.

create or replace temp macro rust_ns(text) as try_cast(regexp_extract(text, '^([0-9.]+)(ns|µs|μs|us|ms|s)$', 1) as double)
    * case regexp_extract(text, '^([0-9.]+)(ns|µs|μs|us|ms|s)$', 2)
        when 'ns' then 1 when 'ms' then 1e6 when 's' then 1e9 when '' then null else 1e3 end;

create table staging.t_request as
select hash(trace_id, span_id) as rid, hash(trace_id) as tid,
    case when nullif(parent_id, '') is not null then hash(trace_id, parent_id) end as pid,
    trace_id, start_ns, case when end_ns >= start_ns then end_ns end as end_ns, status_code,
    rust_ns(tgi_validation_time)::bigint as validation_ns, rust_ns(tgi_queue_time)::bigint as queue_ns,
    rust_ns(tgi_inference_time)::bigint as inference_ns, rust_ns(tgi_time_per_token) as per_token_ns,
    try_cast(tgi_prompt_tokens as bigint) as n_prompt, try_cast(tgi_generated_tokens as bigint) as n_told,
    error_type, res_host_name as host,
    coalesce(res_service_instance_id, res_host_name, res_service_name, 'text-generation-inference') as engine
from spans
where start_ns is not null and tgi_queue_time is not null and tgi_inference_time is not null
  and name in ('generate', 'generate_stream', 'completions', 'chat_completions', 'compat_generate');

-- The time per token is the inference's over all tokens, the first too.
alter table staging.t_request add column n_output bigint;
update t_request set n_output = coalesce(n_told, case when per_token_ns > 0 then round(inference_ns / per_token_ns)::bigint end);

-- --- the batches that a request was in ------------------------------------------------------------

create table staging.t_linked as  -- a span of several links is of the first batch
select trace_id, span_id, arg_min(hash("link.trace_id", "link.span_id"), "link.trace_id" || "link.span_id") as batch
from span_events
where name = 'link' and "link.trace_id" is not null and "link.span_id" is not null
  and (select count(*) from t_request) > 0
group by trace_id, span_id;

create table staging.t_part as
select hash(s.trace_id, s.span_id) as sid, s.trace_id, s.span_id, s.parent_id, s.start_ns, s.end_ns, l.batch
from t_linked l join spans s on s.trace_id = l.trace_id and s.span_id = l.span_id
where s.name = 'infer' and s.start_ns is not null and s.end_ns >= s.start_ns
  and s.parent_id is not null;

-- Whose they are: the first handler above, a few levels up.
create table staging.t_near as
select trace_id, span_id, parent_id, name, start_ns from spans
where trace_id in (select trace_id from t_part) and parent_id is not null
  and (select count(*) from t_part) > 0;

create table staging.t_owner as
with recursive above as (
    select distinct trace_id, parent_id as from_id, parent_id as at_id, 1 as depth from t_part
    union all
    select a.trace_id, a.from_id, n.parent_id, a.depth + 1
    from above a join t_near n on n.trace_id = a.trace_id and n.span_id = a.at_id
    where a.depth < 8 and hash(a.trace_id, a.at_id) not in (select rid from t_request)
)
select a.trace_id, a.from_id, r.rid
from above a join t_request r on r.rid = hash(a.trace_id, a.at_id);

create table staging.t_sent as
select p.sid, n.start_ns, row_number() over (partition by p.sid order by n.start_ns) as number
from t_near n join t_part p on p.trace_id = n.trace_id and p.span_id = n.parent_id
where n.name = 'send_generation' and n.start_ns >= p.start_ns;

create table staging.t_turn as  -- a request's batches in order
select p.sid, p.batch, p.start_ns, p.end_ns, o.rid, s.start_ns as sent_ns,
    row_number() over turns as turn, count(*) over (partition by o.rid) as n_turns
from t_part p join t_owner o on o.trace_id = p.trace_id and o.from_id = p.parent_id
left join t_sent s on s.sid = p.sid and s.number = 1
window turns as (partition by o.rid order by p.start_ns, p.sid);

-- How many batches took some of the prompt: up to the first that sent something. Without that,
-- each batch but those gave a token: they are as many as there are more batches than tokens. With
-- drafts, or where streams decode in a batch of prompts, there are fewer, and nothing is known.
create table staging.t_first as
with told as (
    select rid, max(t.end_ns) as last_token_ns,
        coalesce(min(turn) filter (where sent_ns is not null),
            case when any_value(n_turns) >= any_value(r.n_output) and any_value(r.n_output) > 0
                then any_value(n_turns) - any_value(r.n_output) + 1 end) as n_prompt_turns
    from t_turn t join t_request r using (rid)
    group by rid
)
select o.rid, o.n_prompt_turns, coalesce(t.sent_ns, t.end_ns) as first_token_ns, o.last_token_ns
from told o left join t_turn t on t.rid = o.rid and t.turn = o.n_prompt_turns;

alter table staging.t_request add column first_token_ns bigint;
alter table staging.t_request add column last_token_ns bigint;
update t_request r set first_token_ns = f.first_token_ns, last_token_ns = least(f.last_token_ns, r.end_ns)
from t_first f
where f.rid = r.rid and f.first_token_ns > r.start_ns and f.first_token_ns <= coalesce(r.end_ns, f.first_token_ns);

-- A handle for each request of an engine.
create table staging.t_handle as
select rid, engine, row_number() over (partition by engine order by start_ns, rid) - 1 as request_index
from t_request where rid in (select rid from t_turn);

-- --- staged -----------------------------------------------------------------------------------------

insert into st_requests by name
select rid, 'tgi' as dialect, 4 as trust, tid, pid, trace_id, 'text_completion' as operation, n_prompt, n_output,
    start_ns as arrival_ns, first_token_ns, last_token_ns, end_ns,
    (first_token_ns - start_ns) / 1e6 as ttft_ms, (end_ns - start_ns) / 1e6 as e2e_ms,
    case when end_ns is not null then 'measured' end as e2e_origin, error_type,
    coalesce(status_code = ${STATUS_ERROR}, false) as is_error, end_ns is null as is_open, host
from t_request;

insert into st_sequences by name
select r.rid as qid, r.rid, 'tgi' as dialect, 4 as trust, r.engine as engine_id, h.request_index, 0 as sequence,
    r.start_ns + coalesce(r.validation_ns, 0) as start_ns, r.end_ns, r.n_prompt, r.n_output
from t_request r left join t_handle h using (rid);

insert into st_engines by name
select distinct engine as engine_id, 'tgi' as engine_name from t_request;

create table staging.t_phase as
select *, start_ns + coalesce(validation_ns, 0) as queued_ns,
    start_ns + coalesce(validation_ns, 0) + queue_ns as taken_ns,
    start_ns + coalesce(validation_ns, 0) + queue_ns + inference_ns as done_ns
from t_request;

insert into st_phases by name
select rid, 'tgi' as dialect, 4 as trust, 'frontend' as side, 'frontend' as kind, 'preprocess' as detail,
    start_ns, start_ns + validation_ns as end_ns, 'measured' as origin
from t_phase where validation_ns > 0
union all by name
select rid, rid as qid, 'tgi' as dialect, 4 as trust, 'engine' as side, 'queue' as kind, 'arrival' as detail,
    queued_ns as start_ns, taken_ns as end_ns, 'measured' as origin
from t_phase where queue_ns is not null
union all by name
select rid, rid as qid, 'tgi' as dialect, 4 as trust, 'engine' as side, 'prefill' as kind,
    taken_ns as start_ns, greatest(first_token_ns, taken_ns) as end_ns, 'measured' as origin
from t_phase where queue_ns is not null and first_token_ns is not null
union all by name
select rid, rid as qid, 'tgi' as dialect, 4 as trust, 'engine' as side, 'decode' as kind,
    case when first_token_ns is null then 'includes prefill' end as detail,
    coalesce(greatest(first_token_ns, taken_ns), taken_ns) as start_ns,
    greatest(done_ns, first_token_ns) as end_ns, 'measured' as origin
from t_phase where queue_ns is not null and inference_ns is not null;

insert into st_notes
select 'tgi_first_token', 'tgi', count(*),
    count(*) || ' requests of text-generation-inference do not say when their first token came: prefill and decode are one phase'
from t_request where first_token_ns is null having count(*) > 0;
