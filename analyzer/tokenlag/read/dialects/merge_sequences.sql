-- The rows of sequences.

create table staging.m_parts as
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
