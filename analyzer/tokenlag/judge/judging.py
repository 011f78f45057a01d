"""From a store with its derived tables to a diagnosis: figures, rules, ranking, verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tokenlag.errors import TokenlagError
from tokenlag.explain.arrays import Columns
from tokenlag.explain.run import WindowRow
from tokenlag.judge import figures
from tokenlag.judge.assemble import exemplar_keys, to_findings
from tokenlag.judge.budget import budget_table
from tokenlag.judge.coverage import coverage
from tokenlag.judge.diagnosis import Diagnosis, Exemplar, Goodput, Interval, ObjectiveOutcome
from tokenlag.judge.excess import find_excess
from tokenlag.judge.rank import rank
from tokenlag.judge.rulebook import Rulebook
from tokenlag.judge.run import run_rules
from tokenlag.judge.sql import query
from tokenlag.judge.verdict import Situation, decide
from tokenlag.store.connection import Store
from tokenlag.window import Objective


@dataclass(frozen=True)
class Brief:
    """What is asked of a store: windows, objectives, rules, and how times are written."""

    rows: Sequence[WindowRow]
    objectives: Sequence[Objective]
    limits: dict[str, float]
    rulebook: Rulebook
    notes: Sequence[str]
    baseline_origin: str | None
    utc_offset: str
    rfc3339: Callable[[int], str]


@dataclass(frozen=True)
class Judged:
    """A diagnosis, rules that broke on the way, and each symptom's excess (ms; NaN: unknown)."""

    diagnosis: Diagnosis
    problems: list[TokenlagError]
    excess_ms: dict[str, float]


def judge_store(store: Store, brief: Brief) -> Judged:
    """Judges what `explain` left in the store. Closes the store, but keeps its file."""
    has_baseline = len(brief.rows) > 1
    columns = Columns(store, query("request_columns"))
    current = figures.requests_of(columns, "current")
    baseline = figures.requests_of(columns, "baseline")
    latency = figures.latency(store, columns, has_baseline=has_baseline)
    demand = store.fetchall(query("demand_all"))
    spans_s = {str(name): float(span) for name, span, _, _ in demand}
    is_closed = any(bool(closed) for name, _, _, closed in demand if name == "current")
    _, itl_excess = figures.gap_stat(store, "current")
    excess = find_excess(
        store, current, itl_excess, is_closed_loop=is_closed, baseline=baseline
    )  # fmt: skip
    capabilities = figures.capabilities(store)
    pairs = _actuals(store, brief.objectives)
    missed = [o.label for o, value in pairs if value is not None and value > o.limit_ms]
    unjudged = {o.label: _is_likely_missed(current, o) for o, value in pairs if value is None}
    seen = coverage(store, len(current), capabilities, list(brief.notes))
    models = figures.step_models(store)
    engine_name = store.scalar("select mode(engine_name) from epochs where dataset = 0")
    examples = {
        int(key): Exemplar(trace, rid, ttft, e2e)
        for trace, rid, ttft, e2e, key in store.fetchall(query("exemplars"))
    }
    in_flight = store.scalar(query("in_flight"))
    store.close(keep=True)
    run = run_rules(
        brief.rulebook,
        store.path,
        capabilities,
        engine_name=str(engine_name) if engine_name else None,
    )
    shown = {key: examples[key] for key in exemplar_keys(run.hits) if key in examples}
    totals = {
        name: (e.rise_ms if has_baseline and e.rise_ms > 0 else e.alone_ms)
        for name, e in excess.items()
    }
    findings = to_findings(rank(run.hits), totals, shown, seen.engines, brief.rfc3339)
    situation = Situation(
        findings, excess, capabilities, latency, current, missed, seen.steps, int(in_flight or 0),
        unjudged,
    )  # fmt: skip
    now = figures.throughput(columns, spans_s, "current")
    then = figures.throughput(columns, spans_s, "baseline") if has_baseline else None
    intervals = [Interval(brief.rfc3339(r.from_ns), brief.rfc3339(r.to_ns)) for r in brief.rows]
    diagnosis = Diagnosis(
        window=intervals[0],
        baseline=intervals[1] if has_baseline else None,
        coverage=seen,
        verdict=decide(situation),
        latency=latency,
        throughput=figures.with_baseline(now, then),
        not_evaluated=run.not_evaluated,
        findings=findings,
        budget=budget_table(current, baseline, pairs),
        checked=run.checked,
        models=models,
        baseline_origin=brief.baseline_origin,
        utc_offset=brief.utc_offset,
        objectives=[
            ObjectiveOutcome(
                o.metric, o.percentile, o.limit_ms, a, None if a is None else a <= o.limit_ms
            )
            for o, a in pairs
        ],
        goodput=_goodput(current, brief.limits, spans_s.get("current", 0.0)),
    )
    return Judged(diagnosis, list(run.problems), totals)


def _actuals(store: Store, objectives: Sequence[Objective]) -> list[tuple[Objective, float | None]]:
    actual = {
        (str(m), float(p)): a
        for m, p, a in store.fetchall("select metric, percentile, actual_ms from objectives")
    }
    return [(o, actual.get((o.metric, float(o.percentile)))) for o in objectives]


def _is_likely_missed(current: figures.Requests, objective: Objective) -> bool:
    """Whether requests' mean times per token alone are above a limit on gaps that none told."""
    if objective.metric != "itl":
        return False
    each = current.floats("tpot_ms")
    each = each[np.isfinite(each)]
    return len(each) > 0 and bool(
        np.quantile(each, objective.percentile / 100.0) > objective.limit_ms
    )


def _goodput(current: figures.Requests, limits: dict[str, float], span_s: float) -> Goodput | None:
    """Requests that meet all limits; aborted ones and those without the figure miss."""
    if not limits:
        return None
    share = figures.share_within(current, limits)
    per_s = share * len(current) / span_s if share is not None and span_s > 0 else None
    return Goodput(limits_ms=limits, share=share, requests_per_s=per_s)
