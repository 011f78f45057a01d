"""llama.cpp's server: what its answers tell of the engine, as the contract's phases.

It has no hook for a step, so this stands in front of it (see `llama_cpp_proxy`) and reads the
`timings` and the `prompt_progress` of its answers. Steps stay unmeasured: which requests shared
one is not told, and a prompt's time holds the decoding of others in the same batches.
"""

from __future__ import annotations

import atexit
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from tokenlag_tracer import conventions as names
from tokenlag_tracer.clock import Clock
from tokenlag_tracer.config import is_disabled, read_config
from tokenlag_tracer.export import ExportQueue, targets_of
from tokenlag_tracer.identity import Context, host_name, new_span_id
from tokenlag_tracer.spans import Attributes, Row, attributes_of

MAX_CHUNKS: Final = 4096


class Progress(NamedTuple):
    """A `prompt_progress`: when it came, tokens in KV then, and ms since the prompt began."""

    at_ns: int
    n_processed: int
    time_ns: int


@dataclass(slots=True)
class Timings:
    """A `timings`, in ns: what the server measured of one request."""

    n_cached: int | None = None
    n_computed: int | None = None
    prompt_ns: int | None = None
    n_output: int | None = None
    decode_ns: int | None = None

    @classmethod
    def read(cls, told: object) -> Timings | None:
        """Returns what `timings` says; None if it is none."""
        if not isinstance(told, dict):
            return None
        return cls(
            _count(told.get("cache_n")), _count(told.get("prompt_n")), _ns(told.get("prompt_ms")),
            _count(told.get("predicted_n")), _ns(told.get("predicted_ms")),
        )  # fmt: skip


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0


def _count(value: Any) -> int | None:
    return int(value) if _is_number(value) else None


def _ns(value: Any) -> int | None:
    return round(value * 1e6) if _is_number(value) and value < 1e12 else None


@dataclass(slots=True)
class LlamaCall:
    """One request at the server, filled in as its answer comes; times monotonic ns.

    Attributes:
        sent_ns: it was sent to the server.
        is_stream: its answer is streamed: when its tokens came is seen.
        progress: of its prompt.
        first_ns: its first content came.
        last_ns: its last content came.
        timings: the server's own, which come with the end.
        finish_reason: why it ended.
        ended_ns: the answer was over, or given up.
        is_aborted: it was given up.
    """

    sent_ns: int
    is_stream: bool = True
    progress: list[Progress] = field(default_factory=list)
    first_ns: int | None = None
    last_ns: int | None = None
    timings: Timings | None = None
    finish_reason: str | None = None
    ended_ns: int = 0
    is_aborted: bool = False

    def take(self, body: Mapping[str, Any], has_content: bool, at_ns: int) -> None:
        """Takes one event of the answer (or all of it, if it is not streamed)."""
        progress = body.get("prompt_progress")
        if isinstance(progress, dict):
            n_processed, time_ns = _count(progress.get("processed")), _ns(progress.get("time_ms"))
            if n_processed is not None and time_ns is not None and len(self.progress) < MAX_CHUNKS:
                self.progress.append(Progress(at_ns, n_processed, time_ns))
        elif has_content and self.is_stream:
            self.first_ns = self.first_ns or at_ns
            self.last_ns = at_ns
        self.timings = Timings.read(body.get("timings")) or self.timings

    # --- when what was -------------------------------------------------------------------------

    def prefill(self) -> tuple[int, int] | None:
        """Returns when its prompt was begun and done; None if that is not known."""
        prompt_ns = self.timings.prompt_ns if self.timings is not None else None
        if self.progress:
            # The first comes when the prompt is begun.
            first, last = self.progress[0], self.progress[-1]
            start_ns = first.at_ns - first.time_ns
            end_ns = start_ns + (last.time_ns if prompt_ns is None else prompt_ns)
        elif prompt_ns is not None:
            end_ns = self._first_token_ns()
            start_ns = end_ns - prompt_ns
        else:
            return None
        start_ns = max(start_ns, self.sent_ns)
        return start_ns, min(max(end_ns, start_ns), self.first_ns or self.ended_ns)

    def _first_token_ns(self) -> int:
        if self.first_ns is not None:
            return self.first_ns
        decode_ns = self.timings.decode_ns if self.timings is not None else None
        return self.ended_ns - (decode_ns or 0)

    def decode(self) -> tuple[int, int] | None:
        """Returns when it was decoded; None if it got no token after its first."""
        prefill = self.prefill()
        n_output = self.timings.n_output if self.timings is not None else None
        if prefill is None or (n_output is not None and n_output < 2):
            return None
        if n_output is None and (self.first_ns is None or self.last_ns == self.first_ns):
            return None
        last_ns = self.last_ns if self.is_stream and self.last_ns is not None else self.ended_ns
        return prefill[1], max(prefill[1], last_ns)

    # --- as spans ------------------------------------------------------------------------------

    def rows(
        self,
        context: Context,
        engine: Mapping[str, Any],
        request_id: str | None,
        offset_ns: int,
        new_id: Callable[[], int] = new_span_id,
    ) -> Iterator[Row]:
        """Yields its spans, below the request's own.

        Args:
            context: of the request's span.
            engine: `tokenlag.engine.id`, `.epoch` and `tokenlag.request.index`.
            request_id: what front end and client call it.
            offset_ns: unix time minus monotonic time.
            new_id: makes span ids.
        """

        def row(
            parent_id: int, name: str, times: tuple[int, int], keys: Mapping[str, object]
        ) -> Row:
            start_ns, end_ns = times
            return Row(
                context.trace_id, new_id(), parent_id, name, names.KIND_INTERNAL,
                start_ns + offset_ns, max(start_ns, end_ns) + offset_ns,
                attributes_of(keys), False, 0,
            )  # fmt: skip

        own = row(
            context.span_id,
            names.SPAN_ENGINE_REQUEST,
            (self.sent_ns, self.ended_ns),
            {**engine, names.REQUEST_ID: request_id, **self._told()},
        )
        yield own
        prefill, decode = self.prefill(), self.decode()
        # Without a prompt that was begun, all its time was waiting, as far as is known.
        waited = (self.sent_ns, prefill[0] if prefill is not None else self.ended_ns)
        yield row(own.span_id, names.SPAN_QUEUE, waited, {names.QUEUE_REASON: "arrival"})
        if prefill is not None:
            keys = {
                names.PREFILL_TOKENS: self.timings.n_computed if self.timings else None,
                names.PREFILL_RECOMPUTE: False,
            }
            parent = row(own.span_id, names.SPAN_PREFILL, prefill, keys)
            yield parent
            for before, after in itertools.pairwise(self.progress):
                times = (prefill[0] + before.time_ns, prefill[0] + after.time_ns)
                keys = {
                    names.CHUNK_TOKENS: after.n_processed - before.n_processed,
                    names.CHUNK_CONTEXT: before.n_processed,
                }
                if after.n_processed > before.n_processed:
                    yield row(parent.span_id, names.SPAN_PREFILL_CHUNK, times, keys)
        if decode is not None:
            n_output = self.timings.n_output if self.timings is not None else None
            n_tokens = None if n_output is None else n_output - 1
            yield row(own.span_id, names.SPAN_DECODE, decode, {names.DECODE_TOKENS: n_tokens})

    def _told(self) -> dict[str, object]:
        timings = self.timings or Timings()
        n_input = None
        if timings.n_cached is not None and timings.n_computed is not None:
            n_input = timings.n_cached + timings.n_computed
        reason = "abort" if self.is_aborted else self.finish_reason
        return {
            names.USAGE_INPUT_TOKENS: n_input,
            names.USAGE_OUTPUT_TOKENS: timings.n_output,
            names.USAGE_CACHED_TOKENS: timings.n_cached,
            names.FINISH_REASONS: None if reason is None else [reason],
        }


class LlamaSpans:
    """Exports the spans of calls, from this process, in a thread.

    Args:
        engine_id: what the server is called.
        resource: what it is, by the contract's resource keys.
        queue: where spans go; by default as the settings say, like the writer's own.
    """

    def __init__(
        self,
        engine_id: str,
        resource: Mapping[str, str | int | float | bool] | None = None,
        queue: Any = None,
    ) -> None:
        self.engine_id = engine_id or f"{host_name()}:llama.cpp"
        self.epoch_ns = time.time_ns()
        self._indexes = itertools.count()
        self._clock = Clock()
        self._queue = queue
        if queue is None and not is_disabled():
            self._queue = self._open({names.ENGINE_NAME: "llama.cpp", **(resource or {})})

    def _open(self, told: Mapping[str, str | int | float | bool]) -> ExportQueue:
        from tokenlag_tracer.writer import own_resource

        config = read_config()
        own: Attributes = {
            **attributes_of(told, names.RESOURCE_ATTRIBUTE_TYPES),
            names.SERVICE_INSTANCE_ID: self.engine_id,
            **own_resource(),
        }
        own.setdefault(names.SERVICE_NAME, "llama.cpp")
        queue = ExportQueue(targets_of(config, lambda _: None), config.queue_spans, {0: own})
        atexit.register(queue.close, config.exit_wait_s)
        return queue

    def put(self, call: LlamaCall, context: Context, request_id: str | None) -> None:
        """Exports one call that is over. Never raises."""
        if self._queue is None or not context.is_sampled:
            return
        try:
            engine = {
                names.ENGINE_ID: self.engine_id,
                names.ENGINE_EPOCH: self.epoch_ns,
                names.REQUEST_INDEX: next(self._indexes),
            }
            rows = call.rows(context, engine, request_id, self._clock.offset_ns)
            self._queue.put(list(rows))
        except Exception:
            return

    def close(self, timeout_s: float = 5.0) -> None:
        """Exports what waits."""
        if self._queue is not None:
            self._queue.close(timeout_s)
