-- The contract, second half: phases to their owners, and everything to staging.

-- --- who owns a phase --------------------------------------------------------------------------------

create or replace temp table c_seq_of as  -- requests with exactly one sequence
select rid, min(qid) as qid from st_sequences
where dialect = 'contract' and rid is not null
group by rid having count(*) = 1;

create or replace temp table c_owner as
select qid as sid, rid, qid from st_sequences where dialect = 'contract'
union all
select r.rid, r.rid, s.qid
from c_request r left join c_seq_of s using (rid)
where r.rid not in (select qid from st_sequences where dialect = 'contract');

create or replace temp table c_owned as
select p.sid, o.rid, o.qid
from c_phase p join c_owner o on o.sid = p.pid;

create or replace temp table c_unowned as
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
create or replace temp table c_stray as
select p.* from c_unowned p anti join c_owned o on o.sid = p.sid;

create or replace temp table c_trace_owner as  -- traces with one request, or one sequence
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
create or replace temp table c_orphan as
select p.*, case when p.pid is null then p.tid else p.pid end as qid
from c_stray p anti join c_owned o on o.sid = p.sid
where p.name <> ${SPAN_PREFILL_CHUNK};

create or replace temp table c_open as
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
    rid, 'contract' as dialect, 1 as trust, tid, case when is_root then null else pid end as pid,
    trace_id, request_id, operation_name as operation, request_model as model, tenant, prefix_id,
    conversation_id, request_features as features, adapter, priority,
    request_choice_count as n_choices, request_max_tokens as n_max_output,
    usage_input_tokens as n_prompt, usage_cached_tokens as n_cached,
    usage_output_tokens as n_output,
    start_ns as arrival_ns, start_ns + first_token_ns as first_token_ns,
    start_ns + last_token_ns as last_token_ns, end_ns,
    case when first_token_ns between 0 and coalesce(end_ns - start_ns, first_token_ns)
        then first_token_ns / 1e6 end as ttft_ms,
    (end_ns - start_ns) / 1e6 as e2e_ms,
    case when end_ns is not null then 'measured' end as e2e_origin,
    preemptions as n_preemptions,
    case when len(finish_reasons) = 1 then finish_reasons[1]
        else array_to_string(list_distinct(finish_reasons), ',') end as finish_reason, error_type,
    status_code = ${STATUS_ERROR} as is_error, end_ns is null as is_open,
    sample_weight as weight, host
from c_request;

insert into st_requests by name  -- from engine spans, where the request's own is missing
select
    l.rid, 'contract' as dialect, 1 as trust, any_value(e.tid) as tid, any_value(e.pid) as pid,
    any_value(e.trace_id) as trace_id, any_value(e.request_id) as request_id,
    any_value(e.operation_name) as operation, any_value(e.request_model) as model,
    max(e.usage_input_tokens) as n_prompt, max(e.usage_cached_tokens) as n_cached,
    sum(e.usage_output_tokens) as n_output,
    least(min(e.start_ns), min(p.start_ns)) as arrival_ns,
    case when count(e.end_ns) = count(*) then max(e.end_ns) end as end_ns,
    (case when count(e.end_ns) = count(*) then max(e.end_ns) end
        - least(min(e.start_ns), min(p.start_ns))) / 1e6 as e2e_ms,
    'derived' as e2e_origin, sum(e.preemptions) as n_preemptions,
    array_to_string(list_distinct(flatten(list(e.finish_reasons))), ',') as finish_reason,
    any_value(e.error_type) as error_type, bool_or(e.status_code = ${STATUS_ERROR}) as is_error,
    count(e.end_ns) < count(*) as is_open, max(e.sample_weight) as weight,
    any_value(e.host) as host
from c_engine e join c_lost l using (qid)
left join (
    select tid, min(start_ns) as start_ns from c_phase where name = ${SPAN_FRONTEND} group by tid
) p on p.tid = e.tid
group by l.rid;

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
