-- Requests of load tests to the server's by id. Servers put things around the caller's id:
-- 'chatcmpl-<id>-0' is <id>; a tool that numbers its sends gives ids that nobody shares.
insert into st_pairs
with servers as (
    select rid, regexp_replace(regexp_replace(request_id, '^(chat)?cmpl-', ''), '-\d+$', '') as core_id,
        request_id, arrival_ns, trust
    from st_requests where trust < 9 and request_id is not null
),
clients as (
    select rid, request_id, sent_ns, client_end_ns from st_requests
    where dialect = 'load-test' and request_id is not null
),
named as (
    select c.rid, s.rid as server_rid, s.trust, abs(s.arrival_ns - c.sent_ns) as apart
    from clients c join servers s on s.request_id = c.request_id
    union all
    select c.rid, s.rid, s.trust, abs(s.arrival_ns - c.sent_ns)
    from clients c join servers s on s.core_id = c.request_id and s.request_id <> c.request_id
)
select rid, server_rid from named
where apart < 3_600_000_000_000
qualify row_number() over (partition by rid order by trust, apart, server_rid) = 1;
