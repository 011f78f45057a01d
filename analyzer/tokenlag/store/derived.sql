-- What explain/ computes from the canonical tables. Rules read these as well.
-- Units as in schema.sql. `window_name` is 'current' or 'baseline'; rows outside both
-- windows are not here.

-- The two spans of time that are compared. 'baseline' may be missing.
create table windows (
    name    varchar not null,  -- 'current' | 'baseline'
    dataset tinyint not null,  -- 0: the main traces; 1: --baseline-traces
    from_ns bigint not null,   -- inclusive
    to_ns   bigint not null,   -- exclusive
    origin  varchar not null   -- how it was chosen: 'given', 'all', 'earlier', 'change', 'traces'
);

-- One row for each request of a window: where its time went and what it would have cost alone.
create table request_facts (
    request_key        integer not null,
    window_name        varchar not null,
    seq_key            integer,          -- the sequence that decides its times (the last to finish)
    epoch_key          integer,
    engine_id          varchar,
    request_id         varchar,
    trace_id           varchar,
    tenant             varchar,
    prefix_id          varchar,
    conversation_id    varchar,
    arrival_ns         bigint not null,
    end_ns             bigint,           -- NULL while open
    n_prompt           bigint,
    n_cached           bigint,
    n_new              bigint,           -- prompt tokens that had to be computed: prompt − cached
    n_computed         bigint,           -- really prefilled, recomputation included
    n_output           bigint,
    n_preemptions      bigint,
    is_aborted         boolean not null,
    is_open            boolean not null,
    is_prefill_only    boolean not null,
    is_frontend_measured boolean not null, -- else `frontend_ms` is what the other parts leave over, and may hide waits
    is_first_wave      boolean not null, -- arrived together with others into an idle engine at the start of the data
    weight             double not null,
    network_in_ms      double,
    frontend_ms        double,
    queue_ms           double,           -- first wait; NULL where no dialect told of it
    requeue_ms         double,           -- waits after a preemption
    prefill_ms         double,
    decode_ms          double,
    delivery_ms        double,
    uncovered_ms       double,
    ttft_ms            double,
    e2e_ms             double,
    tpot_ms            double,
    itl_max_ms         double,           -- worst gap between its tokens; needs steps
    alone_prefill_ms   double,           -- its prefill with the engine to itself
    alone_itl_ms       double,           -- its time between tokens with the engine to itself
    alone_ttft_ms      double,           -- with the front end's own work, where it is told
    alone_e2e_ms       double,
    alone_basis        varchar,          -- 'step_model' | 'low_load' (fast share of the same window or the baseline); NULL = unknown
    behind_long_ms     double,           -- part of its wait in which a much longer prompt held the step
    behind_key         integer           -- request_key of the longest such prompt
);

-- One row for each step of a window: what it cost, what the model says, who waited on it.
create table step_costs (
    epoch_key       integer not null,
    step_index      bigint not null,
    window_name     varchar not null,
    start_ns        bigint not null,
    end_ns          bigint not null,
    wall_ms         double not null,     -- end − end of the step before where somebody waited, else the cadence
    cadence_ms      double not null,
    n_prefill_tokens bigint not null,
    n_decode        bigint not null,
    n_waiting       bigint,
    fitted_ms       double,              -- what the model says for this batch; NULL without a model
    decode_only_ms  double,              -- what it says for the batch without its prompt chunks
    prefill_ms      double,              -- marginal time of the chunks: fitted − decode_only, at most what was measured
    residual_ms     double,              -- measured − fitted
    context_ms      double,              -- the model's context term: what reading the streams' KV takes
    n_streams       bigint not null,     -- streams whose next token waited on this step
    bound           varchar,             -- what kept the queue's head out: told, or inferred where n_waiting > 0
    is_bound_told   boolean not null
);

-- The step model of one epoch: t = base + per_seq·n + per_token·max(0, T − knee) + per_attention·Σc(k+c/2) + per_context·Σctx.
create table step_fit (
    epoch_key              integer primary key,
    engine_id              varchar not null,
    level                  varchar not null,  -- 'hinge' | 'linear' | 'decode' (prompt chunks too few to fit) | 'none'
    reason                 varchar,           -- why not more
    n_steps                bigint not null,
    n_decode_steps         bigint not null,   -- steps without prompt chunks
    n_mixed_steps          bigint not null,   -- steps with prompt chunks
    base_ms                double,
    per_seq_ms             double,
    per_token_ms           double,
    knee_tokens            double,
    per_attention_ms       double,
    per_context_ms         double,
    error_decode_frac      double,            -- median |relative error| on held-out decode-only steps
    error_mixed_frac       double,            -- the same on held-out steps with chunks
    residual_sd_frac       double             -- robust spread of the relative residual
);

-- Gaps between a stream's tokens, weighted: a row of `n_streams` streams that saw the same gap.
create table gaps (
    epoch_key    integer not null,
    window_name  varchar not null,
    from_step    bigint not null,      -- the token before came at the end of this step
    to_step      bigint not null,      -- this one at the end of that
    end_ns       bigint not null,
    seq_key      integer,              -- NULL: all streams that decode in both neighbouring steps
    n_streams    bigint not null,
    gap_ms       double not null,
    own_ms       double,               -- alone + batch + context: the stream's own decode step
    alone_ms     double,               -- its step with nobody beside it
    batch_ms     double,               -- what the other decoding streams add
    context_ms   double,               -- what reading the batch's KV adds
    prefill_ms   double,               -- others' prompt chunks inside the gap
    skipped_ms   double,               -- steps in which others decoded and it did not
    host_ms      double,               -- between steps
    residual_ms  double,               -- the rest; all seven terms sum to gap_ms
    is_preempted boolean not null      -- its own preemption and recomputation lie inside
);

-- Who held up whom: one row for a culprit's whole prefill (kind 'stream': streams that waited
-- for their next token; kind 'queue': requests that waited to be scheduled).
create table blame (
    kind             varchar not null,   -- 'stream' | 'queue'
    window_name      varchar not null,
    epoch_key        integer not null,
    culprit_key      integer,            -- request_key; NULL where only the handle is known
    culprit_seq_key  integer,
    culprit_id       varchar not null,   -- request id, or the handle
    culprit_tenant   varchar,
    n_tokens         bigint not null,    -- prompt tokens computed for it, repetitions included
    n_prompt         bigint not null,    -- how long it is: the stretch of positions that its chunks cover
    n_victims        bigint not null,
    effect_ms        double not null,    -- summed over victims
    hold_ms          double not null,    -- what one victim that sat through all of it lost
    worst_gap_ms     double,             -- longest single gap (or wait) that holds a piece of it
    victim_median_tokens double,         -- median prompt (computed) of the victims
    from_ns          bigint not null,
    to_ns            bigint not null,
    n_steps          bigint not null,
    mode             varchar             -- 'mixed': streams got a token in its steps; 'prefill_first': they got none
);

-- Victims of the culprits above, the worst ones.
create table blame_victims (
    kind        varchar not null,
    window_name varchar not null,
    culprit_seq_key integer,
    victim_key  integer,
    victim_id   varchar,
    held_ms     double not null
);

-- Window against baseline, exactly split: mean of `metric` per request, in ms.
create table changes (
    metric      varchar not null,    -- 'ttft' 'e2e' 'itl' 'queue' 'prefill' 'decode' …
    factor      varchar not null,    -- 'total' 'prompt_mix' 'cache' 'output_mix' 'rate' (cost per unit) 'other'
    baseline    double,
    current     double,
    effect_ms   double,              -- mean over the window's requests
    lo_ms       double,              -- block bootstrap, 90 %
    hi_ms       double
);

-- What the two windows asked of the engines, and what a unit of work cost.
create table demand (
    window_name        varchar not null,
    span_s             double not null,
    n_requests         double not null,
    requests_per_s     double,
    mean_prompt        double,
    mean_new           double,        -- computed prompt tokens a request
    mean_cached_frac   double,
    mean_output        double,
    prefill_ms_per_token double,      -- the model's, or the median of prefill ÷ tokens
    itl_ms             double,        -- mean time between tokens
    mean_batch         double,        -- decoding streams in a step, seen by a token
    prefill_share_frac double,        -- share of busy engine time that prompt chunks take
    busy_frac          double,
    mean_running       double,
    mean_waiting       double,
    is_closed_loop     boolean not null -- each arrival follows a completion: the client's concurrency sets the load
);

-- Turns of one conversation: what could have been reused, and what was.
create table reuse (
    request_key     integer not null,
    window_name     varchar not null,
    group_id        varchar not null,
    basis           varchar not null, -- 'conversation' | 'prefix'
    turn            bigint not null,
    n_prompt        bigint not null,
    n_reusable      bigint not null,  -- tokens of the longest earlier prompt of the group that it can share
    n_cached        bigint not null
);

-- Work for nobody: sequences on an engine without a client that waits for them.
create table ghosts (
    window_name   varchar not null,
    epoch_key     integer not null,
    request_index bigint not null,
    seq_key       integer,
    reason        varchar not null,   -- 'outlives its request' | 'never told of'
    from_ns       bigint not null,
    to_ns         bigint not null,
    held_ms       double not null,    -- time it held a slot with nobody waiting
    n_tokens      bigint not null
);

-- Objectives of `--slo` and `--goodput`.
create table objectives (
    metric     varchar not null,      -- 'ttft' 'itl' 'tpot' 'e2e'
    percentile double not null,       -- 0 to 100
    limit_ms   double not null,
    actual_ms  double,                -- of the current window; NULL = not measured
    is_missed  boolean
);

-- The gap that a share `q` of all gaps between tokens does not exceed: every stream's every
-- gap counts once (pooled).
create macro gap_quantiles(w, q) as table
    select min(gap_ms) as gap_ms
    from (select gap_ms,
                 sum(n_streams) over (order by gap_ms rows unbounded preceding) as n_up_to,
                 sum(n_streams) over () as n_all
          from gaps
          where window_name = w)
    where n_up_to >= q * n_all;

-- What kept requests waiting, one row a window in which any waited: the bound under which most
-- of the waiting time was spent.
create table binding (
    window_name varchar not null,
    bound       varchar not null,  -- 'slots' 'tokens' 'kv' 'capacity' …
    basis       varchar not null,  -- 'told by the engine' | 'inferred from steps' | 'inferred from concurrency'
    share_frac  double,            -- of the waiting time
    n_pinned    bigint,            -- how many ran at once while others waited, where that is one number
    kv_frac     double             -- mean KV in use while requests waited
);

-- How the offered work grew from baseline to window, by factor, as logarithms of ratios; work by
-- tokens weighs with the share of the engine's time that such tokens take.
create table growth (
    factor     varchar not null,   -- 'arrivals' 'prompts' 'cache' 'outputs' 'speed' 'limit'
    log_growth double not null,    -- ln(window ÷ baseline) of the work it makes; 'limit': of the shrinking
    share_frac double not null     -- of all growth (what shrank counts as 0)
);

-- Steps of the window against what the same batch cost before (or costs on the other engines):
-- observed = slope × expected + intercept, robust. A factor is slope > 1, a constant intercept > 0.
create table step_shift (
    engine_id      varchar not null,
    basis          varchar not null,  -- 'baseline' | 'other engines'
    n_decode_steps bigint not null,
    n_mixed_steps  bigint not null,
    slope          double,            -- NULL: expected times too alike to tell a factor from a constant
    intercept_ms   double,
    ratio_decode   double,            -- median observed ÷ expected of decode-only steps
    ratio_mixed    double,            -- of steps with prompt chunks
    ratio_near     double,            -- of the decode-only steps right after those: slow for a while, whatever is in them?
    mixed_excess_ms double,           -- observed − expected of steps with prompt chunks, trimmed mean
    mixed_error_ms double,            -- its standard error
    ratio_lo       double,            -- 90 % interval of the median ratio of all, over blocks of time
    ratio_hi       double,
    expected_ms    double,            -- median expected decode-only step
    excess_ms      double not null,   -- Σ (observed − expected) × streams that waited on the step; steps that cannot be priced: in proportion
    stream_ms      double not null,   -- Σ observed × streams
    is_across      boolean not null   -- (in part) by two models, where the window holds no batch or chunk that the reference did
);

-- Steps that took far longer than their batch explains, with work in hand.
create table stoppages (
    window_name    varchar not null,
    epoch_key      integer not null,
    step_index     bigint not null,
    end_ns         bigint not null,
    excess_ms      double not null,   -- above what the batch explains
    n_streams      bigint not null,
    n_victims      bigint not null,   -- those streams and the requests that waited to be scheduled
    n_prefill_tokens bigint not null,
    shape          varchar not null,  -- its shape class: the next power of two of its prompt tokens, or of its streams
    is_first_of_shape boolean not null, -- no earlier step of this engine's run had this shape
    age_s          double not null    -- since the engine's first step
);

-- Whether the stoppages of an engine come at intervals.
create table pauses (
    window_name varchar not null,
    engine_id   varchar not null,
    n_pauses    bigint not null,
    period_s    double,            -- median spacing
    spacing_cv  double,            -- spread of the spacing ÷ its mean, robust
    size_ms     double,            -- median
    size_cv     double,
    duty_frac   double,            -- share of the time from first to last that they take
    first_shape_frac double,       -- share that were the first of their shape
    held_ms     double,            -- Σ excess × streams and waiting requests
    steps_frac  double             -- share of the window's steps
);

-- A jump of the step time at one batch size.
create table ceilings (
    engine_id  varchar not null,
    threshold  bigint not null,    -- the last batch size below the jump
    jump_ms    double not null,
    below_ms   double not null,    -- usual step time below
    n_below    bigint not null,
    n_above    bigint not null,
    sharpness  double not null,    -- part of the jump that lies within the neighbouring sizes
    held_ms    double not null     -- jump × streams and waiting requests, over the window's steps above
);

-- What requests with a feature add to each step they are in.
create table step_tax (
    feature    varchar not null,
    n_with     bigint not null,    -- steps with such a request
    n_without  bigint not null,
    extra_ms   double not null,    -- difference of the median residuals
    usual_ms   double not null,    -- median step without
    z          double not null,    -- extra ÷ its standard error over blocks of time
    held_ms    double not null     -- extra × streams and waiting requests, over the window's steps with
);

-- The two ends of the network: what the client saw against what the server did. `late_*` are
-- differences of durations, each on one clock, so that no skew is in them.
create table edges (
    request_key        integer not null,
    window_name        varchar not null,
    client_ttft_ms     double,   -- client's first chunk − its send; NULL without a client span
    client_e2e_ms      double,   -- client's last byte − its send
    late_first_ms      double,   -- client's time to first chunk − server's to first token: way in and way out of the first
    late_end_ms        double,   -- client's end to end − server's: way in and way out of the last
    way_in_ms          double,   -- send → receipt: all of it on one clock; across clocks what is above the fastest request, at most late_end_ms
    way_in_basis       varchar,  -- 'same clock' | 'above the fastest, within the round trip' | 'above the fastest'
    way_out_first_ms   double,   -- first token ready → client's first chunk, beyond the way that every request has
    way_out_end_ms     double,   -- last token ready → client's last byte, likewise
    client_gap_p50_ms  double,   -- between chunks, at the client
    frontend_ms        double,   -- receipt → the engine's queue, without what is done after the engine
    frontend_basis     varchar,  -- 'measured' | 'between stamps' | 'derived' (a rest, that may hide other waits)
    frontend_floor_ms  double    -- what a request of its length takes there with nobody ahead: the fastest of its kind
);

-- What each engine was given and had in hand. Engines that ran and were given nothing are here with 0.
create table engine_load (
    window_name      varchar not null,
    engine_id        varchar not null,
    n_requests       double not null,
    work_frac        double not null,  -- share of all offered work (prompt tokens to compute and output tokens, by the time that each takes)
    in_flight        double not null,  -- mean requests in hand
    in_flight_tokens double not null,  -- mean prompt and output tokens of them
    hot_frac         double not null,  -- share of the window's twentieths in which it had more than twice the others' mean of tokens in hand
    queue_ms         double,           -- mean wait of its requests
    cached_frac      double,           -- of its prompt tokens
    prefix_frac      double,           -- share of its requests that carry the window's commonest prefix
    prefix_here_frac double            -- share of the requests with that prefix that it was given
);

-- What each tenant asked for and how long it waited.
create table tenant_load (
    window_name    varchar not null,
    tenant         varchar not null,
    n_requests     double not null,
    requests_per_s double not null,
    work_per_s     double not null,    -- in mean requests of the baseline (without one: of the window) a second
    queue_ms       double,             -- mean wait of its requests
    ttft_ms        double              -- mean
);

-- Steps against what the device allows. Shares above 1 say that the figures are wrong.
create table roofline (
    epoch_key            integer not null,
    engine_id            varchar not null,
    device               varchar,
    basis                varchar not null, -- where the device's figures are from
    weight_ms            double,   -- reading the weights once
    knee_tokens          double,   -- tokens in a step from which on arithmetic takes longer than the weights' bytes
    decode_ms            double,   -- median decode-only step
    bytes_ms             double,   -- the least its bytes (weights and KV) take
    memory_frac          double,   -- share of the memory bound that decode reaches
    batch                double,   -- mean decoding streams of such a step
    fp8_ms               double,   -- such a step with weights of half the bytes, at the same share
    batch32_ms           double,   -- time a token at 32 streams, at the same share: one read, 32 tokens
    compute_frac         double,   -- share of decode-only steps that its arithmetic needs
    prefill_flops_frac   double,   -- share of the device's FLOP/s that steps with large chunks reach
    prefill_tokens_per_s double,
    n_large              bigint    -- steps with chunks of twice the knee and more
);

-- A number of tokens as a class: `256 to 1023`.
create macro tokens_class(n) as
    case when n is null then null when n < 4 then 'under 4'
         else cast(pow(4, floor(log2(n) / 2)) as bigint) || ' to ' || cast(pow(4, floor(log2(n) / 2) + 1) - 1 as bigint) end;

-- The shape of a request in words: powers of four of its prompt and output tokens.
create macro shape_of(n_prompt, n_output) as
    case when n_prompt is null then null else
        'prompt ' || tokens_class(n_prompt) || ', output ' || coalesce(tokens_class(n_output), '?') end;
