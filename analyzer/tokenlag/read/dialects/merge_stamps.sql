-- One row a request: its phases' stamps and what they make of its own.

-- --- phases as told -----------------------------------------------------------------------------------

create table staging.m_phases as
select p.* exclude (rid, dialect, trust), g.gid
from st_phases p join m_groups g using (rid) left join (
    select g.gid, p.side, min(p.trust) as trust
    from m_shared h join m_groups g using (gid) join st_phases p using (rid) group by g.gid, p.side
) best using (gid, side)
where p.trust = coalesce(best.trust, p.trust);

create table staging.m_stamps as
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
create table staging.m_chunk_stamps as
select s.gid, min(t.start_ns) as scheduled_ns, sum(c.n_tokens) as n_chunk_tokens
from l_chunks c
join l_handles h on h.lineage = c.lineage and h.request_index = c.request_index
join m_seq_keys s on s.qid = h.qid
left join l_steps t on t.lineage = c.lineage and t.step_index = c.step_index
where s.gid is not null
group by s.gid;

create table staging.m_preempted as
select s.gid, count(*) as n
from l_preemptions p
join l_handles h on h.lineage = p.lineage and h.request_index = p.request_index
join m_seq_keys s on s.qid = h.qid
where s.gid is not null
group by s.gid;

create table staging.m_engine_stamps as
select gid, min(start_ns) as engine_ns, max(end_ns) as end_ns, sum(n_preemptions) as n_preemptions,
    sum(n_output) as n_output, max(n_output) as n_longest, max(n_prompt) as n_prompt,
    min(n_cached) as n_cached  -- of several the later ones find what the first one computed
from m_sequences where gid is not null group by gid;

-- --- requests --------------------------------------------------------------------------------------------

create table staging.m_requests as
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
