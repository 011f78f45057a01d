"""vLLM's front end: what a request's arrival, its rendering and its hand-over are told from.

The middleware (`tokenlag_tracer.asgi`) tells when a request came and when its bytes went; what
it cannot know is put in here, in the request's own task: how long the chat template and the
tokenizer took, and by which ids the engine knows the request.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

from tokenlag_tracer import asgi
from tokenlag_tracer.engines.patching import describe, warn_once

_rendering_since: ContextVar[int] = ContextVar("tokenlag_rendering_since", default=0)


def _quietly(tell: Callable[[], None]) -> None:
    try:
        tell()
    except Exception as error:
        warn_once(f"vLLM's front end is traced in part: {describe(error)}")


def stamp_arrival(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the engine's input thread: a request waits from here on, though a step may run.

    vLLM's scheduler hears of it when that step is over, up to a long prompt's chunk later.
    """

    @functools.wraps(original)
    def preprocess_add_request(self: Any, *args: Any, **kwargs: Any) -> Any:
        at_ns = time.monotonic_ns()
        result = original(self, *args, **kwargs)

        def tell() -> None:
            result[0]._tokenlag_arrived_ns = at_ns

        _quietly(tell)
        return result

    return preprocess_add_request


def join_request(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the hand-over to the engine, which so learns whose child the request is."""

    @functools.wraps(original)
    def add_request(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        def tell() -> None:
            front = asgi.current_request()
            if front is None:
                return
            if not request.trace_headers:
                request.trace_headers = {"traceparent": front.traceparent}
            request_id = getattr(request, "external_req_id", None) or request.request_id
            if front.request_id != request_id:
                front.update(request_id=request_id)

        _quietly(tell)
        return original(self, request, *args, **kwargs)

    return add_request


def time_rendering(original: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Wraps the rendering of a prompt: its chat template runs before the tokenizer does."""

    @functools.wraps(original)
    async def render(self: Any, *args: Any, **kwargs: Any) -> Any:
        token = _rendering_since.set(time.monotonic_ns())
        try:
            return await original(self, *args, **kwargs)
        finally:
            _rendering_since.reset(token)

    return render


def time_tokenizing(original: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Wraps the tokenizer, waiting for its thread included."""

    @functools.wraps(original)
    async def tokenize_prompts_async(self: Any, *args: Any, **kwargs: Any) -> Any:
        start_ns = time.monotonic_ns()
        result = await original(self, *args, **kwargs)

        def tell() -> None:
            front = asgi.current_request()
            if front is None:
                return
            since_ns = _rendering_since.get()
            if since_ns:
                front.stage("template", since_ns, start_ns)
            front.stage("tokenize", start_ns)

        _quietly(tell)
        return result

    return tokenize_prompts_async


def trace_app(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the making of the web application: the middleware goes around all others.

    Where `--middleware tokenlag_tracer.asgi.TraceMiddleware` put it in already, that one stays.
    """

    @functools.wraps(original)
    def build_app(*args: Any, **kwargs: Any) -> Any:
        app = original(*args, **kwargs)

        def tell() -> None:
            present = [getattr(entry, "cls", None) for entry in app.user_middleware]
            if asgi.TraceMiddleware not in present:
                # vLLM sees the caller's headers as they came: its ids and its own spans stay
                # what they are without the tracer.
                asgi.instrument(app, propagate=False)

        _quietly(tell)
        return app

    return build_app
