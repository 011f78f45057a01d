"""Who is who: ids of hosts, engines and traces."""

from __future__ import annotations

import hashlib
import os
import random
import re
import socket
from typing import NamedTuple

from tokenlag_tracer import conventions as names

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")

# Its own generator, seeded by the system in each process: a server that seeds the shared one
# for its sampling must not make ids repeat, and is not to be disturbed.
_random = random.Random(os.urandom(16))


def _reseed() -> None:
    _random.seed(os.urandom(16))


os.register_at_fork(after_in_child=_reseed)


class Context(NamedTuple):
    """A W3C trace context: ids of the trace and of the span in it, and whether it is sampled."""

    trace_id: int
    span_id: int
    is_sampled: bool = True

    @property
    def traceparent(self) -> str:
        """The context as the header's value."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.is_sampled):02x}"


def parse_traceparent(text: str | None) -> Context | None:
    """Returns the context that a `traceparent` header gives, None if it gives none."""
    match = _TRACEPARENT.fullmatch(text.strip().lower()) if text else None
    if match is None or match[0].startswith("ff"):
        return None
    trace_id, span_id = int(match[1], 16), int(match[2], 16)
    if not trace_id or not span_id:
        return None
    return Context(trace_id, span_id, bool(int(match[3], 16) & 1))


def new_trace_id() -> int:
    """Returns a random trace id, not zero."""
    return _random.getrandbits(128) or 1


def new_span_id() -> int:
    """Returns a random span id, not zero."""
    return _random.getrandbits(64) or 1


def engine_trace_id(engine_id: str, epoch_ns: int, start_ns: int) -> int:
    """Returns the trace id of an engine's steps in the ten seconds that hold a unix time."""
    window = start_ns // names.ENGINE_TRACE_NS
    digest = hashlib.blake2b(f"{engine_id}/{epoch_ns}/{window}".encode(), digest_size=16)
    return int.from_bytes(digest.digest(), "big") or 1


def host_name() -> str:
    """Returns this host's name."""
    return socket.gethostname()


def default_engine_id(rank: int) -> str:
    """Returns what an engine is called that was not given a name: `host:pid:rank`."""
    return f"{host_name()}:{os.getpid()}:{rank}"
