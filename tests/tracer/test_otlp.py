"""OTLP by the standard variables: to a sink of the test's own, and through a real collector."""

from __future__ import annotations

import gzip
import http.server
import importlib.util
import json
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from tokenlag_tracer import conventions as names

from tests.simulate.reading import Read
from tests.tracer.support import finish, free_port, start, until


class Sink:
    """An OTLP end point: HTTP with protobuf; keeps spans."""

    def __init__(self) -> None:
        self.spans: list[Read] = []
        self.headers: list[dict[str, str]] = []
        sink = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    data = gzip.decompress(data)
                sink.take(data, dict(self.headers.items()))
                body = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self._thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self._thread.start()

    def take(self, data: bytes, headers: dict[str, str]) -> None:
        self.headers.append(headers)
        message = ExportTraceServiceRequest.FromString(data)
        for of_resource in message.resource_spans:
            resource = attributes(of_resource.resource.attributes)
            for of_scope in of_resource.scope_spans:
                self.spans += [
                    Read(
                        span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex() or None,
                        span.name, span.kind, span.start_time_unix_nano, span.end_time_unix_nano,
                        attributes(span.attributes), resource, of_scope.scope.name,
                        {"code": span.status.code, "message": span.status.message},
                    )
                    for span in of_scope.spans
                ]  # fmt: skip

    def close(self) -> None:
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()


def attributes(listed: Any) -> dict[str, Any]:
    def value(any_value: Any) -> Any:
        kind = any_value.WhichOneof("value")
        if kind == "array_value":
            return [value(item) for item in any_value.array_value.values]
        return getattr(any_value, kind)

    return {item.key: value(item.value) for item in listed}


@pytest.fixture
def sink() -> Iterator[Sink]:
    made = Sink()
    yield made
    made.close()


def run_driver(tmp_path: Path, **more: str) -> dict[str, Any]:
    process = start(
        "serve", tmp_path / "t", "1", TOKENLAG_TRACES_DIR="", TOKENLAG_EXIT_WAIT="20s", **more
    )
    said: dict[str, Any] = json.loads(finish(process).splitlines()[-1])
    return said


def check(spans: list[Read], said: dict[str, Any]) -> None:
    steps = sorted(
        span.attributes[names.STEP_INDEX] for span in spans if span.name == names.SPAN_ENGINE_STEP
    )
    assert steps == list(range(said["steps"]))
    by_id = {span.id: span for span in spans}
    assert len(by_id) == len(spans)
    requests = [span for span in spans if span.name == names.SPAN_REQUEST]
    assert len(requests) == said["requests"]
    for span in spans:
        assert span.scope == names.SCOPE_NAME
        assert span.status == {"code": 0, "message": ""}
        assert set(span.attributes) <= set(names.SPAN_ATTRIBUTE_TYPES)
        if span.name == names.SPAN_ENGINE_REQUEST:
            assert by_id[span.parent or ""].name == names.SPAN_REQUEST
    kinds = {span.name: span.kind for span in spans}
    assert kinds[names.SPAN_REQUEST] == names.KIND_SERVER
    assert kinds[names.SPAN_ENGINE_STEP] == names.KIND_INTERNAL


def test_http_with_the_standard_variables(sink: Sink, tmp_path: Path) -> None:
    said = run_driver(
        tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=sink.url, OTEL_SERVICE_NAME="shop",
        OTEL_RESOURCE_ATTRIBUTES="deployment.environment=lab,k8s.pod.name=p-1",
        OTEL_EXPORTER_OTLP_HEADERS="x-key=abc", OTEL_EXPORTER_OTLP_COMPRESSION="gzip",
    )  # fmt: skip
    check(sink.spans, said)
    for span in sink.spans:
        assert span.resource[names.SERVICE_NAME] == "shop"
        assert span.resource["k8s.pod.name"] == "p-1"
        assert names.HOST_NAME in span.resource
    assert all(headers["x-key"] == "abc" for headers in sink.headers)
    assert all(headers["Content-Encoding"] == "gzip" for headers in sink.headers)
    assert {names.ENGINE_NAME: "fake"}.items() <= {
        key: value
        for span in sink.spans
        if span.name == names.SPAN_ENGINE_STEP
        for key, value in span.resource.items()
    }.items()


def test_files_and_otlp_together(sink: Sink, tmp_path: Path) -> None:
    from tests.tracer.support import spans_in

    traces = tmp_path / "traces"
    process = start(
        "serve", traces, "0.5", TOKENLAG_EXIT_WAIT="20s",
        OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=f"{sink.url}/v1/traces",
    )  # fmt: skip
    said = json.loads(finish(process).splitlines()[-1])
    check(sink.spans, said)
    assert {span.id for span in spans_in(traces)} == {span.id for span in sink.spans}


def test_exporter_none_exports_nothing(sink: Sink, tmp_path: Path) -> None:
    run_driver(tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=sink.url, OTEL_TRACES_EXPORTER="none")
    assert not sink.spans


@contextmanager
def rotel(sink: Sink, tmp_path: Path) -> Iterator[tuple[int, int]]:
    """The Rotel collector (Rust), which passes traces on to the sink; yields its ports."""
    found = importlib.util.find_spec("rotel")
    if found is None or not found.submodule_search_locations:
        pytest.skip("Rotel is not installed: pip install rotel==0.0.1a15")
    agent = Path(next(iter(found.submodule_search_locations))) / "rotel-agent"
    if not agent.is_file():
        pytest.skip("this Rotel package has no program for this platform")
    grpc_port, http_port = free_port(), free_port()
    with (tmp_path / "rotel.log").open("wb") as log:
        process = subprocess.Popen(
            [
                str(agent), "start",
                "--otlp-grpc-endpoint", f"127.0.0.1:{grpc_port}",
                "--otlp-http-endpoint", f"127.0.0.1:{http_port}",
                "--exporter", "otlp", "--otlp-exporter-endpoint", sink.url,
                "--otlp-exporter-protocol", "http", "--traces-batch-timeout", "200ms",
                "--pid-file", str(tmp_path / "rotel.pid"),
            ],
            stdout=log, stderr=log, cwd=tmp_path,
        )  # fmt: skip
    try:

        def is_up() -> bool:
            for port in (grpc_port, http_port):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) != 0:
                        return False
            return True

        until(is_up)
        yield grpc_port, http_port
    finally:
        process.terminate()
        process.wait(timeout=20)


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_through_a_real_collector(protocol: str, sink: Sink, tmp_path: Path) -> None:
    if protocol == "grpc":
        pytest.importorskip(
            "opentelemetry.exporter.otlp.proto.grpc", reason="needs the extra [grpc]"
        )
    with rotel(sink, tmp_path) as (grpc_port, http_port):
        port = grpc_port if protocol == "grpc" else http_port
        said = run_driver(
            tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{port}",
            OTEL_EXPORTER_OTLP_PROTOCOL=protocol, OTEL_EXPORTER_OTLP_INSECURE="true",
        )  # fmt: skip
        n_before = -1
        while n_before != len(sink.spans):  # until nothing more comes
            n_before = len(sink.spans)
            time.sleep(1.0)
    check(sink.spans, said)
