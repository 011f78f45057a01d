"""What `instrument` does with an httpx or openai client."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from tokenlag_tracer.config import is_disabled
from tokenlag_tracer.front_recorder import FrontRecorder, front

_shared: FrontRecorder | None = None


def shared_front() -> FrontRecorder:
    """Returns this process's recorder for its clients."""
    global _shared
    if _shared is None or (not _shared.is_enabled and not is_disabled()):
        _shared = front()
    return _shared


def handles(target: Any) -> bool:
    """Returns whether it is an httpx client, or one of openai's kind, which holds one."""
    return _httpx_client(target) is not None


def _httpx_client(target: Any) -> Any:
    httpx: Any = sys.modules.get("httpx")
    if httpx is None:
        return None
    kinds = (httpx.Client, httpx.AsyncClient)
    for candidate in (target, getattr(target, "_client", None)):
        if isinstance(candidate, kinds):
            return candidate
    return None


def instrument(
    target: Any,
    *,
    paths: Mapping[str, str] | None = None,
    keeps_chunks: bool = True,
    recorder: FrontRecorder | None = None,
) -> Any:
    """Traces a client's calls to models; returns the client.

    Args:
        target: an `httpx.Client` or `AsyncClient`, or an openai client.
        paths: ends of paths that are such calls besides the usual ones, with their operation.
        keeps_chunks: keep the chunks' times one by one.
        recorder: by default this process's.
    """
    from tokenlag_tracer import client_httpx  # brings httpx

    recorder = recorder if recorder is not None else shared_front()
    tracing = client_httpx.Tracing(recorder, paths, keeps_chunks)
    client_httpx.wrap(_httpx_client(target), tracing)
    return target


def uninstrument(traced: Any) -> None:
    """Gives a client its own transports back."""
    from tokenlag_tracer import client_httpx  # brings httpx

    client_httpx.unwrap(_httpx_client(traced))
