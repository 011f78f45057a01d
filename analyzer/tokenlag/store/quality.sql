-- What the canonical tables say about themselves, for one dataset. Facts that only the
-- staged spans show (negative network times, say) come from read/dialects/finish.sql.

-- Told of by clients, load tests and gateways alone: nobody who could know phases.
create or replace temp macro is_client_only(dialects) as regexp_full_match(
    dialects, '((genai-client|load-test|litellm|production-stack|llm-d|llm-d-sidecar|dynamo-frontend)(,|$))+');

-- --- step records -------------------------------------------------------------------------

create or replace temp table q_steps as
select e.epoch_key, e.engine_id, e.n_dropped, e.n_skipped, count(*) as n_seen,
    max(s.step_index) - min(s.step_index) + 1 - count(*) as n_missing
from epochs e join steps s using (epoch_key)
where e.dataset = ${dataset}
group by all;

insert into quality
select ${dataset}, 'lost_steps', engine_id, sum(n_missing), sum(n_missing) / (sum(n_missing) + sum(n_seen)),
    printf('%s: %d of %d step records are missing (%.1f %%)%s', engine_id, sum(n_missing)::bigint,
        (sum(n_missing) + sum(n_seen))::bigint, 100.0 * sum(n_missing) / (sum(n_missing) + sum(n_seen)),
        case when sum(n_skipped) > 0 then printf('; the writer left %d out by choice', sum(n_skipped)::bigint) else '' end)
from q_steps where n_missing > 0 group by engine_id;

insert into quality
select ${dataset}, 'dropped_steps', engine_id, sum(n_dropped), null,
    printf('%s: the writer counted %d lost step records since the engine''s start', engine_id, sum(n_dropped)::bigint)
from q_steps where n_dropped > 0 group by engine_id;

-- Two runs of one engine at once: an id that two engines share, or copied traces.
insert into quality
select ${dataset}, 'overlapping_epochs', a.engine_id, count(*), null,
    printf('%s: %d pairs of runs with this engine id overlap in time; two engines may share it', a.engine_id, count(*))
from epochs a join epochs b
  on a.dataset = b.dataset and a.engine_id = b.engine_id and a.epoch_key < b.epoch_key
where a.dataset = ${dataset}
  -- Parts of one run, before and after a changed setting, meet.
  and a.epoch is distinct from b.epoch
  and least(a.end_ns, b.end_ns) - greatest(a.start_ns, b.start_ns) > 1_000_000_000
group by a.engine_id;

insert into quality
select ${dataset}, 'many_epochs', engine_id, count(*), null,
    printf('%s: the step index falls back %d times; two engines may share this id', engine_id, count(*) - 1)
from epochs where dataset = ${dataset} and epoch is null
group by engine_id having count(*) > 20;

-- A span is written when it ends. What was in an engine when the data ended has none yet,
-- and is not lost: a stream in the last step that decodes any, a prompt that is not done
-- (steps say how many those are), what was put back to the queue and not taken again. An
-- engine that fell silent before the data end lost what it had in hand.

create or replace temp table q_handles as  -- requests that steps name and no request span tells of
with named as (
    select m.epoch_key, m.request_index, m.first_step, m.last_step, m.last_step as last_decode, null as last_chunk
    from memberships m join epochs e using (epoch_key)
    where e.dataset = ${dataset} and m.seq_key is null
    union all
    select c.epoch_key, c.request_index, c.step_index, c.step_index, null, c.step_index
    from chunks c join epochs e using (epoch_key)
    where e.dataset = ${dataset} and c.seq_key is null
),
handles as (
    select epoch_key, request_index, min(first_step) as first_step, max(last_step) as last_step,
        max(last_decode) as last_decode, max(last_chunk) as last_chunk
    from named group by all
),
-- Steps that are recorded to the end of the data; an idle engine tells every ten seconds.
lasting as (
    select s.epoch_key, max(s.end_ns) as end_ns,
        arg_max(s.n_running - s.n_decode, s.step_index) as n_prefilling
    from steps s join epochs e using (epoch_key)
    where e.dataset = ${dataset}
    group by s.epoch_key
    having max(s.end_ns) >= (select max(end_ns) from epochs where dataset = ${dataset}) - 10_000_000_000
),
decoding as (
    select epoch_key, max(last_step) as last_step from memberships group by epoch_key
),
put_back as (
    select epoch_key, request_index, max(step_index) as step_index
    from preemptions where seq_key is null group by all
)
select h.epoch_key, h.request_index, h.first_step, l.end_ns,
    coalesce(l.epoch_key is not null and (
        h.last_decode >= d.last_step
        or p.step_index >= h.last_step
        or h.last_chunk > coalesce(h.last_decode, -1)
            and rank() over (partition by h.epoch_key, h.last_chunk > coalesce(h.last_decode, -1)
                order by h.last_chunk desc) <= coalesce(l.n_prefilling, 1)), false) as is_in_flight
from handles h
left join lasting l using (epoch_key)
left join decoding d using (epoch_key)
left join put_back p on p.epoch_key = h.epoch_key and p.request_index = h.request_index;

insert into quality
with unknown as (
    select epoch_key, count(*) filter (not is_in_flight) as n, count(*) filter (is_in_flight) as n_in_flight
    from q_handles group by epoch_key
),
known as (
    select epoch_key, count(distinct request_index) as n
    from (
        select epoch_key, request_index from memberships where seq_key is not null
        union all
        select epoch_key, request_index from chunks where seq_key is not null
    ) group by epoch_key
),
of_engine as (
    select e.engine_id, sum(u.n)::bigint as n, sum(u.n_in_flight)::bigint as n_in_flight,
        (sum(u.n) + sum(coalesce(k.n, 0)))::bigint as n_all
    from unknown u join epochs e using (epoch_key) left join known k using (epoch_key)
    group by e.engine_id
)
select ${dataset}, 'unknown_handles', engine_id, n, n / n_all,
    printf('%s: steps name %d requests of which no request span tells (%.1f %% of all they name)',
        engine_id, n, 100.0 * n / n_all)
from of_engine where n > 0
union all
select ${dataset}, 'in_flight', engine_id, n_in_flight, n_in_flight / (n_in_flight + n_all),
    printf('%s: %d requests were in the engine when the data ended; their spans are not written yet', engine_id, n_in_flight)
from of_engine where n_in_flight > 0;

-- --- requests -----------------------------------------------------------------------------------

create or replace temp table q_phases as
select r.request_key,
    sum(p.end_ns - p.start_ns) as total_ns,
    sum(p.end_ns - p.start_ns) filter (p.kind = 'uncovered') as uncovered_ns,
    bool_or(p.kind in ('queue', 'requeue', 'prefill', 'decode')) as has_engine_phase
from requests r left join phases p using (request_key)
where r.dataset = ${dataset}
group by r.request_key;

insert into quality
with seen as (
    select r.*, coalesce(q.has_engine_phase, false) as has_engine_phase
    from requests r join q_phases q using (request_key)
),
facts as (
    select 'sampled' as kind, count(*) filter (weight <> 1) as n, count(*) as n_all,
        printf('%d of %d requests are a sample; together they stand for %.0f', count(*) filter (weight <> 1),
            count(*), sum(weight)) as text
    from seen
    union all
    select 'open', count(*) filter (is_open), count(*),
        printf('%d of %d requests are still open; their times are lower bounds', count(*) filter (is_open), count(*))
    from seen
    union all
    select 'aborted', count(*) filter (is_aborted), count(*),
        printf('%d of %d requests were aborted or failed', count(*) filter (is_aborted), count(*))
    from seen
    union all
    select 'client_only', count(*) filter (is_client_only(dialects)), count(*),
        printf('%d of %d requests are known from the client alone', count(*) filter (is_client_only(dialects)), count(*))
    from seen
    union all
    select 'no_phases', count(*) filter (not has_engine_phase and not is_client_only(dialects)), count(*),
        printf('%d of %d requests have no queue, prefill or decode', count(*) filter (
            not has_engine_phase and not is_client_only(dialects)), count(*))
    from seen
)
select ${dataset}, kind, null, n, n / n_all, text from facts where n > 0;

insert into quality
select ${dataset}, 'uncovered', null, count(*) filter (share > 0), avg(share),
    printf('no phase covers %.1f %% of a request''s time on average (p99 %.1f %%)', 100 * avg(share),
        100 * quantile_cont(share, 0.99))
from (
    select coalesce(q.uncovered_ns, 0) / q.total_ns as share
    from q_phases q join requests r using (request_key)
    where q.total_ns > 0 and not is_client_only(r.dialects)
)
-- What would print as 0.0 % on both counts is nothing to say.
having avg(share) >= 0.0005 or quantile_cont(share, 0.99) >= 0.0005;

insert into quality
select ${dataset}, 'remote_clock', 'network', count(*), null,
    printf('%d network times span two hosts'' clocks and may be skewed', count(*))
from phases p join requests r using (request_key)
where r.dataset = ${dataset} and p.clock = 'remote' and p.end_ns > p.start_ns
having count(*) > 0;

insert into quality
select ${dataset}, kind, place, sum(n), null, any_value(text)
from read_notes
where dataset = ${dataset} and kind in ('duplicate_spans', 'duplicate_steps', 'membership_mismatch',
    'lost_roots', 'unowned_phases', 'hidden_requeue', 'impossible_ttft', 'bad_steps', 'bad_spans', 'milliseconds',
    'reconstructed_steps', 'hidden_steps', 'tgi_batches', 'tgi_servers', 'tgi_first_token')
group by kind, place;

-- --- Little's law ---------------------------------------------------------------------------------
--
-- Steps say how many requests run; request spans say how long each ran. Where the two
-- integrals over the same time differ by more than a tenth, requests are missing from the
-- spans (aborted without one, sampled) or counted twice. Only busy time counts, on both
-- sides: steps' cadences, and the pauses between two steps through which some sequence ran.
-- What a request that ended with the step before a pause still has to do is no running.

create or replace temp table q_running as  -- sequences that were scheduled, from then to their end
with scheduled as (  -- what computes no prompt (it got the KV from another engine) begins by decoding
    select m.epoch_key, m.seq_key, t.start_ns
    from (
        select epoch_key, seq_key, min(first_step) as step_index
        from memberships where seq_key is not null group by all
    ) m join steps t using (epoch_key, step_index)
),
begun as (
    select c.epoch_key, c.seq_key, min(t.start_ns) as start_ns
    from chunks c join steps t using (epoch_key, step_index)
    where c.seq_key is not null group by all
),
-- One whose prompt ran before the first step that is there runs from that step on.
recorded as (
    select epoch_key, min(start_ns) as start_ns from steps group by epoch_key
),
prefilled as (
    select seq_key, min(start_ns) as start_ns
    from phases where kind = 'prefill' and seq_key is not null group by seq_key
),
known as (
    select q.epoch_key, q.seq_key,
        coalesce(c.start_ns, case when p.start_ns is not null then greatest(p.start_ns, r.start_ns) end, m.start_ns)
            as start_ns
    from sequences q
    join recorded r using (epoch_key)
    left join begun c on c.seq_key = q.seq_key and c.epoch_key = q.epoch_key
    left join prefilled p on p.seq_key = q.seq_key
    left join scheduled m on m.seq_key = q.seq_key and m.epoch_key = q.epoch_key
    where c.start_ns is not null or p.start_ns is not null or m.start_ns is not null
),
waited as (
    select seq_key, sum(end_ns - start_ns) as again_ns
    from phases where kind = 'requeue' and seq_key is not null group by seq_key
)
select q.epoch_key, c.start_ns, least(coalesce(q.end_ns, e.end_ns), e.end_ns) as end_ns,
    coalesce(a.again_ns, 0) as again_ns, coalesce(r.weight, 1) as weight
from sequences q
join epochs e on e.epoch_key = q.epoch_key and e.dataset = ${dataset}
join known c on c.seq_key = q.seq_key and c.epoch_key = q.epoch_key
left join waited a on a.seq_key = q.seq_key
left join requests r on r.request_key = q.request_key
where least(coalesce(q.end_ns, e.end_ns), e.end_ns) > c.start_ns
union all
select h.epoch_key, t.start_ns, h.end_ns, 0, 1.0
from q_handles h join steps t on t.epoch_key = h.epoch_key and t.step_index = h.first_step
where h.is_in_flight and h.end_ns > t.start_ns;

create or replace temp table q_pauses as
with paused as (
    select * from (
        select epoch_key, step_index, start_ns as to_ns, n_running, is_after_hole,
            max(end_ns) over (earlier rows between unbounded preceding and 1 preceding) as from_ns,
            lag(n_running) over earlier as n_before
        from steps
        where epoch_key in (
            select epoch_key from steps join epochs using (epoch_key)
            where dataset = ${dataset} and (idle_ms > 0 or is_after_hole))
        window earlier as (partition by epoch_key order by step_index)
    )
    where from_ns < to_ns
),
begun as (
    select epoch_key, start_ns as at_ns, sum(count(*)) over (partition by epoch_key order by start_ns) as n
    from q_running group by epoch_key, start_ns
),
ended as (
    select epoch_key, end_ns as at_ns, sum(count(*)) over (partition by epoch_key order by end_ns) as n
    from q_running group by epoch_key, end_ns
)
select p.epoch_key, p.from_ns, p.to_ns, least(p.n_running, p.n_before) as n_running,
    -- No sequence begins within a pause: those that began before it and did not end before
    -- the step after it ran through it.
    not p.is_after_hole and coalesce(b.n, 0) > coalesce(e.n, 0) as is_busy
from paused p
asof left join begun b on b.epoch_key = p.epoch_key and p.from_ns >= b.at_ns
asof left join ended e on e.epoch_key = p.epoch_key and p.to_ns > e.at_ns;

create or replace temp table q_idle as
select epoch_key, from_ns, to_ns,
    sum(to_ns - from_ns) over (partition by epoch_key order by from_ns) - (to_ns - from_ns) as before_ns
from q_pauses where not is_busy;

insert into quality
with span_of as (
    select s.epoch_key, count(*) as n_steps, count(s.n_running) as n_told,
        max(s.end_ns) - min(s.start_ns) as length_ns,
        sum(s.n_running * round(s.cadence_ms * 1e6)::bigint) as running_ns
    from steps s join epochs e using (epoch_key)
    where e.dataset = ${dataset} group by s.epoch_key
),
pauses as (
    select epoch_key, sum(n_running * (to_ns - from_ns)) filter (is_busy) as running_ns,
        sum(to_ns - from_ns) filter (not is_busy) as idle_ns
    from q_pauses group by epoch_key
),
stepped as (
    select w.epoch_key, w.n_steps, w.n_told, w.running_ns + coalesce(p.running_ns, 0) as running_ns,
        w.length_ns - coalesce(p.idle_ns, 0) as busy_ns
    from span_of w left join pauses p using (epoch_key)
),
sequenced as (
    select q.epoch_key, sum(q.weight * greatest(0, q.end_ns - q.start_ns - q.again_ns
        - (coalesce(t.before_ns, 0) + coalesce(least(q.end_ns, t.to_ns) - t.from_ns, 0))
        + (coalesce(f.before_ns, 0) + coalesce(least(q.start_ns, f.to_ns) - f.from_ns, 0))))
        as running_ns
    from q_running q
    asof left join q_idle t on t.epoch_key = q.epoch_key and q.end_ns >= t.from_ns
    asof left join q_idle f on f.epoch_key = q.epoch_key and q.start_ns >= f.from_ns
    group by q.epoch_key
)
select ${dataset}, 'little_law', e.engine_id, s.n_steps, abs(1 - coalesce(q.running_ns, 0) / s.running_ns),
    printf('%s: while it works, steps count %.1f running requests on average, request spans %.1f; they should agree within 10 %%',
        e.engine_id, s.running_ns / s.busy_ns, coalesce(q.running_ns, 0) / s.busy_ns)
from stepped s join epochs e using (epoch_key)
left join sequenced q using (epoch_key)
where s.n_told = s.n_steps and s.n_steps >= 100 and s.running_ns > 0
  and abs(1 - coalesce(q.running_ns, 0) / s.running_ns) > 0.1;

drop table q_steps;
drop table q_handles;
drop table q_phases;
drop table q_running;
drop table q_pauses;
drop table q_idle;
