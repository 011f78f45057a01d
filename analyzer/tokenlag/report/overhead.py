"""What recording costs, as a few lines of text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenlag.overhead import Overhead

NAMES = {
    "unchanged": "a step whose batch stays as it was",
    "mix": "a step of a realistic mix",
    "changed": "a step that requests join or leave",
    "sdk_span": "one OpenTelemetry SDK span, for comparison",
}


def overhead_text(overhead: Overhead, step_ms: float) -> str:
    """The costs in the engine's thread, the share of a step, and the writer's own."""
    lines = [
        f"Recording steps of {overhead.n_requests} requests, {step_ms:g} ms apart, "
        "writer and exporter running:",
        f"  {'':44}{'median':>10}{'p99':>10}   of a {step_ms:g} ms step",
    ]
    for name, text in NAMES.items():
        cost = overhead.costs.get(name)
        if cost is not None:
            share = cost.p50_us / (step_ms * 1000.0)
            lines.append(f"  {text:44}{cost.p50_us:7.0f} µs{cost.p99_us:7.0f} µs   {share:.2%}")
    memory = overhead.writer_memory_bytes / 1e6
    lines.append(
        f"The writer's process takes {overhead.writer_cpu_frac:.1%} of a core and {memory:.0f} MB."
    )
    if overhead.n_dropped:
        lines.append(f"{overhead.n_dropped} records were dropped: the writer could not keep up.")
    return "\n".join(lines) + "\n"
