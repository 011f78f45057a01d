"""What recording an engine step costs the engine's thread, in SDK spans.

    python benchmarks/overhead.py [--steps N] [--rounds N] [--idle-ms MS] [--json]

Each round is a process of its own: an engine's thread that sleeps a few milliseconds between
steps, so that caches are cold, with the writer running and exporting. In the same loop, in
random order, one start and end of an OpenTelemetry SDK span behind a batch processor is timed;
its exporter discards, so that the yardstick is the SDK's own part and no more. A step's cost is
given as a ratio to the span with a step's ten attributes, and to a bare one.

A percentile is compared with the span's same percentile, and the 99th with its median too. The
exit status is 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

REPO = Path(__file__).resolve().parent.parent
BATCHES: Final = (64, 256)
# operation, percentile, at most
TARGETS: Final = (
    ("unchanged", "p50_us", 0.2), ("mix", "p50_us", 0.4),
    ("unchanged", "p99_us", 1.0), ("mix", "p99_us", 1.0),
)  # fmt: skip
OPERATIONS: Final = ("unchanged", "changed", "gathered", "mix", "sdk_span", "sdk_span_bare")


def measure(n_requests: int, n_steps: int, idle_ms: float) -> dict[str, Any]:
    """Runs the self-test in a process of its own and returns what it measured."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("TOKENLAG_", "OTEL_"))}
    environment["PYTHONPATH"] = str(REPO / "tracer")
    arguments = [str(n_requests), str(n_steps), str(idle_ms)]
    done = subprocess.run(
        [sys.executable, "-m", "tokenlag_tracer.selftest", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(done.stdout)


def over_rounds(rounds: list[dict[str, Any]], value: Callable[[dict[str, Any]], float]) -> float:
    """The median over rounds of what is computed within each."""
    return statistics.median(value(one) for one in rounds)


def ratio(one: dict[str, Any], operation: str, percentile: str, to: str, of: str = "") -> float:
    """An operation's percentile over a span's same one (or another, given by `of`)."""
    return one["costs"][operation][percentile] / one["costs"][to][of or percentile]


def report(n_requests: int, rounds: list[dict[str, Any]]) -> list[str]:
    """Prints one batch size's table; returns the targets that were missed."""
    print(
        f"\n{n_requests} requests in a step, {rounds[0]['idle_ms']:g} ms idle, {len(rounds)} rounds"
    )
    print(
        f"{'':14}{'p50 us':>9}{'p90 us':>9}{'p99 us':>9}"
        "   / span p50   p99   p99/p50   / bare p50   p99"
    )
    for name in OPERATIONS:
        costs = [over_rounds(rounds, lambda o, p=p, n=name: o["costs"][n][p])
                 for p in ("p50_us", "p90_us", "p99_us")]  # fmt: skip
        ratios = [
            over_rounds(rounds, lambda o, a=a, n=name: ratio(o, n, *a))
            for a in (
                ("p50_us", "sdk_span"), ("p99_us", "sdk_span"), ("p99_us", "sdk_span", "p50_us"),
                ("p50_us", "sdk_span_bare"), ("p99_us", "sdk_span_bare"),
            )
        ]  # fmt: skip
        print(f"{name:14}" + "".join(f"{cost:9.1f}" for cost in costs)
              + "{:13.3f}{:6.2f}{:10.2f}{:13.3f}{:6.2f}".format(*ratios))  # fmt: skip
    cpu = over_rounds(rounds, lambda o: o["writer_cpu_frac"] or 0.0)
    memory = over_rounds(rounds, lambda o: (o["writer_memory_bytes"] or 0) / 2**20)
    dropped = sum(one["n_dropped"] for one in rounds)
    print(f"writer: {cpu:.1%} of a core, {memory:.0f} MB; records dropped: {dropped}")
    missed = ["records were dropped"] if dropped else []
    for operation, percentile, most in TARGETS:
        found = over_rounds(rounds, lambda o, a=(operation, percentile): ratio(o, *a, "sdk_span"))
        if found > most:
            missed.append(f"{n_requests}: {operation} {percentile} is {found:.3f}, target {most}")
    return missed


def main() -> int:
    """Measures, prints, and returns 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--idle-ms", type=float, default=4.0)
    parser.add_argument("--json", action="store_true", help="print the raw measurements")
    options = parser.parse_args()
    missed: list[str] = []
    for n_requests in BATCHES:
        rounds = [
            measure(n_requests, options.steps, options.idle_ms) for _ in range(options.rounds)
        ]
        if options.json:
            print(json.dumps(rounds))
        else:
            missed += report(n_requests, rounds)
    for line in missed:
        print(f"MISSED {line}")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
