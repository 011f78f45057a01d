-- What the canonical tables say about themselves, for one dataset. Facts that only the
-- staged spans show (negative network times, say) come from read/dialects/finish.sql.

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

insert into quality
select ${dataset}, 'unknown_handles', e.engine_id, count(distinct m.request_index) filter (m.seq_key is null),
    count(distinct m.request_index) filter (m.seq_key is null) / count(distinct m.request_index),
    printf('%s: steps name %d requests of which no request span tells (%.1f %% of all they name)', e.engine_id,
        count(distinct m.request_index) filter (m.seq_key is null),
        100.0 * count(distinct m.request_index) filter (m.seq_key is null) / count(distinct m.request_index))
from memberships m join epochs e using (epoch_key)
where e.dataset = ${dataset}
group by e.engine_id
having count(*) filter (m.seq_key is null) > 0;

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
    select 'client_only', count(*) filter (dialects = 'genai-client'), count(*),
        printf('%d of %d requests are known from the client alone', count(*) filter (dialects = 'genai-client'), count(*))
    from seen
    union all
    select 'no_phases', count(*) filter (not has_engine_phase and dialects <> 'genai-client'), count(*),
        printf('%d of %d requests have no queue, prefill or decode', count(*) filter (
            not has_engine_phase and dialects <> 'genai-client'), count(*))
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
    where q.total_ns > 0 and r.dialects <> 'genai-client'
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
    'lost_roots', 'unowned_phases', 'hidden_requeue', 'impossible_ttft', 'bad_steps', 'bad_spans', 'milliseconds')
group by kind, place;

-- --- Little's law ---------------------------------------------------------------------------------
--
-- Steps say how many requests run; request spans say how long each ran. Where the two
-- integrals over the same time differ by more than a tenth, requests are missing from the
-- spans (aborted without one, sampled) or counted twice.

insert into quality
with span_of as (
    select s.epoch_key, min(s.start_ns) as from_ns, max(s.end_ns) as to_ns, count(*) as n_steps,
        count(s.n_running) as n_told
    from steps s join epochs e using (epoch_key)
    where e.dataset = ${dataset} group by s.epoch_key
),
stepped as (
    select epoch_key, sum(n_running * cadence_ms
        -- Between two steps only those run on that were there before and are there after.
        + least(n_running, coalesce(n_before, 0)) * coalesce(idle_ms, 0)) as running_ms
    from (
        select *, lag(n_running) over (partition by epoch_key order by step_index) as n_before from steps
    )
    group by epoch_key
),
scheduled as (
    select c.epoch_key, c.seq_key, min(t.start_ns) as start_ns
    from chunks c join steps t using (epoch_key, step_index)
    where c.seq_key is not null group by all
),
waited as (
    select seq_key, sum(end_ns - start_ns) as again_ns
    from phases where kind = 'requeue' and seq_key is not null group by seq_key
),
sequenced as (
    select q.epoch_key, sum(coalesce(r.weight, 1) * greatest(0,
        least(coalesce(q.end_ns, w.to_ns), w.to_ns) - greatest(c.start_ns, w.from_ns)
        - coalesce(a.again_ns, 0))) / 1e6 as running_ms
    from sequences q
    join span_of w using (epoch_key)
    join scheduled c on c.seq_key = q.seq_key and c.epoch_key = q.epoch_key
    left join waited a on a.seq_key = q.seq_key
    left join requests r on r.request_key = q.request_key
    group by q.epoch_key
)
select ${dataset}, 'little_law', e.engine_id, w.n_steps, 1 - coalesce(q.running_ms, 0) / s.running_ms,
    printf('%s: steps count %.1f running requests on average, request spans %.1f; they should agree within 10 %%',
        e.engine_id, s.running_ms * 1e6 / (w.to_ns - w.from_ns),
        coalesce(q.running_ms, 0) * 1e6 / (w.to_ns - w.from_ns))
from stepped s join span_of w using (epoch_key) join epochs e using (epoch_key)
left join sequenced q using (epoch_key)
where w.n_told = w.n_steps and w.n_steps >= 100 and s.running_ms > 0
  and abs(1 - coalesce(q.running_ms, 0) / s.running_ms) > 0.1;
