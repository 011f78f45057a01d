-- A load test that counts the chunks of a stream as tokens, where a chunk holds several: its
-- tokens a second are too few by that factor, and its time per token too long.

insert into st_notes
with counted as (
    select c.scope, count(*) as n, sum(s.n_output) / sum(c.n_output) as factor,
        avg((abs(c.n_output - c.n_client_chunks) <= 1)::int) as chunk_share
    from st_pairs p join st_requests c on c.rid = p.rid join st_requests s on s.rid = p.server_rid
    where c.n_output > 0 and s.n_output > 1 and not c.is_error and not s.is_error
    group by c.scope
)
select 'load_test_counts', null, n,
    case when chunk_share >= 0.9
        then printf('load test: it counts chunks as tokens; the server made %.1f tokens for each, so its time per token is that many times too long and its tokens a second as many too few', factor)
        else printf('load test: the server made %.1f output tokens for each that it counts; its time per token and its tokens a second are off by that', factor)
    end
from counted where factor >= 1.2 or factor <= 1 / 1.2;
