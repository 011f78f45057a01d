-- The contract, second half: phases to their owners, and everything to staging.

-- --- who owns a phase --------------------------------------------------------------------------------

create table staging.c_seq_of as  -- requests with exactly one sequence
select rid, min(qid) as qid from st_sequences
where dialect = 'contract' and rid is not null
group by rid having count(*) = 1;

create table staging.c_owner as
select qid as sid, rid, qid from st_sequences where dialect = 'contract'
union all
select r.rid, r.rid, s.qid
from c_request r left join c_seq_of s using (rid)
where r.rid not in (select qid from st_sequences where dialect = 'contract');

create table staging.c_owned as
select p.sid, o.rid, o.qid
from c_phase p join c_owner o on o.sid = p.pid;

create table staging.c_unowned as
select p.* from c_phase p anti join c_owned o on o.sid = p.sid;

insert into c_owned
with near as (
    select p.sid, o.rid, o.qid, 2 as rank  -- a chunk under its prefill
    from c_unowned p join c_phase parent on parent.sid = p.pid join c_owner o on o.sid = parent.pid
    union all  -- network before the request, beside its request span, up to its receipt
    select p.sid, r.rid, s.qid, 3
    from c_unowned p join c_request r on r.pid = p.pid and r.start_ns = p.end_ns
    left join c_seq_of s using (rid)
    where p.name = ${SPAN_NETWORK} and not r.is_root
)
select sid, rid, qid from near
qualify row_number() over (partition by sid order by rank, rid, qid) = 1;

-- Second round, for those only: with thousands of requests in one trace, pairing all
-- phases with all requests would not end.
create table staging.c_stray as
select p.* from c_unowned p anti join c_owned o on o.sid = p.sid;

create table staging.c_trace_owner as  -- traces with one request, or one sequence
with both_ as (
    select tid, rid, null::ubigint as qid from c_request
    where tid in (select tid from c_stray)
    union
    select e.tid, l.rid, e.qid from c_engine e left join c_link l using (qid)
    where e.tid in (select tid from c_stray)
)
select
    tid,
    case when count(distinct rid) = 1 then min(rid) end as rid,
    case when count(distinct qid) = 1 then min(qid) end as qid
from both_ group by tid;

insert into c_owned
with crowded as (
    select tid from c_request group by tid having count(*) > 100
    union
    select tid from c_engine group by tid having count(*) > 100
),
candidates as (
    select p.sid, r.rid, s.qid, 1 as rank, abs(p.end_ns - r.start_ns) as apart
    from c_stray p join c_request r on r.pid = p.pid left join c_seq_of s using (rid)
    where p.name in (${SPAN_NETWORK}, ${SPAN_FRONTEND}) and p.pid is not null and not r.is_root
      and p.tid not in (from crowded)
    union all  -- by the ids that the phase carries itself
    select p.sid, r.rid, s.qid, 2, abs(p.start_ns - r.start_ns)
    from c_stray p join c_named r on r.tid = p.tid and r.request_id = p.request_id
    left join c_seq_of s using (rid)
    union all  -- only one it can be
    select p.sid, t.rid, coalesce(t.qid, s.qid), 3, 0
    from c_stray p join c_trace_owner t on t.tid = p.tid left join c_seq_of s on s.rid = t.rid
    where t.rid is not null or t.qid is not null
    union all  -- the sequence of the trace that was running
    select p.sid, l.rid, e.qid, 4, p.start_ns - e.start_ns
    from c_stray p join c_engine e on e.tid = p.tid left join c_link l using (qid)
    where p.name in (${SPAN_QUEUE}, ${SPAN_PREFILL}, ${SPAN_PREFILL_CHUNK}, ${SPAN_DECODE})
      and p.start_ns >= e.start_ns and p.start_ns <= coalesce(e.end_ns, p.start_ns)
      and p.tid not in (from crowded)
)
select sid, rid, qid from candidates
qualify row_number() over (partition by sid order by rank, apart, rid, qid) = 1;

-- Phases whose request and sequence spans are both missing: still running when the data
-- ended, or lost. They become an open request, one for each missing parent.
create table staging.c_orphan as
select p.*, case when p.pid is null then p.tid else p.pid end as qid
from c_stray p anti join c_owned o on o.sid = p.sid
where p.name <> ${SPAN_PREFILL_CHUNK};

create table staging.c_open as
select
    qid, any_value(tid) as tid, any_value(host) as host,
    any_value(request_id) as request_id, min(start_ns) as start_ns, max(end_ns) as last_ns,
    first_value(qid) over (partition by any_value(tid) order by min(start_ns), qid) as rid,
    bool_or(name in (${SPAN_QUEUE}, ${SPAN_PREFILL}, ${SPAN_DECODE})) as has_engine
from c_orphan group by qid;

insert into st_sequences by name
select qid, rid, 'contract' as dialect, 1 as trust, start_ns
from c_open where has_engine;

insert into c_owned
select p.sid, c.rid, case when c.has_engine then c.qid end
from c_orphan p join c_open c using (qid);

insert into c_owned
select p.sid, o.rid, o.qid
from c_stray p join c_owned o on o.sid = p.pid
where p.name = ${SPAN_PREFILL_CHUNK} and p.sid not in (select sid from c_owned);

-- --- staging -------------------------------------------------------------------------------------------

insert into st_requests by name
select
    rid, 'contract' as dialect, 1 as trust, any_value(tid) as tid,
    any_value(t.trace_id) as trace_id, any_value(request_id) as request_id,
    min(start_ns) as arrival_ns, true as is_open, false as is_error, any_value(host) as host
from c_open join (
    select hash(trace_id) as tid, any_value(trace_id) as trace_id from spans
    where hash(trace_id) in (select tid from c_open) group by all
) t using (tid)
group by rid;

insert into st_notes
select 'lost_roots', 'contract', count(distinct rid),
    count(distinct rid) || ' requests have engine spans but no request span; their times come from the engine'
from c_lost having count(*) > 0;

insert into st_notes
select 'open_requests', 'contract', count(distinct rid),
    count(distinct rid) || ' requests have phases but neither a request nor an engine span; they count as still open'
from c_open having count(*) > 0;

insert into st_phases by name
select
    o.rid, case when p.name in (${SPAN_NETWORK}, ${SPAN_FRONTEND}) then null else o.qid end as qid,
    'contract' as dialect, 1 as trust,
    case when p.name = ${SPAN_NETWORK} then if(p.direction = 'out', 'delivery', 'network')
         when p.name = ${SPAN_FRONTEND} then 'frontend' else 'engine' end as side,
    case p.name
        when ${SPAN_NETWORK} then if(p.direction = 'out', 'delivery', 'network_in')
        when ${SPAN_FRONTEND} then 'frontend'
        when ${SPAN_QUEUE} then if(p.queue_reason = 'preempted', 'requeue', 'queue')
        when ${SPAN_PREFILL} then 'prefill'
        else 'decode' end as kind,
    coalesce(p.queue_reason, p.stage) as detail, p.start_ns, p.end_ns,
    coalesce(p.prefill_tokens, p.decode_tokens) as n_tokens,
    case when p.name = ${SPAN_PREFILL} then coalesce(p.prefill_recompute, false) end as is_recompute,
    p.clock, 'measured' as origin
from c_phase p join c_owned o using (sid)
where p.name <> ${SPAN_PREFILL_CHUNK} and o.rid is not null;

insert into st_chunks
select o.qid, p.step_index, p.end_ns, p.chunk_tokens, p.chunk_context
from c_phase p join c_owned o using (sid)
where p.name = ${SPAN_PREFILL_CHUNK} and o.qid is not null
  and p.step_index is not null and p.chunk_tokens is not null;

insert into st_decodes
select o.qid, p.decode_first_step, p.decode_last_step
from c_phase p join c_owned o using (sid)
where p.name = ${SPAN_DECODE} and o.qid is not null
  and p.decode_first_step <= p.decode_last_step;

insert into st_notes
select 'unowned_phases', 'contract', count(*),
    count(*) || ' phase spans fit no request and are left out'
from c_stray p anti join c_owned o on o.sid = p.sid
having count(*) > 0;
