"""llama.cpp's server behind the tracing proxy: the real engine, and answers as it gives them."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import itertools
import json
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tokenlag_tracer import conventions as names
from tokenlag_tracer.engines.llama_cpp import LlamaCall, LlamaSpans, Timings
from tokenlag_tracer.identity import Context
from tokenlag_tracer.spans import Row

from tests.simulate.reading import Read
from tests.tracer.engines.installed import python_with
from tests.tracer.service import EXAMPLE, diagnose
from tests.tracer.support import REPO, environment, free_port, named, spans_in

MS = 1_000_000
CONTEXT = Context(7, 8)
TIMINGS = {"cache_n": 50, "prompt_n": 200, "prompt_ms": 40.5, "predicted_n": 4, "predicted_ms": 9.0}


def _progress(processed: int, time_ms: int) -> dict[str, Any]:
    progress = {"total": 250, "cache": 50, "processed": processed, "time_ms": time_ms}
    return {"choices": [], "prompt_progress": progress}


def _rows(call: LlamaCall) -> list[Row]:
    return list(call.rows(CONTEXT, {names.ENGINE_ID: "e", names.REQUEST_INDEX: 0}, "r", 0))


def _times(rows: list[Row], name: str) -> list[tuple[float, float]]:
    return [(row.start_ns / MS, row.end_ns / MS) for row in named(rows, name)]


def _streamed() -> LlamaCall:
    call = LlamaCall(100 * MS)
    call.take(_progress(50, 0), False, 110 * MS)
    call.take(_progress(178, 25), False, 136 * MS)
    call.take(_progress(250, 40), False, 151 * MS)
    for at_ms in (152, 155, 158, 161):
        call.take({"choices": []}, True, at_ms * MS)
    call.take({"choices": [], "timings": TIMINGS}, False, 162 * MS)
    call.finish_reason = "length"
    call.ended_ns = 163 * MS
    return call


def test_a_stream_s_phases_tile_it() -> None:
    rows = _rows(_streamed())
    assert _times(rows, names.SPAN_ENGINE_REQUEST) == [(100, 163)]
    assert _times(rows, names.SPAN_QUEUE) == [(100, 110)]
    assert _times(rows, names.SPAN_PREFILL) == [(110, 150.5)]
    assert _times(rows, names.SPAN_PREFILL_CHUNK) == [(110, 135), (135, 150)]
    assert _times(rows, names.SPAN_DECODE) == [(150.5, 161)]
    chunks = [row.attributes for row in named(rows, names.SPAN_PREFILL_CHUNK)]
    assert [c[names.CHUNK_TOKENS] for c in chunks] == [128, 72]
    assert [c[names.CHUNK_CONTEXT] for c in chunks] == [50, 178]
    assert all(names.STEP_INDEX not in c for c in chunks)  # not told, so not said
    (own,) = named(rows, names.SPAN_ENGINE_REQUEST)
    assert own.parent_id == CONTEXT.span_id
    assert own.attributes[names.USAGE_INPUT_TOKENS] == 250
    assert own.attributes[names.USAGE_CACHED_TOKENS] == 50
    assert own.attributes[names.USAGE_OUTPUT_TOKENS] == 4
    assert named(rows, names.SPAN_DECODE)[0].attributes[names.DECODE_TOKENS] == 3


def test_without_progress_the_prompt_s_time_is_taken_back_from_the_first_token() -> None:
    call = LlamaCall(100 * MS)
    for at_ms in (152, 161):
        call.take({"choices": []}, True, at_ms * MS)
    call.take({"choices": [], "timings": TIMINGS}, False, 162 * MS)
    call.ended_ns = 163 * MS
    rows = _rows(call)
    assert _times(rows, names.SPAN_QUEUE) == [(100, 111.5)]
    assert _times(rows, names.SPAN_PREFILL) == [(111.5, 152)]
    assert _times(rows, names.SPAN_DECODE) == [(152, 161)]


def test_an_answer_in_one_piece_is_taken_back_from_its_end() -> None:
    call = LlamaCall(100 * MS, is_stream=False)
    call.ended_ns = 163 * MS
    call.take({"choices": [], "timings": TIMINGS}, True, 162 * MS)
    rows = _rows(call)
    assert _times(rows, names.SPAN_DECODE) == [(154, 163)]
    assert _times(rows, names.SPAN_PREFILL) == [(113.5, 154)]
    assert _times(rows, names.SPAN_QUEUE) == [(100, 113.5)]


def test_a_request_given_up_in_the_queue_only_waited() -> None:
    call = LlamaCall(100 * MS)
    call.ended_ns, call.is_aborted = 400 * MS, True
    rows = _rows(call)
    assert _times(rows, names.SPAN_QUEUE) == [(100, 400)]
    assert len(rows) == 2
    assert rows[0].attributes[names.FINISH_REASONS] == ["abort"]
    assert names.USAGE_OUTPUT_TOKENS not in rows[0].attributes  # not measured, so not zero


def test_one_token_is_no_decoding() -> None:
    call = LlamaCall(100 * MS)
    call.take({"choices": []}, True, 152 * MS)
    call.take({"choices": [], "timings": TIMINGS | {"predicted_n": 1}}, False, 153 * MS)
    call.ended_ns = 153 * MS
    assert named(_rows(call), names.SPAN_DECODE) == []


@pytest.mark.parametrize(
    "odd",
    [None, 7, [], {}, {"prompt_ms": None}, {"prompt_ms": "5", "cache_n": True},
     {"prompt_n": -1, "predicted_ms": float("inf")}],
)  # fmt: skip
def test_odd_timings_are_not_measured(odd: object) -> None:
    read = Timings.read(odd)
    assert read is None or read == Timings()
    call = LlamaCall(1)
    call.take({"timings": odd, "prompt_progress": odd}, True, 5)
    call.ended_ns = 9
    for row in _rows(call):
        assert 1 <= row.start_ns <= row.end_ns <= 9


class KeptSpans(LlamaSpans):
    """Keeps spans instead of exporting them."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        super().__init__("e", queue=self)

    def put(self, *arguments: Any) -> None:
        if len(arguments) == 1:
            self.rows += arguments[0]
        else:
            super().put(*arguments)


needs_httpx = pytest.mark.skipif(
    importlib.util.find_spec("httpx") is None, reason="the proxy needs httpx"
)


@needs_httpx
@pytest.mark.parametrize("cut", [1, 7, 64, 100_000])
@pytest.mark.parametrize("asks", [False, True])
def test_the_caller_gets_what_it_asked_for_however_the_stream_is_cut(cut: int, asks: bool) -> None:
    import httpx
    from tokenlag_tracer.engines.llama_cpp_proxy import LlamaProxy, TraceMiddleware

    from tests.tracer.support import Bench

    def event(body: dict[str, Any]) -> bytes:
        return b"data: " + json.dumps(body).encode() + b"\n\n"

    word = event({"choices": [{"delta": {"content": "w"}}]})
    last = event({"choices": [{"delta": {}, "finish_reason": "stop"}], "timings": TIMINGS})
    plain = [word, word, last, b": ping\n\n", b"data: [DONE]\n\n"]
    progress = [event(_progress(50, 0)), event(_progress(250, 40))]
    seen: list[dict[str, Any]] = []

    async def answer(request: httpx.Request) -> httpx.Response:
        seen.append(json.loads(request.content))

        async def stream() -> AsyncIterator[bytes]:
            data = b"".join([*progress, *plain])
            for at in range(0, len(data), cut):
                yield data[at : at + cut]

        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=stream())

    bench, spans = Bench(), KeptSpans()
    proxy = LlamaProxy("http://engine:1", transport=httpx.MockTransport(answer), spans=spans)
    app = TraceMiddleware(proxy, recorder=bench.front())

    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://front") as client:
            body = {"messages": [], "stream": True} | ({"return_progress": True} if asks else {})
            return await client.post("/v1/chat/completions", json=body)

    got = asyncio.run(run())
    assert got.content == b"".join([*(progress if asks else []), *plain])
    assert seen == [{"messages": [], "stream": True, "return_progress": True}]
    (request,) = named(bench.settle(), names.SPAN_REQUEST)
    (engine,) = named(spans.rows, names.SPAN_ENGINE_REQUEST)
    assert (engine.trace_id, engine.parent_id) == (request.trace_id, request.span_id)
    assert request.attributes[names.USAGE_CACHED_TOKENS] == 50
    assert request.attributes[names.FINISH_REASONS] == ["stop"]
    assert len(named(spans.rows, names.SPAN_PREFILL_CHUNK)) == 1


@needs_httpx
def test_a_server_that_is_away() -> None:
    import httpx
    from tokenlag_tracer.engines.llama_cpp_proxy import LlamaProxy, TraceMiddleware

    from tests.tracer.support import Bench

    def away(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("no", request=request)

    bench, spans = Bench(), KeptSpans()
    proxy = LlamaProxy("http://engine:1", transport=httpx.MockTransport(away), spans=spans)

    async def run() -> httpx.Response:
        app = TraceMiddleware(proxy, recorder=bench.front())
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://front") as client:
            return await client.post("/completion", json={"prompt": "x"})

    assert asyncio.run(run()).status_code == 502
    (request,) = named(bench.settle(), names.SPAN_REQUEST)
    assert request.attributes[names.ERROR_TYPE] == "502"
    assert spans.rows == []


# --- the real engine ----------------------------------------------------------------------------

MARK = "XYZZYPLUGH"
real = pytest.mark.engine


def llama_python() -> str:
    """The interpreter that runs llama.cpp's server, the proxy and the load."""
    return python_with("TOKENLAG_LLAMA_PYTHON", "xllamacpp", "gguf", "numpy", "httpx", "uvicorn")


@dataclass
class Server:
    """The engine and the proxy in front of it."""

    url: str
    direct: str
    folder: Path

    def post(self, path: str, body: dict[str, Any], request_id: str, direct: bool = False) -> bytes:
        request = urllib.request.Request(
            (self.direct if direct else self.url) + path,
            json.dumps(body).encode(),
            {"content-type": "application/json", "x-request-id": request_id},
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            data: bytes = response.read()
        return data


@contextlib.contextmanager
def _process(command: list[str], env: dict[str, str], log: Path, url: str) -> Iterator[None]:
    with log.open("wb") as out:
        process = subprocess.Popen(
            [llama_python(), *command], env=env, stdout=out, stderr=subprocess.STDOUT, cwd=REPO
        )
        try:
            deadline_s = time.monotonic() + 60
            while True:
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline_s, log.read_text()
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(url + "/health", timeout=5).close()
                    break
                time.sleep(0.05)
            yield
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait(30)


@contextlib.contextmanager
def _serving(folder: Path) -> Iterator[Server]:
    """The engine with one slot, and the proxy; traces are complete after the `with`."""
    ports = [free_port(), free_port()]
    env = environment(folder / "traces")
    engine, url = (f"http://127.0.0.1:{port}" for port in ports)
    serving = ["-m", "tests.tracer.tiny_gguf", str(folder / "tiny.gguf"), str(ports[0]), "1"]
    proxying = [
        "-m", "tokenlag_tracer.engines.llama_cpp_proxy", engine, "--port", str(ports[1]),
    ]  # fmt: skip
    with (
        _process(serving, env, folder / "engine.log", engine),
        _process(proxying, env, folder / "proxy.log", url),
    ):
        yield Server(url, engine, folder)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with _serving(tmp_path_factory.mktemp("llama")) as found:
        yield found


@pytest.fixture(scope="module")
def spans(server: Server) -> list[Read]:
    """A few requests, and all spans of them."""
    prompt = f"{MARK} tells of things. " * 30
    chat = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 8, "stream": True}
    quiet = {"temperature": 0, "ignore_eos": True}
    streamed = server.post("/v1/chat/completions", chat | quiet, "streamed")
    assert b"prompt_progress" not in streamed
    assert b"[DONE]" in streamed
    own = server.post("/v1/chat/completions", chat | quiet | {"return_progress": True}, "asked")
    assert b"prompt_progress" in own
    whole = {"prompt": f"Something else: {prompt}", "max_tokens": 6, **quiet}
    assert b'"usage"' in server.post("/v1/completions", whole, "whole")
    # One slot: the second of two waits for the first.
    long = {"prompt": f"first {MARK}", "n_predict": 150, "stream": True, **quiet}
    first = threading.Thread(target=server.post, args=("/completion", long, "first"))
    first.start()
    time.sleep(0.15)
    server.post(
        "/completion", {"prompt": "second", "n_predict": 4, "stream": True, **quiet}, "second"
    )
    first.join()
    _leave(server, {"prompt": "gone", "n_predict": 3000, "stream": True, **quiet})

    def found() -> list[Read]:
        return spans_in(server.folder / "traces")

    deadline_s = time.monotonic() + 30
    while time.monotonic() < deadline_s:
        seen = [s for s in found() if s.attributes.get(names.REQUEST_ID) == "gone"]
        if len(seen) == 2:
            break
        time.sleep(0.1)
    return found()


def _leave(server: Server, body: dict[str, Any]) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    data = json.dumps(body).encode()
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(
            b"POST /completion HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"x-request-id: gone\r\ncontent-length: " + str(len(data)).encode() + b"\r\n\r\n" + data
        )
        while b"data:" not in connection.recv(4096):
            pass


def _of(spans: list[Read], request_id: str) -> dict[str, list[Read]]:
    (request,) = [
        span for span in spans
        if span.name == names.SPAN_REQUEST and span.attributes[names.REQUEST_ID] == request_id
    ]  # fmt: skip
    found: dict[str, list[Read]] = {}
    for span in sorted((s for s in spans if s.trace == request.trace), key=lambda s: s.start):
        found.setdefault(span.name, []).append(span)
    return found


@real
@pytest.mark.parametrize("request_id", ["streamed", "whole"])
def test_the_real_server_s_phases_tile_its_requests(spans: list[Read], request_id: str) -> None:
    own = _of(spans, request_id)
    (engine,) = own[names.SPAN_ENGINE_REQUEST]
    (queue,), (prefill,), (decode,) = (
        own[name] for name in (names.SPAN_QUEUE, names.SPAN_PREFILL, names.SPAN_DECODE)
    )
    (request,) = own[names.SPAN_REQUEST]
    assert engine.parent == request.id
    assert queue.start == engine.start
    assert queue.end == prefill.start
    assert prefill.end == decode.start
    assert decode.start < decode.end <= engine.end <= request.end
    n_input = engine.attributes[names.USAGE_INPUT_TOKENS]
    n_cached = engine.attributes[names.USAGE_CACHED_TOKENS]
    assert prefill.attributes[names.PREFILL_TOKENS] == n_input - n_cached
    assert (
        decode.attributes[names.DECODE_TOKENS] == request.attributes[names.USAGE_OUTPUT_TOKENS] - 1
    )
    assert request.attributes[names.FINISH_REASONS] == ["length"]


@real
def test_the_real_server_s_prompt_chunks(spans: list[Read]) -> None:
    own = _of(spans, "streamed")
    (prefill,) = own[names.SPAN_PREFILL]
    chunks = own[names.SPAN_PREFILL_CHUNK]
    assert len(chunks) >= 4
    assert {chunk.parent for chunk in chunks} == {prefill.id}
    counts = [chunk.attributes[names.CHUNK_TOKENS] for chunk in chunks]
    assert sum(counts) == prefill.attributes[names.PREFILL_TOKENS]
    assert set(counts[:-1]) == {128}
    for before, after in itertools.pairwise(chunks):
        n_before = before.attributes[names.CHUNK_CONTEXT] + before.attributes[names.CHUNK_TOKENS]
        assert after.attributes[names.CHUNK_CONTEXT] == n_before
        assert after.start == before.end


@real
def test_the_real_server_s_prefix_cache_is_seen(spans: list[Read]) -> None:
    (engine,) = _of(spans, "asked")[names.SPAN_ENGINE_REQUEST]
    n_cached = engine.attributes[names.USAGE_CACHED_TOKENS]
    assert n_cached >= 0.9 * engine.attributes[names.USAGE_INPUT_TOKENS]


@real
def test_one_slot_makes_the_second_wait_for_the_first(spans: list[Read]) -> None:
    (first,) = _of(spans, "first")[names.SPAN_DECODE]
    (second,) = _of(spans, "second")[names.SPAN_QUEUE]
    assert second.end >= first.end - 20 * MS
    assert second.end - second.start > 0.3 * (first.end - second.start)


@real
def test_a_caller_that_leaves_ends_the_request_at_the_real_server(
    server: Server, spans: list[Read]
) -> None:
    own = _of(spans, "gone")
    assert own[names.SPAN_REQUEST][0].attributes[names.ERROR_TYPE] == "cancelled"
    assert own[names.SPAN_ENGINE_REQUEST][0].attributes[names.FINISH_REASONS] == ["abort"]
    deadline_s = time.monotonic() + 30
    while True:
        with urllib.request.urlopen(server.direct + "/slots", timeout=5) as response:
            if not any(slot["is_processing"] for slot in json.load(response)):
                break
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


@real
def test_no_text_of_the_real_server_s_in_any_span(server: Server, spans: list[Read]) -> None:
    assert len(spans) > 20
    for span in spans:
        assert MARK not in json.dumps([span.name, span.attributes, span.resource])


@real
@pytest.mark.slow
def test_the_real_server_s_one_slot_is_named_from_outside(tmp_path: Path) -> None:
    with _serving(tmp_path) as serving:
        load = [
            str(EXAMPLE / "load.py"), serving.url, "--rate", "14", "--seconds", "5",
            "--max-tokens", "64",
        ]  # fmt: skip
        subprocess.run(
            [llama_python(), *load], env=environment(tmp_path / "traces"), check=True, timeout=120
        )
    diagnosis = diagnose(tmp_path / "traces")
    assert diagnosis["verdict"]["cause"] == "queueing-not-prefill"
    facts = diagnosis["findings"][0]["facts"]
    assert (facts["limit"], facts["limit_basis"]) == ("slots", "inferred from concurrency")
    assert facts["pinned_at"] == 1
    assert "steps" not in diagnosis["coverage"]["sees"]  # and it does not claim to have seen any
