-- What dialects fill. `rid`, `qid`, `tid`, `pid` are hashes: of a request's span, a
-- sequence's span, a trace, a parent span. Everything here is temporary.

create table staging.st_requests (
    rid ubigint, dialect varchar, trust tinyint, tid ubigint, pid ubigint,
    trace_id varchar, request_id varchar,
    operation varchar, model varchar, tenant varchar, prefix_id varchar,
    conversation_id varchar, features varchar, adapter varchar, priority bigint,
    n_choices bigint, n_max_output bigint, n_prompt bigint, n_cached bigint, n_output bigint,
    arrival_ns bigint, first_token_ns bigint, last_token_ns bigint, end_ns bigint,
    ttft_ms double, e2e_ms double, e2e_origin varchar,
    sent_ns bigint, intended_ns bigint, client_first_ns bigint, client_end_ns bigint,
    client_gap_p50_ms double, client_gap_max_ms double, n_client_chunks bigint,
    n_preemptions bigint, finish_reason varchar, error_type varchar,
    is_error boolean, is_open boolean, weight double, host varchar, scope varchar
);

create table staging.st_sequences (
    qid ubigint, rid ubigint, dialect varchar, trust tinyint,
    engine_id varchar, epoch bigint, config_hash varchar,
    request_index bigint, sequence bigint, role varchar,
    start_ns bigint, end_ns bigint,
    n_prompt bigint, n_cached bigint, n_output bigint, n_preemptions bigint
);

-- side: 'network' | 'frontend' | 'engine' | 'delivery'; per request and side the most
-- trusted dialect that has anything wins.
create table staging.st_phases (
    rid ubigint, qid ubigint, dialect varchar, trust tinyint, side varchar,
    kind varchar, detail varchar, start_ns bigint, end_ns bigint,
    n_tokens bigint, is_recompute boolean, clock varchar, origin varchar
);

-- One row an engine (and configuration) that some span's resource described.
create table staging.st_engines (
    engine_id varchar, epoch bigint, config_hash varchar,
    engine_name varchar, engine_version varchar, max_batch_tokens bigint, max_seqs bigint,
    kv_tokens bigint, is_chunked_prefill boolean, is_prefix_caching boolean,
    n_tensor_parallel bigint, n_pipeline_parallel bigint,
    model_name varchar, n_parameters bigint, n_active_parameters bigint,
    weight_bytes bigint, kv_bytes_per_token bigint, device_name varchar, n_devices bigint,
    memory_bandwidth double, peak_flops double
);

create table staging.st_steps (
    engine_id varchar, epoch bigint, config_hash varchar,
    step_index bigint, start_ns bigint, end_ns bigint,
    prefill_requests bigint[], prefill_tokens bigint[], prefill_context bigint[],
    decode_count bigint, joined varchar, left_ varchar, members varchar,
    new_tokens bigint[], n_context_tokens bigint,
    n_running bigint, n_waiting bigint, n_waiting_tokens bigint, oldest_wait_ns bigint,
    kv_usage double, kv_reserved double, preempted bigint[],
    admit_bound varchar, graph varchar, n_drafted bigint, n_accepted bigint,
    device_ns bigint, n_dropped bigint, n_skipped bigint,
    epoch_key integer, lineage bigint -- steps.sql fills these
);

-- Prompt chunks and decode runs as the request side told them.
create table staging.st_chunks (
    qid ubigint, step_index bigint, end_ns bigint, n_tokens bigint, n_context bigint
);
create table staging.st_decodes (
    qid ubigint, first_step bigint, last_step bigint
);

-- Requests of a load test's result file and the server's requests that they became.
create table staging.st_pairs (rid ubigint, server_rid ubigint);

-- A request at a gateway: received, sent on, answered upstream, done. `top` is its staged request.
create table staging.st_hops (
    rid ubigint, top ubigint, gateway varchar, instance varchar,
    start_ns bigint, upstream_ns bigint, upstream_end_ns bigint, end_ns bigint
);

create table staging.st_notes (kind varchar, place varchar, n bigint, text varchar);
