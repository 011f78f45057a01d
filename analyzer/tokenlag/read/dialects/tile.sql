-- Phases that tile. What dialects told may overlap (streams of one request, nested stages,
-- clocks of two processes); at each moment the request is in one phase: delivery before
-- the engine's phases before the front end's before the network's, and of the same sort
-- the one that began last. What none covers is 'uncovered', but for what lies between a
-- sequence's token and its next run of decoding: recorders that end a run where a step goes
-- without it (prompts first) leave holes there, in which the stream waited for its next token.
-- A phase that is left with no time of its own stays as an interval of length 0: it was measured.

create table staging.t_extent as
select
    k.request_key, m.gid,
    least(m.arrival_ns, coalesce(m.network_ns, m.arrival_ns),
          case when is_nested then m.sent_ns else m.arrival_ns end) as t0,
    greatest(m.arrival_ns, coalesce(m.end_ns, m.last_ns, m.arrival_ns)) as t1,
    m.arrival_ns, m.final_ns, m.end_ns, m.sent_ns, m.network_ns, m.engine_ns, is_nested,
    case when m.host = m.client_host then 'same' else 'remote' end as clock
from (
    -- A client's send is on the server's clock only if its span holds the server's.
    select *, coalesce(not is_client_only and sent_ns <= arrival_ns
        and (is_aborted or end_ns is null or client_end_ns is null
             or client_end_ns >= end_ns - 5_000_000), false) as is_nested
    from m_requests
) m
join m_request_keys k using (gid);

create table staging.t_told as
select *
from (
    select
        x.request_key, s.seq_key, p.kind, p.detail,
        greatest(p.start_ns, x.t0) as start_ns,
        least(coalesce(p.end_ns, x.t1), x.t1) as end_ns,
        p.n_tokens, p.is_recompute, p.clock, p.origin,
        case p.side when 'delivery' then 4 when 'engine' then 3 when 'frontend' then 2 else 1 end as prio,
        p.start_ns as told_start_ns
    from m_phases p join t_extent x using (gid) left join m_seq_keys s on s.qid = p.qid
    where coalesce(p.end_ns, x.t1) >= p.start_ns
      and p.start_ns <= x.t1 and coalesce(p.end_ns, x.t1) >= x.t0
    union all
    select request_key, null, 'network_in', null, sent_ns, arrival_ns, null, null, clock, 'derived', 0, sent_ns
    from t_extent
    where is_nested and sent_ns < arrival_ns
      and (network_ns is null or sent_ns < network_ns)
    union all
    -- After the last token the request is on its way out, whatever else is not told.
    select request_key, null, 'delivery', null, final_ns, t1, null, null, null, 'derived', 0, final_ns
    from t_extent
    where final_ns < t1 and end_ns is not null
)
where start_ns <= end_ns;

-- Most requests' phases stand one after the other, and tile with the gaps between them. One
-- pass over few columns finds those gaps, and the requests where phases overlap.
create table staging.t_after as
select rowid as told_row, request_key, start_ns, end_ns,
    max(end_ns) over (
        partition by request_key order by start_ns, end_ns
        rows between unbounded preceding and 1 preceding) as reach_ns,
    case when kind = 'decode' and lag(seq_key) over told = seq_key
              and lag(kind) over told in ('prefill', 'decode') then seq_key end as held_seq
from t_told where end_ns > start_ns
window told as (partition by request_key order by start_ns, end_ns);

create table staging.t_crowded as
select distinct request_key from t_after where start_ns < reach_ns;

insert into phases by name
select request_key, seq_key, kind, detail, start_ns, end_ns, n_tokens, is_recompute, clock, origin
from t_told t
where t.end_ns > t.start_ns and t.request_key not in (from t_crowded)
union all by name
select a.request_key, a.held_seq as seq_key, if(a.held_seq is null, 'uncovered', 'decode') as kind,
    coalesce(a.reach_ns, x.t0) as start_ns, a.start_ns as end_ns, 'derived' as origin
from t_after a join t_extent x using (request_key)
where a.start_ns > coalesce(a.reach_ns, x.t0) and a.request_key not in (from t_crowded)
union all by name
select x.request_key, 'uncovered' as kind, coalesce(l.last_ns, x.t0) as start_ns, x.t1 as end_ns,
    'derived' as origin
from t_extent x left join (
    select request_key, max(end_ns) as last_ns from t_after group by request_key
) l using (request_key)
where x.t1 > coalesce(l.last_ns, x.t0) and x.request_key not in (from t_crowded)
union all by name
-- Without time of its own, a phase wins nothing: it stays as a point.
select request_key, seq_key, kind, detail, start_ns, end_ns, n_tokens, is_recompute, clock, origin
from t_told where end_ns = start_ns and prio > 0;

create table staging.t_ranked as
select *, row_number() over (
    partition by request_key
    order by prio, told_start_ns, end_ns desc, seq_key nulls first, kind, detail nulls first
) as rank
from t_told where end_ns > start_ns and request_key in (from t_crowded);

create table staging.t_cells as
with borders as (
    select request_key, start_ns as at_ns from t_ranked
    union
    select request_key, end_ns from t_ranked
    union
    select request_key, t0 from t_extent where request_key in (from t_crowded)
    union
    select request_key, t1 from t_extent where request_key in (from t_crowded)
),
cells as (
    select request_key, at_ns as start_ns,
        lead(at_ns) over (partition by request_key order by at_ns) as end_ns
    from borders
),
won as (
    select c.request_key, c.start_ns, c.end_ns, max(t.rank) as rank
    from cells c
    left join t_ranked t
      on t.request_key = c.request_key and t.start_ns <= c.start_ns and t.end_ns >= c.end_ns
    where c.end_ns is not null
    group by c.request_key, c.start_ns, c.end_ns
),
runs as (
    select *, sum(is_new::int) over (partition by request_key order by start_ns) as run
    from (
        select *, coalesce(rank is distinct from lag(rank) over request, true) as is_new
        from won window request as (partition by request_key order by start_ns)
    )
)
select request_key, any_value(rank) as rank, min(start_ns) as start_ns, max(end_ns) as end_ns
from runs group by request_key, run;

create table staging.t_held as
select
    c.request_key, c.rank, c.start_ns, c.end_ns,
    case when c.rank is null and lead(t.kind) over cell = 'decode' and lag(t.seq_key) over cell = lead(t.seq_key) over cell
              and lag(t.kind) over cell in ('prefill', 'decode') then lead(t.seq_key) over cell end as held_seq
from t_cells c
left join t_ranked t on t.request_key = c.request_key and t.rank = c.rank
window cell as (partition by c.request_key order by c.start_ns);

insert into phases by name
select
    c.request_key, coalesce(t.seq_key, c.held_seq) as seq_key,
    coalesce(t.kind, if(c.held_seq is null, 'uncovered', 'decode')) as kind, t.detail,
    c.start_ns, c.end_ns,
    -- A phase that another one cut in two keeps its tokens in the first piece.
    case when row_number() over (partition by c.request_key, c.rank order by c.start_ns) = 1
        then t.n_tokens end as n_tokens,
    t.is_recompute, t.clock, coalesce(t.origin, 'derived') as origin
from t_held c
left join t_ranked t on t.request_key = c.request_key and t.rank = c.rank
union all by name
select request_key, seq_key, kind, detail, start_ns, start_ns as end_ns, n_tokens, is_recompute,
    clock, origin
from t_ranked t
where t.prio > 0
  and not exists (select 1 from t_cells c where c.request_key = t.request_key and c.rank = t.rank);
