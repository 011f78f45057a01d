"""What a front end and a client tell of a request: arrival, stages, delivery.

An ASGI middleware, a proxy or a client wrapper opens one `FrontRecorder` for its process. It
may be used from any thread. As in the engine, nothing blocks and nothing raises.
"""

from __future__ import annotations

import os
import time
from typing import Any

from tokenlag_tracer import identity, wire
from tokenlag_tracer.channel import Channel
from tokenlag_tracer.config import is_disabled
from tokenlag_tracer.identity import Context
from tokenlag_tracer.link import nudge, shared_link

Value = str | int | float | bool | list[str] | None


class FrontRequest:
    """One request at its front end; made by `FrontRecorder.arrived`.

    Attributes:
        context: the request span's own context: hand its `traceparent` on to the engine.
        request_id: what engine and client call the request.
    """

    __slots__ = ("_recorder", "context", "request_id")

    def __init__(self, recorder: FrontRecorder, context: Context, request_id: str | None) -> None:
        self._recorder = recorder
        self.context = context
        self.request_id = request_id

    def stage(self, stage: str, start_ns: int, end_ns: int | None = None) -> None:
        """Notes a piece of work of the front end.

        Args:
            stage: `parse`, `template`, `tokenize`, `preprocess` or `detokenize`.
            start_ns: when it began, monotonic.
            end_ns: when it ended; now by default.
        """
        end_ns = time.monotonic_ns() if end_ns is None else end_ns
        self._send(wire.STAGE, start_ns, {"stage": stage, "end_ns": end_ns})

    def update(self, *, request_id: str | None = None, **fields: Value) -> None:
        """Adds what was not known at arrival: the id, or any of `arrived`'s fields."""
        if request_id is not None:
            self.request_id = request_id
            fields["request_id"] = request_id
        self._send(wire.UPDATED, None, fields)

    def finished(
        self,
        *,
        at_ns: int | None = None,
        finish_reasons: list[str] | None = None,
        error_type: str | None = None,
        input_tokens: int | None = None,
        output_tokens: int | None = None,
        cached_tokens: int | None = None,
        first_token_ns: int | None = None,
        last_token_ns: int | None = None,
        delivery_wait_ns: int | None = None,
        delivery_max_ns: int | None = None,
        **fields: Value,
    ) -> None:
        """Notes the last byte handed to the socket, or the abort.

        Args:
            at_ns: when; now by default.
            finish_reasons: `stop`, `length`, `abort`, … of each sequence.
            error_type: what failed, where it did; the span's status is then ERROR.
            input_tokens: prompt tokens.
            output_tokens: tokens generated.
            cached_tokens: prompt tokens not computed.
            first_token_ns: when the first token left the engine, monotonic; the engine's own
                record of it is preferred.
            last_token_ns: when the last one did.
            delivery_wait_ns: token ready to bytes accepted by the socket, summed.
            delivery_max_ns: the worst of these.
            fields: any of `arrived`'s.
        """
        fields.update(
            finish_reasons=finish_reasons,
            error_type=error_type,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            cached_tokens=cached_tokens,
            first_token_at_ns=first_token_ns,
            last_token_at_ns=last_token_ns,
            delivery_wait_ns=delivery_wait_ns,
            delivery_max_ns=delivery_max_ns,
        )
        self._send(wire.DELIVERED, at_ns, fields)

    def _send(self, name: str, at_ns: int | None, fields: dict[str, Value]) -> None:
        self._recorder.event(name, at_ns, {"key": f"{self.context.span_id:016x}", **fields})


class FrontRecorder:
    """Tells the writer of requests as their front end, or their client, sees them.

    Make it with `front()`.

    Attributes:
        is_enabled: records go somewhere; False for the one that does nothing.
        n_dropped: events lost so far.
    """

    is_enabled = True

    def __init__(self) -> None:
        self.n_dropped = 0
        self.channel = Channel(self._hello)

    def _hello(self) -> bytes:
        return wire.pack_json(
            wire.KIND_HELLO,
            {
                "wire": wire.VERSION,
                "role": "front",
                "pid": os.getpid(),
                "monotonic_ns": time.monotonic_ns(),
                "wall_ns": time.time_ns(),
            },
        )

    def arrived(
        self,
        request_id: str | None = None,
        *,
        at_ns: int | None = None,
        traceparent: str | None = None,
        sent_unix_ns: int | None = None,
        is_same_clock: bool = False,
        model: str | None = None,
        operation: str | None = None,
        **fields: Value,
    ) -> FrontRequest:
        """Notes that a request was received; returns its handle.

        Args:
            request_id: what engine and client call it; `update` if it is known later only.
            at_ns: when, monotonic; now by default.
            traceparent: the caller's header, whose trace goes on.
            sent_unix_ns: when the client or the edge sent it, unix time, where it says so.
            is_same_clock: that stamp is of this machine's clock.
            model: name of the model.
            operation: `chat`, `text_completion`, `embeddings`, …
            fields: `max_tokens`, `stream`, `choice_count`, `conversation_id`, `tenant`,
                `prefix_id`, `features`, `adapter`, `priority`. Ids must be salted or opaque;
                text of prompts has no field.
        """
        parent = identity.parse_traceparent(traceparent)
        span_id = identity.new_span_id()
        if parent is None:
            context = Context(identity.new_trace_id(), span_id)
        else:
            context = Context(parent.trace_id, span_id, parent.is_sampled)
        request = FrontRequest(self, context, request_id)
        fields.update(request_id=request_id, model=model, operation=operation)
        if sent_unix_ns is not None:
            fields.update(sent_unix_ns=sent_unix_ns, is_same_clock=is_same_clock)
        self.event(
            wire.ARRIVED,
            at_ns,
            {
                "key": f"{span_id:016x}",
                "trace": f"{context.trace_id:032x}",
                "parent": None if parent is None else f"{parent.span_id:016x}",
                "is_sampled": context.is_sampled,
                **fields,
            },
        )
        return request

    def client(
        self,
        context: Context,
        start_ns: int,
        end_ns: int,
        *,
        parent: Context | None = None,
        request_id: str | None = None,
        model: str | None = None,
        operation: str = "chat",
        stream: bool | None = None,
        input_tokens: int | None = None,
        output_tokens: int | None = None,
        first_chunk_s: float | None = None,
        chunks: int | None = None,
        gap_p50_ns: int | None = None,
        gap_p99_ns: int | None = None,
        gap_max_ns: int | None = None,
        intended_ns: int | None = None,
        chunk_ms: str | None = None,
        error_type: str | None = None,
    ) -> None:
        """Tells one call as its client saw it, when it is over.

        Args:
            context: the call's own, whose `traceparent` was sent with it (`new_context`).
            start_ns: sent, monotonic.
            end_ns: last byte read, or given up.
            parent: the caller's context around it.
            request_id: the server's id of it.
            model: name of the model.
            operation: as in the conventions.
            stream: the answer was streamed.
            input_tokens: prompt tokens, as the server said.
            output_tokens: tokens generated.
            first_chunk_s: seconds to the first chunk with content.
            chunks: how many chunks with content.
            gap_p50_ns: median time between chunks.
            gap_p99_ns: 99th percentile.
            gap_max_ns: longest.
            intended_ns: how long before the actual send it was meant to be sent.
            chunk_ms: the chunks' offsets as one comma list.
            error_type: `timeout`, `cancelled`, …
        """
        self.event(
            wire.CLIENT,
            start_ns,
            {
                "key": f"{context.span_id:016x}", "trace": f"{context.trace_id:032x}",
                "parent": None if parent is None else f"{parent.span_id:016x}",
                "is_sampled": context.is_sampled, "end_ns": end_ns, "request_id": request_id,
                "model": model, "operation": operation, "stream": stream,
                "input_tokens": input_tokens, "output_tokens": output_tokens,
                "first_chunk_s": first_chunk_s, "chunks": chunks, "gap_p50_ns": gap_p50_ns,
                "gap_p99_ns": gap_p99_ns, "gap_max_ns": gap_max_ns, "intended_ns": intended_ns,
                "chunk_ms": chunk_ms, "error_type": error_type,
            },
        )  # fmt: skip

    @staticmethod
    def new_context(parent: Context | None = None) -> Context:
        """Returns a context for a span below another, or of a new trace."""
        if parent is None:
            return Context(identity.new_trace_id(), identity.new_span_id())
        return Context(parent.trace_id, identity.new_span_id(), parent.is_sampled)

    def event(self, name: str, at_ns: int | None, fields: dict[str, Any]) -> None:
        """Sends one event; what is None is left out."""
        try:
            at_ns = time.monotonic_ns() if at_ns is None else at_ns
            known = {key: value for key, value in fields.items() if value is not None}
            self.channel.send(wire.pack_event(name, at_ns, known))
        except OSError as error:
            self.n_dropped += 1
            self.channel.failed(error)
            if self.channel.is_broken:
                nudge()
        except Exception:
            self.n_dropped += 1

    def beat(self, now_ns: int) -> None:
        """Does nothing: only engines show that they are alive."""

    def forked(self) -> None:
        """Begins anew: this process is a child now."""
        self.n_dropped = 0

    def close(self) -> None:
        """Ends the connection."""
        shared_link().leave(self)


class DisabledFront(FrontRecorder):
    """Does nothing but hand contexts on: what `front()` returns when the kill switch is on."""

    is_enabled = False

    def __init__(self) -> None:
        self.n_dropped = 0

    def event(self, name: str, at_ns: int | None, fields: dict[str, Any]) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""


def front() -> FrontRecorder:
    """Returns a recorder for a front end or a client of this process."""
    if is_disabled():
        return DisabledFront()
    recorder = FrontRecorder()
    shared_link().join(recorder)
    return recorder
