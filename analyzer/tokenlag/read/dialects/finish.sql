-- Notes of the dialects, and the facts about clocks that only staged spans show.

insert into read_notes
select ${dataset}, kind, place, n, text from st_notes;

insert into quality
select ${dataset}, 'clock_skew', 'network', count(*), count(*) / (select count(*) from m_requests),
    printf('%d network spans end before they start: the two hosts'' clocks differ', count(*))
from m_phases where kind = 'network_in' and end_ns < start_ns
having count(*) > 0;

-- A millisecond for rounding and for clocks of two processes of one host.
insert into quality
select ${dataset}, 'clock_skew', 'engine', count(distinct p.gid),
    count(distinct p.gid) / (select count(*) from m_requests),
    printf('%d requests have phases that begin before the request arrived: front end''s and engine''s clocks differ by up to %.1f ms',
        count(distinct p.gid), max(m.arrival_ns - p.start_ns) / 1e6)
from m_phases p join m_requests m using (gid)
where p.kind <> 'network_in' and p.start_ns < m.arrival_ns - 1_000_000
having count(*) > 0;

insert into quality
select ${dataset}, 'clock_skew', 'client', count(*), count(*) / (select count(*) from m_requests),
    printf('%d client spans do not hold their server''s span: client''s and server''s clocks differ', count(*))
from m_requests
where not is_client_only and sent_ns is not null
  and (sent_ns > arrival_ns + 1_000_000
       or (not is_aborted and client_end_ns < end_ns - 5_000_000))
having count(*) > 0;
