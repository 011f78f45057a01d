"""Other people's files: each is read with a known count or refused in one clear line."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenlag.errors import InputError
from tokenlag.read.vocabulary import CONTRACT, Vocabulary

from tests.read.otlp import read, rows_of, shared

UNTIMED = frozenset({"untimed_spans"})

# file → spans, kinds of notes
READ = {
    "otlp_json/duckdb-otlp__multifile_valid_traces.jsonl": (1, frozenset()),
    "otlp_json/duckdb-otlp__single_trace.jsonl": (1, UNTIMED),
    "otlp_json/duckdb-otlp__traces_deep_nesting.jsonl": (1, UNTIMED),
    "otlp_json/duckdb-otlp__traces_large_attrs.jsonl": (1, UNTIMED),
    "otlp_json/duckdb-otlp__traces_nulls.jsonl": (3, UNTIMED),
    "otlp_json/duckdb-otlp__traces_simple.jsonl": (3, frozenset()),
    "otlp_json/jaeger-apiv3__FindTraces.json": (1, UNTIMED),
    "otlp_json/jaeger-apiv3__GetTrace.json": (1, UNTIMED),
    "otlp_json/jaeger-it__example_trace.json": (5, frozenset()),
    "otlp_json/jaeger-it__scope_attributes_trace.json": (1, frozenset()),
    "otlp_json/jaeger-it__span_tags_trace.json": (1, frozenset()),
    "otlp_json/jaeger__otlp2jaeger-in.json": (2, frozenset()),
    "otlp_json/otel-proto__trace.json": (1, frozenset()),
    "otlp_json/otel-tui__otel-demo-mixed-signals.jsonl": (547, frozenset({"other_signal"})),
    "otlp_json/otlp2parquet__trace.json": (2, frozenset()),
    "otlp_json/ottl-cli__traces.json": (1, frozenset()),
    "nasty/jaeger-ui__otlp2jaeger-in-error.json": (1, frozenset()),
    "tempo/tempo__tempopb-trace.json": (1, frozenset()),
    "tempo/holmesgpt__trace_data.input.json": (10, frozenset()),
    "jaeger/jaeger-cassandra__otel_traces_01.json": (1, frozenset()),
    "jaeger/crisp__case10.json": (4, UNTIMED),
    "jaeger/crisp__case15.json": (6, UNTIMED | {"unusable_spans"}),
    "jaeger/crisp__case2.json": (2, UNTIMED),
    "jaeger/crisp__case20.json": (4, UNTIMED),
    "jaeger/jaeger-anonymizer__trace_success.json": (2, frozenset()),
    "jaeger/jaeger-cassandra__cas_01.json": (1, frozenset()),
    "jaeger/jaeger-es__domain_01.json": (1, frozenset()),
    "jaeger/jaeger-es__es_01.json": (1, frozenset()),
    "jaeger/jaeger-thrift__domain_03.json": (2, frozenset()),
    "jaeger/jaeger-thrift__thrift_batch_01.json": (1, frozenset()),
    "jaeger/jaeger-ui__flamegraph-testTrace.json": (4, frozenset()),
    "jaeger/jaeger-ui__genaiTestTrace.json": (57, frozenset()),
    "jaeger/jaeger__otlp2jaeger-out.json": (2, frozenset()),
    "nasty/jaeger-anonymizer__trace_invalid_json.json": (1, UNTIMED),
    "nasty/jaeger-anonymizer__trace_wrong_format.json": (1, UNTIMED),
    "otlp_pb/duckdb-otlp__otlp_traces.pb": (1, frozenset()),
    "otlp_pb/otlp2parquet__trace.pb": (2, frozenset()),
    "parquet/otlp2parquet__traces.parquet": (19, frozenset()),
    "zipkin/collector-contrib-zipkinreceiver__sample4.json": (1, frozenset()),
    "zipkin/zipkin-bench__zipkin2-chinese.json": (1, frozenset()),
    "zipkin/zipkin-bench__zipkin2-client.json": (1, frozenset()),
    "zipkin/zipkin-lens__ascend.json": (8, frozenset()),
    "zipkin/zipkin-lens__envoy.json": (1, frozenset()),
    "zipkin/zipkin-lens__messaging-kafka.json": (28, frozenset()),
    "zipkin/zipkin-lens__messaging.json": (4, frozenset()),
    "zipkin/zipkin-lens__simple-db-p6.json": (5, frozenset()),
    "zipkin/zipkin-lens__yelp.json": (16, frozenset()),
}

# file → part of the message
REFUSED = {
    "otlp_json/collector-contrib-golden__traces-roundtrip-expected.yaml": "OTLP in YAML",
    "otlp_json/hyperdx__logs-json-exporter-input.json": "logs only: 0 spans",
    "otlp_json/otel-proto__logs.json": "logs only: 0 spans",
    "otlp_json/otel-proto__metrics.json": "metrics only: 0 spans",
    "tempo/holmesgpt__trace_data.expected.txt": "text, not traces",
    "llm_app/langfuse__llamaindex-2025-06-05.json": "a Langfuse export, not OTLP",
    "llm_app/langfuse__microsoft-agent-2025-10-14.json": "a Langfuse export, not OTLP",
    "llm_app/langfuse__pydantic-ai-tools-2025-12-04.json": "a Langfuse export, not OTLP",
    "llm_app/openinference-vercel__ai-streamText-doStream.json": "OpenTelemetry SDK prints",
    "llm_app/openinference__openinference_client_span_tool_calls.json": "bare span attributes",
    "llm_app/openinference__otel_genai_client_span_tool_calls.json": "bare span attributes",
    "llm_app/openinference__otel_genai_deprecated_client_span_tool_calls.json": (
        "bare span attributes"
    ),
    "llm_app/openinference__otel_genai_tool_execution_span.json": "bare span attributes",
    "nasty/duckdb-otlp__empty.jsonl": "the file is empty",
    "nasty/duckdb-otlp__whitespace.jsonl": "the file is empty",
    "nasty/duckdb-otlp__multifile_malformed_traces.jsonl": ":1: not readable: not JSON",
    "nasty/duckdb-otlp__ts_boundary_logs.jsonl": "logs only: 0 spans",
    "nasty/jaeger-anonymizer__trace_empty.json": "the file is empty",
    "nasty/jaeger-anonymizer__trace_scan_error.json": ":1: not readable: not JSON",
    "nasty/jaeger-gzipfs__foobar.gz": "text, not traces",
    "nasty/jaeger-gzipfs__foobaz_truncated.gz": "cut off",
    "nasty/jaeger-gzipfs__not_archive.gz": "text, not traces",
    "nasty/otlp2parquet__log_invalid_severity.json": "logs only: 0 spans",
    "nasty/otlp2parquet__malformed.json": ":21: not readable: not JSON",
    "nasty/otlp2parquet__trace_invalid_base64.json": "usable trace id",
    "otlp_pb/otlp2parquet__logs.pb": "logs only: 0 spans",
    "server_log/vllm-nixl__pd-decoder-excerpt.log": "vLLM's log, not traces",
}


@pytest.mark.parametrize(
    "folder",
    ["otlp_json", "otlp_pb", "parquet", "tempo", "jaeger", "zipkin", "llm_app", "nasty"],
)
def test_every_file_has_its_expectation(folder: str) -> None:
    expected = {name for name in READ.keys() | REFUSED.keys() if name.startswith(folder + "/")}
    there = {f"{folder}/{path.name}" for path in shared("corpus", folder).iterdir()}
    assert there == expected


@pytest.mark.parametrize("name", READ)
def test_read(name: str, tmp_path: Path) -> None:
    n_spans, kinds = READ[name]
    result = read(shared("corpus", *name.split("/")), tmp_path / "out", CONTRACT)
    assert result.n_spans == n_spans
    assert len(rows_of(result.span_files)) == n_spans
    assert {note.kind for note in result.notes} == kinds
    assert result.problems == []


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, tmp_path: Path) -> None:
    path = shared("corpus", *name.split("/"))
    with pytest.raises(InputError) as caught:
        read(path, tmp_path / "out", CONTRACT)
    text = str(caught.value)
    assert REFUSED[name] in text
    assert text.startswith(str(path))
    assert "\n" not in text


def test_a_folder_of_everything_is_read_with_one_note_a_reason(tmp_path: Path) -> None:
    result = read(shared("corpus"), tmp_path / "out", CONTRACT)
    assert result.n_spans == sum(n for n, _ in READ.values())
    assert result.n_files == len(READ)
    assert result.problems == []
    skipped = [note for note in result.notes if note.kind == "skipped_file"]
    n_files = sum(1 for path in shared("corpus").rglob("*") if path.is_file())
    n_results = len({run.source for run in result.load_tests})
    assert n_results == 17  # read as load tests: tests/read/test_loadtest.py
    assert sum(note.n for note in skipped) == n_files - len(READ) - n_results
    assert len(skipped) < 30


def test_ids_and_times_against_the_answer_keys(tmp_path: Path) -> None:
    vocabulary = Vocabulary(
        span={"span.kind": "str", "a.int": "int"}, resource={"service.name": "str"}
    )
    corpus = shared("corpus")
    spec = rows_of(
        read(corpus / "otlp_json/otel-proto__trace.json", tmp_path / "a", vocabulary).span_files
    )
    assert spec[0]["trace_id"] == "5b8efff798038103d269b633813fc60c"
    assert spec[0]["parent_id"] == "eee19b7ec3c1b173"
    assert spec[0]["start_ns"] == 1544712660000000000
    assert spec[0]["resource.service.name"] == "my.service"
    # The tree another program printed of the same Tempo answer has all its ids in hex.
    printed = (corpus / "tempo/holmesgpt__trace_data.expected.txt").read_text()
    tempo = rows_of(
        read(
            corpus / "tempo/holmesgpt__trace_data.input.json", tmp_path / "b", vocabulary
        ).span_files
    )
    assert all(one["span_id"] in printed for one in tempo)
    ids = {one["span_id"] for one in tempo}
    assert {one["parent_id"] for one in tempo} - {None} <= ids
    twice = rows_of(
        read(
            corpus / "otlp_json/jaeger__otlp2jaeger-in.json", tmp_path / "c", vocabulary
        ).span_files
    )
    assert [(one["span_id"], one["parent_id"]) for one in twice] == [
        ("e127af99e3b3e074", "909541b92cf05311")
    ] * 2
