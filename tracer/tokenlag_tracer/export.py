"""Where spans go: OTLP by the standard variables, or files; in a thread, behind a bounded queue.

A target that is slow, refuses or never answers costs spans, which are counted and told in
later steps (`tokenlag.step.dropped`); it costs neither memory nor the reading of records.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from tokenlag_tracer import conventions as names
from tokenlag_tracer.config import Config
from tokenlag_tracer.files import TraceFiles, remove_parts
from tokenlag_tracer.spans import Attributes, Row

BATCH_SPANS: Final = 512
DELAY_S: Final = 1.0


class Target(Protocol):
    """Takes spans."""

    def write(self, rows: Sequence[Row], resources: Mapping[int, Attributes]) -> bool:
        """Exports spans, returns whether that worked; may take long, must not raise."""


class OtlpTarget:
    """OTLP through the SDK's exporter, which reads `OTEL_EXPORTER_OTLP_*` itself."""

    def __init__(self, exporter: Any = None) -> None:
        self._exporter = _otlp_exporter() if exporter is None else exporter
        self._resources: dict[int, Any] = {}
        self._readable: Callable[[Row], Any] | None = None

    def write(self, rows: Sequence[Row], resources: Mapping[int, Attributes]) -> bool:
        """Exports spans with the exporter's own time-outs and retries."""
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace.export import SpanExportResult

        from tokenlag_tracer.spans import reader_of

        for number in resources:
            if number not in self._resources:
                self._resources[number] = Resource(dict(resources[number]))
        if self._readable is None:
            self._readable = reader_of(self._resources)
        try:
            result = self._exporter.export([self._readable(row) for row in rows])
        except Exception:  # whatever an exporter fails with, the writer goes on
            return False
        return bool(result == SpanExportResult.SUCCESS)


def _otlp_exporter() -> Any:
    """Returns the exporter for the protocol that the standard variables name.

    Raises:
        ImportError: it is gRPC, whose package is an extra and is not here.
    """
    protocol = (
        os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
        or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
        or "http/protobuf"
    )
    if protocol.strip().lower() == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc import trace_exporter as grpc

        return grpc.OTLPSpanExporter()
    from opentelemetry.exporter.otlp.proto.http import trace_exporter as http

    return http.OTLPSpanExporter()


def targets_of(config: Config, report: Callable[[str], None]) -> list[Target]:
    """Returns where spans go by the settings: files, OTLP, both, or nowhere.

    With a folder for files OTLP is used only if its endpoint is set too.
    """
    targets: list[Target] = []
    if config.traces_dir:
        folder = Path(config.traces_dir)
        remove_parts(folder)
        targets.append(TraceFiles(folder, config.traces_max_bytes))
    kinds = os.environ.get("OTEL_TRACES_EXPORTER", "otlp").strip().lower().split(",")
    has_endpoint = bool(
        os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
        or os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    )
    if "otlp" in kinds and (has_endpoint or not targets):
        try:
            targets.append(OtlpTarget())
        except Exception as error:
            report(f"no OTLP export: {error}")
    return targets


class ExportQueue:
    """Spans on their way out.

    Args:
        targets: where they go.
        n_most: how many may wait.
        resources: by number; shared with whoever makes rows, only ever added to.
    """

    def __init__(
        self, targets: Sequence[Target], n_most: int, resources: Mapping[int, Attributes]
    ) -> None:
        self._targets = targets
        self._n_most = n_most
        self._resources = resources
        self._rows: deque[Row] = deque()
        self._wake = threading.Event()
        self._is_closing = False
        self._lost_steps: Counter[int] = Counter()
        self.n_exported = 0
        self.n_failed = 0
        self.n_refused = 0
        self._busy_since_s = 0.0
        self._thread = threading.Thread(target=self._run, name="tokenlag-export", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        return len(self._rows)

    def has_room(self, n_rows: int = 1) -> bool:
        """Returns whether so many spans can be taken."""
        return len(self._rows) + n_rows <= self._n_most

    def put(self, rows: Sequence[Row]) -> bool:
        """Takes all of some spans or none; returns which."""
        if not self.has_room(len(rows)):
            self.n_refused += len(rows)
            return False
        self._rows.extend(rows)
        if len(self._rows) >= BATCH_SPANS:
            self._wake.set()
        return True

    def take_lost_steps(self) -> dict[int, int]:
        """Returns, by resource, how many steps' spans failed to get out since last asked."""
        if not self._lost_steps:
            return {}
        lost, self._lost_steps = self._lost_steps, Counter()
        return dict(lost)

    def flush(self, timeout_s: float) -> bool:
        """Waits until everything taken so far is out; returns whether it is."""
        deadline_s = time.monotonic() + timeout_s
        self._wake.set()
        while (self._rows or self._busy_since_s) and time.monotonic() < deadline_s:
            self._wake.set()
            time.sleep(0.005)
        return not self._rows and not self._busy_since_s

    def close(self, timeout_s: float) -> bool:
        """Exports what waits, as far as the time allows; returns whether all went out."""
        is_out = self.flush(timeout_s)
        self._is_closing = True
        self._wake.set()
        return is_out

    def _run(self) -> None:
        while not self._is_closing:
            self._wake.wait(DELAY_S)
            self._wake.clear()
            while self._rows and not self._is_closing:
                self._busy_since_s = time.monotonic()
                batch = [self._rows.popleft() for _ in range(min(BATCH_SPANS, len(self._rows)))]
                self._export(batch)
            self._busy_since_s = 0.0

    def _export(self, batch: list[Row]) -> None:
        is_out = not self._targets
        for target in self._targets:
            try:
                is_out = target.write(batch, self._resources) or is_out
            except Exception:
                continue  # a bug in a target must not stop the others
        if is_out:
            self.n_exported += len(batch)
            return
        self.n_failed += len(batch)
        for row in batch:
            if row.name == names.SPAN_ENGINE_STEP:
                self._lost_steps[row.resource] += 1
