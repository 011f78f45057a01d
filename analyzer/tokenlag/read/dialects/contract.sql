-- The trace contract, in full and compact form, to staging. Spans are joined by parent
-- where the parent is there, else by trace and request id: the two sides may be
-- different processes, and the tree may have lost spans.

-- --- which sequence belongs to which request ---------------------------------------------------

create table staging.c_alone as  -- traces with just one request span
select tid, min(rid) as rid from c_request group by tid having count(*) = 1;

-- Requests that their id tells apart. One that hundreds share is no id, and pairing by it
-- would not end.
create table staging.c_named as
with crowded as (
    select tid, request_id from c_request group by all having count(*) > 100
),
common as (
    select request_id from c_request group by request_id having count(*) > 100
)
select rid, tid, request_id, start_ns, end_ns, request_id not in (from common) as is_rare
from c_request
where request_id is not null and (tid, request_id) not in (from crowded);

create table staging.c_link as
select e.qid, r.rid from c_engine e join c_request r on r.rid = e.pid;

insert into c_link
with unlinked as (
    select * from c_engine where qid not in (select qid from c_link)
),
candidates as (
    select e.qid, r.rid, 2 as rank, abs(e.start_ns - r.start_ns) as apart
    from unlinked e join c_named r on r.tid = e.tid and r.request_id = e.request_id
    union all
    -- The only request of the trace, unless ids or times speak against it.
    select e.qid, r.rid, 3, abs(e.start_ns - r.start_ns)
    from unlinked e join c_alone a on a.tid = e.tid join c_request r on r.rid = a.rid
    where e.request_id is null or r.request_id is null
       or contains(e.request_id, r.request_id) or contains(r.request_id, e.request_id)
       or e.start_ns between r.start_ns and coalesce(r.end_ns, e.start_ns)
    union all
    -- Another trace: only by id, and only while that request was in flight, since ids
    -- repeat across restarts. The slack is for clocks of two processes.
    select e.qid, r.rid, 4, abs(e.start_ns - r.start_ns)
    from unlinked e join c_named r on r.request_id = e.request_id and r.tid <> e.tid
    where r.is_rare
      and e.start_ns between r.start_ns - 1_000_000_000
                         and coalesce(r.end_ns, e.start_ns) + 1_000_000_000
)
select qid, rid from candidates
qualify row_number() over (partition by qid order by rank, apart, rid) = 1;

-- --- requests whose own span is missing ---------------------------------------------------------
--
-- Where nothing tells of a front end at all, the engine's span stands for the request. Where
-- front ends are traced, an engine's span without one is work that no client waits for, so
-- it stays a sequence without a request, unless a front end's or client's span in the same
-- trace says that the request span was lost or is still open.

create table staging.c_front as  -- traces in which a front end or a client spoke
select distinct tid from c_phase where name in (${SPAN_NETWORK}, ${SPAN_FRONTEND})
union
select rid_tid from (select tid as rid_tid from st_requests where dialect = 'genai-client');

create table staging.c_lost as
select
    e.qid,
    first_value(e.qid) over (
        partition by e.tid, coalesce(e.request_id, e.qid::varchar) order by e.start_ns, e.qid
    ) as rid
from c_engine e anti join c_link l on l.qid = e.qid
where e.tid in (from c_front)
   or not exists (from c_request)
      and not exists (from c_phase where name in (${SPAN_NETWORK}, ${SPAN_FRONTEND}));

insert into c_link select qid, rid from c_lost;

-- --- sequences ------------------------------------------------------------------------------------

insert into st_sequences by name
select
    e.qid, l.rid, 'contract' as dialect, 1 as trust, e.engine as engine_id,
    e.engine_epoch as epoch, e.config_hash, e.request_index, e.sequence, e.role,
    e.start_ns, e.end_ns, e.usage_input_tokens as n_prompt, e.usage_cached_tokens as n_cached,
    e.usage_output_tokens as n_output, e.preemptions as n_preemptions
from c_engine e left join c_link l using (qid);

-- Compact form: the request span is its own sequence, from its first engine phase on.
create table staging.c_compact as
with own as (
    select p.pid as rid, min(p.start_ns) as start_ns, max(p.end_ns) as end_ns
    from c_phase p
    where p.name in (${SPAN_QUEUE}, ${SPAN_PREFILL}, ${SPAN_DECODE})
    group by p.pid
)
select r.rid, own.start_ns, own.end_ns
from c_request r left join own using (rid)
where r.has_engine
   or (own.rid is not null and r.rid not in (select rid from c_link where rid is not null));

insert into st_sequences by name
select
    r.rid as qid, r.rid, 'contract' as dialect, 1 as trust, r.engine as engine_id,
    r.engine_epoch as epoch, r.config_hash, r.request_index, r.sequence, r.role,
    coalesce(c.start_ns, r.start_ns) as start_ns, coalesce(c.end_ns, r.end_ns) as end_ns,
    r.usage_input_tokens as n_prompt, r.usage_cached_tokens as n_cached,
    r.usage_output_tokens as n_output, r.preemptions as n_preemptions
from c_request r join c_compact c using (rid);

-- --- requests, staged ------------------------------------------------------------------------------

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
    max(e.usage_input_tokens) as n_prompt, min(e.usage_cached_tokens) as n_cached,
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
