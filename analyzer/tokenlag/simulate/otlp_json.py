"""Spans as OTLP JSON lines, shaped as the OpenTelemetry Collector's file exporter writes."""

from __future__ import annotations

import functools
import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol, cast

from tokenlag_tracer import conventions as names

from tokenlag.errors import InputError

SPANS_PER_LINE = 512

AttributeValue = str | int | float | bool | Sequence[int] | Sequence[str]
Attributes = Mapping[str, AttributeValue | None]


class _Writer(Protocol):
    def write(self, data: bytes, /) -> Any: ...


@dataclass(frozen=True, slots=True)
class Scope:
    """An instrumentation scope."""

    name: str = names.SCOPE_NAME
    version: str | None = names.CONTRACT_VERSION


@dataclass(slots=True)
class Span:
    """One span: a request or phase of one. Steps are written by text, see `span_text`."""

    trace_id: str
    span_id: str
    parent_id: str | None
    name: str
    kind: int
    start_ns: int
    end_ns: int
    attributes: dict[str, AttributeValue | None]
    is_error: bool = False


# The same few words stand in every step.
_quoted = functools.lru_cache(maxsize=1024)(json.dumps)


def attribute_text(key: str, value: AttributeValue) -> str:
    """Return one attribute as OTLP JSON."""
    if type(value) is int:  # nearly all of a step's: first, and in one piece
        return f'{{"key":"{key}","value":{{"intValue":"{value}"}}}}'
    if isinstance(value, bool):
        typed = f'{{"boolValue":{"true" if value else "false"}}}'
    elif isinstance(value, int):
        typed = f'{{"intValue":"{value}"}}'
    elif isinstance(value, float):
        typed = f'{{"doubleValue":{value!r}}}'
    elif isinstance(value, str):
        typed = f'{{"stringValue":{_quoted(value)}}}'
    elif value and isinstance(value[0], str):
        values = ",".join(f'{{"stringValue":{json.dumps(item)}}}' for item in value)
        typed = f'{{"arrayValue":{{"values":[{values}]}}}}'
    else:
        values = '"},{"intValue":"'.join(map(str, value))
        values = f'{{"intValue":"{values}"}}' if values else ""
        typed = f'{{"arrayValue":{{"values":[{values}]}}}}'
    return f'{{"key":"{key}","value":{typed}}}'


def attributes_text(attributes: Attributes) -> str:
    """Return attributes as OTLP JSON, without those that are None (not measured)."""
    return ",".join(attribute_text(k, v) for k, v in attributes.items() if v is not None)


def span_text(span: Span, *, extra: str = "") -> str:
    """Return one span as OTLP JSON.

    Args:
        span: the span.
        extra: further members, as JSON text that begins with a comma.
    """
    parent = f'"parentSpanId":"{span.parent_id}",' if span.parent_id else ""
    status = f'{{"code":{names.STATUS_ERROR}}}' if span.is_error else "{}"
    return (
        f'{{"traceId":"{span.trace_id}","spanId":"{span.span_id}",{parent}'
        f'"name":{json.dumps(span.name)},"kind":{span.kind},'
        f'"startTimeUnixNano":"{span.start_ns}","endTimeUnixNano":"{span.end_ns}",'
        f'"attributes":[{attributes_text(span.attributes)}],"status":{status}{extra}}}'
    )


@contextmanager
def open_for_writing(path: Path) -> Iterator[_Writer]:
    """Open a file that is compressed as its name says: `.gz`, `.zst`, or not at all.

    The bytes depend on what is written alone: no time or name goes into the file's header.

    Raises:
        InputError: the folder cannot be written to.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as raw:
            if path.suffix == ".gz":
                with gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0) as packed:
                    yield packed
            elif path.suffix == ".zst":
                import zstandard

                with zstandard.ZstdCompressor(level=3).stream_writer(
                    cast("IO[bytes]", raw), closefd=False
                ) as stream:
                    yield stream
            else:
                yield raw
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", place=str(path)) from None


def write_lines(
    path: Path,
    spans: Iterable[tuple[int, int, str]],
    resources: Sequence[Attributes],
    scopes: Sequence[Scope],
) -> int:
    """Write spans as they ended, at most 512 a line.

    Args:
        path: `.jsonl`, `.jsonl.gz` or `.jsonl.zst`.
        spans: end (unix ns), number of the resource, span as text; in any order.
        resources: their attributes.
        scopes: for each of them, whose spans they are.

    Returns:
        The number of spans.
    """
    ordered = sorted(spans, key=lambda item: item[0])
    heads = [
        f'{{"resource":{{"attributes":[{attributes_text(resource)}]}},'
        f'"scopeSpans":[{{{_scope_text(scope)},"spans":['
        for resource, scope in zip(resources, scopes, strict=True)
    ]
    with open_for_writing(path) as out:
        for at in range(0, len(ordered), SPANS_PER_LINE):
            batch = ordered[at : at + SPANS_PER_LINE]
            parts = []
            for number, head in enumerate(heads):
                texts = [text for _, of, text in batch if of == number]
                if texts:
                    parts.append(f"{head}{','.join(texts)}]}}]}}")
            out.write(f'{{"resourceSpans":[{",".join(parts)}]}}\n'.encode())
    return len(ordered)


def _scope_text(scope: Scope) -> str:
    version = f',"version":{json.dumps(scope.version)}' if scope.version else ""
    return f'"scope":{{"name":{json.dumps(scope.name)}{version}}}'
