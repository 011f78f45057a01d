"""From canonical tables to derived tables: everything that rules and reports read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources

import numpy as np
import numpy.typing as npt

from tokenlag.explain import arrivals, changepoint, compare, costs, edges, residuals, roofline
from tokenlag.explain.arrays import Columns, Floats, Ints
from tokenlag.explain.behind_spans import write_behind
from tokenlag.explain.engine import explain_epoch
from tokenlag.explain.sql import query
from tokenlag.explain.stepmodel import StepArrays, StepModel, fit
from tokenlag.store.connection import Store
from tokenlag.window import Objective

Bools = npt.NDArray[np.bool_]

MAX_GROUPS = 8
# A rise outside the engine below this changes nothing that anybody sees.
OUTSIDE_MS = 20.0
MIN_REQUESTS_A_SIDE = 10
MIN_USUAL_FRAC = 0.1  # of the window


@dataclass(frozen=True)
class WindowRow:
    """One row of `windows`."""

    name: str
    dataset: int
    from_ns: int
    to_ns: int
    origin: str


def find_change(store: Store, window: WindowRow) -> int | None:
    """Arrival time of the first request of a new make-up within the window, or None.

    For use where there is no baseline: prompt tokens to compute, output tokens, arrivals, what
    requests wait outside the engine, and what a step costs for its batch. What requests are like
    in a short first part (conversations that all begin there) is not taken for what is usual.
    """
    store.execute("delete from windows")
    store.execute("delete from request_facts")
    _write_windows(store, [window])
    store.execute(query("facts"))
    series = Columns(store, query("mix_series"))
    arrival = series.ints("arrival_ns")
    usual_from_ns = window.from_ns + MIN_USUAL_FRAC * (window.to_ns - window.from_ns)
    for name in ("n_new", "n_output", "n_prompt"):
        values = series.floats(name)
        known = np.isfinite(values) & (values > 0)
        at = changepoint.find_rise(values[known])
        if at is not None and arrival[known][at] >= usual_from_ns:
            return int(arrival[known][at])
    for name in ("network_in_ms", "frontend_ms", "delivery_ms", "client_late_ms"):
        values = series.floats(name)
        known = np.isfinite(values) & (values > 0)
        at = changepoint.find_rise(values[known], min_rise=OUTSIDE_MS, climbs=True)
        if at is not None:
            return int(arrival[known][at])
    more = changepoint.find_more_arrivals(arrival)
    return more if more is not None and more >= usual_from_ns else _find_slower(store, arrival)


def _find_slower(store: Store, arrival_ns: Ints) -> int | None:
    """Where an engine's steps become slower for their batch; the earliest of several.

    Steps go on when no request arrives any more: either side must have some to be judged. Where
    nothing that clients see is slower from then on, something else was wrong before, and the part
    after it would hide that.
    """
    found: list[int] = []
    for (key,) in store.fetchall(query("window_epochs")):
        rows = Columns(store, query("window_steps"), [key])
        for chosen, ratio in _ratios(rows):
            at = changepoint.find_slower(rows.ints("end_ns")[chosen], ratio)
            if at is not None:
                found.append(at)
        n_decode = rows.floats("n_decode")
        # With drafts a step yields several tokens a stream: fewer of them is slower as well.
        n_new = rows.floats("n_new_tokens")
        drafting = (n_new > 0) & (n_decode > 0) & np.isfinite(rows.floats("n_drafted"))
        steps_a_token = n_decode[drafting] / n_new[drafting]
        at = changepoint.find_slower(rows.ints("end_ns")[drafting], steps_a_token)
        if at is not None:
            found.append(at)
    judged = [
        at
        for at in found
        if _n_fewer_side(arrival_ns, at) >= MIN_REQUESTS_A_SIDE
        and store.scalar(query("worse_after"), [at])
    ]
    return min(judged) if judged else None


def _n_fewer_side(arrival_ns: Ints, at_ns: int) -> int:
    before = int(np.searchsorted(arrival_ns, at_ns))
    return min(before, len(arrival_ns) - before)


def _ratios(rows: Columns) -> Iterator[tuple[Bools, Floats]]:
    """Of which steps, and their observed over expected times, by several models.

    By all steps, and by the first third: slower steps keep streams longer, so that a model of
    all of them may take the slowness for what large batches cost. Decode-only steps also by what
    batch and context cost within short stretches of time, where the speed is one.
    """
    n_prefill, n_decode = rows.floats("n_prefill_tokens"), rows.floats("n_decode")
    attention, context = rows.floats("attention_work"), rows.floats("n_context_tokens")
    observed = rows.floats("wall_ms")
    for n in (rows.n_rows, rows.n_rows // 3):
        if n == 0:
            continue
        usable = np.arange(rows.n_rows) < n
        model = fit(StepArrays(observed, n_prefill, n_decode, attention, context, usable))
        if not model.has_decode:
            continue
        known = np.full(rows.n_rows, True) if model.has_prefill else n_prefill == 0
        # Beyond what it was fitted to, it knows nothing.
        for of in (n_prefill, n_decode, context):
            known &= of <= of[:n].max()
        expected = model.predict(n_prefill, n_decode, attention, context)
        ratio = observed / np.maximum(expected, 1e-9)
        # Decode-only steps are nearly all: what only prompt chunks show is searched apart.
        yield known, ratio[known]
        yield known & (n_prefill > 0), ratio[known & (n_prefill > 0)]
    plain = (n_prefill == 0) & (n_decode > 0)
    yield plain, changepoint.at_one_batch(observed[plain], n_decode[plain], context[plain])


def prepare(store: Store) -> None:
    """Adds the empty derived tables to a store whose canonical tables are loaded."""
    store.run_script("tokenlag.store", "derived.sql")


def reset(store: Store) -> None:
    """Empties the derived tables, so that they can be filled again for a part of the requests."""
    script = resources.files("tokenlag.store").joinpath("derived.sql").read_text(encoding="utf-8")
    for table in re.findall(r"(?m)^create table (\w+)", script):
        store.execute(f"delete from {table}")


def group_values(store: Store, by: str) -> list[str]:
    """The largest groups of the current window's requests, at most `MAX_GROUPS`.

    Args:
        store: with `request_facts` filled.
        by: 'tenant', 'engine' or 'shape'.
    """
    rows = store.fetchall(query(f"groups_{by}"))
    return [str(value) for value, _ in rows[:MAX_GROUPS]]


def explain(
    store: Store,
    windows: Sequence[WindowRow],
    objectives: Sequence[Objective] = (),
    only: tuple[str, str] | None = None,
) -> dict[int, StepModel]:
    """Fills the derived tables for these windows. Returns the step models by epoch key.

    Args:
        store: canonical tables loaded, derived tables empty.
        windows: the current one first.
        objectives: of `--slo`.
        only: (by, value) to keep one group's requests; steps of its engines stay whole.
    """
    for table in ("windows", "request_facts"):
        store.execute(f"delete from {table}")
    _write_windows(store, windows)
    store.execute(query("facts"))
    if only is not None:
        store.execute(query(f"keep_{only[0]}"), [only[1]])
    models = {}
    for (key,) in store.fetchall(query("fact_epochs" if only else "all_epochs")):
        models[int(key)] = explain_epoch(store, int(key))
    budgets = dict(store.fetchall("select epoch_key, max_batch_tokens from epochs"))
    known = {int(k): float(v) for k, v in budgets.items() if v}
    write_behind(store)
    costs.write_alone_costs(store, models, known)
    for name in ("reuse", "ghosts", "demand", "binding", "growth"):
        store.execute(query(name))
    edges.write_edges(store)
    residuals.write_residuals(store)
    roofline.write_roofline(store)
    _mark_arrivals(store, windows)
    compare.write_changes(store)
    _write_objectives(store, objectives)
    return models


def _write_windows(store: Store, windows: Sequence[WindowRow]) -> None:
    store.insert(
        "windows",
        {
            "name": [w.name for w in windows],
            "dataset": [w.dataset for w in windows],
            "from_ns": [w.from_ns for w in windows],
            "to_ns": [w.to_ns for w in windows],
            "origin": [w.origin for w in windows],
        },
    )


def _mark_arrivals(store: Store, windows: Sequence[WindowRow]) -> None:
    store.execute("create or replace temp table first_wave_keys (request_key integer)")
    for dataset in sorted({w.dataset for w in windows}):
        rows = Columns(store, query("arrivals"), [dataset])
        arrival, end = rows.ints("arrival_ns"), rows.ints("end_ns")
        first = rows.ints("first_token_ns")
        wave = arrivals.first_wave(arrival, first[first >= 0])
        store.insert("first_wave_keys", {"request_key": rows.ints("request_key")[wave]})
        for window in windows:
            if window.dataset != dataset:
                continue
            inside = (arrival >= window.from_ns) & (arrival < window.to_ns)
            done = (end >= window.from_ns) & (end < window.to_ns)
            if arrivals.is_closed_loop(arrival[inside], end[done]):
                store.execute(
                    "update demand set is_closed_loop = true where window_name = ?", [window.name]
                )
    store.execute(query("first_wave"))


def _write_objectives(store: Store, objectives: Sequence[Objective]) -> None:
    if not objectives:
        return
    store.insert(
        "objectives",
        {
            "metric": [o.metric for o in objectives],
            "percentile": [float(o.percentile) for o in objectives],
            "limit_ms": [float(o.limit_ms) for o in objectives],
        },
    )
    rows = Columns(store, query("objective_inputs"))
    for objective in objectives:
        actual = _actual(store, rows, objective)
        if actual is not None:
            store.execute(
                "update objectives set actual_ms = ?, is_missed = ? "
                "where metric = ? and percentile = ?",
                [
                    actual,
                    actual > objective.limit_ms,
                    objective.metric,
                    float(objective.percentile),
                ],
            )


def _actual(store: Store, rows: Columns, objective: Objective) -> float | None:
    if objective.metric == "itl":
        sql = "select gap_ms from gap_quantiles('current', ?)"
        value = store.scalar(sql, [objective.percentile / 100.0])
        return None if value is None else float(value)
    values = rows.floats(f"{objective.metric}_ms")
    values = values[np.isfinite(values)]
    return float(np.quantile(values, objective.percentile / 100.0)) if len(values) else None
