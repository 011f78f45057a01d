"""TensorRT-LLM's iteration statistics: what each step computed, and for whom.

The keys are those of the engine's own JSON. With `enable_iter_req_stats` an iteration lists its
requests (`requestStats`), by the executor's own ids.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from tokenlag_tracer import conventions as names

from tokenlag.read.sources.record_spans import (
    MAX_REQUESTS,
    UNKNOWN,
    Made,
    even_chunks,
    made_resource,
    made_span,
    took_ns,
)

# 07-26-2026 14:03:11.123456, in the writer's zone, which it does not say: taken as UTC.
_TENSORRT_TIME: Final = "%m-%d-%Y %H:%M:%S.%f"
MAX_HANDLE: Final = 2**61
_CONTEXT: Final = "CONTEXT_IN_PROGRESS"
_ELSEWHERE: Final = frozenset({"QUEUED", "ENCODER_IN_PROGRESS"})  # in no batch of the model


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


class _Request(msgspec.Struct, gc=False, rename="camel"):
    id: int = UNKNOWN
    stage: str | None = None
    context_prefill_position: int | None = None
    num_generated_tokens: int = 0
    reused_blocks_per_request: int = 0
    scheduled: bool = False
    paused: bool = False


class TensorRtRecord(msgspec.Struct, gc=False):
    """What is read of an iteration's JSON."""

    iteration: int | None = msgspec.field(default=None, name="iter")
    timestamp: Any = None
    latency_ms: float | None = msgspec.field(default=None, name="iterLatencyMS")
    n_active: int | None = msgspec.field(default=None, name="numActiveRequests")
    n_queued: int | None = msgspec.field(default=None, name="numQueuedRequests")
    blocks: _Blocks | None = msgspec.field(default=None, name="kvCacheStats")
    inflight: _Inflight | None = msgspec.field(default=None, name="inflightBatchingStats")
    drafts: _Drafts | None = msgspec.field(default=None, name="specDecodingStats")
    requests: list[_Request] | None = msgspec.field(default=None, name="requestStats")
    rank: int | None = msgspec.field(default=None, name="attentionDpRank")


def tensorrt_step(record: TensorRtRecord, source: str) -> Made | None:
    """Returns an iteration as an engine step; None if it does not say when it was.

    Args:
        record: of the iteration.
        source: the file's name, by which the engine is called: the record names none.
    """
    at_ns, lasted_ns = _ns(record.timestamp), took_ns(record.latency_ms)
    if at_ns is None or lasted_ns is None:
        return None
    # The C++ runtime takes the time at the end of an iteration. The one in Python, which alone
    # writes these two keys, takes it at the beginning.
    is_begin = record.requests is not None or record.rank is not None
    start_ns = at_ns if is_begin else at_ns - lasted_ns
    engine = f"{source}:{record.rank}" if record.rank else None
    batch, blocks = record.inflight or _Inflight(), record.blocks or _Blocks()
    attributes: dict[str, Any] = {
        names.ENGINE_ID: engine,
        names.STEP_INDEX: record.iteration,
        names.STEP_DECODE_COUNT: batch.num_gen_requests,
        names.STEP_CONTEXT_TOKENS: batch.num_gen_kv_tokens,
        names.STEP_RUNNING: record.n_active,
        names.STEP_WAITING: record.n_queued,
        names.STEP_WAITING_TOKENS: batch.num_queued_ctx_tokens,
    }
    if 0 < batch.num_context_requests <= MAX_REQUESTS:
        attributes |= even_chunks(
            batch.num_context_requests, batch.num_ctx_tokens, batch.num_ctx_kv_tokens or 0
        )
    if record.requests and len(record.requests) <= MAX_REQUESTS:
        attributes |= _members(record.requests, batch, blocks.tokens_per_block or 0)
    resource: dict[str, Any] = {
        names.SERVICE_NAME: source,
        names.ENGINE_NAME: "tensorrt-llm",
    }
    if blocks.used_num_blocks is not None and blocks.max_num_blocks:
        attributes[names.STEP_KV_USAGE] = blocks.used_num_blocks / blocks.max_num_blocks
        if blocks.tokens_per_block:
            resource[names.ENGINE_KV_TOKENS] = blocks.max_num_blocks * blocks.tokens_per_block
    drafts = record.drafts or _Drafts()
    attributes[names.STEP_DRAFTED] = drafts.num_draft_tokens
    attributes[names.STEP_ACCEPTED] = drafts.num_accepted_tokens
    key = f"{engine or source}/{record.iteration}/{start_ns}"
    return (
        "tensorrt_llm.stats",
        made_resource(resource),
        made_span(names.SPAN_ENGINE_STEP, key, start_ns, start_ns + lasted_ns, attributes),
    )


def _members(requests: list[_Request], batch: _Inflight, block_tokens: int) -> dict[str, Any]:
    """Who was in the step, by what is told of each request after it.

    A request whose prompt is not done, or that has its first token now, had a chunk of it in
    this step; any other that was scheduled decoded.
    """
    taken = [one for one in requests if one.scheduled and one.stage not in _ELSEWHERE]
    if not all(0 <= one.id < MAX_HANDLE for one in taken):
        return {}
    prompts = [one for one in taken if one.stage == _CONTEXT or one.num_generated_tokens <= 1]
    decoding = {one.id for one in taken} - {one.id for one in prompts}
    # One that ended in the step before may be computed once more, and is listed no longer: the
    # count goes with the list.
    told: dict[str, Any] = {names.STEP_DECODE_COUNT: len(decoding)}
    if decoding:
        told[names.STEP_DECODE_REQUESTS] = _ranges(sorted(decoding))
    n_chunks = batch.num_context_requests
    if 0 < len(prompts) <= n_chunks <= MAX_REQUESTS:
        handles = [one.id for one in prompts] + [UNKNOWN] * (n_chunks - len(prompts))
        told[names.STEP_PREFILL_REQUESTS] = handles
        told |= _sizes(prompts, batch, block_tokens)
    paused = sorted({one.id for one in requests if one.paused and 0 <= one.id < MAX_HANDLE})
    if paused:
        told[names.STEP_PREEMPTED] = paused
    return told


def _sizes(prompts: list[_Request], batch: _Inflight, block_tokens: int) -> dict[str, Any]:
    """What each prompt chunk computed, where the step has several and the sum is right.

    Only where a request's prompt stands after the step is told: a prompt that is in the step as
    a whole computed that but for its cached head.
    """
    if len(prompts) < max(batch.num_context_requests, 2):
        return {}
    heads = [one.reused_blocks_per_request * block_tokens for one in prompts]
    tokens = [
        (one.context_prefill_position or 0) - head for one, head in zip(prompts, heads, strict=True)
    ]
    if min(tokens) <= 0 or min(heads) < 0 or sum(tokens) != batch.num_ctx_tokens:
        return {}
    return {names.STEP_PREFILL_TOKENS: tokens, names.STEP_PREFILL_CONTEXT: heads}


def _ranges(handles: list[int]) -> str:
    """Rising numbers as a range list."""
    parts: list[str] = []
    first = last = handles[0]
    for handle in [*handles[1:], None]:
        if handle is not None and handle == last + 1:
            last = handle
            continue
        parts.append(str(first) if first == last else f"{first}-{last}")
        if handle is not None:
            first = last = handle
    return ",".join(parts)


def _ns(timestamp: Any) -> int | None:
    """The time of an iteration; a number is unix seconds, milliseconds or finer."""
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
