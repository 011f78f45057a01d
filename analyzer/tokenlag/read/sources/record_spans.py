"""What records of engines have in common as spans: ids out of what they are, times, chunks."""

from __future__ import annotations

import hashlib
from typing import Any, Final

from tokenlag_tracer import conventions as names

from tokenlag.read.sources.otlp_types import AnyValue, KeyValue, Resource, Span, Status
from tokenlag.read.sources.plain_values import plain_value

NS_PER_MS: Final = 1_000_000
MAX_UNIX_MS: Final = 2.0**42  # the year 2109
MAX_REQUESTS: Final = 65_536  # in one step; more is damage
UNKNOWN: Final = -1  # a handle that nobody told; read as not measured

Made = tuple[str, Resource, Span]


def even_chunks(n: int, n_tokens: int, n_context: int) -> dict[str, Any]:
    """Returns prompt chunks of which only sums are told: so many, even, of nobody known."""
    return {
        names.STEP_PREFILL_REQUESTS: [UNKNOWN] * n,
        names.STEP_PREFILL_TOKENS: even(n_tokens, n),
        names.STEP_PREFILL_CONTEXT: even(n_context, n),
    }


def even(total: int, n: int) -> list[int]:
    """Returns whole shares of a sum."""
    return [total // n + (i < total % n) for i in range(n)]


def unix_ns(unix_ms: float | None) -> int | None:
    """Returns unix milliseconds as nanoseconds; a float of them holds less than a microsecond."""
    if unix_ms is None or not 0 < unix_ms < MAX_UNIX_MS:
        return None
    return round(unix_ms * 1e3) * 1000


def took_ns(ms: float | None) -> int | None:
    """Returns milliseconds that something took, as nanoseconds."""
    return round(ms * NS_PER_MS) if ms is not None and 0 <= ms < MAX_UNIX_MS else None


def made_span(
    name: str, key: str, start_ns: int, end_ns: int | None, attributes: dict[str, Any]
) -> Span:
    """Returns a span of no trace, with ids that are its key's."""
    digest = hashlib.blake2b(key.encode(), digest_size=24).hexdigest()
    return Span(
        trace_id=digest[:32],
        span_id=digest[32:],
        name=name,
        kind=names.KIND_INTERNAL,
        start_time_unix_nano=start_ns,
        end_time_unix_nano=end_ns,
        attributes=[
            KeyValue(key, plain_value(value))
            for key, value in attributes.items()
            if value is not None
        ],
        status=Status(0),
    )


def made_resource(keys: dict[str, Any]) -> Resource:
    """Returns a resource of texts and whole numbers."""
    return Resource(
        [
            KeyValue(key, AnyValue(string_value=v) if isinstance(v, str) else AnyValue(int_value=v))
            for key, v in keys.items()
        ]
    )
