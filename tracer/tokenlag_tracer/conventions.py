"""Names of the trace contract, version 1: spans, attribute keys and their types.

Constants only. Writers (recorders, fixtures) and readers (the analyzer) both take
the names from here, so that a spelling exists once. Units are in the names: `_ns`
are nanoseconds, `_frac` and ratios are 0 to 1, `tokens` are counts. An attribute
that is absent was not measured; it never means zero.
"""

from typing import Final

CONTRACT_VERSION: Final = "1"
SCOPE_NAME: Final = "tokenlag"

# --- span names ---------------------------------------------------------------------

SPAN_REQUEST: Final = "llm.request"
SPAN_ENGINE_REQUEST: Final = "llm.engine_request"
SPAN_NETWORK: Final = "llm.network"
SPAN_FRONTEND: Final = "llm.frontend"
SPAN_QUEUE: Final = "llm.queue"
SPAN_PREFILL: Final = "llm.prefill"
SPAN_PREFILL_CHUNK: Final = "llm.prefill_chunk"
SPAN_DECODE: Final = "llm.decode"
SPAN_ENGINE_STEP: Final = "llm.engine_step"

# --- span kinds, as OTLP numbers them -------------------------------------------------

KIND_INTERNAL: Final = 1
KIND_SERVER: Final = 2
KIND_CLIENT: Final = 3

STATUS_ERROR: Final = 2

# --- GenAI conventions that the contract uses as they stand ---------------------------

OPERATION_NAME: Final = "gen_ai.operation.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_ID: Final = "gen_ai.request.id"
REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
REQUEST_STREAM: Final = "gen_ai.request.stream"
REQUEST_CHOICE_COUNT: Final = "gen_ai.request.choice.count"
CONVERSATION_ID: Final = "gen_ai.conversation.id"
USAGE_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
USAGE_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
USAGE_CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
TIME_TO_FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"  # seconds
ERROR_TYPE: Final = "error.type"

# --- client ----------------------------------------------------------------------------

CLIENT_CHUNKS: Final = "tokenlag.client.chunks"
CLIENT_GAP_P50_NS: Final = "tokenlag.client.gap_p50_ns"
CLIENT_GAP_P99_NS: Final = "tokenlag.client.gap_p99_ns"
CLIENT_GAP_MAX_NS: Final = "tokenlag.client.gap_max_ns"
CLIENT_INTENDED_NS: Final = "tokenlag.client.intended_ns"
CLIENT_CHUNK_MS: Final = "tokenlag.client.chunk_ms"

# --- request ---------------------------------------------------------------------------

TENANT: Final = "tokenlag.tenant"
PREFIX_ID: Final = "tokenlag.prefix.id"
REQUEST_FEATURES: Final = "tokenlag.request.features"
ADAPTER: Final = "tokenlag.adapter"
PRIORITY: Final = "tokenlag.priority"
SAMPLE_WEIGHT: Final = "tokenlag.sample.weight"
FIRST_TOKEN_NS: Final = "tokenlag.first_token_ns"
LAST_TOKEN_NS: Final = "tokenlag.last_token_ns"
DELIVERY_WAIT_NS: Final = "tokenlag.delivery.wait_ns"
DELIVERY_MAX_NS: Final = "tokenlag.delivery.max_ns"

# --- engine request ----------------------------------------------------------------------

ENGINE_ID: Final = "tokenlag.engine.id"
ENGINE_EPOCH: Final = "tokenlag.engine.epoch"
REQUEST_INDEX: Final = "tokenlag.request.index"
SEQUENCE: Final = "tokenlag.sequence"
ROLE: Final = "tokenlag.role"
PREEMPTIONS: Final = "tokenlag.preemptions"

# --- phases ------------------------------------------------------------------------------

DIRECTION: Final = "tokenlag.direction"
CLOCK: Final = "tokenlag.clock"
STAGE: Final = "tokenlag.stage"
QUEUE_REASON: Final = "tokenlag.queue.reason"
PREFILL_TOKENS: Final = "tokenlag.prefill.tokens"
PREFILL_RECOMPUTE: Final = "tokenlag.prefill.recompute"
CHUNK_TOKENS: Final = "tokenlag.chunk.tokens"
CHUNK_CONTEXT: Final = "tokenlag.chunk.context"
DECODE_FIRST_STEP: Final = "tokenlag.decode.first_step"
DECODE_LAST_STEP: Final = "tokenlag.decode.last_step"
DECODE_TOKENS: Final = "tokenlag.decode.tokens"

# --- engine step ---------------------------------------------------------------------------

STEP_INDEX: Final = "tokenlag.step.index"
STEP_PREFILL_REQUESTS: Final = "tokenlag.step.prefill.requests"
STEP_PREFILL_TOKENS: Final = "tokenlag.step.prefill.tokens"
STEP_PREFILL_CONTEXT: Final = "tokenlag.step.prefill.context"
STEP_DECODE_COUNT: Final = "tokenlag.step.decode.count"
STEP_DECODE_JOINED: Final = "tokenlag.step.decode.joined"
STEP_DECODE_LEFT: Final = "tokenlag.step.decode.left"
STEP_DECODE_REQUESTS: Final = "tokenlag.step.decode.requests"
STEP_DECODE_NEW_TOKENS: Final = "tokenlag.step.decode.new_tokens"
STEP_CONTEXT_TOKENS: Final = "tokenlag.step.context_tokens"
STEP_RUNNING: Final = "tokenlag.step.running"
STEP_WAITING: Final = "tokenlag.step.waiting"
STEP_WAITING_TOKENS: Final = "tokenlag.step.waiting_tokens"
STEP_OLDEST_WAIT_NS: Final = "tokenlag.step.oldest_wait_ns"
STEP_KV_USAGE: Final = "tokenlag.step.kv_usage"
STEP_KV_RESERVED: Final = "tokenlag.step.kv_reserved"
STEP_PREEMPTED: Final = "tokenlag.step.preempted"
STEP_ADMIT_BOUND: Final = "tokenlag.step.admit_bound"
STEP_GRAPH: Final = "tokenlag.step.graph"
STEP_DRAFTED: Final = "tokenlag.step.drafted"
STEP_ACCEPTED: Final = "tokenlag.step.accepted"
STEP_DEVICE_NS: Final = "tokenlag.step.device_ns"
STEP_DROPPED: Final = "tokenlag.step.dropped"
STEP_SKIPPED: Final = "tokenlag.step.skipped"

FULL_LIST_EVERY_STEPS: Final = 256
ENGINE_TRACE_NS: Final = 10_000_000_000
HEARTBEAT_NS: Final = 10_000_000_000

# --- resource ------------------------------------------------------------------------------

SERVICE_NAME: Final = "service.name"
SERVICE_INSTANCE_ID: Final = "service.instance.id"
HOST_NAME: Final = "host.name"
ENGINE_NAME: Final = "tokenlag.engine.name"
ENGINE_VERSION: Final = "tokenlag.engine.version"
ENGINE_MAX_BATCH_TOKENS: Final = "tokenlag.engine.max_batch_tokens"
ENGINE_MAX_SEQS: Final = "tokenlag.engine.max_seqs"
ENGINE_KV_TOKENS: Final = "tokenlag.engine.kv_tokens"
ENGINE_CHUNKED_PREFILL: Final = "tokenlag.engine.chunked_prefill"
ENGINE_PREFIX_CACHING: Final = "tokenlag.engine.prefix_caching"
ENGINE_TENSOR_PARALLEL: Final = "tokenlag.engine.tensor_parallel"
ENGINE_PIPELINE_PARALLEL: Final = "tokenlag.engine.pipeline_parallel"
CONFIG_HASH: Final = "tokenlag.config.hash"
MODEL_NAME: Final = "tokenlag.model.name"
MODEL_PARAMETERS: Final = "tokenlag.model.parameters"
MODEL_ACTIVE_PARAMETERS: Final = "tokenlag.model.active_parameters"
MODEL_WEIGHT_BYTES: Final = "tokenlag.model.weight_bytes"
MODEL_KV_BYTES_PER_TOKEN: Final = "tokenlag.model.kv_bytes_per_token"
DEVICE_NAME: Final = "tokenlag.device.name"
DEVICE_COUNT: Final = "tokenlag.device.count"
DEVICE_MEMORY_BANDWIDTH: Final = "tokenlag.device.memory_bandwidth"
DEVICE_PEAK_FLOPS: Final = "tokenlag.device.peak_flops"

# --- types -----------------------------------------------------------------------------------
#
# Stores that turn every value into a string (a ClickHouse map, some UIs) lose these;
# readers convert back by this table.

SPAN_ATTRIBUTE_TYPES: Final[dict[str, str]] = {
    OPERATION_NAME: "str",
    REQUEST_MODEL: "str",
    REQUEST_ID: "str",
    REQUEST_MAX_TOKENS: "int",
    REQUEST_STREAM: "bool",
    REQUEST_CHOICE_COUNT: "int",
    CONVERSATION_ID: "str",
    USAGE_INPUT_TOKENS: "int",
    USAGE_OUTPUT_TOKENS: "int",
    USAGE_CACHED_TOKENS: "int",
    FINISH_REASONS: "str[]",
    TIME_TO_FIRST_CHUNK: "float",
    ERROR_TYPE: "str",
    CLIENT_CHUNKS: "int",
    CLIENT_GAP_P50_NS: "int",
    CLIENT_GAP_P99_NS: "int",
    CLIENT_GAP_MAX_NS: "int",
    CLIENT_INTENDED_NS: "int",
    CLIENT_CHUNK_MS: "str",
    TENANT: "str",
    PREFIX_ID: "str",
    REQUEST_FEATURES: "str",
    ADAPTER: "str",
    PRIORITY: "int",
    SAMPLE_WEIGHT: "float",
    FIRST_TOKEN_NS: "int",
    LAST_TOKEN_NS: "int",
    DELIVERY_WAIT_NS: "int",
    DELIVERY_MAX_NS: "int",
    ENGINE_ID: "str",
    ENGINE_EPOCH: "int",
    REQUEST_INDEX: "int",
    SEQUENCE: "int",
    ROLE: "str",
    PREEMPTIONS: "int",
    DIRECTION: "str",
    CLOCK: "str",
    STAGE: "str",
    QUEUE_REASON: "str",
    PREFILL_TOKENS: "int",
    PREFILL_RECOMPUTE: "bool",
    CHUNK_TOKENS: "int",
    CHUNK_CONTEXT: "int",
    DECODE_FIRST_STEP: "int",
    DECODE_LAST_STEP: "int",
    DECODE_TOKENS: "int",
    STEP_INDEX: "int",
    STEP_PREFILL_REQUESTS: "int[]",
    STEP_PREFILL_TOKENS: "int[]",
    STEP_PREFILL_CONTEXT: "int[]",
    STEP_DECODE_COUNT: "int",
    STEP_DECODE_JOINED: "str",
    STEP_DECODE_LEFT: "str",
    STEP_DECODE_REQUESTS: "str",
    STEP_DECODE_NEW_TOKENS: "int[]",
    STEP_CONTEXT_TOKENS: "int",
    STEP_RUNNING: "int",
    STEP_WAITING: "int",
    STEP_WAITING_TOKENS: "int",
    STEP_OLDEST_WAIT_NS: "int",
    STEP_KV_USAGE: "float",
    STEP_KV_RESERVED: "float",
    STEP_PREEMPTED: "int[]",
    STEP_ADMIT_BOUND: "str",
    STEP_GRAPH: "str",
    STEP_DRAFTED: "int",
    STEP_ACCEPTED: "int",
    STEP_DEVICE_NS: "int",
    STEP_DROPPED: "int",
    STEP_SKIPPED: "int",
}

RESOURCE_ATTRIBUTE_TYPES: Final[dict[str, str]] = {
    SERVICE_NAME: "str",
    SERVICE_INSTANCE_ID: "str",
    HOST_NAME: "str",
    ENGINE_NAME: "str",
    ENGINE_VERSION: "str",
    ENGINE_MAX_BATCH_TOKENS: "int",
    ENGINE_MAX_SEQS: "int",
    ENGINE_KV_TOKENS: "int",
    ENGINE_CHUNKED_PREFILL: "bool",
    ENGINE_PREFIX_CACHING: "bool",
    ENGINE_TENSOR_PARALLEL: "int",
    ENGINE_PIPELINE_PARALLEL: "int",
    CONFIG_HASH: "str",
    MODEL_NAME: "str",
    MODEL_PARAMETERS: "int",
    MODEL_ACTIVE_PARAMETERS: "int",
    MODEL_WEIGHT_BYTES: "int",
    MODEL_KV_BYTES_PER_TOKEN: "int",
    DEVICE_NAME: "str",
    DEVICE_COUNT: "int",
    DEVICE_MEMORY_BANDWIDTH: "float",
    DEVICE_PEAK_FLOPS: "float",
}
