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

# Of the request that this task serves: when its rendering began and whether by a chat template,
# and when its tokens were there.
_rendering: ContextVar[tuple[int, bool]] = ContextVar("tokenlag_rendering", default=(0, False))
_rendered_ns: ContextVar[int] = ContextVar("tokenlag_rendered", default=0)


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
            flight = asgi.current_request()
            if flight is None:
                return
            if not request.trace_headers:
                request.trace_headers = {"traceparent": flight.traceparent}
            request_id = getattr(request, "external_req_id", None) or request.request_id
            if flight.request_id != request_id:
                flight.update(request_id=request_id)
            rendered_ns = _rendered_ns.get()
            if rendered_ns:
                _rendered_ns.set(0)
                flight.stage("preprocess", rendered_ns)
            parent = args[1] if len(args) > 1 else kwargs.get("parent_req")
            params = request.sampling_params
            flight.update(
                max_tokens=getattr(params, "max_tokens", None),
                choice_count=getattr(getattr(parent, "sampling_params", None), "n", None),
            )

        _quietly(tell)
        return original(self, request, *args, **kwargs)

    return add_request


def time_rendering(original: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Wraps the rendering of a prompt: what came before it was reading the request."""
    is_chat = "chat" in original.__name__

    @functools.wraps(original)
    async def render(self: Any, *args: Any, **kwargs: Any) -> Any:
        def tell() -> None:
            now_ns = time.monotonic_ns()
            _rendering.set((now_ns, is_chat))
            flight = asgi.current_request()
            if flight is not None and flight.arrived_ns:
                flight.stage("parse", flight.arrived_ns, now_ns)

        _quietly(tell)
        return await original(self, *args, **kwargs)

    return render


def time_tokenizing(original: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Wraps the tokenizer, waiting for its thread included; a chat's template ran before it."""

    @functools.wraps(original)
    async def tokenize_prompts_async(self: Any, *args: Any, **kwargs: Any) -> Any:
        start_ns = time.monotonic_ns()
        result = await original(self, *args, **kwargs)

        def tell() -> None:
            flight = asgi.current_request()
            if flight is None:
                return
            end_ns = time.monotonic_ns()
            since_ns, is_chat = _rendering.get()
            if since_ns and is_chat:
                flight.stage("template", since_ns, start_ns)
            flight.stage("tokenize", start_ns, end_ns)
            _rendered_ns.set(end_ns)

        _quietly(tell)
        return result

    return tokenize_prompts_async


def start_writer(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the start of engine processes: they find the writer of the one that starts them.

    Else each would start its own, and no writer would see both sides of a request.
    """

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> Any:
        def tell() -> None:
            from tokenlag_tracer.link import shared_link

            shared_link().start_writer()

        _quietly(tell)
        return original(self, *args, **kwargs)

    return init


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
