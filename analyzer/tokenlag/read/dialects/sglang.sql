-- SGLang's request slices: a root "<role> Req <first 8 of rid>", one span a thread below
-- it, slices below those. Its attribute time_in_model_prefill *includes the queue*, so it
-- is a prefill only where there are no slices, and then says so. `sglang_steps.sql` makes
-- steps of the slices and their events.

create table staging.s_root as
select
    hash(trace_id, span_id) as sid, hash(trace_id) as tid,
    case when nullif(parent_id, '') is not null then hash(trace_id, parent_id) end as pid,
    trace_id, start_ns, case when end_ns >= start_ns then end_ns end as end_ns, status_code,
    lower(trim(regexp_extract(name, '^(.*)Req [0-9A-Za-z]', 1))) as role,
    coalesce(request_id, rid, regexp_extract(name, 'Req ([0-9A-Za-z_-]+)', 1)) as request_id,
    coalesce(request_model, response_model) as model, request_max_tokens,
    coalesce(request_choice_count, n_choices_asked) as n_choices,
    coalesce(usage_input_tokens, prompt_tokens) as n_prompt,
    coalesce(usage_output_tokens, completion_tokens) as n_output,
    coalesce(usage_cached_tokens, cached_tokens) as n_cached,
    -- A list, or one JSON text such as {"type": "stop", …}.
    list_transform(finish_reasons, lambda reason: coalesce(
        nullif(regexp_extract(reason, '"type"\s*:\s*"(\w+)"', 1), ''),
        trim(reason, '[]" '))) as finish_reasons,
    error_type, res_host_name as host, res_service_instance_id as instance,
    case when time_to_first_token_s >= 0 then (time_to_first_token_s * 1e9)::bigint end as ttft_ns,
    case when time_in_prefill_s >= 0 then (time_in_prefill_s * 1e9)::bigint end as engine_to_first_ns,
    case when time_in_queue_s >= 0 then (time_in_queue_s * 1e9)::bigint end as queue_ns,
    case when time_in_decode_s >= 0 then (time_in_decode_s * 1e9)::bigint end as decode_ns
from spans
where contains(name, 'Req ') and regexp_matches(name, '(^| )Req [0-9A-Za-z_-]+') and start_ns is not null
  and (rid is not null or module = 'sglang::request' or scope like 'sglang%');

create table staging.s_below as  -- every span below a root
with recursive spans_here as (
    select hash(trace_id, span_id) as sid, hash(trace_id, nullif(parent_id, '')) as pid,
        replace(name, ' ', '_') as name, start_ns, end_ns, status_code,
        thread_label, tp_rank, dp_rank, host_id, spans.pid as process_id
    from spans
    where hash(trace_id) in (select tid from s_root)
),
down as (
    select s.*, r.sid as root, s.sid as thread, 1 as depth
    from spans_here s join s_root r on r.sid = s.pid
    union all
    select s.*, d.root, d.thread, d.depth + 1
    from spans_here s join down d on d.sid = s.pid
    where d.depth < 8
)
select * from down;

-- Every rank of a tensor-parallel engine draws the same slices: one is enough.
create table staging.s_thread as
select b.root, b.sid as thread, b.status_code, b.host_id, b.process_id, b.dp_rank,
    exists (
        select 1 from s_below x where x.thread = b.sid
          and x.name in ('prefill_waiting', 'prefill_forward', 'decode_forward', 'decode_waiting',
                         'prefill', 'decode_loop')
    ) as is_scheduler,
    b.tp_rank
from s_below b where b.depth = 1;

create table staging.s_engine as
select root, arg_min(thread, coalesce(tp_rank, 0)) as thread,
    arg_min(coalesce(host_id, 'sglang') || ':' || coalesce(process_id, '0')
        || coalesce(':' || dp_rank, ''), coalesce(tp_rank, 0)) as engine
from s_thread where is_scheduler group by root;

create table staging.s_slice as
select b.root, b.name, b.start_ns, b.end_ns, b.depth
from s_below b
left join s_engine e on e.thread = b.thread
left join s_thread t on t.thread = b.thread
where (e.thread is not null or not t.is_scheduler) and b.depth >= 2 and b.start_ns is not null;

-- Decode slices of traces that draw each token but no whole.
insert into s_slice
select root, 'decode_forward', min(start_ns), max(end_ns), 2
from s_slice where name = 'decode_loop'
  and root not in (select root from s_slice where name = 'decode_forward')
group by root;

create table staging.s_retract as
select coalesce(b.root, r.sid) as root, e.time_ns
from span_events e
left join s_below b on b.sid = hash(e.trace_id, e.span_id)
left join s_root r on r.sid = hash(e.trace_id, e.span_id)
where e.name = 'retract' and coalesce(b.root, r.sid) is not null;

-- A prefill/decode split has one root a role, with the same id in the same trace.
create table staging.s_member as
select s.*, first_value(sid) over together as rid, row_number() over together - 1 as sequence,
    e.engine
from s_root s left join s_engine e on e.root = s.sid
window together as (
    partition by tid, request_id, case when role = '' then sid end order by start_ns, sid
);

-- A handle for each request of an engine, by which steps name it.
create table staging.s_handle as
select sid, engine, row_number() over (partition by engine order by start_ns, sid) - 1 as request_index
from s_member where engine is not null;

create table staging.s_preempted as
select m.sid, case when m.engine is not null then count(t.time_ns) end as n_preemptions
from s_member m left join s_retract t on t.root = m.sid
group by m.sid, m.engine;

insert into st_requests by name
select
    m.rid, 'sglang' as dialect, 3 as trust, any_value(m.tid) as tid, any_value(m.pid) as pid,
    any_value(m.trace_id) as trace_id, any_value(m.request_id) as request_id,
    any_value(m.model) as model, max(m.n_choices) as n_choices,
    max(m.request_max_tokens) as n_max_output, max(m.n_prompt) as n_prompt,
    max(m.n_cached) as n_cached, max(m.n_output) as n_output,
    min(m.start_ns) as arrival_ns,
    case when count(m.ttft_ns) > 0 then min(m.start_ns + m.ttft_ns) end as first_token_ns,
    case when count(m.end_ns) = count(*) then max(m.end_ns) end as end_ns,
    min(m.ttft_ns) / 1e6 as ttft_ms,
    (case when count(m.end_ns) = count(*) then max(m.end_ns) end - min(m.start_ns)) / 1e6 as e2e_ms,
    'measured' as e2e_origin, sum(p.n_preemptions) as n_preemptions,
    array_to_string(list_distinct(flatten(list(m.finish_reasons))), ',') as finish_reason,
    any_value(m.error_type) as error_type,
    coalesce(bool_or(m.status_code = ${STATUS_ERROR}), false)
        or bool_or(m.sid in (select root from s_thread where status_code = ${STATUS_ERROR})) as is_error,
    count(m.end_ns) < count(*) as is_open, any_value(m.host) as host
from s_member m left join s_preempted p using (sid)
group by m.rid;

insert into st_sequences by name
select
    m.sid as qid, m.rid, 'sglang' as dialect, 3 as trust,
    coalesce(m.engine, m.instance, m.host, 'sglang') as engine_id, h.request_index, m.sequence,
    nullif(nullif(m.role, ''), 'null') as role,
    coalesce(
        (select min(b.start_ns) from s_engine e join s_below b on b.thread = e.thread
         where e.root = m.sid and b.depth >= 2),
        m.start_ns) as start_ns,
    m.end_ns, m.n_prompt, m.n_cached, m.n_output, p.n_preemptions
from s_member m left join s_preempted p using (sid) left join s_handle h using (sid);

insert into st_engines by name
select distinct coalesce(engine, instance, host, 'sglang') as engine_id, 'sglang' as engine_name
from s_member;

-- --- phases: slices ------------------------------------------------------------------------------

create table staging.s_known as
select * from (values
    ('tokenize', 'frontend', 'frontend', 'tokenize'),
    ('api_server_dispatch', 'frontend', 'frontend', 'dispatch'),
    ('dpc_dispatch', 'frontend', 'frontend', 'dispatch'),
    ('request_process', 'frontend', 'frontend', 'preprocess'),
    ('mm_encode', 'frontend', 'frontend', 'preprocess'),
    ('prefill_waiting', 'engine', 'queue', 'arrival'),
    ('decode_waiting', 'engine', 'queue', 'decode'),
    ('prefill_prepare', 'engine', 'queue', 'kv_transfer'),
    ('prefill_bootstrap', 'engine', 'queue', 'kv_transfer'),
    ('prefill_transfer_kv_cache', 'engine', 'queue', 'kv_transfer'),
    ('decode_prepare', 'engine', 'queue', 'kv_transfer'),
    ('decode_bootstrap', 'engine', 'queue', 'kv_transfer'),
    ('decode_transferred', 'engine', 'queue', 'kv_transfer'),
    ('prefill_forward', 'engine', 'prefill', null),
    ('prefill', 'engine', 'prefill', null),
    ('decode_forward', 'engine', 'decode', null)
) as known(name, side, kind, detail);

create table staging.s_phase as
select m.rid, m.sid as qid, k.side, k.kind, k.detail, s.start_ns, s.end_ns,
    row_number() over (partition by m.sid, k.kind, k.detail order by s.start_ns, s.end_ns desc) as nth,
    min(s.start_ns) filter (k.kind = 'decode') over (partition by m.sid) as decode_ns,
    m.n_output
from s_slice s join s_known k using (name) join s_member m on m.sid = s.root;

insert into st_phases by name
select
    rid, case when side = 'engine' then qid end as qid, 'sglang' as dialect, 3 as trust, side, kind, detail, start_ns,
    end_ns,
    case when kind = 'decode' and nth = 1 then n_output - 1 end as n_tokens,
    -- Drawn inside the decode that a retraction interrupted.
    case when kind = 'prefill' then nth > 1 and start_ns > coalesce(decode_ns, start_ns) end as is_recompute,
    'measured' as origin
from s_phase;

-- After a retraction no second wait is drawn: it lasts until the next prefill.
create table staging.s_again as
select t.root, t.time_ns, min(p.start_ns) as again_ns
from s_retract t left join s_phase p
  on p.qid = t.root and p.kind = 'prefill' and p.start_ns >= t.time_ns
group by t.root, t.time_ns;

insert into st_phases by name
select m.rid, m.sid as qid, 'sglang' as dialect, 3 as trust, 'engine' as side, 'requeue' as kind,
    'preempted' as detail, a.time_ns as start_ns, a.again_ns as end_ns, 'derived' as origin
from s_again a join s_member m on m.sid = a.root
where a.again_ns is not null;

insert into st_notes
select 'hidden_requeue', 'sglang', count(distinct root),
    count(distinct root) || ' requests were preempted and only their first wait is visible; the later one hides in decode'
from s_again where again_ns is null having count(*) > 0;

-- --- phases: attributes alone ---------------------------------------------------------------------

create table staging.s_bare as
select * from s_member where sid not in (select qid from s_phase where side = 'engine');

insert into st_phases by name
select rid, sid as qid, 'sglang' as dialect, 3 as trust, 'engine' as side, 'prefill' as kind,
    'includes queue' as detail,
    start_ns + greatest(ttft_ns - engine_to_first_ns, 0) as start_ns,
    start_ns + ttft_ns as end_ns, 'derived' as origin
from s_bare where ttft_ns is not null and engine_to_first_ns is not null and queue_ns is null
union all by name
select rid, sid as qid, 'sglang' as dialect, 3 as trust, 'engine' as side, 'queue' as kind,
    start_ns + greatest(ttft_ns - engine_to_first_ns, 0) as start_ns,
    start_ns + greatest(ttft_ns - engine_to_first_ns, 0) + queue_ns as end_ns, 'measured' as origin
from s_bare where ttft_ns is not null and engine_to_first_ns >= queue_ns
union all by name
select rid, sid as qid, 'sglang' as dialect, 3 as trust, 'engine' as side, 'prefill' as kind,
    start_ns + greatest(ttft_ns - engine_to_first_ns, 0) + queue_ns as start_ns,
    start_ns + ttft_ns as end_ns, 'derived' as origin
from s_bare where ttft_ns is not null and engine_to_first_ns >= queue_ns
union all by name
select rid, sid as qid, 'sglang' as dialect, 3 as trust, 'engine' as side, 'decode' as kind,
    start_ns + ttft_ns as start_ns, coalesce(start_ns + ttft_ns + decode_ns, end_ns) as end_ns,
    n_output - 1 as n_tokens, case when decode_ns is null then 'derived' else 'measured' end as origin
from s_bare where ttft_ns is not null and (decode_ns is not null or end_ns is not null)
  and coalesce(n_output, 2) > 1
union all by name
select rid, 'sglang' as dialect, 3 as trust, 'frontend' as side, 'frontend' as kind,
    start_ns, start_ns + ttft_ns - engine_to_first_ns as end_ns, 'derived' as origin
from s_bare
where ttft_ns > engine_to_first_ns
  and sid not in (select root from s_slice where name in ('tokenize', 'api_server_dispatch'));
