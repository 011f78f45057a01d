"""Records that engines keep of their own work, which are no spans; they become some.

NVIDIA Dynamo's forward passes (`dynamo.fpm.trace.v1`) and TensorRT-LLM's iteration statistics
become engine steps: what a step computed in all, and not whose. Dynamo's request trace and
llama.cpp's answers with `timings` become requests. No text of theirs is read.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from tokenlag_tracer import conventions as names

from tokenlag.read.messages import Seen
from tokenlag.read.sources.otlp_json import TextError
from tokenlag.read.sources.otlp_types import AnyValue, KeyValue, Resource, Span, Status
from tokenlag.read.sources.plain_values import plain_value
from tokenlag.read.sources.sink import Sink

NS_PER_MS: Final = 1_000_000
MAX_UNIX_MS: Final = 2.0**42  # the year 2109
MAX_REQUESTS: Final = 65_536  # in one step; more is damage
UNKNOWN: Final = -1  # a handle that nobody told; read as not measured
# 07-26-2026 14:03:11.123456, in the writer's zone, which it does not say: taken as UTC.
_TENSORRT_TIME: Final = "%m-%d-%Y %H:%M:%S.%f"


class _Work(msgspec.Struct, gc=False):
    num_prefill_requests: int = 0
    sum_prefill_tokens: int = 0
    sum_prefill_kv_tokens: int = 0
    num_decode_requests: int = 0
    sum_decode_kv_tokens: int = 0


class _Pass(msgspec.Struct, gc=False):
    worker_id: str = ""
    dp_rank: int = 0
    counter_id: int = 0
    wall_time: float = 0.0
    scheduled_requests: _Work = msgspec.field(default_factory=_Work)
    queued_requests: _Work = msgspec.field(default_factory=_Work)


class _DynamoRequest(msgspec.Struct, gc=False):
    request_id: str | None = None
    model: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    request_received_ms: float | None = None
    total_time_ms: float | None = None
    ttft_ms: float | None = None
    finish_reason: str | None = None


class _Agent(msgspec.Struct, gc=False):
    session_id: str | None = None


class _Event(msgspec.Struct, gc=False):
    observed_at_unix_ms: float | None = None
    fpm: _Pass | None = None
    event_time_unix_ms: float | None = None
    request: _DynamoRequest | None = None
    agent_context: _Agent | None = None


class _Timings(msgspec.Struct, gc=False):
    cache_n: int | None = None
    prompt_n: int | None = None
    prompt_ms: float | None = None
    predicted_n: int | None = None
    predicted_ms: float | None = None
    draft_n: int | None = None
    draft_n_accepted: int | None = None


class _Blocks(msgspec.Struct, gc=False, rename="camel"):
    used_num_blocks: int | None = None
    max_num_blocks: int | None = None
    tokens_per_block: int | None = None


class _Inflight(msgspec.Struct, gc=False, rename="camel"):
    num_context_requests: int = 0
    num_gen_requests: int = 0
    num_ctx_tokens: int = 0
    num_ctx_kv_tokens: int | None = None
    num_gen_kv_tokens: int | None = None
    num_queued_ctx_tokens: int | None = None


class _Drafts(msgspec.Struct, gc=False, rename="camel"):
    num_draft_tokens: int | None = None
    num_accepted_tokens: int | None = None


class _Record(_Event, gc=False):
    """Any of them; one that is an envelope has its record in `event`."""

    event: _Event | None = None
    timings: _Timings | None = None
    id: str | None = None
    model: str | None = None
    created: float | None = None
    iteration: int | None = msgspec.field(default=None, name="iter")
    timestamp: Any = None
    latency_ms: float | None = msgspec.field(default=None, name="iterLatencyMS")
    n_active: int | None = msgspec.field(default=None, name="numActiveRequests")
    n_queued: int | None = msgspec.field(default=None, name="numQueuedRequests")
    blocks: _Blocks | None = msgspec.field(default=None, name="kvCacheStats")
    inflight: _Inflight | None = msgspec.field(default=None, name="inflightBatchingStats")
    drafts: _Drafts | None = msgspec.field(default=None, name="specDecodingStats")


_ONE: Final = msgspec.json.Decoder(_Record, strict=False)
_MANY: Final = msgspec.json.Decoder(list[_Record], strict=False)


def open_source(sink: Sink) -> EngineRecordReader:
    """Returns the reader of this format."""
    return EngineRecordReader(sink)


class EngineRecordReader:
    """Reads texts and adds what they record to columns, as spans.

    Args:
        sink: where spans go.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def read(self, text: bytes | memoryview, name: str, seen: Seen) -> None:
        """Adds the records of one JSON text to the columns and what it was to `seen`.

        Raises:
            TextError: the text could not be read.
        """
        text = bytes(text)
        try:
            records = _MANY.decode(text) if text[:1] == b"[" else [_ONE.decode(text)]
        except (msgspec.DecodeError, RecursionError) as error:
            raise TextError(f"not such a record: {error}") from None
        seen.n_exports += 1
        for record in records:
            made = _made(record, name)
            if made is None:
                seen.n_bad_spans += 1
                continue
            scope, resource, span = made
            seen.n_spans += 1
            self._sink.columns.add(name, resource, scope, [span])


_Made = tuple[str, Resource, Span]


def _made(record: _Record, source: str) -> _Made | None:
    if record.timings is not None:
        return _llama_cpp(record, record.timings)
    if record.iteration is not None:
        return _tensorrt(record, source)
    event = record.event or record
    if event.fpm is not None:
        return _forward_pass(event, event.fpm)
    if event.request is not None:
        return _dynamo_request(event, event.request)
    return None


def _forward_pass(event: _Event, told: _Pass) -> _Made | None:
    end_ns, took_ns = _ns(event.observed_at_unix_ms), _took_ns(told.wall_time * 1e3)
    if end_ns is None or took_ns is None:
        return None
    engine = f"{told.worker_id or 'worker'}:{told.dp_rank}"
    work, queue = told.scheduled_requests, told.queued_requests
    attributes = {
        names.ENGINE_ID: engine,
        names.STEP_INDEX: told.counter_id,
        names.STEP_DECODE_COUNT: work.num_decode_requests,
        names.STEP_CONTEXT_TOKENS: work.sum_decode_kv_tokens,
        names.STEP_RUNNING: work.num_prefill_requests + work.num_decode_requests,
        names.STEP_WAITING: queue.num_prefill_requests + queue.num_decode_requests,
        names.STEP_WAITING_TOKENS: queue.sum_prefill_tokens,
    }
    if 0 < work.num_prefill_requests <= MAX_REQUESTS:
        attributes |= _chunks(
            work.num_prefill_requests, work.sum_prefill_tokens, work.sum_prefill_kv_tokens
        )
    start_ns = end_ns - took_ns
    key = f"{engine}/{told.counter_id}/{end_ns}"
    return (
        "dynamo.fpm",
        _resource({names.SERVICE_NAME: "dynamo"}),
        _span(names.SPAN_ENGINE_STEP, key, start_ns, end_ns, attributes),
    )


def _chunks(n: int, n_tokens: int, n_context: int) -> dict[str, Any]:
    """Prompt chunks of which only sums are told: so many, of even size, of nobody known."""
    return {
        names.STEP_PREFILL_REQUESTS: [UNKNOWN] * n,
        names.STEP_PREFILL_TOKENS: _even(n_tokens, n),
        names.STEP_PREFILL_CONTEXT: _even(n_context, n),
    }


def _even(total: int, n: int) -> list[int]:
    return [total // n + (i < total % n) for i in range(n)]


def _tensorrt(record: _Record, source: str) -> _Made | None:
    end_ns, took_ns = _tensorrt_ns(record.timestamp), _took_ns(record.latency_ms)
    if end_ns is None or took_ns is None:
        return None
    batch = record.inflight or _Inflight()
    attributes: dict[str, Any] = {
        names.STEP_INDEX: record.iteration,
        names.STEP_DECODE_COUNT: batch.num_gen_requests,
        names.STEP_CONTEXT_TOKENS: batch.num_gen_kv_tokens,
        names.STEP_RUNNING: record.n_active,
        names.STEP_WAITING: record.n_queued,
        names.STEP_WAITING_TOKENS: batch.num_queued_ctx_tokens,
    }
    if 0 < batch.num_context_requests <= MAX_REQUESTS:
        attributes |= _chunks(
            batch.num_context_requests, batch.num_ctx_tokens, batch.num_ctx_kv_tokens or 0
        )
    resource: dict[str, Any] = {
        names.SERVICE_NAME: source,
        names.ENGINE_NAME: "tensorrt-llm",
    }
    blocks = record.blocks or _Blocks()
    if blocks.used_num_blocks is not None and blocks.max_num_blocks:
        attributes[names.STEP_KV_USAGE] = blocks.used_num_blocks / blocks.max_num_blocks
        if blocks.tokens_per_block:
            resource[names.ENGINE_KV_TOKENS] = blocks.max_num_blocks * blocks.tokens_per_block
    drafts = record.drafts or _Drafts()
    attributes[names.STEP_DRAFTED] = drafts.num_draft_tokens
    attributes[names.STEP_ACCEPTED] = drafts.num_accepted_tokens
    start_ns = end_ns - took_ns
    key = f"{source}/{record.iteration}/{end_ns}"
    return (
        "tensorrt_llm.stats",
        _resource(resource),
        _span(names.SPAN_ENGINE_STEP, key, start_ns, end_ns, attributes),
    )


def _tensorrt_ns(timestamp: Any) -> int | None:
    """The end of an iteration; a number is unix seconds, milliseconds or finer."""
    if isinstance(timestamp, str):
        try:
            at = datetime.strptime(timestamp, _TENSORRT_TIME).replace(tzinfo=UTC)
        except ValueError:
            return None
        return round(at.timestamp() * 1e6) * 1000
    if isinstance(timestamp, int | float) and 1e9 < timestamp < 2**62:
        value = float(timestamp)
        while value < 1e18:
            value *= 1e3
        return int(value) if value < 2**62 else None
    return None


def _dynamo_request(event: _Event, told: _DynamoRequest) -> _Made | None:
    start_ms, took_ms = told.request_received_ms, told.total_time_ms
    end_ms = event.event_time_unix_ms
    if start_ms is None and end_ms is not None and took_ms is not None:
        start_ms = end_ms - took_ms
    start_ns = _ns(start_ms)
    if start_ms is None or start_ns is None:
        return None
    if took_ms is not None:
        end_ms = start_ms + took_ms
    attributes = {
        names.REQUEST_ID: told.request_id,
        names.CONVERSATION_ID: None
        if event.agent_context is None
        else event.agent_context.session_id,
        names.USAGE_CACHED_TOKENS: told.cached_tokens,
        "model": told.model,
        "input_tokens": told.input_tokens,
        "output_tokens": told.output_tokens,
        "ttft_ms": told.ttft_ms,
        "finish_reason": told.finish_reason,
    }
    end_ns = _ns(end_ms)
    key = f"{told.request_id}/{start_ns}"
    span = _span("dynamo.request", key, start_ns, end_ns, attributes)
    return "dynamo.request.trace", _resource({names.SERVICE_NAME: "dynamo"}), span


def _llama_cpp(record: _Record, told: _Timings) -> _Made | None:
    """`created` is the second in which the answer was done: a start is good to one second."""
    if record.created is None or told.prompt_ms is None or told.predicted_ms is None:
        return None
    end_ns = _ns(record.created * 1e3)
    prompt_ns, predicted_ns = _took_ns(told.prompt_ms), _took_ns(told.predicted_ms)
    if end_ns is None or prompt_ns is None or predicted_ns is None:
        return None
    start_ns = end_ns - prompt_ns - predicted_ns
    n_prompt = None
    if told.prompt_n is not None:
        n_prompt = told.prompt_n + (told.cache_n or 0)
    attributes = {
        names.REQUEST_ID: record.id,
        names.REQUEST_MODEL: record.model,
        names.USAGE_INPUT_TOKENS: n_prompt,
        names.USAGE_CACHED_TOKENS: told.cache_n,
        names.USAGE_OUTPUT_TOKENS: told.predicted_n,
        "gen_ai.latency.time_in_model_prefill": told.prompt_ms / 1e3,
        "gen_ai.latency.time_in_model_decode": told.predicted_ms / 1e3,
    }
    key = f"{record.id}/{end_ns}/{told.predicted_ms}"
    span = _span("llama.cpp.completion", key, start_ns, end_ns, attributes)
    return "llama.cpp", _resource({names.SERVICE_NAME: "llama.cpp"}), span


def _ns(unix_ms: float | None) -> int | None:
    """Unix milliseconds as nanoseconds; a float of them holds less than a microsecond."""
    if unix_ms is None or not 0 < unix_ms < MAX_UNIX_MS:
        return None
    return round(unix_ms * 1e3) * 1000


def _took_ns(ms: float | None) -> int | None:
    """Milliseconds that something took, as nanoseconds."""
    return round(ms * NS_PER_MS) if ms is not None and 0 <= ms < MAX_UNIX_MS else None


def _span(
    name: str, key: str, start_ns: int, end_ns: int | None, attributes: dict[str, Any]
) -> Span:
    digest = hashlib.blake2b(key.encode(), digest_size=24).hexdigest()
    return Span(
        trace_id=digest[:32],
        span_id=digest[32:],
        name=name,
        kind=names.KIND_INTERNAL,
        start_time_unix_nano=start_ns,
        end_time_unix_nano=end_ns,
        attributes=[
            KeyValue(key, plain_value(value))
            for key, value in attributes.items()
            if value is not None
        ],
        status=Status(0),
    )


def _resource(keys: dict[str, Any]) -> Resource:
    return Resource(
        [
            KeyValue(key, AnyValue(string_value=v) if isinstance(v, str) else AnyValue(int_value=v))
            for key, v in keys.items()
        ]
    )
