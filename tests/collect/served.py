"""A receiver in a process of its own, and exports to send to it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import polars as pl
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.read.otlp import T0

ROOT = Path(__file__).resolve().parents[2]


class Served:
    """A running `diagnose collect`."""

    def __init__(self, process: subprocess.Popen[str], port: int, grpc_port: int | None) -> None:
        self.process = process
        self.port = port
        self.grpc_port = grpc_port
        self.told = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> str:
        """Ends it as an operator does; returns its last words."""
        self.process.send_signal(signal.SIGTERM)
        _, self.told = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, self.told
        return self.told

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def serve(folder: Path, *options: str) -> Iterator[Served]:
    path = os.pathsep.join([str(ROOT / "analyzer"), str(ROOT / "tracer")])
    process = subprocess.Popen(
        [
            sys.executable, "-m", "tokenlag", "collect", "--dir", str(folder),
            "--listen", "127.0.0.1:0", *options,
        ],
        stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": path},
    )  # fmt: skip
    try:
        assert process.stderr is not None
        line = _first_line(process.stderr)
        found = re.search(r"http://127\.0\.0\.1:(\d+)(?: and gRPC on 127\.0\.0\.1:(\d+))?", line)
        assert found, line + process.stderr.read()
        yield Served(process, int(found[1]), int(found[2]) if found[2] else None)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def _first_line(stream: IO[str]) -> str:
    return stream.readline()


def request(first: int, n: int) -> ExportTraceServiceRequest:
    """An export of spans whose ids count on from `first`."""
    made = ExportTraceServiceRequest()
    block = made.resource_spans.add()
    block.resource.attributes.add(key="service.name").value.string_value = "serve"
    scope = block.scope_spans.add()
    scope.scope.name = "tokenlag"
    for number in range(first, first + n):
        span = scope.spans.add()
        span.trace_id = (number + 1).to_bytes(16, "big")
        span.span_id = (number + 1).to_bytes(8, "big")
        span.name = "llm.request"
        span.kind = 2
        span.start_time_unix_nano = T0 + number
        span.end_time_unix_nano = T0 + number + 1000
        span.attributes.add(key="gen_ai.request.id").value.string_value = f"r{number}"
        span.attributes.add(key="gen_ai.prompt").value.string_value = "SECRET WORDS"
    return made


def stored(folder: Path) -> list[int]:
    """The numbers of the spans on disk, sorted; a span that is there twice is twice in it."""
    files = sorted(folder.glob("spans-*.parquet"))
    ids = [pl.read_parquet(file)["span_id"].to_list() for file in files]
    return sorted(int(one, 16) - 1 for some in ids for one in some)


def wait_until(condition: object, seconds: float = 30.0) -> None:
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)
