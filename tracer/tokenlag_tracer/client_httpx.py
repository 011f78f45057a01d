"""httpx transports that trace the calls to models that go through them.

A transport is the place that both plain httpx clients and openai's have in common, and it is
given: `httpx.Client(transport=TracedTransport(httpx.HTTPTransport(), tracing))` works as well.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from tokenlag_tracer.client import Answer, Call, error_word, head_of, parent_of
from tokenlag_tracer.endpoints import operation_of
from tokenlag_tracer.front_recorder import FrontRecorder

httpx: Any = import_module("httpx")


@dataclass(frozen=True)
class Tracing:
    """How to trace.

    Attributes:
        recorder: where calls are told.
        paths: ends of further paths that are calls to models.
        keeps_chunks: keep the chunks' times one by one.
    """

    recorder: FrontRecorder
    paths: Mapping[str, str] | None = None
    keeps_chunks: bool = True

    def begin(self, request: Any) -> Call | None:
        """Returns the call that a request is; None if it is none. Never raises."""
        try:
            if request.method != "POST":
                return None
            operation = operation_of(request.url.path, self.paths)
            if operation is None:
                return None
            try:
                head = head_of(request.content)
            except Exception:  # a body that is itself streamed has not been read
                head = {}
            call = Call(
                self.recorder,
                operation=operation,
                parent=parent_of(request.headers.get("traceparent")),
                keeps_chunks=self.keeps_chunks,
                **head,
            )
            request.headers.update(call.headers)
        except Exception:
            return None
        return call


def _answered(call: Call, response: Any, stream_type: Any) -> Any:
    headers = {key.lower(): value for key, value in response.headers.items()}
    answer = Answer(call, response.status_code, headers)
    response.stream = stream_type(response.stream, answer)
    return response


class TracedStream(httpx.SyncByteStream):  # type: ignore[misc]
    """An answer's bytes, read by the caller."""

    def __init__(self, stream: Any, answer: Answer) -> None:
        self._stream = stream
        self._answer = answer

    def __iter__(self) -> Iterator[bytes]:
        """Yields the bytes as they come."""
        try:
            for data in self._stream:
                _feed(self._answer, data)
                yield data
        except GeneratorExit:
            raise
        except BaseException as error:
            self._answer.failed(error)
            raise
        self._answer.end()

    def close(self) -> None:
        """Ends it."""
        try:
            self._stream.close()
        finally:
            self._answer.closed()


class TracedAsyncStream(httpx.AsyncByteStream):  # type: ignore[misc]
    """The same for asyncio."""

    def __init__(self, stream: Any, answer: Answer) -> None:
        self._stream = stream
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yields the bytes as they come."""
        try:
            async for data in self._stream:
                _feed(self._answer, data)
                yield data
        except GeneratorExit:
            raise
        except BaseException as error:
            self._answer.failed(error)
            raise
        self._answer.end()

    async def aclose(self) -> None:
        """Ends it."""
        try:
            await self._stream.aclose()
        finally:
            self._answer.closed()


def _feed(answer: Answer, data: bytes) -> None:
    try:
        answer.feed(data)
    except Exception:  # notes are not worth an answer
        return


class TracedTransport(httpx.BaseTransport):  # type: ignore[misc]
    """A transport around another."""

    def __init__(self, transport: Any, tracing: Tracing) -> None:
        self.transport = transport
        self._tracing = tracing

    def handle_request(self, request: Any) -> Any:
        """Sends a request."""
        call = self._tracing.begin(request)
        if call is None:
            return self.transport.handle_request(request)
        try:
            response = self.transport.handle_request(request)
        except BaseException as error:
            call.end(error_word(error))
            raise
        return _answered(call, response, TracedStream)

    def close(self) -> None:
        """Closes the other."""
        self.transport.close()


class TracedAsyncTransport(httpx.AsyncBaseTransport):  # type: ignore[misc]
    """The same for asyncio."""

    def __init__(self, transport: Any, tracing: Tracing) -> None:
        self.transport = transport
        self._tracing = tracing

    async def handle_async_request(self, request: Any) -> Any:
        """Sends a request."""
        call = self._tracing.begin(request)
        if call is None:
            return await self.transport.handle_async_request(request)
        try:
            response = await self.transport.handle_async_request(request)
        except BaseException as error:
            call.end(error_word(error))
            raise
        return _answered(call, response, TracedAsyncStream)

    async def aclose(self) -> None:
        """Closes the other."""
        await self.transport.aclose()


_WRAPPERS = (TracedTransport, TracedAsyncTransport)


def wrap(client: Any, tracing: Tracing) -> None:
    """Puts a client's transports into traced ones; those that are stay."""
    wrapper = TracedTransport if isinstance(client, httpx.Client) else TracedAsyncTransport

    def wrapped(transport: Any) -> Any:
        if transport is None or isinstance(transport, _WRAPPERS):
            return transport
        return wrapper(transport, tracing)

    client._transport = wrapped(client._transport)
    for pattern, transport in client._mounts.items():
        client._mounts[pattern] = wrapped(transport)


def unwrap(client: Any) -> None:
    """Gives a client its own transports back."""

    def own(transport: Any) -> Any:
        return transport.transport if isinstance(transport, _WRAPPERS) else transport

    client._transport = own(client._transport)
    for pattern, transport in client._mounts.items():
        client._mounts[pattern] = own(transport)
