-- Which prompt tokens ran in which step, and who was preempted there.

create table staging.l_chunks as
with told as (
    select epoch_key, lineage, step_index, unnest(prefill_requests) as request_index,
        unnest(prefill_tokens) as n_tokens, unnest(prefill_context) as n_context
    from l_steps where len(prefill_requests) > 0
),
-- Steps that are missing from the record, but whose chunks the request side kept.
rescued as (
    select distinct on (s.lineage, c.step_index, s.request_index)
        s.lineage, c.step_index, s.request_index, c.n_tokens, c.n_context, c.end_ns
    from st_chunks c join l_sequences s using (qid)
    where s.request_index is not null
      and not exists (
          select 1 from l_steps t where t.lineage = s.lineage and t.step_index = c.step_index)
)
select epoch_key, lineage, step_index, request_index, n_tokens, n_context from told
where request_index is not null and n_tokens is not null
union all by name
select
    arg_max(e.epoch_key, e.start_ns) as epoch_key, r.lineage, r.step_index, r.request_index,
    any_value(r.n_tokens) as n_tokens, any_value(r.n_context) as n_context
from rescued r join l_epochs e on e.lineage = r.lineage
where e.start_ns <= r.end_ns or e.part = 0
group by r.lineage, r.step_index, r.request_index;

create table staging.l_preemptions as
select epoch_key, lineage, step_index, unnest(preempted) as request_index
from l_steps where len(preempted) > 0;
