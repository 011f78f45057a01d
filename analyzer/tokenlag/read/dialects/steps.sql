-- Staged steps → epochs and steps. An engine's *lineage* is one run of it, in which a
-- request handle is unique: engine id, epoch, and (where the writer gave no epoch) the
-- stretch between two falls of the step index. A changed configuration splits a lineage
-- into epochs, whose steps are never fitted together.

-- An engine whose writer names the epoch and never changes the configuration needs no look
-- at the order of its steps, which costs more than all the rest.
create table staging.l_runs as
select engine_id, epoch,
    epoch is null or coalesce(min(config_hash) <> max(config_hash), false) as is_split,
    min(config_hash) as config_hash, min(start_ns) as start_ns, max(end_ns) as end_ns,
    min(step_index) as first_index, max(step_index) as last_index,
    max(n_dropped) as n_dropped, max(n_skipped) as n_skipped
from st_steps group by engine_id, epoch;

create table staging.l_marked as
with split as (
    select s.rowid as step_row, s.*
    from st_steps s join l_runs r
      on r.is_split and r.engine_id = s.engine_id and r.epoch is not distinct from s.epoch
),
ordered as (
    select
        step_row, engine_id, epoch, config_hash, start_ns,
        lag(step_index) over engine > step_index and epoch is null as is_restart,
        -- coalesce: a writer that leaves the hash out once did not change anything
        coalesce(config_hash <> last_value(config_hash ignore nulls) over before, false) as is_change
    from split
    window engine as (partition by engine_id, epoch order by start_ns, step_index),
           before as (partition by engine_id, epoch order by start_ns, step_index
                      rows between unbounded preceding and 1 preceding)
)
select
    step_row, engine_id, epoch, config_hash, start_ns,
    coalesce(sum(is_restart::int) over engine, 0) as restart,
    coalesce(sum((is_change or coalesce(is_restart, false))::int) over engine, 0) as part
from ordered
window engine as (partition by engine_id, epoch order by start_ns, step_row);

-- Epochs that only sequences tell of.
create table staging.l_silent as
select s.engine_id, s.epoch, min(s.config_hash) as config_hash,
    min(s.start_ns) as start_ns, max(coalesce(s.end_ns, s.start_ns)) as end_ns
from st_sequences s
where s.engine_id is not null
  and not exists (
      select 1 from l_runs r
      where r.engine_id = s.engine_id
        and (r.epoch = s.epoch or r.epoch is null or s.epoch is null))
group by s.engine_id, s.epoch;

create table staging.l_epochs as
with all_ as (
    select m.engine_id, m.epoch, m.restart, m.part, any_value(m.config_hash) as config_hash,
        min(s.start_ns) as start_ns, max(s.end_ns) as end_ns,
        min(s.step_index) as first_index, max(s.step_index) as last_index,
        max(s.n_dropped) as n_dropped, max(s.n_skipped) as n_skipped
    from l_marked m join st_steps s on s.rowid = m.step_row
    group by all
    union all by name
    select * exclude (is_split), 0 as restart, 0 as part from l_runs where not is_split
    union all by name
    select engine_id, epoch, 0 as restart, 0 as part, config_hash, start_ns, end_ns from l_silent
)
select *,
    (select coalesce(max(epoch_key) + 1, 0) from epochs)
        + row_number() over (order by start_ns, engine_id, epoch, restart, part) - 1 as epoch_key,
    dense_rank() over (order by engine_id, epoch, restart) as lineage
from all_;

create table staging.l_resources as
select e.epoch_key, any_value(columns(r.* exclude (engine_id, epoch, config_hash)))
from l_epochs e join st_engines r
  on r.engine_id = e.engine_id and r.epoch is not distinct from e.epoch
 and (r.config_hash is not distinct from e.config_hash or r.config_hash is null)
group by e.epoch_key;

insert into epochs by name
select
    e.epoch_key, ${dataset} as dataset, e.engine_id, e.epoch, e.start_ns, e.end_ns, e.config_hash,
    e.n_dropped, e.n_skipped, r.* exclude (epoch_key)
from l_epochs e left join l_resources r using (epoch_key);

-- --- steps ---------------------------------------------------------------------------------------

update st_steps s set epoch_key = e.epoch_key, lineage = e.lineage
from l_epochs e join l_runs r
  on not r.is_split and r.engine_id = e.engine_id and r.epoch is not distinct from e.epoch
where s.engine_id = r.engine_id and s.epoch is not distinct from r.epoch;

update st_steps s set epoch_key = e.epoch_key, lineage = e.lineage
from l_marked m join l_epochs e
  on e.engine_id = m.engine_id and e.epoch is not distinct from m.epoch
 and e.restart = m.restart and e.part = m.part
where s.rowid = m.step_row;

delete from st_steps  -- heartbeats
where end_ns = start_ns and coalesce(decode_count, 0) = 0 and coalesce(len(prefill_requests), 0) = 0;

create table staging.l_second as
with twice as (
    select lineage, step_index from st_steps group by lineage, step_index having count(*) > 1
)
select s.rowid as step_row from st_steps s join twice using (lineage, step_index)
qualify row_number() over (
    partition by lineage, step_index order by end_ns - start_ns desc, start_ns, s.rowid
) > 1;

insert into st_notes
select 'duplicate_steps', 'contract', count(*),
    count(*) || ' step records repeat an engine, epoch and index; one of each is kept'
from l_second having count(*) > 0;

delete from st_steps where rowid in (select step_row from l_second);

-- Where every step lists its members by itself and steps are lost (iterations that another reader
-- of the engine's statistics took, or that were not sampled), streams would seem to wait through
-- those in which they got tokens. More than one in a hundred is seen in the p99 of all gaps.
create table staging.l_gappy as
select lineage, any_value(engine_id) as engine_id, count(*) as n_steps,
    max(step_index) - min(step_index) + 1 - count(*) - coalesce(max(n_skipped), 0) as n_lost
from st_steps group by lineage
having count(members) > 0 and bool_and(members is not null or decode_count = 0) and n_lost > 0.01 * n_steps;

update st_steps set members = null where lineage in (select lineage from l_gappy);

insert into st_notes
select 'lost_members', engine_id, n_lost,
    engine_id || ': who was in its steps is not used, for ' || n_lost || ' of ' || n_steps + n_lost
        || ' are missing, and tokens of those would look like waits'
from l_gappy;

create view staging.l_steps as from st_steps;

-- Few columns to sort, for lists are dear to carry along.
create table staging.l_before as
select rowid as step_row, step_index,
    -- The running maximum, so that cadences sum to busy time even if an end is late.
    max(end_ns) over (earlier rows between unbounded preceding and 1 preceding) as end_before,
    lag(step_index) over earlier as index_before
from st_steps
window earlier as (partition by epoch_key order by step_index);

insert into steps by name
select
    s.epoch_key, s.step_index, start_ns, end_ns,
    greatest(end_ns - greatest(start_ns, coalesce(end_before, start_ns)), 0) / 1e6 as cadence_ms,
    case when index_before = s.step_index - 1
        then greatest(start_ns - end_before, 0) / 1e6 end as idle_ms,
    coalesce(list_sum(prefill_tokens), 0) as n_prefill_tokens,
    coalesce(len(prefill_requests), 0) as n_chunks,
    case when prefill_tokens is null then 0 else coalesce(list_sum(list_transform(
        list_zip(prefill_tokens, coalesce(prefill_context, [])),
        lambda chunk: chunk[1] * (coalesce(chunk[2], 0) + chunk[1] / 2))), 0) end as attention_work,
    coalesce(decode_count, 0) as n_decode,
    coalesce(list_sum(new_tokens), decode_count, 0) as n_new_tokens,
    n_context_tokens, n_running, n_waiting, n_waiting_tokens,
    oldest_wait_ns / 1e6 as oldest_wait_ms,
    kv_usage as kv_usage_frac, kv_reserved as kv_reserved_frac,
    coalesce(len(preempted), 0) as n_preempted, admit_bound, graph, n_drafted, n_accepted,
    device_ns / 1e6 as device_ms,
    coalesce(index_before <> s.step_index - 1, false) as is_after_hole
from st_steps s join l_before b on b.step_row = s.rowid;

-- --- sequences find their lineage -------------------------------------------------------------------
--
-- By engine and epoch; where one of the two sides leaves the epoch out, the run of the
-- engine that overlaps most in time.

create table staging.l_lineages as
select engine_id, epoch, lineage, min(start_ns) as start_ns, max(end_ns) as end_ns
from l_epochs group by all;

create table staging.l_sequences as
select s.qid, s.request_index, l.lineage, s.start_ns, s.end_ns
from st_sequences s join l_lineages l
  on l.engine_id = s.engine_id and (l.epoch = s.epoch or l.epoch is null or s.epoch is null)
qualify row_number() over (
    partition by s.qid
    order by least(l.end_ns, coalesce(s.end_ns, s.start_ns)) - greatest(l.start_ns, s.start_ns) desc,
        l.lineage
) = 1;

-- The handle as key. A handle that two spans claim goes to the first.
create table staging.l_handles as
select lineage, request_index, arg_min(qid, start_ns) as qid
from l_sequences where request_index is not null
group by lineage, request_index;
