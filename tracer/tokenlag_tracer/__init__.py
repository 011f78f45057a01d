"""The tracer's side of tokenlag: what serving engines emit.

This package goes into serving images, so it depends on OpenTelemetry and the standard
library only, and importing it costs nothing: what it offers is imported when it is first
used. The analyzer imports `conventions` from it and nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["__version__", "engine", "front", "instrument", "uninstrument"]

__version__ = "0.1.0"

_LAZY = {
    "engine": "tokenlag_tracer.recorder",
    "front": "tokenlag_tracer.front_recorder",
    "instrument": "tokenlag_tracer.engines",
    "uninstrument": "tokenlag_tracer.engines",
}


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(module), name)
