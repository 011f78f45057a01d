-- Engine phases of sequences for which none was told (child spans sampled away, or a writer
-- of steps only): steps know when each chunk ran and in which steps the sequence decoded.

create table staging.d_bare as
select s.qid, q.rid, s.lineage, s.request_index,
    -- In compact form the sequence has no start of its own: it waits from the front end's on.
    greatest(q.start_ns, case when q.qid = q.rid then f.end_ns end) as start_ns
from l_sequences s
join l_handles h on h.qid = s.qid
join st_sequences q on q.qid = s.qid
left join (
    select rid, max(end_ns) as end_ns from st_phases
    where kind = 'frontend' and detail is distinct from 'detokenize' group by rid
) f on f.rid = q.rid
where q.rid is not null and q.trust = 1
  and q.rid not in (select rid from st_phases where side = 'engine' and trust = 1);

create table staging.d_runs as
with pieces as (
    select b.qid, b.rid, 'prefill' as kind, t.step_index, t.start_ns, t.end_ns, c.n_tokens
    from d_bare b
    join l_chunks c on c.lineage = b.lineage and c.request_index = b.request_index
    join l_steps t on t.lineage = c.lineage and t.step_index = c.step_index
    union all
    select b.qid, b.rid, 'decode', f.step_index, f.start_ns, l.end_ns, null
    from d_bare b
    join m_listed m on m.lineage = b.lineage and m.request_index = b.request_index
    join l_steps f on f.lineage = m.lineage and f.step_index = m.first_step
    join l_steps l on l.lineage = m.lineage and l.step_index = m.last_step
),
-- Neighbours of one kind are one phase: a prompt's chunks with the steps between them, a
-- decode across the steps that an engine gave to prefill alone.
numbered as (
    select *, sum(is_new::int) over (partition by qid order by step_index, start_ns) as run
    from (
        select *, coalesce(kind <> lag(kind) over (partition by qid order by step_index, start_ns), true) as is_new
        from pieces
    )
),
runs as (
    select qid, any_value(rid) as rid, any_value(kind) as kind, run, min(start_ns) as start_ns,
        max(end_ns) as end_ns, sum(n_tokens) as n_tokens
    from numbered group by qid, run
)
select *, lag(end_ns) over (partition by qid order by run) as end_before from runs;

insert into st_phases by name
select
    rid, qid, 'contract' as dialect, 1 as trust, 'engine' as side, kind,
    -- The first token is out when the prompt is done; from there on it decodes.
    case when kind = 'decode' then coalesce(end_before, start_ns) else start_ns end as start_ns,
    end_ns, n_tokens, case when kind = 'prefill' then run > 1 end as is_recompute,
    'derived' as origin
from d_runs
union all by name
select r.rid, r.qid, 'contract' as dialect, 1 as trust, 'engine' as side,
    case when r.run = 1 then 'queue' else 'requeue' end as kind,
    case when r.run > 1 then 'preempted' end as detail,
    coalesce(r.end_before, b.start_ns) as start_ns, r.start_ns as end_ns, 'derived' as origin
from d_runs r join d_bare b using (qid)
where r.kind = 'prefill' and coalesce(r.end_before, b.start_ns) <= r.start_ns;
