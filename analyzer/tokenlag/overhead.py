"""What the tracer costs on this machine: its own measurement, asked for in its own process."""

from __future__ import annotations

import subprocess
import sys

import msgspec

from tokenlag.errors import TokenlagError, UsageError

TIMEOUT_S = 300.0


class Cost(msgspec.Struct, frozen=True):
    """Microseconds of one operation over `n` of them."""

    n: int
    p50_us: float
    p90_us: float
    p99_us: float
    mean_us: float


class Overhead(msgspec.Struct, frozen=True):
    """Costs by operation: `unchanged`, `mix` and `changed` steps, and an SDK span beside them."""

    n_requests: int
    idle_ms: float
    costs: dict[str, Cost]
    n_dropped: int
    writer_cpu_frac: float
    writer_memory_bytes: int


def measure(n_requests: int, n_steps: int, step_ms: float) -> Overhead:
    """Runs the tracer's selftest with its writer and exporter running.

    Raises:
        UsageError: numbers that cannot be measured with.
        TokenlagError: the tracer is not installed here, or its measurement failed.
    """
    if n_requests < 1 or n_steps < 20 or not 0 < step_ms <= 1000:
        raise UsageError(
            "overhead needs at least 1 request, 20 steps, and steps of up to 1000 ms",
            hint="diagnose overhead --requests 64 --steps 400 --step-ms 10",
        )
    command = [sys.executable, "-P", "-m", "tokenlag_tracer.selftest"]
    command += [str(n_requests), str(n_steps), str(step_ms)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TokenlagError(f"the tracer's measurement did not end: {error}") from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise TokenlagError(
            f"the tracer's measurement failed: {last}", hint="pip install tokenlag-tracer"
        )
    return msgspec.json.decode(done.stdout, type=Overhead)
