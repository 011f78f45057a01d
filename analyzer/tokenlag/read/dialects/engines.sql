-- vLLM's and SGLang's own spans name a process, the contract an engine. Where all requests
-- that both tell of lead from one process to one engine, that process is the engine, and
-- what only the process told (a warm-up, say) belongs to it too.
update st_sequences as own set engine_id = same.engine_id
from (
    select o.engine_id as process_id, min(c.engine_id) as engine_id
    from st_sequences o join st_requests ro on ro.rid = o.rid
    join st_requests rc on rc.tid = ro.tid and rc.trust = 1 and rc.dialect = 'contract'
    join st_sequences c on c.rid = rc.rid and c.trust = 1 and c.engine_id is not null
    where o.trust > 1
    group by o.engine_id
    having count(distinct c.engine_id) = 1
) as same
where own.trust > 1 and own.engine_id = same.process_id;
