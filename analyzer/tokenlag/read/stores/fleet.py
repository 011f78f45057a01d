"""A fleet summed up by its store, and the engines of it that are worth reading in full.

The store sends one row an engine: quantiles of its requests' times, and the sums of products
that a least-squares fit of its steps' times needs. A line through all engines' sums says what
a batch costs in this fleet; an engine's steps are held against it, its requests against those
of the other engines.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
from tokenlag_tracer import conventions as names

from tokenlag.read.stores.asked import Span
from tokenlag.read.stores.clickhouse import Spans
from tokenlag.read.stores.client import Row
from tokenlag.read.stores.summary import EngineSummary, Fleet, FleetModel
from tokenlag.read.stores.table import sql, value_of

Floats = npt.NDArray[np.float64]

MAX_READ: Final = 8  # engines in full detail, beside a typical one
N_WORST: Final = 3  # of engines that are all alike
MIN_REQUESTS: Final = 20
MIN_STEPS: Final = 200
LONG_FACTOR: Final = 10.0
# Iglewicz and Hoaglin's bound on a deviation in units of the median absolute one.
FAR: Final = 3.5
MAD_TO_SD: Final = 1.4826
# Engines that are alike to a few percent differ by chance; nobody looks for a fifth.
LEAST_SPREAD_FRAC: Final = 0.05
LEAST_RATIO: Final = 1.2
N_COLUMNS: Final = 5
_SPAN: Final = "SpanAttributes"
_TITLES: Final = {
    "step_ratio": "steps' time for their batches",
    "stopped_frac": "time in stops",
    "ttft_p90_ms": "TTFT p90",
    "queue_p90_ms": "queue p90",
    "tpot_p90_ms": "time per token p90",
    "e2e_p90_ms": "end-to-end p90",
    "error_frac": "share of errors",
}


@dataclass(frozen=True)
class Sums:
    """An engine's steps, summed up."""

    n: int
    y: float
    x: Floats
    xy: Floats
    xx: Floats


def sum_up(spans: Spans, window: Span) -> tuple[list[EngineSummary], FleetModel | None]:
    """Returns each engine of a window as its store sums it up, and the fleet's step model.

    Raises:
        InputError: the store refuses.
    """
    rows: dict[str, Row] = {}
    for statement in (_steps(spans), _requests(spans)):
        asked = spans.values(
            from_ns=window.start_ns,
            to_ns=window.end_ns,
            long_factor=LONG_FACTOR,
            queue_name=names.SPAN_QUEUE,
            engine_request_name=names.SPAN_ENGINE_REQUEST,
        )
        for row in spans.client.rows(statement, asked):
            rows.setdefault(str(row["engine"]), {}).update(row)
    sums = {engine: _sums(row) for engine, row in rows.items() if row.get("n_fitted")}
    coefficients = fleet_line(list(sums.values()))
    summaries = []
    for engine, row in sorted(rows.items()):
        own = sums.get(engine)
        ratio = None
        if coefficients is not None and own is not None and own.n >= MIN_STEPS:
            ratio = own.y / float(own.x @ coefficients)
        summaries.append(_summary(engine, row, ratio))
    model = None
    if coefficients is not None:
        n_steps = sum(own.n for own in sums.values())
        model = FleetModel(len(sums), n_steps, *map(float, coefficients))
    return summaries, model


def choose(
    summaries: Sequence[EngineSummary], before: Sequence[EngineSummary] = ()
) -> dict[str, str]:
    """Returns which engines are worth reading in full, and why; the last is a typical one.

    Args:
        summaries: of the window.
        before: of the baseline, if there is one.
    """
    figures = _figures(summaries)
    earlier = {one.engine: _figures([one]) for one in before}
    titles = dict(_TITLES)
    for name in list(figures) if before else []:
        told = [earlier.get(one.engine, {}).get(name, np.array([np.nan]))[0] for one in summaries]
        changed = figures[name] / np.where(np.asarray(told) > 0, told, np.nan)
        figures[f"{name} change"] = changed
        titles[f"{name} change"] = f"change of {_TITLES[name]} since the baseline"
    farthest = np.full(len(summaries), -np.inf)
    strangest = np.zeros(len(summaries))
    why = [""] * len(summaries)
    for name, values in figures.items():
        usual, far, is_far = deviations(values)
        strangest = np.fmax(strangest, np.abs(far))
        for at in np.flatnonzero(is_far & (far > farthest)):
            farthest[at] = far[at]
            why[at] = f"{titles[name]} {_times(values[at], usual)} the fleet's median"
    suspects = [int(at) for at in np.argsort(-farthest) if np.isfinite(farthest[at])][:MAX_READ]
    if not suspects:
        slow = [-(one.ttft_p90_ms or one.e2e_p90_ms or 0.0) for one in summaries]
        suspects = [int(at) for at in np.argsort(slow)[:N_WORST]]
        why = ["the slowest of engines that are alike"] * len(summaries)
    chosen = {summaries[at].engine: why[at] for at in suspects}
    busy = np.array([one.requests >= MIN_REQUESTS for one in summaries])
    order = np.argsort(np.where(busy, strangest, np.inf))
    typical = next((int(at) for at in order if summaries[at].engine not in chosen), None)
    if typical is not None:
        chosen[summaries[typical].engine] = "a typical one, to compare with"
    return chosen


def described(
    summaries: Sequence[EngineSummary], model: FleetModel | None, chosen: Mapping[str, str]
) -> Fleet:
    """Returns the fleet, with what was read in full marked."""
    told = [
        msgspec.structs.replace(one, is_read=one.engine in chosen, why=chosen.get(one.engine))
        for one in summaries
    ]
    return Fleet(told, model)


def deviations(values: Floats) -> tuple[float, Floats, npt.NDArray[np.bool_]]:
    """Returns the median, how far each value is above it in spreads, and which are too far."""
    known = values[np.isfinite(values)]
    if len(known) < 3:
        return np.nan, np.zeros_like(values), np.zeros(len(values), dtype=bool)
    usual = float(np.median(known))
    spread = MAD_TO_SD * float(np.median(np.abs(known - usual)))
    spread = max(spread, LEAST_SPREAD_FRAC * abs(usual), 1e-9)
    far = np.where(np.isfinite(values), (values - usual) / spread, 0.0)
    return usual, far, (far > FAR) & (values > LEAST_RATIO * usual)


def fleet_line(sums: Sequence[Sums]) -> Floats | None:
    """Returns what a step costs in the fleet, by the sums of all engines that are alike.

    Coefficients are not negative: the best fit among all sets of columns that gives none is
    taken. Engines whose steps are far from a first fit shape no second one.
    """
    kept = [own for own in sums if own.n >= MIN_STEPS]
    if not kept:
        return None
    line = _least_squares(kept)
    for _ in range(2):
        ratios = np.array([own.y / max(float(own.x @ line), 1e-9) for own in kept])
        usual, far, _above = deviations(ratios)
        if not np.isfinite(usual):
            break
        line = _least_squares([own for own, d in zip(kept, far, strict=True) if abs(d) <= FAR])
    return line


def _least_squares(sums: Sequence[Sums]) -> Floats:
    xx = np.sum([own.xx for own in sums], axis=0)
    xy = np.sum([own.xy for own in sums], axis=0)
    scale = np.sqrt(np.maximum(np.diag(xx), 1e-300))
    xx, xy = xx / np.outer(scale, scale), xy / scale
    best, best_error = np.zeros(N_COLUMNS), 0.0
    for n in range(1, N_COLUMNS + 1):
        for some in itertools.combinations(range(N_COLUMNS), n):
            at = np.ix_(some, some)
            try:
                found = np.linalg.solve(xx[at] + 1e-12 * np.eye(n), xy[list(some)])
            except np.linalg.LinAlgError:
                continue
            error = float(found @ xx[at] @ found - 2 * found @ xy[list(some)])
            if (found >= 0).all() and error < best_error:
                best, best_error = np.zeros(N_COLUMNS), error
                best[list(some)] = found
    return np.asarray(best / scale, dtype=np.float64)


def _sums(row: Row) -> Sums:
    xx = np.array(row["xx"], dtype=np.float64).reshape(N_COLUMNS, N_COLUMNS)
    x, xy = (np.array(row[key], dtype=np.float64) for key in ("x_sums", "xy"))
    return Sums(int(row["n_fitted"]), float(row["y"]), x, xy, xx)


def _summary(engine: str, row: Row, step_ratio: float | None) -> EngineSummary:
    n_requests = int(row.get("n_requests", 0))

    def quantile(key: str, at: int) -> float | None:
        value = (row.get(key) or [None, None])[at]
        return None if value is None or not np.isfinite(value) else float(value)

    return EngineSummary(
        engine,
        requests=n_requests,
        steps=int(row.get("n_steps", 0)),
        error_frac=int(row["n_errors"]) / n_requests if n_requests else None,
        ttft_p50_ms=quantile("ttft_ms", 0),
        ttft_p90_ms=quantile("ttft_ms", 1),
        e2e_p90_ms=quantile("e2e_ms", 1),
        queue_p90_ms=quantile("queue_ms", 1),
        tpot_p90_ms=quantile("tpot_ms", 1),
        busy_ms=float(row["busy_ms"]) if "busy_ms" in row else None,
        stopped_ms=float(row["stopped_ms"]) if "stopped_ms" in row else None,
        step_ratio=step_ratio,
    )


def _figures(summaries: Sequence[EngineSummary]) -> dict[str, Floats]:
    """What engines are compared by; NaN where there is too little of it."""
    told: dict[str, list[float]] = {name: [] for name in _TITLES}
    for one in summaries:
        is_busy = one.requests >= MIN_REQUESTS
        for name in _TITLES:
            value: Any = None
            if name == "stopped_frac":
                value = (one.stopped_ms or 0.0) / one.busy_ms if one.busy_ms else None
            elif name == "step_ratio" or is_busy:
                value = getattr(one, name)
            told[name].append(np.nan if value is None else float(value))
    return {name: np.array(values) for name, values in told.items()}


def _times(value: float, usual: float) -> str:
    return f"{value / usual:.1f} ×" if usual > 1e-9 else f"{value:.3g} against"


def _steps(spans: Spans) -> str:
    table = spans.table

    def value(kind: str, key: str) -> str:
        return value_of(kind, table, _SPAN, key)

    return sql(
        "fleet_steps",
        TABLE=table.name,
        END_NS=spans.end_ns,
        ENGINE=table.engine,
        EPOCH=value("int", names.ENGINE_EPOCH),
        STEP_INDEX=value("int", names.STEP_INDEX),
        DECODING=value("int", names.STEP_DECODE_COUNT),
        CHUNK_TOKENS=value("int[]", names.STEP_PREFILL_TOKENS),
        CHUNK_CONTEXT=value("int[]", names.STEP_PREFILL_CONTEXT),
        CONTEXT=value("int", names.STEP_CONTEXT_TOKENS),
    )


def _requests(spans: Spans) -> str:
    table = spans.table

    def value(kind: str, key: str) -> str:
        return value_of(kind, table, _SPAN, key)

    return sql(
        "fleet_requests",
        TABLE=table.name,
        ENGINE=table.engine,
        REQUEST_ID=table.raw(_SPAN, names.REQUEST_ID),
        ENGINE_ID=table.raw(_SPAN, names.ENGINE_ID),
        INDEX=table.raw(_SPAN, names.REQUEST_INDEX),
        FIRST_TOKEN_NS=value("int", names.FIRST_TOKEN_NS),
        FIRST_TOKEN_S=value("float", "gen_ai.latency.time_to_first_token"),
        QUEUE_S=value("float", "gen_ai.latency.time_in_queue"),
        OUTPUT_TOKENS=value("int", names.USAGE_OUTPUT_TOKENS),
        OUTPUT_TOKENS_OLD=value("int", "gen_ai.usage.completion_tokens"),
    )
