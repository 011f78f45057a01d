-- Staged requests of all dialects → who is the same request, and what is told of it.

-- --- one request, several tellers -----------------------------------------------------------

-- Nobody to be matched where all requests come from dialects of one trust. The core of an id
-- is what is left without what vLLM and SGLang put around the caller's: 'cmpl-r0-0' → 'r0'.
create table staging.m_side as
select
    rid, trust, tid, pid, request_id, coalesce(arrival_ns, sent_ns) as start_ns,
    coalesce(end_ns, client_end_ns) as end_ns,
    regexp_replace(regexp_replace(request_id, '^(chat)?cmpl-', ''), '-\d+$', '') as core_id,
    count(*) over (partition by tid, trust) as n_beside,
    -- An id that hundreds share is no id, and pairing by it would not end.
    count(*) over (partition by tid, trust, request_id) <= 100 as is_named,
    count(*) over (partition by trust, request_id) as n_namesakes
from st_requests
where (select min(trust) <> max(trust) from st_requests);

-- Engines' own spans to the contract's request of the same trace.
create table staging.m_same as
with candidates as (
    select l.rid, u.rid as gid, 1 as rank, abs(l.start_ns - u.start_ns) as apart
    from m_side l join m_side u on u.tid = l.tid and u.trust = 1 and u.request_id = l.request_id
    where l.trust between 2 and 8 and u.is_named
    union all
    select l.rid, u.rid, 2, abs(l.start_ns - u.start_ns)
    from m_side l join m_side u on u.tid = l.tid and u.trust = 1 and u.request_id = l.core_id
    where l.trust between 2 and 8 and u.is_named
    union all
    select l.rid, u.rid, 2, abs(l.start_ns - u.start_ns)
    from m_side l join m_side u on u.tid = l.tid and u.trust = 1 and u.core_id = l.core_id
    where l.trust between 2 and 8 and u.is_named
    union all
    select l.rid, u.rid, 3, abs(l.start_ns - u.start_ns)
    from m_side l join m_side u on u.tid = l.tid and u.trust = 1
    where l.trust between 2 and 8 and l.n_beside = 1 and u.n_beside = 1
)
select rid, gid from candidates
qualify row_number() over (partition by rid order by rank, apart, gid) = 1;

create table staging.m_server as
select s.rid, coalesce(m.gid, s.rid) as gid, s.tid, s.pid, s.request_id, s.start_ns, s.end_ns,
    s.is_named, s.n_namesakes
from m_side s left join m_same m using (rid)
where s.trust < 9;

create table staging.m_groups_beside as
select tid, count(distinct gid) as n, min(gid) as gid from m_server group by tid;

-- Clients to the request that their call became. A call that was retried inside becomes
-- the last of them.
create table staging.m_client as
with candidates as (
    select p.rid, s.gid, 0 as rank, 0 as apart from st_pairs p join m_server s on s.rid = p.server_rid
    union all
    select c.rid, s.gid, 1, -s.start_ns
    from m_server s join g_chain h on h.rid = s.pid join m_side c on c.rid = h.top
    union all
    select c.rid, s.gid, 2, abs(s.start_ns - c.start_ns)
    from m_side c join m_server s on s.tid = c.tid and s.request_id = c.request_id
    where c.trust = 9 and s.is_named
    union all
    select c.rid, b.gid, 3, 0
    from m_side c join m_groups_beside b on b.tid = c.tid and b.n = 1
    where c.trust = 9 and c.n_beside = 1
    union all
    select c.rid, s.gid, 4, abs(s.start_ns - c.start_ns)
    from m_side c join m_server s on s.request_id = c.request_id and s.tid <> c.tid
    where c.trust = 9 and s.n_namesakes <= 100
      and s.start_ns between c.start_ns - 1_000_000_000
                         and coalesce(c.end_ns, s.start_ns) + 1_000_000_000
)
select rid, gid from candidates
qualify row_number() over (partition by rid order by rank, apart, gid) = 1;

create table staging.m_groups as
select rid, gid from m_server
union all
select s.rid, coalesce(c.gid, s.rid) from m_side s left join m_client c using (rid)
where s.trust = 9
union all
select rid, rid as gid from st_requests
where (select min(trust) = max(trust) from st_requests);

create table staging.m_shared as  -- requests that several tell of
select g.gid, min(r.trust) as trust, bool_or(r.trust = 1) as has_contract
from m_groups g join st_requests r using (rid) group by g.gid having count(*) > 1;

-- --- fields: the most trusted that says something -----------------------------------------------

create table staging.m_fields as
select
    g.gid,
    array_to_string(list_transform(
        list_sort(list_distinct(list({'trust': r.trust, 'dialect': r.dialect}) filter (
            -- The contract's own client span is no second teller beside its server's.
            not (r.trust = 9 and coalesce(r.scope = ${SCOPE_NAME}, false) and h.has_contract)))),
        lambda teller: teller.dialect), ',') as dialects,
    min(r.trust) as trust,
    arg_min(r.request_id, r.trust) as request_id, arg_min(r.trace_id, r.trust) as trace_id,
    arg_min(r.operation, r.trust) as operation, arg_min(r.model, r.trust) as model,
    arg_min(r.tenant, r.trust) as tenant, arg_min(r.prefix_id, r.trust) as prefix_id,
    arg_min(r.conversation_id, r.trust) as conversation_id,
    arg_min(r.features, r.trust) as features, arg_min(r.adapter, r.trust) as adapter,
    arg_min(r.priority, r.trust) as priority, arg_min(r.n_choices, r.trust) as n_choices,
    arg_min(r.n_max_output, r.trust) as n_max_output,
    arg_min(r.n_prompt, r.trust) as n_prompt, arg_min(r.n_cached, r.trust) as n_cached,
    arg_min(r.n_output, r.trust) as n_output,
    min(r.intended_ns) as intended_ns, min(r.sent_ns) as sent_ns,
    arg_min(r.arrival_ns, r.trust) as arrival_ns,
    arg_min(r.first_token_ns, r.trust) as first_token_ns,
    arg_min(r.last_token_ns, r.trust) as last_token_ns,
    arg_min(r.end_ns, r.trust) as end_ns,
    arg_min(r.client_first_ns, r.trust) as client_first_ns,
    arg_min(r.client_end_ns, r.trust) as client_end_ns,
    arg_min(r.client_gap_p50_ms, r.trust) as client_gap_p50_ms,
    arg_min(r.client_gap_max_ms, r.trust) as client_gap_max_ms,
    arg_min(r.n_client_chunks, r.trust) as n_client_chunks,
    arg_min(r.ttft_ms, r.trust) as ttft_ms,
    arg_min(r.e2e_ms, r.trust) as e2e_ms, arg_min(r.e2e_origin, r.trust) as e2e_origin,
    arg_min(r.n_preemptions, r.trust) as n_preemptions,
    arg_min(nullif(r.finish_reason, ''), r.trust) as finish_reason,
    arg_min(r.error_type, r.trust) as error_type, coalesce(bool_or(r.is_error), false) as is_error,
    arg_min(r.is_open, r.trust) as is_open, max(r.weight) as weight,
    arg_min(r.host, r.trust) as host,
    any_value(r.host) filter (r.dialect = 'genai-client') as client_host
from m_shared h join m_groups g using (gid) join st_requests r using (rid)
group by g.gid
union all by name
select
    g.gid, r.dialect as dialects, r.* exclude (
        rid, tid, pid, dialect, scope, finish_reason, is_error),
    nullif(r.finish_reason, '') as finish_reason, coalesce(r.is_error, false) as is_error,
    case when r.dialect = 'genai-client' then r.host end as client_host
from st_requests r join m_groups g using (rid)
where g.gid not in (select gid from m_shared);

-- --- sequences -----------------------------------------------------------------------------------

create table staging.m_sequences as
select s.*, g.gid
from st_sequences s left join m_groups g using (rid) left join (
    -- The most trusted that tells of sequences.
    select g.gid, min(s.trust) as trust
    from m_shared h join m_groups g using (gid) join st_sequences s using (rid) group by g.gid
) best using (gid)
where s.trust = coalesce(best.trust, s.trust);

create table staging.m_seq_keys as
select qid, gid,
    (select coalesce(max(seq_key) + 1, 0) from sequences)
        + row_number() over (order by start_ns, qid) - 1 as seq_key
from (select distinct on (qid) qid, gid, start_ns from m_sequences);

create table staging.m_request_keys as
select gid,
    (select coalesce(max(request_key) + 1, 0) from requests)
        + row_number() over (order by coalesce(arrival_ns, sent_ns), gid) - 1 as request_key
from m_fields;
