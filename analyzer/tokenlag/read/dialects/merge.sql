-- Staged requests of all dialects → one row a request, its sequences and its phases.

-- --- one request, several tellers -----------------------------------------------------------

-- Nobody to be matched where all requests come from dialects of one trust. The core of an id
-- is what is left without what vLLM and SGLang put around the caller's: 'cmpl-r0-0' → 'r0'.
create or replace temp table m_side as
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
create or replace temp table m_same as
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

create or replace temp table m_server as
select s.rid, coalesce(m.gid, s.rid) as gid, s.tid, s.pid, s.request_id, s.start_ns, s.end_ns,
    s.is_named, s.n_namesakes
from m_side s left join m_same m using (rid)
where s.trust < 9;

create or replace temp table m_groups_beside as
select tid, count(distinct gid) as n, min(gid) as gid from m_server group by tid;

-- Clients to the request that their call became. A call that was retried inside becomes
-- the last of them.
create or replace temp table m_client as
with candidates as (
    select c.rid, s.gid, 1 as rank, -s.start_ns as apart
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

create or replace temp table m_groups as
select rid, gid from m_server
union all
select s.rid, coalesce(c.gid, s.rid) from m_side s left join m_client c using (rid)
where s.trust = 9
union all
select rid, rid as gid from st_requests
where (select min(trust) = max(trust) from st_requests);

create or replace temp table m_shared as  -- requests that several tell of
select g.gid, min(r.trust) as trust, bool_or(r.trust = 1) as has_contract
from m_groups g join st_requests r using (rid) group by g.gid having count(*) > 1;

-- --- fields: the most trusted that says something -----------------------------------------------

create or replace temp table m_fields as
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

create or replace temp table m_sequences as
select s.*, g.gid
from st_sequences s left join m_groups g using (rid) left join (
    -- The most trusted that tells of sequences.
    select g.gid, min(s.trust) as trust
    from m_shared h join m_groups g using (gid) join st_sequences s using (rid) group by g.gid
) best using (gid)
where s.trust = coalesce(best.trust, s.trust);

create or replace temp table m_seq_keys as
select qid, gid,
    (select coalesce(max(seq_key) + 1, 0) from sequences)
        + row_number() over (order by start_ns, qid) - 1 as seq_key
from (select distinct on (qid) qid, gid, start_ns from m_sequences);

create or replace temp table m_request_keys as
select gid,
    (select coalesce(max(request_key) + 1, 0) from requests)
        + row_number() over (order by coalesce(arrival_ns, sent_ns), gid) - 1 as request_key
from m_fields;

create or replace temp table m_parts as
select lineage, epoch_key,
    case when lag(start_ns) over parts is not null then start_ns end as from_ns,
    lead(start_ns) over parts as to_ns
from l_epochs window parts as (partition by lineage order by start_ns, part);

insert into sequences by name
select distinct on (k.seq_key)
    k.seq_key, r.request_key,
    e.epoch_key,
    s.request_index, s.sequence, s.role, s.start_ns, s.end_ns,
    s.n_prompt, s.n_cached, s.n_output, s.n_preemptions
from m_sequences s
join m_seq_keys k using (qid)
left join m_request_keys r on r.gid = s.gid
left join l_sequences l on l.qid = s.qid
-- The epoch of the lineage that ran when the sequence began.
left join m_parts e on e.lineage = l.lineage
    and s.start_ns >= coalesce(e.from_ns, s.start_ns) and s.start_ns < coalesce(e.to_ns, s.start_ns + 1);

-- --- phases as told -----------------------------------------------------------------------------------

create or replace temp table m_phases as
select p.* exclude (rid, dialect, trust), g.gid
from st_phases p join m_groups g using (rid) left join (
    select g.gid, p.side, min(p.trust) as trust
    from m_shared h join m_groups g using (gid) join st_phases p using (rid) group by g.gid, p.side
) best using (gid, side)
where p.trust = coalesce(best.trust, p.trust);

create or replace temp table m_stamps as
select
    gid,
    min(start_ns) filter (kind = 'prefill') as scheduled_ns,
    arg_min(end_ns, start_ns) filter (kind = 'prefill' and not coalesce(is_recompute, false)) as prefilled_ns,
    max(end_ns) filter (kind = 'decode') as decoded_ns,
    bool_or(kind = 'decode') as has_decode,
    bool_or(kind = 'prefill') as has_prefill,
    min(start_ns) filter (kind = 'network_in' and end_ns >= start_ns) as network_ns,
    max(end_ns) as last_ns,
    sum(n_tokens) filter (kind = 'prefill') as n_prefilled,
    count(*) filter (kind = 'requeue') as n_requeues
from m_phases group by gid;

-- Steps know when the prompt was done even if nobody wrote a prefill span.
create or replace temp table m_chunk_stamps as
select s.gid, min(t.start_ns) as scheduled_ns, sum(c.n_tokens) as n_chunk_tokens
from l_chunks c
join l_handles h on h.lineage = c.lineage and h.request_index = c.request_index
join m_seq_keys s on s.qid = h.qid
left join l_steps t on t.lineage = c.lineage and t.step_index = c.step_index
where s.gid is not null
group by s.gid;

create or replace temp table m_preempted as
select s.gid, count(*) as n
from l_preemptions p
join l_handles h on h.lineage = p.lineage and h.request_index = p.request_index
join m_seq_keys s on s.qid = h.qid
where s.gid is not null
group by s.gid;

create or replace temp table m_engine_stamps as
select gid, min(start_ns) as engine_ns, max(end_ns) as end_ns, sum(n_preemptions) as n_preemptions,
    sum(n_output) as n_output, max(n_output) as n_longest, max(n_prompt) as n_prompt,
    max(n_cached) as n_cached
from m_sequences where gid is not null group by gid;

-- --- requests --------------------------------------------------------------------------------------------

create or replace temp table m_requests as
with known as (
    select
        f.* exclude (arrival_ns, end_ns, n_prompt, n_cached, n_output, n_preemptions),
        coalesce(f.arrival_ns, f.sent_ns) as arrival_ns,
        f.arrival_ns is null as is_client_only,
        coalesce(f.end_ns, case when f.arrival_ns is null then f.client_end_ns end) as end_ns,
        coalesce(f.n_prompt, e.n_prompt) as n_prompt, coalesce(f.n_cached, e.n_cached) as n_cached,
        coalesce(f.n_output, e.n_output) as n_output, e.n_longest,
        coalesce(f.n_preemptions, e.n_preemptions, p.n, nullif(s.n_requeues, 0)) as n_preemptions,
        -- A dialect without the engine's side says only when the front end took it.
        case when f.trust = 1 or s.scheduled_ns is not null then e.engine_ns end as engine_ns,
        coalesce(s.scheduled_ns, c.scheduled_ns) as scheduled_ns, s.prefilled_ns, s.decoded_ns,
        coalesce(s.has_decode, false) as has_decode, coalesce(s.has_prefill, false) as has_prefill,
        s.network_ns, s.last_ns, coalesce(s.n_prefilled, c.n_chunk_tokens) as n_computed,
        f.is_error or f.error_type is not null
            or coalesce(regexp_matches(f.finish_reason, 'abort|cancel|error|timeout'), false) as is_aborted
    from m_fields f
    left join m_stamps s using (gid)
    left join m_chunk_stamps c using (gid)
    left join m_engine_stamps e using (gid)
    left join m_preempted p using (gid)
),
judged as (
    select *,
        coalesce(operation in ('embeddings', 'embedding', 'rerank', 'score', 'classify'), false)
        or (not has_decode and has_prefill and first_token_ns is null and not is_aborted
            and not is_open and coalesce(n_output, 0) = 0
            and coalesce(operation not in ('chat', 'text_completion', 'generate_content'), true))
            as is_prefill_only
    from known
),
stamped as (
    select * exclude (first_token_ns, last_token_ns, ttft_ms),
        case when is_prefill_only then null else ttft_ms end as told_ttft_ms,
        case when is_prefill_only then null else coalesce(
            first_token_ns,
            -- No token came out of a prompt that was given up before it was done.
            case when has_decode or n_output > 0 or not (is_aborted or is_open) and n_output is null
                then prefilled_ns end
        ) end as first_ns,
        last_token_ns
    from judged
)
select * exclude (first_ns),
    case when first_ns >= arrival_ns and first_ns <= coalesce(end_ns, first_ns) then first_ns end as first_token_ns,
    case when not is_prefill_only then coalesce(
        case when last_token_ns >= greatest(arrival_ns, coalesce(first_ns, arrival_ns))
              and last_token_ns <= coalesce(end_ns, last_token_ns) then last_token_ns end,
        case when decoded_ns >= arrival_ns then least(decoded_ns, end_ns) end,
        case when n_output = 1 and first_ns between arrival_ns and coalesce(end_ns, first_ns)
            then first_ns end) end as final_ns,
    coalesce(is_open, end_ns is null) and end_ns is null as is_censored
from stamped;

insert into st_notes
select 'impossible_ttft', null, count(*),
    count(*) || ' requests have a first token before their arrival or after their end; it is not used'
from m_fields f join m_requests r using (gid)
where f.first_token_ns is not null and r.first_token_ns is null and not r.is_prefill_only
having count(*) > 0;

insert into requests by name
select
    k.request_key, ${dataset} as dataset, m.request_id, m.trace_id, m.dialects, m.operation, m.model,
    m.tenant, m.prefix_id, m.conversation_id, m.features, m.adapter, m.priority, m.n_choices,
    m.n_max_output, m.n_prompt, m.n_cached, m.n_output, m.intended_ns,
    coalesce(m.sent_ns, m.network_ns) as sent_ns, m.arrival_ns, m.engine_ns, m.scheduled_ns,
    m.prefilled_ns, m.first_token_ns, m.final_ns as last_token_ns, m.end_ns,
    m.client_first_ns, m.client_end_ns, m.client_gap_p50_ms, m.client_gap_max_ms,
    case
        when m.is_prefill_only then null
        when m.is_client_only then (m.client_first_ns - m.sent_ns) / 1e6
        when m.first_token_ns is not null then coalesce(m.told_ttft_ms, (m.first_token_ns - m.arrival_ns) / 1e6)
    end as ttft_ms,
    case
        when m.is_prefill_only then null
        when m.is_client_only then case when m.client_first_ns is not null then 'measured' end
        when m.first_token_ns is not null
            then case when m.told_ttft_ms is not null then 'measured' else 'derived' end
    end as ttft_origin,
    coalesce(m.e2e_ms, (m.end_ns - m.arrival_ns) / 1e6) as e2e_ms,
    coalesce(m.e2e_origin, case when m.end_ns is not null then 'measured' end) as e2e_origin,
    case when per_stream >= 2 and m.final_ns >= m.first_token_ns
        then (m.final_ns - m.first_token_ns) / 1e6 / (per_stream - 1) end as tpot_ms,
    m.n_preemptions, m.n_computed, m.finish_reason, m.error_type, m.is_aborted,
    m.is_censored as is_open, m.is_prefill_only, coalesce(m.weight, 1) as weight
from (
    select *, case when coalesce(n_choices, 1) > 1 then coalesce(n_longest, n_output / n_choices)
        else n_output end as per_stream
    from m_requests
) m
join m_request_keys k using (gid);
