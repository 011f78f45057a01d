-- Intervals from the steps' lists (m_listed) and, where those leave the set unknown
-- (m_unknown) or no step is recorded at all, from the request side's decode runs. Lists
-- win: an engine that puts prefill first leaves holes inside one decode run.

insert into memberships by name
with filled as (
    select lineage, request_index, first_step, last_step from m_listed
    union all
    select s.lineage, s.request_index,
        greatest(d.first_step, u.first_step), least(d.last_step, u.last_step)
    from st_decodes d join l_sequences s using (qid)
    join m_unknown u
      on u.lineage = s.lineage and u.first_step <= d.last_step and u.last_step >= d.first_step
    where s.request_index is not null
    union all
    select s.lineage, s.request_index, d.first_step, d.last_step
    from st_decodes d join l_sequences s using (qid)
    where s.request_index is not null
      and s.lineage not in (select lineage from l_steps)
),
-- Pieces that touch or overlap are one run.
islands as (
    select *, sum((first_step > coalesce(reach, first_step - 2) + 1)::int) over member as island
    from (
        select *, max(last_step) over (member rows between unbounded preceding and 1 preceding) as reach
        from filled
        window member as (partition by lineage, request_index order by first_step, last_step)
    )
    window member as (partition by lineage, request_index order by first_step, last_step)
),
runs as (
    select lineage, request_index, min(first_step) as first_step, max(last_step) as last_step
    from islands group by lineage, request_index, island
)
select
    e.epoch_key, k.seq_key, r.request_index,
    greatest(r.first_step, coalesce(e.first_index, r.first_step)) as first_step,
    least(r.last_step, coalesce(e.last_index, r.last_step)) as last_step
from runs r
join l_epochs e
  on e.lineage = r.lineage
 and r.first_step <= coalesce(e.last_index, r.first_step)
 and r.last_step >= coalesce(e.first_index, r.last_step)
left join l_handles h on h.lineage = r.lineage and h.request_index = r.request_index
left join m_seq_keys k on k.qid = h.qid;

insert into chunks by name
select c.epoch_key, c.step_index, k.seq_key, c.request_index, c.n_tokens, c.n_context
from l_chunks c
left join l_handles h on h.lineage = c.lineage and h.request_index = c.request_index
left join m_seq_keys k on k.qid = h.qid;

insert into preemptions by name
select p.epoch_key, p.step_index, k.seq_key, p.request_index
from l_preemptions p
left join l_handles h on h.lineage = p.lineage and h.request_index = p.request_index
left join m_seq_keys k on k.qid = h.qid;
