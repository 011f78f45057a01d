"""The budget table: network + frontend + queue + prefill + tokens × time between them + delivery.

The lines are means over the requests around the percentile that is judged (five points either
side), so that they add up to what such a request takes. Beside each stands what the line
costs alone and what it was in the baseline; the line that is largest above its alone cost (or,
where nothing is above it, the largest of all) is where the objective is missed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tokenlag.judge.diagnosis import Budget, BudgetLine
from tokenlag.judge.figures import Requests
from tokenlag.window import Objective

Floats = npt.NDArray[np.float64]

HALF_BAND = 5.0
DEFAULT_PERCENTILE = 90.0

LINES = (
    ("network", "network_in_ms"),
    ("frontend", "frontend_ms"),
    ("queue", "queue_ms"),
    ("requeue", "requeue_ms"),
    ("prefill", "prefill_ms"),
    ("decode", "decode_ms"),
    ("delivery", "delivery_ms"),
    ("uncovered", "uncovered_ms"),
)
TTFT_LINES = ("network", "frontend", "queue", "prefill", "uncovered")


def budget_table(
    current: Requests, baseline: Requests, objectives: Sequence[tuple[Objective, float | None]]
) -> Budget | None:
    """The table for the worst missed objective, else for E2E p90; None without phases."""
    chosen = _objective(objectives)
    metric = chosen[0].metric if chosen and chosen[0].metric in ("ttft", "e2e") else "e2e"
    percentile = chosen[0].percentile if chosen else DEFAULT_PERCENTILE
    whole = current.floats("e2e_ms" if metric == "e2e" else "ttft_ms")
    if np.isfinite(whole).sum() == 0:
        return None
    rows = _band(whole, percentile)
    before = _band(baseline.floats("e2e_ms" if metric == "e2e" else "ttft_ms"), percentile)
    lines: list[BudgetLine] = []
    over: tuple[float, str] | None = None
    largest: tuple[float, str] | None = None
    for name, column in LINES:
        if metric == "ttft" and name not in TTFT_LINES:
            continue
        value = _mean(current.floats(column)[rows])
        if value is None:
            continue
        alone = _alone(current, rows, name)
        lines.append(
            BudgetLine(
                line=name,
                ms=value,
                baseline_ms=_mean(baseline.floats(column)[before]),
                alone_ms=alone,
                is_over=False,
                detail=_detail(current, rows) if name == "decode" else None,
            )
        )
        if alone is not None:
            above = value - alone
            over = max(over or (above, name), (above, name))
        largest = max(largest or (value, name), (value, name))
    if not lines or largest is None:
        return None
    actual = float(np.quantile(whole[np.isfinite(whole)], percentile / 100.0))
    limit = chosen[0].limit_ms if chosen else None
    marked = _marked(actual, limit, over, largest)
    return Budget(
        metric=metric,
        objective_ms=limit,
        actual_ms=actual,
        percentile=f"p{percentile:g}",
        lines=[_mark(line, marked) for line in lines],
        over_line=marked,
    )


def _objective(
    objectives: Sequence[tuple[Objective, float | None]],
) -> tuple[Objective, float | None] | None:
    """The objective that is missed by the largest factor, else the first."""
    usable = [o for o in objectives if o[0].metric in ("ttft", "e2e")]
    return max(usable, key=lambda o: (o[1] or 0.0) / o[0].limit_ms) if usable else None


def _marked(
    actual: float,
    limit: float | None,
    over: tuple[float, str] | None,
    largest: tuple[float, str],
) -> str | None:
    """The line to look at: the largest excess if it is a real part of it, else the largest."""
    if limit is not None:
        if actual <= limit:
            return None
        return over[1] if over and over[0] >= (actual - limit) / 2.0 else largest[1]
    return over[1] if over and over[0] >= actual / 3.0 else None


def _mark(line: BudgetLine, marked: str | None) -> BudgetLine:
    return BudgetLine(
        line.line, line.ms, line.baseline_ms, line.alone_ms, line.line == marked, line.detail
    )


def _band(values: Floats, percentile: float) -> npt.NDArray[np.bool_]:
    known = values[np.isfinite(values)]
    if len(known) == 0:
        return np.zeros(len(values), dtype=bool)
    low = float(np.quantile(known, max(percentile - HALF_BAND, 0.0) / 100.0))
    high = float(np.quantile(known, min(percentile + HALF_BAND, 100.0) / 100.0))
    return np.asarray(np.isfinite(values) & (values >= low) & (values <= high), dtype=bool)


def _mean(values: Floats) -> float | None:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else None


def _alone(requests: Requests, rows: npt.NDArray[np.bool_], line: str) -> float | None:
    if line == "prefill":
        return _mean(requests.floats("alone_prefill_ms")[rows])
    if line == "decode":
        tokens = np.maximum(requests.floats("n_output")[rows] - 1.0, 0.0)
        return _mean(tokens * requests.floats("alone_itl_ms")[rows])
    return 0.0 if line in ("queue", "requeue") else None


def _detail(requests: Requests, rows: npt.NDArray[np.bool_]) -> str | None:
    tokens = _mean(np.maximum(requests.floats("n_output")[rows] - 1.0, 0.0))
    each = _mean(requests.floats("tpot_ms")[rows])
    return f"{tokens:.0f} × {each:.1f} ms" if tokens is not None and each is not None else None
