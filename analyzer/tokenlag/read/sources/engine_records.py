"""Records that engines keep of their own work, which are no spans; they become some.

NVIDIA Dynamo's forward passes (`dynamo.fpm.trace.v1`) and TensorRT-LLM's iteration statistics
become engine steps: what a step computed in all, and whose where that is told. Dynamo's request
trace and llama.cpp's answers with `timings` become requests. No text of theirs is read.
"""

from __future__ import annotations

from typing import Final

import msgspec
from tokenlag_tracer import conventions as names

from tokenlag.read.messages import Seen
from tokenlag.read.sources.otlp_json import TextError
from tokenlag.read.sources.record_spans import (
    MAX_REQUESTS,
    Made,
    even_chunks,
    made_resource,
    made_span,
    took_ns,
    unix_ns,
)
from tokenlag.read.sources.sink import Sink
from tokenlag.read.sources.tensorrt_records import TensorRtRecord, tensorrt_step


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


class _Event(TensorRtRecord, gc=False):  # a struct has one base; a record is any of them
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


class _Record(_Event, gc=False):
    """Any of them; one that is an envelope has its record in `event`."""

    event: _Event | None = None
    timings: _Timings | None = None
    id: str | None = None
    model: str | None = None
    created: float | None = None


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


def _made(record: _Record, source: str) -> Made | None:
    if record.timings is not None:
        return _llama_cpp(record, record.timings)
    if record.iteration is not None:
        return tensorrt_step(record, source)
    event = record.event or record
    if event.fpm is not None:
        return _forward_pass(event, event.fpm)
    if event.request is not None:
        return _dynamo_request(event, event.request)
    return None


def _forward_pass(event: _Event, told: _Pass) -> Made | None:
    end_ns, lasted_ns = unix_ns(event.observed_at_unix_ms), took_ns(told.wall_time * 1e3)
    if end_ns is None or lasted_ns is None:
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
        attributes |= even_chunks(
            work.num_prefill_requests, work.sum_prefill_tokens, work.sum_prefill_kv_tokens
        )
    start_ns = end_ns - lasted_ns
    key = f"{engine}/{told.counter_id}/{end_ns}"
    return (
        "dynamo.fpm",
        made_resource({names.SERVICE_NAME: "dynamo"}),
        made_span(names.SPAN_ENGINE_STEP, key, start_ns, end_ns, attributes),
    )


def _dynamo_request(event: _Event, told: _DynamoRequest) -> Made | None:
    start_ms, took_ms = told.request_received_ms, told.total_time_ms
    end_ms = event.event_time_unix_ms
    if start_ms is None and end_ms is not None and took_ms is not None:
        start_ms = end_ms - took_ms
    start_ns = unix_ns(start_ms)
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
    end_ns = unix_ns(end_ms)
    key = f"{told.request_id}/{start_ns}"
    span = made_span("dynamo.request", key, start_ns, end_ns, attributes)
    return "dynamo.request.trace", made_resource({names.SERVICE_NAME: "dynamo"}), span


def _llama_cpp(record: _Record, told: _Timings) -> Made | None:
    """`created` is the second in which the answer was done: a start is good to one second."""
    if record.created is None or told.prompt_ms is None or told.predicted_ms is None:
        return None
    end_ns = unix_ns(record.created * 1e3)
    prompt_ns, predicted_ns = took_ns(told.prompt_ms), took_ns(told.predicted_ms)
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
    span = made_span("llama.cpp.completion", key, start_ns, end_ns, attributes)
    return "llama.cpp", made_resource({names.SERVICE_NAME: "llama.cpp"}), span
