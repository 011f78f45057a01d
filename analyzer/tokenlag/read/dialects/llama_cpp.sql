-- llama.cpp's answers with `timings`: prefill and decode are told, a wait before them is not.
-- The end is known to the second; the parts are exact.

create table staging.lc_request as
select hash(trace_id, span_id) as rid, hash(trace_id) as tid, trace_id, start_ns, end_ns, request_id,
    request_model as model, usage_input_tokens as n_prompt, usage_cached_tokens as n_cached,
    usage_output_tokens as n_output, start_ns + (time_in_prefill_s * 1e9)::bigint as first_ns,
    coalesce(res_service_instance_id, res_service_name) as engine
from spans
where name = 'llama.cpp.completion' and start_ns is not null and end_ns >= start_ns and time_in_prefill_s is not null;

insert into st_requests by name
select rid, 'llama.cpp' as dialect, 6 as trust, tid, trace_id, request_id, 'chat' as operation, model,
    n_prompt, n_cached, n_output, start_ns as arrival_ns, first_ns as first_token_ns, end_ns as last_token_ns,
    end_ns, (end_ns - start_ns) / 1e6 as e2e_ms, 'derived' as e2e_origin, false as is_error, false as is_open
from lc_request;

insert into st_sequences by name
select rid as qid, rid, 'llama.cpp' as dialect, 6 as trust, engine as engine_id, 0 as sequence,
    start_ns, end_ns, n_prompt, n_cached, n_output
from lc_request;

insert into st_engines by name
select engine as engine_id, 'llama.cpp' as engine_name, any_value(model) as model_name from lc_request group by engine;

insert into st_phases by name
select rid, rid as qid, 'llama.cpp' as dialect, 6 as trust, 'engine' as side, 'prefill' as kind,
    start_ns, first_ns as end_ns, n_prompt - coalesce(n_cached, 0) as n_tokens, 'measured' as origin
from lc_request
union all by name
select rid, rid as qid, 'llama.cpp' as dialect, 6 as trust, 'engine' as side, 'decode' as kind,
    first_ns as start_ns, end_ns, n_output - 1 as n_tokens, 'measured' as origin
from lc_request where n_output > 1;

insert into st_notes
select 'llama_cpp_seconds', 'llama.cpp', count(*),
    count(*) || ' answers of llama.cpp say only in which second they were done, and nothing of a wait before the prompt'
from lc_request having count(*) > 0;
