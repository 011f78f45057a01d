"""Says what a file is that holds no traces that can be read, and what to do about it."""

from __future__ import annotations

import re
from typing import Final, NamedTuple


class Guess(NamedTuple):
    """What a file seems to be, as the end of "this is …", and a hint."""

    what: str
    hint: str | None


OTLP_HINT: Final = "give OTLP JSON, as the OpenTelemetry Collector's file exporter writes it"
CONVERT_HINT: Final = f"this format is not read yet; {OTLP_HINT}"

_MAGIC: Final[tuple[tuple[bytes, str, str], ...]] = (
    (b"PAR1", "Parquet", CONVERT_HINT),
    (b"SQLite format 3\0", "an SQLite database", OTLP_HINT),
    (b"PK\x03\x04", "a zip archive", "unpack it first"),
    (b"BZh", "compressed with bzip2", "decompress it, or use gzip or zstd"),
    (b"\xfd7zXZ\0", "compressed with xz", "decompress it, or use gzip or zstd"),
    (b"\x04\x22\x4d\x18", "compressed with lz4", "decompress it, or use gzip or zstd"),
    (b"ARROW1", "Arrow", CONVERT_HINT),
    (b"%PDF", "a PDF", OTLP_HINT),
)
_LOG_LINE: Final = re.compile(
    rb"\A\s*[\[(]?(?:\w+[ :])?\s*(?:\d{4}-\d\d-\d\d[T ]|\d\d-\d\d \d\d:|\d\d:\d\d:\d\d|"
    rb"(?:INFO|WARN|WARNING|ERROR|DEBUG)\b)"
)
_PROMETHEUS: Final = re.compile(
    rb"^(?:# (?:HELP|TYPE) \S+ |[a-zA-Z_:][\w:]*(?:\{[^}]*\})? -?[\d.eE+]+$)", re.MULTILINE
)


def guess(head: bytes) -> Guess:
    """Returns what a file seems to be whose first bytes, decompressed, are `head`."""
    stripped = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if not stripped:
        return Guess("empty", None)
    for magic, what, hint in _MAGIC:
        if head.startswith(magic):
            return Guess(what, hint)
    if head[257:262] == b"ustar":
        return Guess("a tar archive", "unpack it first")
    if stripped[:1] in b"{[" and not _LOG_LINE.search(stripped):
        return _guess_json(stripped)
    return _guess_text(head, stripped)


def _guess_json(head: bytes) -> Guess:
    def has(*keys: str) -> bool:
        return all(re.search(rb'"' + key.encode() + rb'"\s*:', head) for key in keys)

    if has("trace", "observations"):
        return Guess("a Langfuse export, not OTLP", OTLP_HINT)
    if has("traceID", "spanID") or has("TraceID", "SpanID") or has("traceIdLow"):
        return Guess("Jaeger JSON", f"fetch it as OTLP from /api/v3/traces/ID; {CONVERT_HINT}")
    if has("spanContext") or has("traceId", "startTime", "instrumentationScope"):
        return Guess("spans as an OpenTelemetry SDK prints them, not OTLP", OTLP_HINT)
    if has("context", "trace_id", "start_time"):
        return Guess("spans as an SDK's console exporter prints them, not OTLP", OTLP_HINT)
    if has("traceId", "id") and (has("localEndpoint") or has("annotations") or has("timestamp")):
        return Guess("Zipkin JSON", CONVERT_HINT)
    if has("traceEvents") or has("ph", "ts", "pid"):
        return Guess("a Chrome or Perfetto trace, not OTLP", OTLP_HINT)
    if re.search(rb'"(?:gen_ai|llm|openinference)\.[\w.]+"\s*:', head):
        return Guess("bare span attributes without a span", OTLP_HINT)
    return Guess("JSON that is not OTLP", OTLP_HINT)


def _guess_text(head: bytes, stripped: bytes) -> Guess:
    lowered = stripped[:256].lower()
    if lowered.startswith((b"<!doctype html", b"<html")):
        return Guess("a web page, not traces", "was it saved from a login page or a UI?")
    if lowered.startswith((b"<?xml", b"<")):
        return Guess("XML, not traces", OTLP_HINT)
    if _is_binary(head):
        if head[:1] == b"\n":
            return Guess("binary, perhaps OTLP protobuf", CONVERT_HINT)
        return Guess("binary", OTLP_HINT)
    if re.search(rb"^\s*(?:- )?resource(?:Spans|Logs|Metrics):", head, re.MULTILINE):
        return Guess("OTLP in YAML", "convert the YAML to JSON")
    if _PROMETHEUS.search(head):
        return Guess("Prometheus metrics, not traces", OTLP_HINT)
    lines = stripped.splitlines()
    if _LOG_LINE.search(lines[0]) or sum(bool(_LOG_LINE.search(x)) for x in lines[:20]) > 3:
        return Guess("a log, not traces", OTLP_HINT)
    n_commas = lines[0].count(b",")
    if n_commas and len(lines) > 1 and lines[1].count(b",") == n_commas:
        return Guess("CSV, not traces", OTLP_HINT)
    return Guess("text, not traces", OTLP_HINT)


def _is_binary(head: bytes) -> bool:
    if b"\0" in head:
        return True
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start < len(head) - 4
    return False
