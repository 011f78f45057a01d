"""Measures on this machine what recording a step costs the engine's thread.

Conditions are those of life: the thread sleeps some milliseconds between steps, so that caches
are cold, and the writer runs and exports. The yardstick, taken in the same loop, is one start
and end of an OpenTelemetry SDK span behind a batch processor.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final

UNCHANGED: Final = "unchanged"
MIX: Final = "mix"
CHANGED: Final = "changed"
GATHERED: Final = "gathered"
SPAN: Final = "sdk_span"
BARE_SPAN: Final = "sdk_span_bare"
NOTHING: Final = "nothing"

# Of real decode batches of 64 streams three steps in four change nobody.
CHANGED_SHARE: Final = 0.25


@dataclass(frozen=True, slots=True)
class Cost:
    """What one operation cost, in microseconds of the calling thread."""

    n: int
    p50_us: float
    p90_us: float
    p99_us: float
    mean_us: float


@dataclass(frozen=True, slots=True)
class Overhead:
    """What recording costs.

    Attributes:
        n_requests: how many decode in a step.
        idle_ms: how long the thread slept between operations.
        costs: by operation. Steps: `unchanged` (membership as before), `changed` (one joins, one
            leaves, one prompt chunk), `gathered` (the same, told by all members, gathered
            within the time), `mix` (`changed` in one of four). `sdk_span` is a span with the
            attributes of a step, `sdk_span_bare` one without any.
        n_dropped: records that were not taken.
        writer_cpu_frac: processor time of the writer over the time of the run.
        writer_memory_bytes: its resident memory; None where the system does not tell.
    """

    n_requests: int
    idle_ms: float
    costs: dict[str, Cost]
    n_dropped: int
    writer_cpu_frac: float | None
    writer_memory_bytes: int | None

    def ratio(self, operation: str, *, percentile: str = "p50_us", to: str = SPAN) -> float:
        """Returns a step's cost over a span's median or same percentile."""
        unit = getattr(self.costs[to], percentile)
        return float(getattr(self.costs[operation], percentile) / unit)

    def as_dict(self) -> dict[str, Any]:
        """Returns it as plain values, for JSON."""
        return asdict(self)


class _Engine:
    """A scheduler's books: who decodes, and what of it a recorder is told."""

    def __init__(self, n_requests: int, seed: int) -> None:
        self._random = random.Random(seed)
        self.scheduled = {f"cmpl-{number:08x}-0": 1 for number in range(n_requests)}
        self.indexes = {request: number for number, request in enumerate(self.scheduled)}
        self._next = n_requests

    def change(self) -> tuple[int, int]:
        """One request leaves and a new one decodes; returns the indexes of both."""
        gone = self._random.choice(list(self.scheduled))
        left = self.indexes.pop(gone)
        del self.scheduled[gone]
        joined = self._next
        request = f"cmpl-{joined:08x}-0"
        self.scheduled[request], self.indexes[request] = 1, joined
        self._next += 1
        return joined, left

    def gather(self) -> list[int]:
        """Returns the indexes of all that decode, as an adapter without books of its own does."""
        indexes = self.indexes
        return [indexes[request] for request in self.scheduled]


@contextmanager
def _traces() -> Iterator[None]:
    """Exports into a folder that goes away, unless the user's settings say where to."""
    names = ("TOKENLAG_TRACES_DIR", "OTEL_EXPORTER_OTLP_ENDPOINT",
             "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")  # fmt: skip
    if any(os.environ.get(name) for name in names):
        yield
        return
    with tempfile.TemporaryDirectory(prefix="tokenlag-tracer-") as folder:
        os.environ[names[0]] = folder
        try:
            yield
        finally:
            del os.environ[names[0]]


def measure(
    n_requests: int = 64,
    n_steps: int = 400,
    idle_ms: float = 4.0,
    seed: int = 1,
    with_spans: bool = True,
) -> Overhead:
    """Measures; takes about `4 × n_steps × idle_ms` and starts a writer of its own.

    Run it in a process of its own: it sets environment variables and ends the process's link.

    Args:
        n_requests: how many decode in each step.
        n_steps: how many of each operation are timed.
        idle_ms: sleep before each.
        seed: of the changes in membership and of the order of operations.
        with_spans: time SDK spans too.
    """
    from tokenlag_tracer import config, link, recorder

    os.environ.pop(config.SOCKET, None)
    with _traces():
        engine = recorder.engine(f"selftest-{n_requests}")
        operations = _operations(engine, n_requests, seed)
        if with_spans:
            operations |= _span_operations()
        try:
            before = _writer_status()
            started_s = time.monotonic()
            times_ns = _run(operations, n_steps, idle_ms / 1e3, seed)
            took_s = time.monotonic() - started_s
            after = _writer_status()
        finally:
            engine.close()
            link.close_shared_link()
    return Overhead(
        n_requests=n_requests,
        idle_ms=idle_ms,
        costs={name: _cost(values) for name, values in times_ns.items()},
        n_dropped=engine.n_dropped,
        writer_cpu_frac=(after["cpu_s"] - before["cpu_s"]) / took_s if before and after else None,
        writer_memory_bytes=after.get("memory_bytes"),
    )


def _writer_status() -> dict[str, Any]:
    from tokenlag_tracer import ask, link

    deadline_s = time.monotonic() + 10
    while time.monotonic() < deadline_s:
        try:
            return ask.ask(link.shared_link().address, "status")
        except (OSError, ValueError):
            time.sleep(0.1)
    return {}


def _operations(engine: Any, n_requests: int, seed: int) -> dict[str, Callable[[int], int]]:
    """Operations: each returns the nanoseconds of this thread that it took."""
    books = _Engine(n_requests, seed)
    chance = random.Random(seed)
    clock = time.perf_counter_ns
    for name, index in books.indexes.items():
        engine.queued(name, prompt_tokens=512 + index)
    start_ns = time.monotonic_ns()
    engine.record_step(start_ns, start_ns, decode=list(books.indexes.values()))

    def unchanged(number: int) -> int:
        end_ns = time.monotonic_ns()
        begin = clock()
        engine.record_same(
            end_ns - 4_000_000, end_ns, number * n_requests, n_requests, 3, 1500, 1_000_000, 0.5,
            "slots",
        )  # fmt: skip
        return clock() - begin

    def changed(number: int, *, is_gathered: bool = False) -> int:
        joined, left = books.change()
        end_ns = time.monotonic_ns()
        begin = clock()
        engine.record_step(
            end_ns - 4_000_000, end_ns, decode=books.gather() if is_gathered else None,
            joined=(joined,), left=(left,), prefill=((joined + 1, 512, 0),),
            context_tokens=number * n_requests, running=n_requests, waiting=3,
            waiting_tokens=1500, oldest_wait_ns=1_000_000, kv_usage=0.5, admit_bound="slots",
        )  # fmt: skip
        return clock() - begin

    def gathered(number: int) -> int:
        return changed(number, is_gathered=True)

    def mix(number: int) -> int:
        return changed(number) if chance.random() < CHANGED_SHARE else unchanged(number)

    return {UNCHANGED: unchanged, MIX: mix, CHANGED: changed, GATHERED: gathered}


def _span_operations() -> dict[str, Callable[[int], int]]:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import (
        BatchSpanProcessor,
        SpanExporter,
        SpanExportResult,
    )

    from tokenlag_tracer import conventions as names

    class Discard(SpanExporter):
        """An exporter that costs nothing: what remains is the SDK's own part."""

        def export(self, spans: Any) -> SpanExportResult:  # noqa: ARG002
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Discard()))
    tracer = provider.get_tracer("selftest")
    clock = time.perf_counter_ns

    def span(number: int) -> int:
        begin = clock()
        tracer.start_span(
            names.SPAN_ENGINE_STEP,
            attributes={
                names.ENGINE_ID: "selftest", names.STEP_INDEX: number,
                names.STEP_DECODE_COUNT: 64, names.STEP_CONTEXT_TOKENS: 64 * number,
                names.STEP_RUNNING: 64, names.STEP_WAITING: 3,
                names.STEP_WAITING_TOKENS: 1500, names.STEP_OLDEST_WAIT_NS: 1_000_000,
                names.STEP_KV_USAGE: 0.5, names.STEP_ADMIT_BOUND: "slots",
            },
        ).end()  # fmt: skip
        return clock() - begin

    def bare_span(_: int) -> int:
        begin = clock()
        tracer.start_span(names.SPAN_ENGINE_STEP).end()
        return clock() - begin

    return {SPAN: span, BARE_SPAN: bare_span}


def _run(
    operations: dict[str, Callable[[int], int]], n_steps: int, idle_s: float, seed: int
) -> dict[str, list[int]]:
    order = list(operations)
    shuffle = random.Random(seed).shuffle
    times_ns: dict[str, list[int]] = {name: [] for name in order}
    n_warm = max(5, n_steps // 20)
    for number in range(n_warm + n_steps):
        shuffle(order)
        for name in order:
            time.sleep(idle_s)
            took_ns = operations[name](number)
            if number >= n_warm:
                times_ns[name].append(took_ns)
    return times_ns


def _cost(values_ns: list[int]) -> Cost:
    ordered = sorted(values_ns)

    def at(share: float) -> float:
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)] / 1e3

    return Cost(len(ordered), at(0.5), at(0.9), at(0.99), sum(ordered) / len(ordered) / 1e3)


def main() -> int:
    """Prints one measurement as JSON; arguments are requests, steps and idle ms."""
    import json

    numbers = [float(argument) for argument in sys.argv[1:4]]
    n_requests, n_steps, idle_ms = (*numbers, *(64.0, 400.0, 4.0)[len(numbers) :])
    overhead = measure(int(n_requests), int(n_steps), idle_ms)
    sys.stdout.write(json.dumps(overhead.as_dict()) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
