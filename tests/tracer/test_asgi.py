"""The middleware at an ASGI application, driven by messages; no server, no real time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenlag_tracer import asgi, engines
from tokenlag_tracer import conventions as names
from tokenlag_tracer.asgi import TraceMiddleware, current_request
from tokenlag_tracer.headers import edge_stamp_ns
from tokenlag_tracer.spans import Row

from tests.tracer.support import Bench, named

Call = Callable[..., Awaitable[None]]
PATH = "/v1/chat/completions"


class Clock:
    """Monotonic time that the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 0
        monkeypatch.setattr(asgi.time, "monotonic_ns", lambda: self.now_ns)

    def pass_ms(self, ms: float) -> None:
        self.now_ns += round(ms * 1e6)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


class Exchange:
    """One request put through an application."""

    def __init__(
        self,
        app: Any,
        *,
        path: str = PATH,
        method: str = "POST",
        headers: dict[str, str] | None = None,
        inbox: list[dict[str, Any]] | None = None,
        on_send: Callable[[dict[str, Any]], None] = lambda _: None,
        waits: bool = False,
    ) -> None:
        self.sent: list[dict[str, Any]] = []
        self.scope: dict[str, Any] = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": [(k.encode(), v.encode()) for k, v in (headers or {}).items()],
        }
        inbox = inbox or [{"type": "http.request", "body": b"{}", "more_body": False}]

        async def receive() -> dict[str, Any]:
            return inbox.pop(0) if inbox else {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            if waits:
                await asyncio.sleep(0)
            on_send(message)
            if waits:
                await asyncio.sleep(0)
            self.sent.append(message)

        self.error: BaseException | None = None
        try:
            asyncio.run(app(self.scope, receive, send))
        except BaseException as error:
            self.error = error


def _start(kind: bytes = b"text/event-stream", status: int = 200) -> dict[str, Any]:
    return {
        "type": "http.response.start", "status": status, "headers": [(b"content-type", kind)],
    }  # fmt: skip


def _part(body: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}


def _delta(text: str) -> bytes:
    return b'data: {"choices":[{"delta":{"content":"' + text.encode() + b'"}}]}\n\n'


ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":null}}]}\n\n'


def _request(rows: list[Row]) -> Row:
    (row,) = named(rows, names.SPAN_REQUEST)
    return row


def test_a_stream_s_parts_are_timed_and_unchanged(clock: Clock) -> None:
    bench = Bench()
    messages = [_start(), _part(ROLE), _part(_delta("a")), _part(_delta("b")),
                _part(b"data: [DONE]\n\n", more=False)]  # fmt: skip

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        for message in messages:
            clock.pass_ms(10)
            await send(message)

    waits = iter([0, 0, 2, 7, 0])
    exchange = Exchange(
        TraceMiddleware(app, recorder=bench.front()),
        on_send=lambda _: clock.pass_ms(next(waits)),
        waits=True,
    )
    assert exchange.sent == messages
    assert exchange.error is None
    row = _request(bench.settle())
    told = row.attributes
    assert told[names.OPERATION_NAME] == "chat"
    assert told[names.REQUEST_STREAM] is True
    assert told[names.DELIVERY_WAIT_NS] == 9_000_000
    assert told[names.DELIVERY_MAX_NS] == 7_000_000
    assert told[names.FIRST_TOKEN_NS] == 30_000_000  # the first with content, not the role
    assert told[names.LAST_TOKEN_NS] == 42_000_000
    assert row.end_ns - row.start_ns == 59_000_000
    assert not row.is_error
    (out,) = named(bench.out.rows, names.SPAN_NETWORK)
    assert out.attributes[names.DIRECTION] == "out"


def test_what_is_taken_at_once_has_not_waited_however_long_the_call_took(clock: Clock) -> None:
    bench = Bench()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(_start())
        await send(_part(_delta("a")))
        await send(_part(b"", more=False))

    app = TraceMiddleware(app, recorder=bench.front())
    clock.pass_ms(1)
    Exchange(app, on_send=lambda _: clock.pass_ms(20))  # without the interpreter, say
    row = _request(bench.settle())
    assert row.attributes[names.DELIVERY_WAIT_NS] == 0
    assert row.end_ns - row.start_ns == 40_000_000  # when the last part was begun


def test_a_sender_that_is_cancelled_while_it_waits(clock: Clock) -> None:
    bench = Bench()
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(_start())
        await send(_part(_delta("a")))

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.body":
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                await asyncio.sleep(0)  # a farewell that waits as well
                seen.append("cancelled")
                raise

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def run() -> None:
        scope = {"type": "http", "method": "POST", "path": PATH, "headers": []}
        middleware = TraceMiddleware(app, recorder=bench.front())
        task = asyncio.ensure_future(middleware(scope, receive, send))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    clock.pass_ms(1)
    asyncio.run(run())
    assert seen == ["cancelled"]
    assert _request(bench.settle()).attributes[names.ERROR_TYPE] == "cancelled"


def test_the_wait_begins_when_the_token_was_ready_if_the_application_says_so(
    clock: Clock,
) -> None:
    bench = Bench()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(_start())
        ready_ns = clock.now_ns
        clock.pass_ms(25)  # it lay about
        flight = current_request()
        assert flight is not None
        flight.token_ready(ready_ns)
        await send(_part(_delta("a")))
        await send(_part(b"", more=False))

    Exchange(TraceMiddleware(app, recorder=bench.front()))
    assert _request(bench.settle()).attributes[names.DELIVERY_MAX_NS] == 25_000_000


def test_an_answer_that_is_no_stream_has_no_first_token() -> None:
    bench = Bench()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(_start(b"application/json"))
        await send(_part(b'{"choices":[]}', more=False))

    Exchange(TraceMiddleware(app, recorder=bench.front()))
    told = _request(bench.settle()).attributes
    assert told[names.REQUEST_STREAM] is False
    assert names.FIRST_TOKEN_NS not in told
    assert names.DELIVERY_WAIT_NS in told


def test_the_caller_s_trace_goes_on_and_the_application_sees_the_request_s_own() -> None:
    bench = Bench()
    seen: dict[bytes, bytes] = {}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.update(scope["headers"])
        flight = current_request()
        assert flight is not None
        assert scope["state"]["tokenlag"] is flight
        flight.stage("tokenize", 0, 5)
        flight.update(model="m", max_tokens=7)
        await send(_start(b"application/json"))
        await send(_part(b"{}", more=False))

    parent = f"00-{'a1' * 16}-{'b2' * 8}-01"
    Exchange(
        TraceMiddleware(app, recorder=bench.front()),
        headers={"traceparent": parent, "x-request-id": "r-1", "accept": "*/*"},
    )
    row = _request(bench.settle())
    assert f"{row.trace_id:032x}" == "a1" * 16
    assert f"{row.parent_id:016x}" == "b2" * 8
    assert row.attributes[names.REQUEST_ID] == "r-1"
    assert row.attributes[names.REQUEST_MODEL] == "m"
    assert seen[b"traceparent"].decode() == f"00-{'a1' * 16}-{row.span_id:016x}-01"
    assert seen[b"x-request-id"] == b"r-1"
    assert seen[b"accept"] == b"*/*"
    assert named(bench.out.rows, names.SPAN_FRONTEND)[0].parent_id == row.span_id
    assert current_request() is None


def test_an_engine_s_part_joins_by_the_context_it_was_handed() -> None:
    bench = Bench()
    engine = bench.engine()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        flight = current_request()
        assert flight is not None
        index = engine.queued("other-name", traceparent=flight.traceparent)
        engine.record_step(1, 2, prefill=[(index, 4, 0)])
        engine.finished(index, "stop", output_tokens=1)
        await send(_start(b"application/json"))
        await send(_part(b"{}", more=False))

    Exchange(TraceMiddleware(app, recorder=bench.front()))
    rows = bench.settle()
    assert named(rows, names.SPAN_ENGINE_REQUEST)[0].parent_id == _request(rows).span_id


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("t=1512379167.574", 1_512_379_167_574_000_000),
        ("1512379167", 1_512_379_167_000_000_000),
        ("t=1512379167574", 1_512_379_167_574_000_000),
        ("1512379167574.25", 1_512_379_167_574_250_000),
        ("t=1512379167574321", 1_512_379_167_574_321_000),
        ("1512379167574321098", 1_512_379_167_574_321_098),
        ("t=5", None),
        ("yesterday", None),
        ("t=2512379167.574", None),
        ("", None),
    ],
)
def test_edge_stamps_of_all_units(text: str, ns: int | None) -> None:
    assert edge_stamp_ns(text, 1_512_379_168_000_000_000) == ns


@given(st.text(max_size=40))
def test_any_edge_stamp_is_a_time_or_nothing(text: str) -> None:
    found = edge_stamp_ns(text, 1_512_379_168_000_000_000)
    assert found is None or abs(found - 1_512_379_168_000_000_000) < 86_400_000_000_000


def test_the_edge_s_stamp_makes_the_way_in(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    base_ns = 1_800_000_000_000_000_000
    monkeypatch.setattr(asgi.time, "time_ns", lambda: base_ns)
    monkeypatch.setattr(asgi.time, "monotonic_ns", lambda: 5_000)
    Exchange(
        TraceMiddleware(_ok, recorder=bench.front()),
        headers={"x-request-start": f"t={base_ns / 1e9 - 0.25:.3f}"},
    )
    (way,) = [
        row for row in named(bench.settle(), names.SPAN_NETWORK)
        if row.attributes[names.DIRECTION] == "in"
    ]  # fmt: skip
    assert way.end_ns - way.start_ns == 250_005_000
    assert way.attributes[names.CLOCK] == "remote"


async def _ok(scope: Any, receive: Any, send: Any) -> None:
    await send(_start(b"application/json"))
    await send(_part(b"{}", more=False))


@pytest.mark.parametrize(
    ("header", "value", "label"),
    [
        ("x-tenant", "team-a", "team-a"),
        ("x-tenant", "sk-abcdef", None),
        ("x-tenant", "Bearer abc", None),
        ("x-tenant", "eyJhbGciOi", None),
        ("x-tenant", "a" * 65, None),
        ("x-tenant", "two\nlines", None),
        ("authorization", "team-a", None),
        ("x-api-key", "team-a", None),
        ("Api-Key", "team-a", None),
        ("cookie", "team-a", None),
    ],
)
def test_a_tenant_is_a_label_and_never_a_key(header: str, value: str, label: str | None) -> None:
    bench = Bench()
    Exchange(
        TraceMiddleware(_ok, recorder=bench.front(), tenant_header=header),
        headers={header.lower(): value},
    )
    rows = bench.settle()
    assert _request(rows).attributes.get(names.TENANT) == label
    assert label is not None or value not in repr(rows)


def test_the_tenant_s_header_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(asgi.TENANT_HEADER, "X-Team")
    bench = Bench()
    Exchange(TraceMiddleware(_ok, recorder=bench.front()), headers={"x-team": "blue"})
    assert _request(bench.settle()).attributes[names.TENANT] == "blue"


@pytest.mark.parametrize(
    ("method", "path", "is_traced"),
    [
        ("POST", "/v1/completions/", True),
        ("POST", "/openai/v1/embeddings", True),
        ("POST", "/mine", True),
        ("GET", PATH, False),
        ("POST", "/v1/tokenize", False),
        ("POST", "/health", False),
    ],
)
def test_only_requests_to_a_model_are_traced(method: str, path: str, is_traced: bool) -> None:
    bench = Bench()
    app = TraceMiddleware(_ok, recorder=bench.front(), paths={"/mine": "chat"})
    exchange = Exchange(app, path=path, method=method)
    assert len(exchange.sent) == 2
    assert bool(named(bench.settle(), names.SPAN_REQUEST)) is is_traced


def test_other_protocols_pass() -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    middleware = TraceMiddleware(app, recorder=Bench().front())
    for kind in ("lifespan", "websocket"):
        asyncio.run(middleware({"type": kind}, None, None))  # type: ignore[arg-type]
    assert seen == ["lifespan", "websocket"]


def test_a_caller_that_leaves() -> None:
    bench = Bench()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(_start())
        await send(_part(_delta("a")))
        await receive()
        assert (await receive())["type"] == "http.disconnect"
        raise asyncio.CancelledError

    exchange = Exchange(TraceMiddleware(app, recorder=bench.front()))
    assert isinstance(exchange.error, asyncio.CancelledError)
    row = _request(bench.settle())
    assert row.is_error
    assert row.attributes[names.ERROR_TYPE] == "cancelled"
    assert row.attributes[names.FINISH_REASONS] == ["abort"]


def test_a_socket_that_is_gone() -> None:
    bench = Bench()

    def gone(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.body":
            raise BrokenPipeError

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(_start())
        await send(_part(_delta("a")))

    exchange = Exchange(TraceMiddleware(app, recorder=bench.front()), on_send=gone)
    assert isinstance(exchange.error, BrokenPipeError)
    assert _request(bench.settle()).attributes[names.ERROR_TYPE] == "cancelled"


def test_a_disconnect_after_the_answer_is_none() -> None:
    bench = Bench()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await _ok(scope, receive, send)
        await receive()
        await receive()

    Exchange(TraceMiddleware(app, recorder=bench.front()))
    assert names.ERROR_TYPE not in _request(bench.settle()).attributes


VLLM_ERROR = b'data: {"error": {"message": "WORDS", "type": "InternalServerError", "code": 500}}'
TYPED_ERROR = (
    b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"WORDS"}}'
)


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (VLLM_ERROR, "500"),
        (TYPED_ERROR, "overloaded_error"),
        (b'data: {"error": "WORDS of a sentence"}', "stream_error"),
        (b'data: {"error": {"type": "WORDS of a sentence", "code": true}}', "stream_error"),
        (b'data: {"response": {"error": null}, "error": null}', None),
        (b'data: {"choices":[{"delta":{"content":"{\\"error\\": 1}"}}]}', None),
    ],
)
@pytest.mark.parametrize("n_before", [0, 3])
def test_an_error_told_in_a_stream_whose_status_was_200(
    clock: Clock, event: bytes, expected: str | None, n_before: int
) -> None:
    bench = Bench()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(_start())
        for _ in range(n_before):
            clock.pass_ms(10)
            await send(_part(_delta("a")))
        clock.pass_ms(10)
        await send(_part(event + b"\n\n"))
        await send(_part(b"data: [DONE]\n\n", more=False))

    Exchange(TraceMiddleware(app, recorder=bench.front()))
    row = _request(bench.settle())
    assert row.attributes.get(names.ERROR_TYPE) == expected
    assert row.is_error is (expected is not None)
    assert "WORDS" not in repr(bench.out.rows)
    if expected is not None:  # and it is no token
        last_ns = row.attributes.get(names.LAST_TOKEN_NS)
        assert last_ns == (30_000_000 if n_before else None)


@pytest.mark.parametrize("status", [200, 404, 429, 503])
def test_a_status_of_failure_is_the_error(status: int) -> None:
    bench = Bench()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(_start(b"application/json", status))
        await send(_part(b"{}", more=False))

    Exchange(TraceMiddleware(app, recorder=bench.front()))
    row = _request(bench.settle())
    expected = str(status) if status >= 400 else None
    assert row.attributes.get(names.ERROR_TYPE) == expected
    assert row.is_error is (expected is not None)


def test_an_application_that_raises_raises_and_its_message_is_not_kept() -> None:
    bench = Bench()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise ValueError("cannot do: MARKED PROMPT")

    exchange = Exchange(TraceMiddleware(app, recorder=bench.front()))
    assert isinstance(exchange.error, ValueError)
    rows = bench.settle()
    assert _request(rows).attributes[names.ERROR_TYPE] == "ValueError"
    assert "MARKED" not in repr(rows)


def test_an_application_that_answers_nothing() -> None:
    bench = Bench()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        return

    Exchange(TraceMiddleware(app, recorder=bench.front()))
    assert _request(bench.settle()).attributes[names.ERROR_TYPE] == "no_answer"


@pytest.mark.parametrize("broken", ["_arrived", "_hand_on"])
def test_trouble_of_its_own_leaves_the_answer_alone(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(TraceMiddleware, broken, fail)
    assert len(Exchange(TraceMiddleware(_ok, recorder=Bench().front())).sent) == 2


@pytest.mark.parametrize("broken", ["began", "flushed", "complete"])
def test_trouble_while_taking_notes_leaves_the_answer_alone(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(asgi.RequestInFlight, broken, fail)
    exchange = Exchange(TraceMiddleware(_ok, recorder=Bench().front()))
    assert (len(exchange.sent), exchange.error) == (2, None)


def test_no_writer_no_harm() -> None:
    from tokenlag_tracer.front_recorder import FrontRecorder

    recorder = FrontRecorder()  # connected to nothing
    exchange = Exchange(TraceMiddleware(_ok, recorder=recorder))
    assert (len(exchange.sent), exchange.error) == (2, None)
    assert recorder.n_dropped == 2


def test_the_kill_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENLAG_DISABLED", "1")
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((current_request(), scope["headers"]))
        await _ok(scope, receive, send)

    Exchange(TraceMiddleware(app), headers={"accept": "x"})
    assert seen == [(None, [(b"accept", b"x")])]


class _Decorated:
    """An application with a place for middleware, as Starlette's have."""

    class Entry:
        def __init__(self, cls: Any, options: dict[str, Any]) -> None:
            self.cls, self.options = cls, options

    def __init__(self) -> None:
        self.user_middleware: list[Any] = []
        self.middleware_stack: Any = None

    def add_middleware(self, cls: Any, **options: Any) -> None:
        self.user_middleware.insert(0, self.Entry(cls, options))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self.middleware_stack is None:
            self.middleware_stack = _ok
            for entry in reversed(self.user_middleware):
                self.middleware_stack = entry.cls(self.middleware_stack, **entry.options)
        await self.middleware_stack(scope, receive, send)


@pytest.mark.parametrize("serves_already", [False, True])
def test_instrument_and_uninstrument(serves_already: bool) -> None:
    bench = Bench()
    app = _Decorated()
    if serves_already:
        Exchange(app)
    assert engines.instrument(app, recorder=bench.front()) is app
    Exchange(app)
    assert len(named(bench.settle(), names.SPAN_REQUEST)) == 1
    engines.uninstrument(app)
    assert len(Exchange(app).sent) == 2
    assert len(named(bench.settle(), names.SPAN_REQUEST)) == 1
    assert app.user_middleware == []


@settings(max_examples=50, deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=8))
def test_whatever_bytes_an_answer_has_they_arrive(parts: list[bytes]) -> None:
    bench = Bench()
    messages = [_start(), *(_part(part) for part in parts), _part(b"", more=False)]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for message in messages:
            await send(message)

    exchange = Exchange(TraceMiddleware(app, recorder=bench.front()))
    assert exchange.sent == messages
    assert exchange.error is None
    assert named(bench.settle(), names.SPAN_REQUEST)
