"""Calls as their client sees them: by hand, through httpx, through the openai client."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenlag_tracer import client as clients
from tokenlag_tracer import conventions as names
from tokenlag_tracer import engines, sse
from tokenlag_tracer.client import Call, error_word, intended_at, percentile_ns
from tokenlag_tracer.identity import Context
from tokenlag_tracer.spans import Row

from tests.tracer.support import WALL_NS, Bench

MS = 1_000_000
URL = "http://server/v1/chat/completions"
needs_httpx = pytest.mark.skipif(
    importlib.util.find_spec("httpx") is None, reason="httpx is not installed"
)
needs_openai = pytest.mark.skipif(
    importlib.util.find_spec("openai") is None, reason="the openai client is not installed"
)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Monotonic time in ms, in a list of one that the test sets."""
    holder = [1000]
    monkeypatch.setattr(clients.time, "monotonic_ns", lambda: holder[0] * MS)
    return holder


def _span(bench: Bench) -> Row:
    (row,) = [row for row in bench.settle() if row.kind == names.KIND_CLIENT]
    return row


# --- by hand ------------------------------------------------------------------------------------


def test_a_call_by_hand(now: list[int]) -> None:
    bench = Bench()
    with intended_at(930 * MS):
        call = Call(bench.front(), model="m", stream=True, parent=Context(5, 6))
    for now[0] in (1100, 1110, 1120, 1190):
        call.chunk()
    call.told(request_id="r", output_tokens=4, input_tokens=None)
    now[0] = 1200
    call.end()
    call.end("timeout")  # the first word counts
    row = _span(bench)
    assert row.name == "chat m"
    assert (row.trace_id, row.parent_id) == (5, 6)
    assert (row.start_ns - WALL_NS, row.end_ns - WALL_NS) == (1000 * MS, 1200 * MS)
    told = row.attributes
    assert told[names.TIME_TO_FIRST_CHUNK] == pytest.approx(0.1)
    assert told[names.CLIENT_CHUNKS] == 4
    assert told[names.CLIENT_GAP_P50_NS] == 10 * MS
    assert told[names.CLIENT_GAP_P99_NS] == told[names.CLIENT_GAP_MAX_NS] == 70 * MS
    assert told[names.CLIENT_CHUNK_MS] == "100.0,110.0,120.0,190.0"
    assert told[names.CLIENT_INTENDED_NS] == 70 * MS
    assert told[names.REQUEST_ID] == "r"
    assert names.USAGE_INPUT_TOKENS not in told
    assert not row.is_error
    assert call.headers["traceparent"] == f"00-{5:032x}-{row.span_id:016x}-01"


def test_too_many_chunks_keep_their_percentiles_only(now: list[int]) -> None:
    bench = Bench()
    call = Call(bench.front(), stream=True)
    for _ in range(clients.MAX_CHUNK_TIMES + 1):
        now[0] += 1
        call.chunk()
    call.end()
    told = _span(bench).attributes
    assert told[names.CLIENT_CHUNKS] == clients.MAX_CHUNK_TIMES + 1
    assert told[names.CLIENT_GAP_P50_NS] == MS
    assert names.CLIENT_CHUNK_MS not in told


def test_the_longest_list_of_chunks_arrives() -> None:
    bench = Bench()
    call = Call(bench.front(), stream=True)
    for at in range(clients.MAX_CHUNK_TIMES):
        call.chunk(call.start_ns + 3_600_000 * MS + at * MS)  # an hour later
    call.end()
    told = _span(bench).attributes
    assert str(told[names.CLIENT_CHUNK_MS]).count(",") == clients.MAX_CHUNK_TIMES - 1


def test_the_current_span_is_the_parent() -> None:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    bench = Bench()
    tracer = TracerProvider().get_tracer("app")
    with trace.use_span(tracer.start_span("handler"), end_on_exit=True) as span:
        Call(bench.front()).end()
        expected = span.get_span_context()
    row = _span(bench)
    assert (row.trace_id, row.parent_id) == (expected.trace_id, expected.span_id)


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=200), st.sampled_from([0.5, 0.99]))
def test_percentiles_are_by_nearest_rank(values: list[int], share: float) -> None:
    ordered = sorted(values)
    found = percentile_ns(ordered, share)
    assert found in ordered
    assert sum(value <= found for value in ordered) >= share * len(ordered)
    assert sum(value < found for value in ordered) < share * len(ordered)


def test_no_gaps_no_percentile() -> None:
    assert percentile_ns([], 0.5) is None


# --- events -------------------------------------------------------------------------------------

CONTENT = [
    {"choices": [{"delta": {"content": "w"}}]},
    {"choices": [{"delta": {"reasoning_content": "w"}}]},
    {"choices": [{"delta": {"tool_calls": [{"function": {"arguments": "{"}}]}}]},
    {"choices": [{"text": "w"}]},
    {"choices": [{"message": {"content": "w"}}]},
    {"choices": [{"delta": {"content": [{"type": "text", "text": "w"}]}}]},
    {"content": "w", "stop": False},
    {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "w"}},
    {"type": "response.output_text.delta", "delta": "w"},
    {"token": {"id": 1, "text": "w"}},
    {"text": "w"},
]
NO_CONTENT = [
    {"choices": [{"delta": {"role": "assistant"}}]},
    {"choices": [{"delta": {"role": "assistant", "content": None}}]},
    {"choices": [{"delta": {"content": ""}, "finish_reason": "stop"}]},
    {"choices": [], "usage": {"prompt_tokens": 3}},
    {"choices": [{"delta": {}}], "prompt_progress": {"processed": 1}},
    {"content": "", "stop": True},
    {"type": "message_start", "message": {"id": "m", "content": []}},
    {"type": "ping"},
    {},
]


@pytest.mark.parametrize("body", CONTENT)
def test_chunks_with_content(body: dict[str, Any]) -> None:
    assert sse.read(json.dumps(body).encode()).has_content


@pytest.mark.parametrize("body", NO_CONTENT)
def test_chunks_without(body: dict[str, Any]) -> None:
    assert not sse.read(json.dumps(body).encode()).has_content


def test_what_events_tell() -> None:
    told = sse.read(
        json.dumps(
            {
                "id": "c1", "model": "m", "choices": [{"finish_reason": "length"}],
                "usage": {
                    "prompt_tokens": 9, "completion_tokens": 4,
                    "prompt_tokens_details": {"cached_tokens": 8},
                },
            }
        ).encode()
    )  # fmt: skip
    assert (told.response_id, told.model, told.finish_reason) == ("c1", "m", "length")
    assert (told.input_tokens, told.output_tokens, told.cached_tokens) == (9, 4, 8)
    assert sse.read(b"[DONE]").is_end
    assert sse.read(b'{"type":"message_stop"}').is_end


@given(st.binary(max_size=200))
def test_any_event_can_be_read(data: bytes) -> None:
    sse.read(data)


@given(
    st.lists(st.text(alphabet="abc:\u00e9 ", max_size=8), max_size=6),
    st.sampled_from(["\n", "\r\n"]),
    st.integers(1, 9),
)
def test_events_are_whole_however_the_stream_is_cut(
    lines: list[str], newline: str, cut: int
) -> None:
    stream = "".join(f": note{newline}data: {line}{newline}{newline}" for line in lines).encode()
    splitter = sse.EventSplitter()
    found = [
        event
        for at in range(0, len(stream), cut)
        for event in splitter.feed(stream[at : at + cut])
    ]  # fmt: skip
    assert found == [line.lstrip().encode() for line in lines]


# --- httpx --------------------------------------------------------------------------------------


def _event(body: Any) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


PARTS = [
    _event({"id": "c1", "choices": [{"delta": {"role": "assistant"}}]}),
    _event({"id": "c1", "choices": [{"delta": {"content": "MARKED"}}]}),
    _event({"id": "c1", "choices": [{"delta": {"content": "MARKED"}}]}),
    _event({"id": "c1", "model": "served", "choices": [{"delta": {}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 2}}),
    b"data: [DONE]\n\n",
]  # fmt: skip


class Upstream:
    """A server in place of the network, whose parts come 10 ms apart; and a traced client."""

    def __init__(self, now: list[int], parts: list[bytes], **options: Any) -> None:
        import httpx

        self.httpx = httpx
        self.bench = Bench()
        self.seen: list[httpx.Request] = []
        self.status = options.pop("status", 200)
        self.fails: BaseException | None = options.pop("fails", None)
        self.kind = options.pop("kind", "text/event-stream")
        self.answer_headers: dict[str, str] = options.pop("headers", {})
        self.now = now
        self.parts = parts
        self.options = options

    def _stream(self) -> Iterator[bytes]:
        for part in self.parts:
            self.now[0] += 10
            yield part
        if self.fails is not None:
            raise self.fails

    async def _async_stream(self) -> AsyncIterator[bytes]:
        for part in self._stream():
            yield part

    def _answer(self, request: Any, stream: Any) -> Any:
        self.seen.append(request)
        self.now[0] += 5
        headers = {"content-type": self.kind, **self.answer_headers}
        return self.httpx.Response(self.status, headers=headers, content=stream)

    def client(self) -> Any:
        transport = self.httpx.MockTransport(lambda request: self._answer(request, self._stream()))
        client = self.httpx.Client(transport=transport)
        return engines.instrument(client, recorder=self.bench.front(), **self.options)

    def async_client(self) -> Any:
        async def answer(request: Any) -> Any:
            return self._answer(request, self._async_stream())

        client = self.httpx.AsyncClient(transport=self.httpx.MockTransport(answer))
        return engines.instrument(client, recorder=self.bench.front(), **self.options)


BODY = {"model": "asked", "stream": True, "messages": [{"content": "MARKED PROMPT"}]}


def _check_stream(upstream: Upstream) -> None:
    rows = upstream.bench.settle()
    row = _span(upstream.bench)
    told = row.attributes
    assert row.name == "chat served"
    assert told[names.REQUEST_STREAM] is True
    assert told[names.REQUEST_ID] == "c1"
    assert told[names.TIME_TO_FIRST_CHUNK] == pytest.approx(0.025)  # not the role's chunk
    assert told[names.CLIENT_CHUNKS] == 2
    assert told[names.CLIENT_GAP_MAX_NS] == 10 * MS
    assert told[names.USAGE_OUTPUT_TOKENS] == 2
    assert row.end_ns - row.start_ns == 55 * MS
    assert not row.is_error
    sent = upstream.seen[0].headers["traceparent"]
    assert sent == f"00-{row.trace_id:032x}-{row.span_id:016x}-01"
    assert "MARKED" not in repr(rows)


@needs_httpx
def test_a_stream_through_httpx(now: list[int]) -> None:
    upstream = Upstream(now, PARTS)
    with upstream.client() as client, client.stream("POST", URL, json=BODY) as response:
        assert b"".join(response.iter_bytes()) == b"".join(PARTS)
    _check_stream(upstream)


@needs_httpx
def test_an_error_told_in_a_stream_whose_status_was_200(now: list[int]) -> None:
    failed = _event({"error": {"message": "MARKED", "type": "InternalServerError", "code": 500}})
    upstream = Upstream(now, [*PARTS[:2], failed, PARTS[-1]])
    with upstream.client() as client, client.stream("POST", URL, json=BODY) as response:
        response.read()
    row = _span(upstream.bench)
    assert row.attributes[names.ERROR_TYPE] == "500"
    assert row.attributes[names.CLIENT_CHUNKS] == 1
    assert "MARKED" not in repr(upstream.bench.out.rows)


@needs_httpx
def test_a_stream_through_httpx_and_asyncio(now: list[int]) -> None:
    upstream = Upstream(now, PARTS)

    async def run() -> bytes:
        async with (
            upstream.async_client() as client,
            client.stream("POST", URL, json=BODY) as response,
        ):
            return b"".join([data async for data in response.aiter_bytes()])

    assert asyncio.run(run()) == b"".join(PARTS)
    _check_stream(upstream)


@needs_httpx
def test_an_answer_in_one_piece(now: list[int]) -> None:
    body = {"id": "c2", "choices": [{"message": {"content": "MARKED"}}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 2}}  # fmt: skip
    upstream = Upstream(
        now, [json.dumps(body).encode()], kind="application/json", headers={"x-request-id": "r9"}
    )
    with upstream.client() as client:
        assert client.post(URL, json={"model": "asked"}).json() == body
    told = _span(upstream.bench).attributes
    assert told[names.REQUEST_ID] == "r9"
    assert told[names.USAGE_INPUT_TOKENS] == 3
    assert told[names.REQUEST_STREAM] is False
    assert names.TIME_TO_FIRST_CHUNK not in told
    assert names.CLIENT_CHUNKS not in told


@needs_httpx
def test_a_caller_s_own_context_is_the_parent(now: list[int]) -> None:
    upstream = Upstream(now, PARTS)
    parent = f"00-{'c3' * 16}-{'d4' * 8}-01"
    with upstream.client() as client:
        client.post(URL, json=BODY, headers={"traceparent": parent}).read()
    row = _span(upstream.bench)
    assert (f"{row.trace_id:032x}", f"{row.parent_id:016x}") == ("c3" * 16, "d4" * 8)
    assert len(upstream.seen[0].headers.get_list("traceparent")) == 1


@needs_httpx
@pytest.mark.parametrize("is_async", [False, True])
def test_a_stream_that_is_left_is_cancelled(now: list[int], is_async: bool) -> None:
    upstream = Upstream(now, PARTS)

    async def run() -> None:
        async with (
            upstream.async_client() as client,
            client.stream("POST", URL, json=BODY) as response,
        ):
            async for _ in response.aiter_bytes():
                break

    if is_async:
        asyncio.run(run())
    else:
        with upstream.client() as client, client.stream("POST", URL, json=BODY) as response:
            next(response.iter_bytes())
    row = _span(upstream.bench)
    assert row.attributes[names.ERROR_TYPE] == "cancelled"
    assert row.is_error


@needs_httpx
def test_a_stream_left_after_its_end_is_not(now: list[int]) -> None:
    upstream = Upstream(now, PARTS)
    with upstream.client() as client, client.stream("POST", URL, json=BODY) as response:
        for data in response.iter_raw():
            if b"[DONE]" in data:
                break
    assert names.ERROR_TYPE not in _span(upstream.bench).attributes


@needs_httpx
@pytest.mark.parametrize(
    ("status", "fails", "word"),
    [
        (503, None, "503"),
        (200, "ReadTimeout", "timeout"),
        (200, "ReadError", "connection"),
        (200, "RemoteProtocolError", "RemoteProtocolError"),
    ],
)
def test_failures_in_one_word(now: list[int], status: int, fails: str | None, word: str) -> None:
    import httpx

    error = getattr(httpx, fails)("MARKED message") if fails else None
    upstream = Upstream(now, PARTS[:2], status=status, fails=error)
    with upstream.client() as client:
        if error is None:
            client.post(URL, json=BODY)
        else:
            with pytest.raises(type(error)):
                client.post(URL, json=BODY)
    rows = upstream.bench.settle()
    assert _span(upstream.bench).attributes[names.ERROR_TYPE] == word
    assert "MARKED" not in repr(rows)


@needs_httpx
def test_a_server_that_cannot_be_reached() -> None:
    import httpx

    bench = Bench()

    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    client = httpx.Client(transport=httpx.MockTransport(refuse))
    engines.instrument(client, recorder=bench.front())
    with pytest.raises(httpx.ConnectError):
        client.post(URL, json=BODY)
    assert _span(bench).attributes[names.ERROR_TYPE] == "connection"


def test_words_of_other_failures() -> None:
    assert error_word(asyncio.CancelledError()) == "cancelled"
    assert error_word(TimeoutError("MARKED")) == "timeout"
    assert error_word(ConnectionResetError()) == "connection"
    assert error_word(KeyError("MARKED")) == "KeyError"


@needs_httpx
def test_other_calls_pass_untraced(now: list[int]) -> None:
    upstream = Upstream(now, [b"{}"], kind="application/json")
    with upstream.client() as client:
        client.get(URL)
        client.post("http://server/v1/files", json={})
    assert [row for row in upstream.bench.settle() if row.kind == names.KIND_CLIENT] == []
    assert all("traceparent" not in request.headers for request in upstream.seen)


@needs_httpx
def test_a_packed_answer_is_not_looked_into_and_arrives(now: list[int]) -> None:
    import gzip

    upstream = Upstream(now, [gzip.compress(b"".join(PARTS))], headers={"content-encoding": "gzip"})
    with upstream.client() as client:
        assert client.post(URL, json=BODY).content == b"".join(PARTS)
    told = _span(upstream.bench).attributes
    assert names.CLIENT_CHUNKS not in told
    assert told.get(names.ERROR_TYPE) is None


@needs_httpx
def test_trouble_of_its_own_leaves_the_answer_alone(
    now: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(sse.EventSplitter, "feed", fail)
    upstream = Upstream(now, PARTS)
    with upstream.client() as client:
        assert client.post(URL, json=BODY).content == b"".join(PARTS)


@needs_httpx
def test_uninstrument_gives_the_client_its_transports_back(now: list[int]) -> None:
    upstream = Upstream(now, PARTS)
    client = upstream.client()
    engines.uninstrument(client)
    client.post(URL, json=BODY)
    assert type(client._transport) is upstream.httpx.MockTransport
    assert upstream.bench.settle() == []


# --- openai -------------------------------------------------------------------------------------


@needs_openai
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_openai_client(now: list[int]) -> None:
    import openai

    upstream = Upstream(now, PARTS)
    transport = upstream.httpx.MockTransport(
        lambda request: upstream._answer(request, upstream._stream())
    )
    client = openai.OpenAI(
        api_key="sk-MARKED", base_url="http://server/v1",
        http_client=upstream.httpx.Client(transport=transport),
    )  # fmt: skip
    assert engines.instrument(client, recorder=upstream.bench.front()) is client
    stream = client.chat.completions.create(
        model="asked", stream=True, messages=[{"role": "user", "content": "MARKED PROMPT"}]
    )
    assert [chunk.choices[0].delta.content for chunk in stream][1] == "MARKED"
    told = _span(upstream.bench).attributes
    assert told[names.CLIENT_CHUNKS] == 2
    assert told.get(names.ERROR_TYPE) is None
    assert "MARKED" not in repr(upstream.bench.out.rows)
    engines.uninstrument(client)
    assert type(client._client._transport) is upstream.httpx.MockTransport


@needs_openai
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_openai_client_of_asyncio(now: list[int]) -> None:
    import openai

    upstream = Upstream(now, PARTS)

    async def answer(request: Any) -> Any:
        return upstream._answer(request, upstream._async_stream())

    async def run() -> int:
        http = upstream.httpx.AsyncClient(transport=upstream.httpx.MockTransport(answer))
        async with openai.AsyncOpenAI(
            api_key="x", base_url="http://server/v1", http_client=http
        ) as client:
            engines.instrument(client, recorder=upstream.bench.front())
            stream = await client.chat.completions.create(
                model="asked", stream=True, messages=[{"role": "user", "content": "hi"}]
            )
            return len([chunk async for chunk in stream])

    assert asyncio.run(run()) == 4
    told = _span(upstream.bench).attributes
    assert told[names.CLIENT_CHUNKS] == 2
    assert told.get(names.ERROR_TYPE) is None
