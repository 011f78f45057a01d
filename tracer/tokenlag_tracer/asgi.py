"""The server's end of the network: middleware for any ASGI application.

It notes when a request was received, when and how long the answer's parts took to be taken by
the socket, and how it ended. Nothing of a body is kept, no span is made here, and nothing raises:
a request costs two small records, a part of its answer two readings of the clock.
"""

from __future__ import annotations

import contextvars
import os
import time
from collections.abc import (
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Mapping,
    MutableMapping,
)
from typing import Any, Final

from tokenlag_tracer import headers as headers_of
from tokenlag_tracer import sse
from tokenlag_tracer.config import is_disabled
from tokenlag_tracer.endpoints import operation_of
from tokenlag_tracer.front_recorder import FrontRecorder, FrontRequest, Value, front
from tokenlag_tracer.identity import new_span_id

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
SendMessage = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, SendMessage], Awaitable[None]]
Headers = dict[bytes, bytes]

TENANT_HEADER: Final = "TOKENLAG_TENANT_HEADER"
STATE_KEY: Final = "tokenlag"
_STAMPS: Final = (b"x-request-start", b"x-queue-start")


class RequestInFlight:
    """A traced request, for the application that serves it: `current_request()`.

    Attributes:
        request: its front recorder's handle.
        arrived_ns: when it was received, monotonic.
        rendered_ns: when its prompt's tokens were there; 0 until an adapter says so.
    """

    __slots__ = (
        "_delivery_max_ns", "_delivery_ns", "_first_ns", "_is_complete", "_is_done", "_is_sse",
        "_last_ns", "_ready_ns", "_splitter", "_status", "_stream_error", "_told", "arrived_ns",
        "rendered_ns", "request",
    )  # fmt: skip

    def __init__(self, request: FrontRequest, arrived_ns: int = 0) -> None:
        self.request = request
        self.arrived_ns = arrived_ns
        self.rendered_ns = 0
        self._told: dict[str, Value] = {}
        self._ready_ns: int | None = None
        self._first_ns: int | None = None
        self._last_ns: int | None = None
        self._delivery_ns = 0
        self._delivery_max_ns = 0
        self._status = 0
        self._stream_error: str | None = None
        self._is_sse = False
        self._is_complete = False
        self._is_done = False
        self._splitter: sse.EventSplitter | None = sse.EventSplitter()

    # --- for the application ------------------------------------------------------------------

    @property
    def traceparent(self) -> str:
        """The request's own context: give it to the engine's `queued`."""
        return self.request.context.traceparent

    @property
    def request_id(self) -> str | None:
        """What the request is called: by the caller's header, the application, or made here."""
        return self.request.request_id

    def stage(self, stage: str, start_ns: int, end_ns: int | None = None) -> None:
        """Notes work before the engine: `parse`, `template`, `tokenize`, `preprocess`."""
        self.request.stage(stage, start_ns, end_ns)

    def update(self, *, request_id: str | None = None, **told: Value) -> None:
        """Says what is known of it: `model`, `max_tokens`, `stream`, `tenant`, …

        Args:
            request_id: what the engine calls it; told at once, all else with its end.
            told: fields of `FrontRecorder.arrived` and `FrontRequest.finished`.
        """
        if request_id is not None:
            self.request.update(request_id=request_id)
        self._told.update(told)

    def token_ready(self, at_ns: int | None = None) -> None:
        """Notes that the next part of the answer left the engine; now by default.

        Without it a part's wait begins when the application sends it.
        """
        if self._ready_ns is None:
            self._ready_ns = time.monotonic_ns() if at_ns is None else at_ns

    # --- for the middleware -------------------------------------------------------------------

    def began(self, message: Message) -> None:
        """The answer's head is sent."""
        self._status = int(message.get("status", 0))
        for key, value in message.get("headers", ()):
            if bytes(key).lower() == b"content-type":
                self._is_sse = bytes(value).startswith(b"text/event-stream")

    def flushed(self, body: bytes, start_ns: int, end_ns: int) -> None:
        """A part of the answer was taken by the socket."""
        ready_ns = start_ns if self._ready_ns is None else self._ready_ns
        self._ready_ns = None
        wait_ns = max(0, end_ns - ready_ns)
        self._delivery_ns += wait_ns
        self._delivery_max_ns = max(self._delivery_max_ns, wait_ns)
        if not self._is_sse:
            return
        if sse.ERROR_MARK in body and (error_type := sse.error_in(body)) is not None:
            self._stream_error = error_type
            return
        splitter = self._splitter
        if splitter is not None:
            if not any(sse.read(data).has_content for data in splitter.feed(body)):
                return  # a role, a comment, progress: no token yet
            self._splitter = None
            self._first_ns = ready_ns
        if not body.rstrip().endswith(sse.DONE):
            self._last_ns = ready_ns

    def complete(self, at_ns: int) -> None:
        """The last part was taken."""
        self._is_complete = True
        status = self._status
        error_type = str(status) if status >= 400 else self._stream_error
        self.finish(at_ns=at_ns, error_type=error_type)

    def disconnected(self) -> None:
        """The caller is gone."""
        if not self._is_complete:
            self.finish(error_type="cancelled", finish_reasons=["abort"])

    def failed(self, error: BaseException) -> None:
        """The application raised."""
        kind = type(error).__name__
        is_gone = kind in ("CancelledError", "ClientDisconnect", "ClientDisconnected")
        self.finish(error_type="cancelled" if is_gone else kind)

    def finish(self, **told: Value) -> None:
        """The request is over; the first word counts."""
        if self._is_done:
            return
        self._is_done = True
        fields: dict[str, Any] = {
            "stream": self._is_sse if self._status else None,
            "first_token_ns": self._first_ns,
            "last_token_ns": self._last_ns,
            **self._told,
            **{key: value for key, value in told.items() if value is not None},
        }
        if self._status:
            fields["delivery_wait_ns"] = self._delivery_ns
            fields["delivery_max_ns"] = self._delivery_max_ns
        self.request.finished(**fields)


_current: contextvars.ContextVar[RequestInFlight | None] = contextvars.ContextVar(
    "tokenlag_request", default=None
)


def current_request() -> RequestInFlight | None:
    """Returns the traced request that this code serves; None outside one."""
    return _current.get()


class TraceMiddleware:
    """Traces the requests of an ASGI application.

    Args:
        app: the application. This should be the outermost middleware: what stands outside of it
            is not seen.
        paths: ends of paths that are requests, besides the usual ones, with their operation
            (`chat`, `text_completion`, `embeddings`). Only POSTs are requests.
        tenant_header: a header whose value labels the tenant; `TOKENLAG_TENANT_HEADER` by
            default. A header that carries keys is refused, and so is a value that looks like one.
        request_id_header: a header that names the request.
        edge_has_same_clock: the `X-Request-Start` stamp is of this machine's clock.
        propagate: the application sees the request's own `traceparent` and its id in the headers.
        recorder: by default a new one.
    """

    def __init__(
        self,
        app: Application,
        *,
        paths: Mapping[str, str] | Iterable[str] = (),
        tenant_header: str | None = None,
        request_id_header: str = "x-request-id",
        edge_has_same_clock: bool = False,
        propagate: bool = True,
        recorder: FrontRecorder | None = None,
    ) -> None:
        self.app = app
        self._paths = dict(paths) if isinstance(paths, Mapping) else dict.fromkeys(paths, "chat")
        tenant_header = tenant_header or os.environ.get(TENANT_HEADER, "").strip() or None
        if tenant_header is not None and headers_of.carries_keys(tenant_header):
            tenant_header = None
        self._tenant_header = (tenant_header or "").lower().encode()
        self._id_header = request_id_header.lower().encode()
        self._is_same_clock = edge_has_same_clock
        self._propagates = propagate
        self._recorder: FrontRecorder | None = recorder
        self.is_on = not is_disabled()
        if recorder is None and self.is_on:
            self._recorder = front()

    async def __call__(self, scope: Scope, receive: Receive, send: SendMessage) -> None:
        """Serves one request."""
        flight = self._begin(scope) if self.is_on and scope["type"] == "http" else None
        if flight is None:
            await self.app(scope, receive, send)
            return
        token = _current.set(flight)
        try:
            await self.app(scope, _receiver(flight, receive), _sender(flight, send))
        except BaseException as error:
            flight.failed(error)
            raise
        finally:
            _current.reset(token)
            flight.finish(error_type="no_answer")  # unless it is over already

    def _begin(self, scope: Scope) -> RequestInFlight | None:
        """Notes a request; None if it is none, or on any trouble."""
        now_ns = time.monotonic_ns()
        try:
            if scope.get("method") != "POST" or self._recorder is None:
                return None
            operation = operation_of(scope.get("path", ""), self._paths)
            if operation is None:
                return None
            headers: Headers = {}
            for key, value in scope["headers"]:
                headers.setdefault(bytes(key).lower(), bytes(value))
            flight = RequestInFlight(self._arrived(headers, operation, now_ns), now_ns)
            if self._propagates:
                self._hand_on(scope, flight)
            state = scope.setdefault("state", {})
            if isinstance(state, MutableMapping):
                state[STATE_KEY] = flight
        except Exception:
            return None
        return flight

    def _arrived(self, headers: Headers, operation: str, now_ns: int) -> FrontRequest:
        assert self._recorder is not None

        def text(name: bytes) -> str:
            return headers.get(name, b"").decode("latin-1").strip()

        request_id = text(self._id_header)
        if not headers_of.is_id(request_id):
            request_id = f"req-{new_span_id():016x}"
        tenant = headers_of.label(text(self._tenant_header)) if self._tenant_header else None
        stamps = (headers_of.edge_stamp_ns(text(name)) for name in _STAMPS if name in headers)
        return self._recorder.arrived(
            request_id,
            at_ns=now_ns,
            traceparent=text(b"traceparent") or None,
            sent_unix_ns=next((stamp for stamp in stamps if stamp is not None), None),
            is_same_clock=self._is_same_clock,
            operation=operation,
            tenant=tenant,
        )

    def _hand_on(self, scope: Scope, flight: RequestInFlight) -> None:
        """Lets the application see the request's own context, and an id that was made here."""
        own = {b"traceparent": flight.traceparent.encode()}
        if flight.request_id is not None:
            own[self._id_header] = flight.request_id.encode("latin-1")
        kept = [pair for pair in scope["headers"] if bytes(pair[0]).lower() not in own]
        scope["headers"] = [*kept, *own.items()]


def _receiver(flight: RequestInFlight, receive: Receive) -> Receive:
    async def traced() -> Message:
        message = await receive()
        if message["type"] == "http.disconnect":
            flight.disconnected()
        return message

    return traced


def _sender(flight: RequestInFlight, send: SendMessage) -> SendMessage:
    async def traced(message: Message) -> None:
        kind = message["type"]
        if kind == "http.response.start":
            _quietly(flight.began, message)
        elif kind == "http.response.body":
            end_ns = start_ns = time.monotonic_ns()
            sending = _Sending(send(message))
            try:
                await sending
            except OSError:
                flight.disconnected()
                raise
            if sending.has_waited:
                end_ns = time.monotonic_ns()
            body = message.get("body", b"")
            if body:
                _quietly(flight.flushed, body, start_ns, end_ns)
            if not message.get("more_body", False):
                _quietly(flight.complete, end_ns)
            return
        await send(message)

    return traced


class _Sending:
    """Awaits a part's being sent and notes whether that had to wait.

    What did not wait has been taken by the socket at once. The clock is not asked then: a
    thread that has written waits for the interpreter again, which can take an engine's thread
    many ms, while the bytes are at the client long since.
    """

    __slots__ = ("_awaitable", "has_waited")

    def __init__(self, awaitable: Awaitable[None]) -> None:
        self._awaitable = awaitable
        self.has_waited = False

    def __await__(self) -> Generator[Any, Any, None]:
        iterator = self._awaitable.__await__()
        try:
            waited_for = next(iterator)
        except StopIteration:
            return
        self.has_waited = True
        try:
            yield waited_for
        except BaseException as error:
            try:
                waited_for = iterator.throw(error)
            except StopIteration:
                return
            yield waited_for
        yield from iterator


def _quietly(note: Callable[..., None], *arguments: Any) -> None:
    """Calls what takes notes; the answer goes its way whatever becomes of them."""
    try:
        note(*arguments)
    except Exception:
        return


# --- what `instrument` calls --------------------------------------------------------------------


def handles(target: Any) -> bool:
    """Returns whether it is a Starlette or FastAPI application, or declares to be an ASGI one."""
    return callable(target) and (
        hasattr(target, "user_middleware") or bool(getattr(target, "is_asgi", False))
    )


def instrument(target: Any, **options: Any) -> Any:
    """Puts the middleware outermost; returns the application, or a wrapper if it has no place."""
    if not hasattr(target, "user_middleware"):
        return TraceMiddleware(target, **options)
    stack = getattr(target, "middleware_stack", None)
    if stack is None:
        target.add_middleware(TraceMiddleware, **options)
    else:  # it serves already, and takes no more by its own way
        target.middleware_stack = TraceMiddleware(stack, **options)
    return target


def uninstrument(traced: Any) -> None:
    """Takes the middleware out; of an application that serves, it lets requests through."""
    if isinstance(traced, TraceMiddleware):
        traced.is_on = False
        return
    traced.user_middleware[:] = [
        entry for entry in traced.user_middleware if entry.cls is not TraceMiddleware
    ]
    _switch_off(getattr(traced, "middleware_stack", None))


def _switch_off(layer: Any) -> None:
    """Switches every such middleware off in a chain of them."""
    while layer is not None:
        if isinstance(layer, TraceMiddleware):
            layer.is_on = False
        layer = getattr(layer, "app", None)
