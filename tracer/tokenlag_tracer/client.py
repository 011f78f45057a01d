"""The client's end of the network: each call to a model as its caller saw it.

`instrument(client)` for an httpx or openai client, or `Call` by hand for any other. The call's
own W3C context goes out with it, so that the server's spans hang below it. Times of chunks are
one array of numbers; of a chunk's text only whether there was any is looked at.
"""

from __future__ import annotations

import contextlib
import contextvars
import json
import sys
import time
from array import array
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tokenlag_tracer import sse
from tokenlag_tracer.front_recorder import FrontRecorder
from tokenlag_tracer.identity import Context, parse_traceparent

MAX_CHUNK_TIMES: Final = 8192
MAX_BODY_BYTES: Final = 1 << 20

_intended: contextvars.ContextVar[int | None] = contextvars.ContextVar(
    "tokenlag_intended", default=None
)


@contextlib.contextmanager
def intended_at(at_ns: int) -> Iterator[None]:
    """Says when the calls within were meant to be sent, monotonic ns.

    A load generator that falls behind its schedule hides the wait; this keeps it.
    """
    token = _intended.set(at_ns)
    try:
        yield
    finally:
        _intended.reset(token)


def ambient_context() -> Context | None:
    """Returns the context of the OpenTelemetry span that is current; None if there is none."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    if trace is None:  # nobody who has made a span has not imported it
        return None
    try:
        span = trace.get_current_span().get_span_context()
        if not span.is_valid:
            return None
        return Context(span.trace_id, span.span_id, bool(span.trace_flags & 1))
    except Exception:
        return None


def percentile_ns(ordered: list[int], share: float) -> int | None:
    """Returns the value at a share of rising values, by nearest rank; None if there are none."""
    if not ordered:
        return None
    rank = min(len(ordered), max(1, -int(-share * len(ordered) // 1)))
    return ordered[rank - 1]


class Call:
    """One call under way.

    Args:
        recorder: from `tokenlag_tracer.front()`.
        operation: `chat`, `text_completion`, `embeddings`.
        model: the model's name.
        stream: a streamed answer was asked for.
        parent: the caller's context, by default the current OpenTelemetry span's.
        intended_ns: when it was meant to be sent, monotonic; by default what `intended_at` says.
        keeps_chunks: keep the chunks' times one by one, not only their percentiles.

    Attributes:
        context: the call's own; send its `traceparent`.
        start_ns: when it was made, which is when it is sent.
    """

    def __init__(
        self,
        recorder: FrontRecorder,
        *,
        operation: str = "chat",
        model: str | None = None,
        stream: bool | None = None,
        parent: Context | None = None,
        intended_ns: int | None = None,
        keeps_chunks: bool = True,
    ) -> None:
        self._recorder = recorder
        self._parent = parent if parent is not None else ambient_context()
        self.context = recorder.new_context(self._parent)
        self._told: dict[str, Any] = {"operation": operation, "model": model, "stream": stream}
        self._intended_ns = intended_ns if intended_ns is not None else _intended.get()
        self._keeps_chunks = keeps_chunks
        self._times = array("q")
        self._is_over = False
        self.is_answered = False
        self.start_ns = time.monotonic_ns()

    @property
    def headers(self) -> dict[str, str]:
        """What to send with the call."""
        return {"traceparent": self.context.traceparent}

    def told(self, **values: Any) -> None:
        """Notes what the answer says: `request_id`, `model`, `input_tokens`, `output_tokens`."""
        self._told.update({key: value for key, value in values.items() if value is not None})

    def chunk(self, at_ns: int | None = None) -> None:
        """Notes a chunk with content; call it for no other."""
        self._times.append(time.monotonic_ns() if at_ns is None else at_ns)

    def end(self, error_type: str | None = None, at_ns: int | None = None) -> None:
        """Notes the last byte, or that it was given up; the first word counts."""
        if self._is_over:
            return
        self._is_over = True
        end_ns = time.monotonic_ns() if at_ns is None else at_ns
        times = self._times
        told = self._told
        if times and told.get("stream") is not False:
            gaps = sorted(map(int.__sub__, times[1:], times))
            told.update(
                first_chunk_s=(times[0] - self.start_ns) / 1e9,
                chunks=len(times),
                gap_p50_ns=percentile_ns(gaps, 0.5),
                gap_p99_ns=percentile_ns(gaps, 0.99),
                gap_max_ns=gaps[-1] if gaps else None,
            )
            if self._keeps_chunks and len(times) <= MAX_CHUNK_TIMES:
                digits = 1 if len(times) <= MAX_CHUNK_TIMES // 2 else 0  # so that a list fits
                told["chunk_ms"] = ",".join(
                    f"{(at_ns - self.start_ns) / 1e6:.{digits}f}" for at_ns in times
                )
        if self._intended_ns is not None:
            told["intended_ns"] = self.start_ns - self._intended_ns
        self._recorder.client(
            self.context, self.start_ns, end_ns, parent=self._parent, error_type=error_type, **told
        )


class Answer:
    """Reads an answer's bytes as they come, for what they tell of the call.

    Args:
        call: the call.
        status: of the answer.
        headers: of the answer, lower-case names.
    """

    def __init__(self, call: Call, status: int, headers: Mapping[str, str]) -> None:
        self._call = call
        self._status = status
        self._is_stream = headers.get("content-type", "").startswith("text/event-stream")
        # What is packed cannot be read in passing.
        self._is_plain = headers.get("content-encoding", "identity") == "identity"
        self._splitter = sse.EventSplitter()
        self._body: list[bytes] = []
        self._n_bytes = 0
        self._is_over = False
        self._error_type: str | None = None
        call.is_answered = True
        call.told(request_id=headers.get("x-request-id"))
        call.told(stream=self._is_stream)

    def feed(self, data: bytes) -> None:
        """Takes bytes as they arrive."""
        if not self._is_plain or self._status >= 400:
            return
        if not self._is_stream:
            self._n_bytes += len(data)
            if self._n_bytes <= MAX_BODY_BYTES:
                self._body.append(data)
            return
        now_ns = time.monotonic_ns()
        for event in self._splitter.feed(data):
            told = sse.read(event)
            if told.has_content:
                self._call.chunk(now_ns)
            self._note(told)

    def _note(self, told: sse.Told) -> None:
        self._is_over = self._is_over or told.is_end or told.finish_reason is not None
        self._error_type = self._error_type or told.error_type
        call = self._call
        if told.response_id is not None and call._told.get("request_id") is None:
            call.told(request_id=told.response_id)
        call.told(
            model=told.model, input_tokens=told.input_tokens, output_tokens=told.output_tokens
        )

    def end(self) -> None:
        """All of it was read."""
        if self._body and self._n_bytes <= MAX_BODY_BYTES:
            self._note(sse.read(b"".join(self._body)))
        self._body = []
        self._call.end(str(self._status) if self._status >= 400 else self._error_type)

    def closed(self) -> None:
        """The caller closed it; an answer that had not ended was given up."""
        if self._is_over or self._status >= 400:
            self.end()
        else:
            self._call.end("cancelled")

    def failed(self, error: BaseException) -> None:
        """Reading it failed; what fails after the last word (as draining may) is no failure."""
        if self._is_over:
            self.end()
        else:
            self._call.end(error_word(error))


def error_word(error: BaseException) -> str:
    """Returns what kind of failure an exception is, in one word and never its message."""
    names = [kind.__name__ for kind in type(error).__mro__]
    if any("Timeout" in name for name in names):
        return "timeout"
    if any(name in ("CancelledError", "GeneratorExit", "KeyboardInterrupt") for name in names):
        return "cancelled"
    if any(name in ("NetworkError", "ConnectionError", "ConnectError") for name in names):
        return "connection"
    return names[0]


def head_of(content: bytes) -> dict[str, Any]:
    """Returns a request body's model and whether it asks for a stream; its text is let go."""
    if len(content) > MAX_BODY_BYTES:
        return {}
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(body, dict):
        return {}
    model, stream = body.get("model"), body.get("stream")
    return {
        "model": model if isinstance(model, str) else None,
        "stream": stream if isinstance(stream, bool) else None,
    }


def parent_of(traceparent: str | None) -> Context | None:
    """Returns the context that a request carries already, else the current span's."""
    return parse_traceparent(traceparent) or ambient_context()
