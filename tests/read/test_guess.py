"""What a wrong file is called, and that the hint fits."""

from __future__ import annotations

import pytest
from tokenlag.read.sources import (
    JAEGER_JSON,
    OTLP_JSON,
    OTLP_PROTO,
    PARQUET,
    ZIPKIN_JSON,
    find_source,
)
from tokenlag.read.sources.guess import guess
from tokenlag.read.sources.proto_frames import VARINT, framing_of

from tests.read.otlp import line, span

EXPORT = b"\n\x8a\x02\n\x1e\n\x1c\n\x0cservice.name\x12\x0c\n\nmy-service\x00"
PROMETHEUS = b"""# HELP vllm:num_requests_running Number of requests
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="tiny"} 3.0
"""


def name_of(head: bytes) -> str | None:
    source = find_source(head)
    return source.name if source else None


@pytest.mark.parametrize(
    ("head", "what"),
    [
        (b"", "empty"),
        (b" \n\t\r\n", "empty"),
        (PROMETHEUS, "Prometheus"),
        (b'up{job="a"} 1\nup{job="b"} 0\n', "Prometheus"),
        (b"INFO 11-29 22:00:00 [core.py:58] Initializing\n", "a log"),
        (b"2026-11-29T22:00:00Z something happened\n", "a log"),
        (b"[2026-11-29 22:00:00] started\n", "a log"),
        (b"(EngineCore pid=1) INFO 11-29 22:00:00 x\n", "text"),
        (b"a,b,c\n1,2,3\n", "CSV"),
        (b"<!DOCTYPE html><html>", "a web page"),
        (b"<html><body>", "a web page"),
        (b'<?xml version="1.0"?>', "XML"),
        (b"PK\x03\x04....", "a zip"),
        (b"x" * 257 + b"ustar\x00", "a tar"),
        (b"SQLite format 3\x00", "an SQLite"),
        (b"BZh91AY", "bzip2"),
        (b"\xfd7zXZ\x00\x00", "xz"),
        (b"\x93NUMPY\x01\x00", "binary"),
        (
            b'{"traces":[{"traceID":"1","rootServiceName":"a","rootTraceName":"b"}]}',
            "what a search in Tempo found",
        ),
        (b'{"trace":{"id":"1"},"observations":[]}', "Langfuse"),
        (b'[{"name":"a","spanContext":{"traceId":"1"}}]', "an OpenTelemetry SDK"),
        (b'{"name":"a","context":{"trace_id":"0x1"},"start_time":"x"}', "console exporter"),
        (b'{"traceEvents":[{"ph":"X","ts":1,"pid":1}]}', "a Chrome"),
        (b'{"gen_ai.operation.name":"chat"}', "bare span attributes"),
        (b'{"a": 1}\n{"a": 2}\n', "JSON that is not OTLP"),
        (b"resourceSpans:\n  - resource:\n", "OTLP in YAML"),
        (b"hello world", "text"),
    ],
)
def test_guess(head: bytes, what: str) -> None:
    found = guess(head)
    assert what in found.what
    assert (found.hint is None) == (what == "empty")
    assert find_source(head) is None


def test_a_cut_character_at_the_end_of_the_head_is_still_text() -> None:
    assert guess("ä".encode() * 100 + b"\xc3").what.startswith("text")


@pytest.mark.parametrize("signal", ["resourceSpans", "resource_spans", "resourceLogs", "batches"])
def test_otlp_of_any_signal_has_a_source(signal: str) -> None:
    assert name_of(b'{"' + signal.encode() + b'": []}') == OTLP_JSON
    assert name_of(b'log line\n  {"' + signal.encode() + b'": []}') == OTLP_JSON


def test_prose_about_otlp_has_none() -> None:
    assert find_source(b"# How to\nLook for resourceSpans in the file.\n") is None
    assert name_of(line(span()).encode()) == OTLP_JSON


@pytest.mark.parametrize(
    ("head", "name"),
    [
        (b"PAR1\x15\x00", PARQUET),
        (EXPORT, OTLP_PROTO),
        (b"\0\0\1\x0d" + EXPORT, OTLP_PROTO),
        (b"\x8d\x02" + EXPORT, OTLP_PROTO),
        (b'{"data":[{"traceID":"1","spans":[{"traceID":"1","spanID":"2"}]}]}', JAEGER_JSON),
        (b'{"traceIdLow": 1, "spanId": 2}', JAEGER_JSON),
        (b'{"TraceID": "AA==", "SpanID": 2}', JAEGER_JSON),
        (b'[{"traceId":"1","id":"2","timestamp":1,"localEndpoint":{}}]', ZIPKIN_JSON),
        (b'[[{"traceId":"1","id":"2","timestamp":1,"duration":1}]]', ZIPKIN_JSON),
        (b'[{"traceId":"1","id":"2","name":"resourceLogs","localEndpoint":{}}]', ZIPKIN_JSON),
    ],
)
def test_formats_are_told_by_what_is_in_them(head: bytes, name: str) -> None:
    assert name_of(head) == name


def test_a_short_length_is_not_taken_for_a_long_one() -> None:
    inner = b"\n\x1e\n\x1c\n\x0cservice.name\x12\x0c\n\nmy-service\x12\x5c" + b"x" * 92
    head = b"\x80\x01\n\x7e" + inner  # a varint; as four bytes 2 GB
    assert framing_of(head) == VARINT


@pytest.mark.parametrize(
    "head",
    [b"\n\n\nHello\n", b"\n\x02hi", b"\0" * 64, b"\x93NUMPY\x01\x00", b"[2026-01-01 traceID"],
)
def test_what_only_begins_alike_is_none(head: bytes) -> None:
    assert find_source(head) is None


@pytest.mark.parametrize(
    ("head", "what", "hint"),
    [
        (b"# HELP vllm:num_requests_running x\nvllm:num_requests_running 3\n",
         "vLLM's Prometheus metrics", "--otlp-traces-endpoint"),
        (b'vllm:time_to_first_token_seconds_bucket{le="0.1"} 3\n', "vLLM's Prometheus metrics",
         "they tell of no single request"),
        (b"# TYPE sglang:num_running_reqs gauge\nsglang:num_running_reqs 3\n",
         "SGLang's Prometheus metrics", "--enable-trace"),
        (b"# TYPE tgi_queue_size gauge\ntgi_queue_size 0\n",
         "text-generation-inference's Prometheus", "--otlp-endpoint"),
        (b"# TYPE up gauge\nup 1\n", "Prometheus metrics, not traces", ""),
        (b"INFO 07-26 14:00:00 [loggers.py:123] Engine 000: Avg prompt throughput: 1.0 tokens/s\n",
         "vLLM's log, not traces", "tokenlag-tracer run"),
        (b"INFO 07-26 14:00:00 started\n", "a log, not traces", ""),
    ],
)  # fmt: skip
def test_an_engines_metrics_and_logs_say_what_to_turn_on(head: bytes, what: str, hint: str) -> None:
    found = guess(head)
    assert what in found.what
    assert hint in (found.hint or "")
