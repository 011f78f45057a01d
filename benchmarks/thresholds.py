"""A diagnoser of the common kind: gauges against constants, for comparison in `accuracy.py`.

What it reads is what a metrics endpoint would show of the same run, without scrape gaps:
averages of gauges over time, percentiles over requests. The constants are those that tools of
this kind ship with. It does not rank; the order here is the order in which it would print.
An alert counts as right if the true cause is any that the alert is commonly read as.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tokenlag.simulate.run import Run

QUEUE_P95_S = 1.0
WAITING = 5.0
KV_FRAC = 0.90
PREEMPTING_KV_FRAC = 0.80
TTFT_P95_S = 2.0
TPOT_S = 0.2
HIT_FRAC = 0.5

READ_AS: dict[str, tuple[str, ...]] = {
    "queue_latency": ("queueing-not-prefill", "ghost-requests"),
    "queue_pressure": ("queueing-not-prefill", "ghost-requests"),
    "kv_cache_pressure": ("kv-preemption-thrash",),
    "preemption_pressure": ("kv-preemption-thrash",),
    "ttft_bottleneck": ("prefill-runs-slow", "prompts-grew", "long-prompt-stalled-streams"),
    "tpot_bottleneck": (
        "steps-run-slow", "host-starves-steps", "decode-batch-grew", "context-grew",
        "graph-ceiling-crossed",
    ),
    "prefix_cache_efficiency": ("prefix-reuse-lost",),
}  # fmt: skip


@dataclass(frozen=True)
class Gauges:
    """What a metrics endpoint shows; None where the server has no such figure."""

    queue_p95_s: float
    waiting: float
    kv_frac: float
    n_preemptions: int
    ttft_p95_s: float
    tpot_s: float
    hit_frac: float | None


def gauges(run: Run, from_s: float) -> Gauges:
    """The figures of the run from `from_s` on."""
    requests = [
        r for r in run.requests if r.sent_s >= from_s and r.first_token_s and not r.is_ghost
    ]
    steps = [s for e in run.epochs for s in e.steps if s.start_s >= from_s]
    width = np.array([s.end_s - s.busy_s for s in steps])

    def over_time(values: list[float]) -> float:
        return float(np.average(values, weights=width)) if len(values) else 0.0

    tpots = [
        (r.done_s - r.first_token_s) / (r.n_output - 1)
        for r in requests
        if r.done_s and r.n_output > 1 and r.first_token_s
    ]
    n_prompt, n_cached = (sum(getattr(r, n) for r in requests) for n in ("n_prompt", "n_cached"))
    return Gauges(
        queue_p95_s=_quantile([(r.scheduled_s or 0) - r.engine_s for r in requests], 0.95),
        waiting=over_time([float(s.n_waiting) for s in steps]),
        kv_frac=over_time([s.kv_frac for s in steps]),
        n_preemptions=sum(len(s.preempted) for s in steps),
        ttft_p95_s=_quantile([(r.first_token_s or 0) - r.arrival_s for r in requests], 0.95),
        tpot_s=float(np.mean(tpots)) if tpots else 0.0,
        hit_frac=n_cached / n_prompt if n_cached and n_prompt else None,
    )


def _quantile(values: list[float], q: float) -> float:
    return float(np.quantile(values, q)) if values else 0.0


def alerts(seen: Gauges) -> list[str]:
    """Names of the alerts that fire, in the order of their printing."""
    fires = {
        "queue_pressure": seen.waiting >= WAITING,
        "queue_latency": seen.queue_p95_s >= QUEUE_P95_S,
        "kv_cache_pressure": seen.kv_frac >= KV_FRAC,
        "preemption_pressure": seen.n_preemptions > 0 and seen.kv_frac >= PREEMPTING_KV_FRAC,
        "ttft_bottleneck": seen.ttft_p95_s >= TTFT_P95_S,
        "tpot_bottleneck": seen.tpot_s >= TPOT_S,
        "prefix_cache_efficiency": seen.hit_frac is not None and seen.hit_frac < HIT_FRAC,
    }
    return [name for name, does in fires.items() if does]
