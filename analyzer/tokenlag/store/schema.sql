-- The canonical tables. Rules read these, and the derived tables that explain/ adds
-- (derived.sql), and nothing else.
--
-- Times are `*_ns` (BIGINT, unix nanoseconds), durations `*_ms` (DOUBLE), counts `n_*`,
-- shares `*_frac` (0 to 1). NULL is "not measured", never zero. Keys (`*_key`) are small
-- integers that mean nothing outside one run.
--
-- `dataset` is 0 for the traces under diagnosis and 1 for `--baseline-traces`.

-- One engine with one configuration, from its start to its end. A restart, a changed
-- setting, or a step index that falls back begins a new one.
create table epochs (
    epoch_key           integer primary key,  -- joins steps, sequences, chunks, memberships
    dataset             tinyint not null,     -- 0 main traces, 1 baseline traces
    engine_id           varchar not null,     -- replica and rank; made from the resource where the dialect has none
    epoch               bigint,               -- the engine's start, unix ns, as the writer said it; NULL if it did not
    start_ns            bigint,               -- first step's start (or first sequence's, without steps)
    end_ns              bigint,               -- last step's end (or last sequence's)
    engine_name         varchar,              -- 'vllm', 'sglang', 'transformers', …
    engine_version      varchar, -- as the engine calls its release
    max_batch_tokens    bigint,               -- token budget of one step
    max_seqs            bigint,               -- slots: how many sequences may run at once
    kv_tokens           bigint,               -- KV capacity in tokens
    is_chunked_prefill  boolean, -- long prompts are cut into chunks
    is_prefix_caching   boolean, -- KV of common prompt heads is kept
    n_tensor_parallel   bigint, -- ranks one layer is split over
    n_pipeline_parallel bigint, -- stages the layers are split over
    config_hash         varchar, -- tells configurations apart; a change begins a new epoch
    model_name          varchar, -- as the engine calls it
    n_parameters        bigint, -- of the model
    n_active_parameters bigint, -- of them, used for one token
    weight_bytes        bigint,               -- bytes read for one token
    kv_bytes_per_token  bigint, -- bytes of KV that one token of context holds
    device_name         varchar, -- accelerator
    n_devices           bigint, -- accelerators of the engine
    memory_bandwidth    double,               -- bytes/s of one device
    peak_flops          double,               -- FLOP/s of one device in the weights' type
    n_dropped           bigint,               -- step records that the writer counted as lost
    n_skipped           bigint                -- step records not exported by choice
);

-- One request as its sender and the front end saw it. One request seen by two dialects
-- is one row; the contract wins, field by field.
create table requests (
    request_key      integer primary key, -- joins phases, sequences
    dataset          tinyint not null, -- 0 main traces, 1 baseline traces
    request_id       varchar,       -- gen_ai.request.id, as the most trusted dialect spelt it
    trace_id         varchar,       -- lower-case hex
    dialects         varchar not null, -- who told of it, comma list, the most trusted first: 'contract,vllm'
    operation        varchar,       -- gen_ai.operation.name
    model            varchar, -- gen_ai.request.model
    tenant           varchar, -- a label of tenant, route or key, never the key
    prefix_id        varchar,       -- salted hash of the prompt's head
    conversation_id  varchar, -- gen_ai.conversation.id
    features         varchar,       -- comma list of what makes steps dearer
    adapter          varchar, -- LoRA or other adapter
    priority         bigint, -- as the engine takes it
    n_choices        bigint, -- sequences asked for (n)
    n_max_output     bigint,        -- declared maximum of output tokens
    n_prompt         bigint,        -- prompt tokens
    n_cached         bigint,        -- prompt tokens whose KV was there already
    n_output         bigint,        -- output tokens, all sequences
    intended_ns      bigint,        -- when the load generator meant to send it
    sent_ns          bigint,        -- the client's (or edge's) send
    arrival_ns       bigint not null, -- the front end received it; where only the engine or the client told, its first stamp
    engine_ns        bigint,        -- an engine took it in
    scheduled_ns     bigint,        -- first scheduled
    prefilled_ns     bigint,        -- last chunk of the first prefill ended
    first_token_ns   bigint,        -- first token left the engine (or, failing that, the front end)
    last_token_ns    bigint, -- last token left the engine
    end_ns           bigint,        -- last byte handed over, or the abort; NULL while open
    client_first_ns  bigint,        -- the client saw the first chunk with content
    client_end_ns    bigint,        -- the client saw the last byte or gave up
    client_gap_p50_ms double,       -- between chunks, at the client
    client_gap_max_ms double, -- longest between two chunks, at the client
    n_client_chunks  bigint, -- chunks with content, at the client; fewer than n_output: some held several tokens
    ttft_ms          double,        -- first token − arrival, as far out as it was seen by the server
    ttft_origin      varchar,       -- 'measured' (the dialect gave it) | 'derived' (from stamps) ; NULL with ttft_ms
    e2e_ms           double, -- end − arrival; a client-only request: its span
    e2e_origin       varchar, -- as ttft_origin; 'derived' where the end is the engine's
    tpot_ms          double,        -- (last token − first token) / (n_output − 1), n_output ≥ 2
    n_preemptions    bigint,        -- of all its sequences
    n_computed       bigint,        -- prompt tokens really prefilled by all its sequences, recomputation included; NULL if not told
    finish_reason    varchar, -- 'stop', 'length', 'abort', …; a comma list where sequences differ
    error_type       varchar, -- error.type of the server, else of the client
    is_aborted       boolean not null, -- ended by the client or an error before it was done
    is_open          boolean not null, -- censored: still running when the data ended
    is_prefill_only  boolean not null, -- embedding or scoring: no decode, no token
    weight           double not null   -- how many requests this row stands for (sampling)
);

-- A request on its way through a gateway or router in front of the server; one row each.
create table hops (
    request_key     integer not null, -- whose
    gateway         varchar not null, -- 'litellm' 'production-stack' 'llm-d' 'llm-d-sidecar' 'dynamo-frontend'
    instance        varchar, -- which of several: service.instance.id, else the host, else the service
    start_ns        bigint not null, -- it received the request
    upstream_ns     bigint, -- it sent it on, by the same clock; NULL: it did not, or did not tell
    upstream_end_ns bigint, -- its call was answered; NULL where it did not tell
    end_ns          bigint -- it was done with the request
);

-- A request on an engine. Several for n > 1, a prefill/decode split, a retry, a migration.
create table sequences (
    seq_key       integer primary key, -- joins chunks, memberships, phases, preemptions
    request_key   integer,         -- NULL: an engine worked for a request that no front end told of
    epoch_key     integer,         -- NULL where the dialect does not know engines
    request_index bigint,          -- the handle that steps use, unique in an epoch
    sequence      bigint, -- number within the request, from 0
    role          varchar,         -- 'prefill', 'decode'; NULL = both
    start_ns      bigint, -- the engine took it in
    end_ns        bigint, -- its last step, or the engine's notice of the abort; NULL while open
    n_prompt      bigint, -- prompt tokens
    n_cached      bigint, -- prompt tokens whose KV was there already
    n_output      bigint, -- output tokens of this sequence
    n_preemptions bigint -- times it was put back to the queue
);

-- Where a request's time went: half-open intervals that tile it. What no interval covers
-- is a row of kind 'uncovered', so that the durations of a request sum to its end-to-end.
create table phases (
    request_key integer not null, -- whose time it is
    seq_key     integer,          -- NULL for the front end's and the network's
    kind        varchar not null, -- 'network_in' 'frontend' 'queue' 'requeue' 'prefill' 'decode' 'delivery' 'uncovered'
    detail      varchar,          -- queue reason, front-end stage
    start_ns    bigint not null, -- unix ns
    end_ns      bigint not null, -- unix ns, excluded; equal to start where the phase had no time of its own
    n_tokens    bigint,           -- prefill: computed; decode: yielded
    is_recompute boolean,         -- prefill repeated after a preemption
    clock       varchar,          -- network: 'same' | 'remote' (may be skewed)
    origin      varchar not null  -- 'measured' | 'derived'
);

-- One engine step. Heartbeats are not here.
create table steps (
    epoch_key         integer not null, -- the engine run it belongs to
    step_index        bigint not null, -- counts up by one in an epoch; a hole is a lost record
    start_ns          bigint not null,  -- batch handed to the model runner
    end_ns            bigint not null,  -- its tokens are known to the host
    cadence_ms        double not null,  -- what the step costs: end − max(start, end of the step before)
    idle_ms           double,           -- start − end of the step before, where positive; NULL for the first
    n_prefill_tokens  bigint not null, -- prompt tokens computed in it
    n_chunks          bigint not null,  -- prompt chunks in the step
    attention_work    double not null,  -- Σ tokens × (context + tokens / 2) over the chunks
    n_decode          bigint not null,  -- sequences that decode in it
    n_new_tokens      bigint not null,  -- tokens yielded by the decoding sequences
    n_context_tokens  bigint,           -- KV tokens that the decoding sequences attend to
    n_running         bigint, -- requests admitted, after this step was scheduled
    n_waiting         bigint, -- requests in the queue, then
    n_waiting_tokens  bigint, -- their prompt tokens
    oldest_wait_ms    double, -- wait of the head of the queue
    kv_usage_frac     double, -- share of KV in use
    kv_reserved_frac  double, -- share of KV promised
    n_preempted       bigint not null, -- requests put back to the queue by it
    admit_bound       varchar,          -- 'slots' 'tokens' 'kv' 'adapters' 'grammar' 'remote_kv' 'none'; NULL = not told
    graph             varchar, -- 'full' 'piecewise' 'eager': how it was launched
    n_drafted         bigint, -- draft tokens, summed over the batch
    n_accepted        bigint, -- of them accepted
    device_ms         double, -- time on the accelerator, by device events
    is_after_hole     boolean not null  -- records between this step and the one before are missing
);

-- Which step computed which piece of whose prompt.
create table chunks (
    epoch_key    integer not null, -- with step_index: the step
    step_index   bigint not null, -- may name a step whose record is lost
    seq_key      integer,          -- NULL: the step names a handle that no sequence span told of
    request_index bigint not null, -- the handle that the step used
    n_tokens     bigint not null, -- prompt tokens computed
    n_context    bigint            -- tokens whose KV was there before it
);

-- A sequence's uninterrupted runs of decode steps: it decodes in each step from first to last.
create table memberships (
    epoch_key     integer not null, -- with the step indexes: the steps
    seq_key       integer,         -- NULL as in chunks
    request_index bigint not null, -- the handle that the steps used
    first_step    bigint not null, -- step index, included
    last_step     bigint not null -- step index, included
);

-- A request put back to the queue when a step was scheduled.
create table preemptions (
    epoch_key     integer not null, -- with step_index: the step
    step_index    bigint not null, -- the step that was being scheduled
    seq_key       integer, -- NULL as in chunks
    request_index bigint not null -- the handle that the step used
);

-- What reading noticed, for the coverage: one row a fact.
create table read_notes (
    dataset tinyint not null, -- 0 main traces, 1 baseline traces
    kind    varchar not null,     -- 'skipped_file' 'skipped_lines' 'startup_spans' 'duplicate_spans' 'other_signal' …
    place   varchar,              -- file, or dialect
    n       bigint not null, -- how many
    text    varchar not null      -- one readable line
);

-- How far the traces can be trusted: one row a fact, only where there is something to say.
create table quality (
    dataset    tinyint not null, -- 0 main traces, 1 baseline traces
    kind       varchar not null, -- 'lost_steps' 'sampled' 'in_flight' 'no_phases' 'uncovered' 'clock_skew' …
    place      varchar,          -- engine, dialect or side; NULL: all
    n          bigint not null,  -- how many rows it concerns
    share_frac double,           -- share of the rows (or of the time) that it concerns
    text       varchar not null  -- one readable line
);
