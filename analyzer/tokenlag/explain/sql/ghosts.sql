-- Work for nobody. A sequence that outlives its request, and decode runs of handles that no
-- span ever told of while every other handle has one (an unfinished span is never exported,
-- so only runs that began well before the data end count).
insert into ghosts
with told as (
    select s.epoch_key, s.request_index, s.seq_key, s.request_key,
           coalesce(r.client_end_ns, r.end_ns) as given_up_ns, s.end_ns
    from sequences s
    left join requests r using (request_key)
    where s.request_index is not null
),
runs as (
    select m.epoch_key, m.request_index, any_value(m.seq_key) as seq_key,
           min(a.start_ns) as from_ns, max(b.end_ns) as to_ns,
           sum(m.last_step - m.first_step + 1) as n_tokens
    from memberships m
    join steps a on a.epoch_key = m.epoch_key and a.step_index = m.first_step
    join steps b on b.epoch_key = m.epoch_key and b.step_index = m.last_step
    group by m.epoch_key, m.request_index
),
usual as (
    -- How long streams that were told of run; what is open at the end of the data (never told of
    -- yet) or left out by sampling runs no longer than that, a ghost far longer. Of few streams the
    -- longest says little.
    select r.epoch_key, quantile_cont(r.to_ns - r.from_ns, 0.99) as p99_ns,
           case when count(*) >= 30 then max(r.to_ns - r.from_ns) end as longest_ns
    from runs r join told t using (epoch_key, request_index)
    group by r.epoch_key
),
front as (
    -- Only where a front end tells of requests can an engine's work be seen to be for nobody.
    select e.epoch_key, e.dataset
    from epochs e
    where exists (select 1 from sequences s where s.epoch_key = e.epoch_key and s.request_key is not null)
),
dead as (
    select t.epoch_key, t.request_index, t.seq_key, 'outlives its request' as reason,
           -- What still waits holds no slot: from its first decode step on.
           greatest(t.given_up_ns, r.from_ns) as from_ns, least(t.end_ns, r.to_ns) as to_ns
    from told t join front using (epoch_key) join runs r using (epoch_key, request_index)
    where t.given_up_ns is not null and least(t.end_ns, r.to_ns) - greatest(t.given_up_ns, r.from_ns) > 1000000000
    union all
    select r.epoch_key, r.request_index, null, 'never told of', r.from_ns, r.to_ns
    from runs r join front using (epoch_key) join usual u using (epoch_key)
    where r.to_ns - r.from_ns > least(3 * u.p99_ns, coalesce(1.5 * u.longest_ns, 3 * u.p99_ns))
      and not exists (select 1 from told t
                      where t.epoch_key = r.epoch_key and t.request_index = r.request_index)
)
select w.name, d.epoch_key, d.request_index, d.seq_key, d.reason,
       greatest(d.from_ns, w.from_ns), least(d.to_ns, w.to_ns),
       (least(d.to_ns, w.to_ns) - greatest(d.from_ns, w.from_ns)) / 1e6,
       coalesce(r.n_tokens, 0)
from dead d
join epochs e using (epoch_key)
join windows w on w.dataset = e.dataset and d.to_ns > w.from_ns and d.from_ns < w.to_ns
left join runs r on r.epoch_key = d.epoch_key and r.request_index = d.request_index
where least(d.to_ns, w.to_ns) > greatest(d.from_ns, w.from_ns);
