"""A reverse proxy in front of llama.cpp's server that traces it. Needs httpx, and a web server:

    python -m tokenlag_tracer.engines.llama_cpp_proxy http://127.0.0.1:8080 --port 8000

Answers pass as they come. A streamed request is made to tell its prompt's progress, and what was
not asked for is taken out again before it reaches the caller.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from importlib import import_module
from typing import Any, Final

from tokenlag_tracer import sse
from tokenlag_tracer.asgi import (
    Message,
    Receive,
    RequestInFlight,
    Scope,
    SendMessage,
    TraceMiddleware,
    current_request,
)
from tokenlag_tracer.client import head_of
from tokenlag_tracer.engines.llama_cpp import LlamaCall, LlamaSpans, Timings

# Of one hop only (RFC 9110), or made anew here.
_HOP: Final = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization te trailer transfer-encoding "
    b"upgrade host content-length expect".split()
)
_PROGRESS: Final = b'"return_progress"'


class _Watch:
    """Looks through an answer as it passes.

    Args:
        call: filled in.
        takes_out: the progress was not asked for by the caller.
        is_stream: it is a stream of events.
    """

    def __init__(self, call: LlamaCall, takes_out: bool, is_stream: bool) -> None:
        self._call = call
        self._takes_out = takes_out and is_stream
        self._is_stream = call.is_stream = is_stream
        self._rest = b""
        self._splitter = sse.EventSplitter()
        self._body: list[bytes] = []
        self._model: str | None = None

    def feed(self, data: bytes) -> bytes:
        """Takes bytes; returns those that go on to the caller."""
        if not self._is_stream:
            self._body.append(data)
            return data
        if not self._takes_out:
            for event in self._splitter.feed(data):
                self._take(event)
            return data
        *events, self._rest = (self._rest + data).split(b"\n\n")
        passed = b""
        for event in events:
            told = [self._take(part) for part in self._splitter.feed(event + b"\n\n")]
            if not any(told):
                passed += event + b"\n\n"
        return passed

    def end(self) -> bytes:
        """Returns what is left."""
        if self._body:
            self._take(b"".join(self._body))
        rest, self._rest, self._body = self._rest, b"", []
        return rest

    def told(self) -> dict[str, Any]:
        """Returns what the answer said of the request, once it is over."""
        call = self._call
        call.ended_ns = time.monotonic_ns()
        timings, reason, prefill = call.timings or Timings(), call.finish_reason, call.prefill()
        counts = (timings.n_cached, timings.n_computed)
        return {
            "model": self._model,
            "input_tokens": None if None in counts else sum(filter(None, counts)),
            "output_tokens": timings.n_output,
            "cached_tokens": timings.n_cached,
            "finish_reasons": None if reason is None else [reason],
            "first_token_ns": prefill[1] if prefill is not None else call.first_ns,
        }

    def _take(self, data: bytes) -> bool:
        """Returns whether it was progress and nothing else."""
        told = sse.read(data)
        if told.body is None:
            return False
        self._model = told.model or self._model
        self._call.finish_reason = told.finish_reason or self._call.finish_reason
        self._call.take(told.body, told.has_content, time.monotonic_ns())
        return "prompt_progress" in told.body


class LlamaProxy:
    """An ASGI application that hands every request on to a server.

    Args:
        url: of llama.cpp's server.
        engine_id: what to call it in traces; by default its URL's host and port.
        transport: an httpx transport to it, for tests.
        spans: where spans go.
    """

    is_asgi = True

    def __init__(
        self,
        url: str,
        engine_id: str | None = None,
        transport: Any = None,
        spans: LlamaSpans | None = None,
    ) -> None:
        self._httpx: Any = import_module("httpx")
        self._url = self._httpx.URL(url)
        self.spans = spans or LlamaSpans(engine_id or f"{self._url.host}:{self._url.port or 80}")
        self._client = self._httpx.AsyncClient(
            base_url=self._url, timeout=None, transport=transport,
            limits=self._httpx.Limits(max_connections=None),
        )  # fmt: skip

    async def __call__(self, scope: Scope, receive: Receive, send: SendMessage) -> None:
        """Hands one request on."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: SendMessage) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                await self._client.aclose()
                self.spans.close()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return

    async def _serve(self, scope: Scope, receive: Receive, send: SendMessage) -> None:
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            if not message.get("more_body", False):
                break
        # A caller that leaves ends the request at the server too.
        work = asyncio.ensure_future(self._hand_on(scope, body, send))
        gone = asyncio.ensure_future(_disconnected(receive))
        done, _ = await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        for task in (work, gone):
            if task not in done:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        if work in done:
            work.result()

    async def _hand_on(self, scope: Scope, body: bytes, send: SendMessage) -> None:
        flight = current_request()
        takes_out = False
        if flight is not None:
            body, takes_out = _ask_for_progress(body)
        path = scope.get("raw_path") or scope["path"].encode()
        target = self._url.copy_with(
            raw_path=path.partition(b"?")[0] + (b"?" + q if (q := scope["query_string"]) else b"")
        )
        headers = [pair for pair in scope["headers"] if pair[0].lower() not in _HOP]
        request = self._client.build_request(scope["method"], target, headers=headers, content=body)
        call = LlamaCall(time.monotonic_ns())
        try:
            response = await self._client.send(request, stream=True)
        except self._httpx.HTTPError:
            await _refuse(send)
            return
        try:
            await _pass_on(response, _watch(response, call, takes_out, flight), send, flight)
        except BaseException:
            call.is_aborted = True
            raise
        finally:
            with contextlib.suppress(Exception):
                await response.aclose()
            if not call.ended_ns:
                call.ended_ns = time.monotonic_ns()
            if flight is not None and response.status_code < 400:
                self._tell(call, flight)

    def _tell(self, call: LlamaCall, flight: RequestInFlight) -> None:
        self.spans.put(call, flight.request.context, flight.request_id)


def _watch(response: Any, call: LlamaCall, takes_out: bool, flight: Any) -> _Watch | None:
    """Returns what looks through an answer; None where there is nothing to see."""
    if flight is None or response.status_code >= 400:
        return None
    is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
    return _Watch(call, takes_out, is_stream)


async def _pass_on(
    response: Any, watch: _Watch | None, send: SendMessage, flight: RequestInFlight | None
) -> None:
    headers = [pair for pair in response.headers.raw if pair[0].lower() not in _HOP]
    await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
    async for data in _bytes_of(response, watch):
        await send({"type": "http.response.body", "body": data, "more_body": True})
    if flight is not None and watch is not None:
        flight.update(**watch.told())  # before the last word, with which it is over
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _bytes_of(response: Any, watch: _Watch | None) -> AsyncIterator[bytes]:
    async for data in response.aiter_raw():
        passed = data if watch is None else watch.feed(data)
        if passed:
            yield passed
    rest = b"" if watch is None else watch.end()
    if rest:
        yield rest


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _refuse(send: SendMessage) -> None:
    head: Message = {
        "type": "http.response.start", "status": 502, "headers": [(b"content-type", b"text/plain")],
    }  # fmt: skip
    await send(head)
    await send({"type": "http.response.body", "body": b"the server cannot be reached\n"})


def _ask_for_progress(body: bytes) -> tuple[bytes, bool]:
    """Returns a request's body that asks for its prompt's progress, and whether it did not."""
    text = body.lstrip()
    if _PROGRESS in body or not text.startswith(b"{") or head_of(body).get("stream") is not True:
        return body, False
    return b"{" + _PROGRESS + b":true," + text[1:], True


def traced(url: str, engine_id: str | None = None, **options: Any) -> TraceMiddleware:
    """Returns the proxy with the middleware around it; `options` are the middleware's."""
    return TraceMiddleware(LlamaProxy(url, engine_id), **options)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tokenlag_tracer.engines.llama_cpp_proxy",
        description="A tracing reverse proxy in front of llama.cpp's server.",
    )
    parser.add_argument("url", help="of llama.cpp's server")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--engine-id", help="what to call it in traces")
    options = parser.parse_args(arguments)
    uvicorn: Any = import_module("uvicorn")
    app = traced(options.url, options.engine_id)
    uvicorn.run(app, host=options.host, port=options.port, log_level="warning")


if __name__ == "__main__":
    main()
