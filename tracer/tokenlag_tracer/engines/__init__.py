"""Adapters: one module for each engine, and the two calls that find the right one.

A module that is an adapter has `handles(target)`, `instrument(target, **options)`, which returns
what to use instead of the target (often itself), and `uninstrument(target)`. One that can wait
for its engine to be imported also has `autoload()`. None imports its engine before it must.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from tokenlag_tracer.config import is_disabled

# In the order in which they are asked.
ADAPTERS: Final[tuple[str, ...]] = (
    "tokenlag_tracer.client_instrument",
    "tokenlag_tracer.asgi",
    "tokenlag_tracer.engines.vllm",
    "tokenlag_tracer.engines.transformers",
    "tokenlag_tracer.engines.sglang",
    "tokenlag_tracer.engines.torch_runner",
)
# Of these `autoload()` is called where only the environment says that a server is to be traced.
AUTOLOADED: Final[tuple[str, ...]] = (
    "tokenlag_tracer.engines.vllm",
    "tokenlag_tracer.engines.transformers",
    "tokenlag_tracer.engines.sglang",
)

_instrumented: list[tuple[str, Any, Any]] = []


def instrument(target: Any, **options: Any) -> Any:
    """Traces an engine, a web application, a model runner, or a client.

    Args:
        target: an ASGI application, an httpx or openai client, or a model runner.
        options: what its adapter's `instrument` takes.

    Returns:
        What to use from now on: the target itself where that can be changed, else a wrapper.

    Raises:
        TypeError: no adapter knows what it is.
    """
    if is_disabled():
        return target
    for name in ADAPTERS:
        adapter = import_module(name)
        if adapter.handles(target):
            traced = adapter.instrument(target, **options)
            _instrumented.append((name, target, traced))
            return traced
    raise TypeError(f"no adapter traces {type(target).__module__}.{type(target).__qualname__}")


def uninstrument(target: Any = None) -> None:
    """Restores what `instrument` changed: one target (or its wrapper), or all."""
    for entry in list(reversed(_instrumented)):
        name, original, traced = entry
        if target is None or target is original or target is traced:
            _instrumented.remove(entry)
            import_module(name).uninstrument(traced)


def autoload() -> None:
    """Has the adapters of `AUTOLOADED` wait for their engines to be imported."""
    for name in AUTOLOADED:
        import_module(name).autoload()
