"""Says what a file is that holds no traces that can be read, and what to do about it."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from tokenlag.read.sources.detect import LOG_LINE, has_keys


class Guess(NamedTuple):
    """What a file seems to be, as the end of "this is …", and a hint."""

    what: str
    hint: str | None


OTLP_HINT: Final = "give OTLP (JSON or protobuf), Jaeger or Zipkin JSON, or Parquet of spans"
TEMPO_HINT: Final = "fetch each trace that it names from /api/v2/traces/ID"

_MAGIC: Final[tuple[tuple[bytes, str, str], ...]] = (
    (b"SQLite format 3\0", "an SQLite database", OTLP_HINT),
    (b"PK\x03\x04", "a zip archive", "unpack it first"),
    (b"BZh", "compressed with bzip2", "decompress it, or use gzip or zstd"),
    (b"\xfd7zXZ\0", "compressed with xz", "decompress it, or use gzip or zstd"),
    (b"\x04\x22\x4d\x18", "compressed with lz4", "decompress it, or use gzip or zstd"),
    (b"ARROW1", "Arrow", OTLP_HINT),
    (b"%PDF", "a PDF", OTLP_HINT),
)
_PROMETHEUS: Final = re.compile(
    rb"^(?:# (?:HELP|TYPE) \S+ |[a-zA-Z_:][\w:]*(?:\{[^}]*\})? -?[\d.eE+]+$)", re.MULTILINE
)

_VLLM_HINT: Final = "start vLLM with --otlp-traces-endpoint URL, or under `tokenlag-tracer run`"
_VLLM_LOG: Final = re.compile(rb"Engine \d+: Avg prompt throughput|\[(?:loggers|metrics)\.py:\d+\]")
_ENGINE_METRICS: Final = (
    (rb"vllm:", "vLLM", _VLLM_HINT),
    (rb"sglang:", "SGLang", "start SGLang with --enable-trace"),
    (rb"tgi_", "text-generation-inference", "start it with --otlp-endpoint URL"),
    (rb"trtllm_", "TensorRT-LLM", "set otlp_traces_endpoint and return_perf_metrics"),
    (rb"llamacpp:", "llama.cpp", "keep its answers, whose `timings` are read"),
    (rb"dynamo_", "Dynamo", "set DYN_REQUEST_TRACE=1 or OTEL_EXPORT_ENABLED=true"),
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
    if stripped[:1] in b"{[" and not LOG_LINE.search(stripped):
        return _guess_json(stripped)
    return _guess_text(head, stripped)


def _guess_json(head: bytes) -> Guess:
    if has_keys(head, "trace", "observations"):
        return Guess("a Langfuse export, not OTLP", OTLP_HINT)
    if has_keys(head, "traces", "rootTraceName") or has_keys(head, "traceID", "rootServiceName"):
        return Guess("what a search in Tempo found, not the traces", TEMPO_HINT)
    if has_keys(head, "spanContext") or has_keys(
        head, "traceId", "startTime", "instrumentationScope"
    ):
        return Guess("spans as an OpenTelemetry SDK prints them, not OTLP", OTLP_HINT)
    if has_keys(head, "context", "trace_id", "start_time"):
        return Guess("spans as an SDK's console exporter prints them, not OTLP", OTLP_HINT)
    if has_keys(head, "traceEvents") or has_keys(head, "ph", "ts", "pid"):
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
        return Guess("binary", OTLP_HINT)
    if re.search(rb"^\s*(?:- )?resource(?:Spans|Logs|Metrics):", head, re.MULTILINE):
        return Guess("OTLP in YAML", "convert the YAML to JSON")
    if _PROMETHEUS.search(head):
        what = "Prometheus metrics, not traces"
        for prefix, engine, hint in _ENGINE_METRICS:
            if re.search(rb"^(?:# (?:HELP|TYPE) )?" + prefix, head, re.MULTILINE):
                return Guess(f"{engine}'s {what}", f"they tell of no single request; {hint}")
        return Guess(what, OTLP_HINT)
    lines = stripped.splitlines()
    if LOG_LINE.search(lines[0]) or sum(bool(LOG_LINE.search(x)) for x in lines[:20]) > 3:
        if _VLLM_LOG.search(head):
            return Guess("vLLM's log, not traces", f"its averages hide who waited; {_VLLM_HINT}")
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
