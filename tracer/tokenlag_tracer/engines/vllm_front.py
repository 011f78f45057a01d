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

# When the rendering that this task does began, if it is by a chat template; else 0.
_templating_ns: ContextVar[int] = ContextVar("tokenlag_templating", default=0)


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
            rendered_ns, flight.rendered_ns = flight.rendered_ns, 0
            if rendered_ns:
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


def time_templating(original: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Wraps the rendering of a chat: what came before it was reading the request."""

    @functools.wraps(original)
    async def render_chat_async(self: Any, *args: Any, **kwargs: Any) -> Any:
        def tell() -> None:
            now_ns = time.monotonic_ns()
            _templating_ns.set(now_ns)
            flight = asgi.current_request()
            if flight is not None and flight.arrived_ns:
                flight.stage("parse", flight.arrived_ns, now_ns)

        _quietly(tell)
        return await original(self, *args, **kwargs)

    return render_chat_async


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
            templating_ns = _templating_ns.get()
            if templating_ns:
                flight.stage("template", templating_ns, start_ns)
            elif flight.arrived_ns:
                flight.stage("parse", flight.arrived_ns, start_ns)
            # Kept with the request, not with the task: this may be a task of its own.
            flight.rendered_ns = time.monotonic_ns()
            flight.stage("tokenize", start_ns, flight.rendered_ns)

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
