"""Hours of healthy traces, and how often the diagnosis says that something is wrong.

    python benchmarks/accuracy.py --healthy-hours 300 --seed N     rows come as they are done
    python benchmarks/accuracy.py --healthy-window 17 --seed N     one window, with what was found

Windows are `tokenlag.simulate.healthy`'s. One in which requests truly wait, or streams stand
still, is told by the run itself (`is_strained`), is no healthy one, and is counted apart. Traces
go through native Parquet, which holds the same rows as the run's OTLP JSON.
"""

from __future__ import annotations

import concurrent.futures
import json
import math
import multiprocessing
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import UTC
from pathlib import Path
from typing import Any

from benchmarks.counting import STATED, SURE


def run_window(number: int, seed: int) -> list[dict[str, Any]]:
    """Simulates, writes and diagnoses one window and its baseline's; a row for each of them."""
    from tokenlag.pipeline import Request
    from tokenlag.simulate.healthy import healthy_window, is_strained
    from tokenlag.simulate.run import run

    window = healthy_window(number, seed)
    common = {
        "number": number, "seed": seed, "shape": window.shape, "load": window.load,
        "form": window.form, "engines": window.engines, "drop": sorted(window.drop),
        "is_vllm": window.is_vllm,
    }  # fmt: skip
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder, began = Path(name), time.process_time()
        made = run(window.recipe)
        now = _write(made, folder / "now", window)
        jobs = []
        if window.before is not None:
            other = run(window.before)
            before = _write(other, folder / "before", window)
            jobs = [
                (
                    "before",
                    Request([before], n_workers=0),
                    is_strained(window.before, other),
                    other,
                ),
                ("now", Request([now], baseline_traces=[before], n_workers=0), None, made),
            ]
        elif window.compared == "earlier":
            middle = f"@{_middle_s(made):.6f}"
            jobs = [
                ("before", Request([now], until=middle, n_workers=0), None, made),
                ("now", Request([now], since=middle, n_workers=0), None, made),
            ]
        else:
            jobs = [("now", Request([now], n_workers=0), None, made)]
        strain = is_strained(window.recipe, made)
        simulated_s = time.process_time() - began
        for part, request, is_strained_here, of in jobs:
            compared = window.compared if part == "now" else "none"
            rows.append(
                common
                | {"part": part, "compared": compared, "length_s": round(window.length_s, 1)}
                | {"is_strained": strain if is_strained_here is None else is_strained_here}
                | {"n_steps": of.n_steps, "n_requests": len(of.requests)}
                | _diagnosed(request)
                | {"simulated_cpu_s": round(simulated_s / len(jobs), 2)}
            )
    return rows


def _write(made: Any, path: Path, window: Any) -> str:
    from tokenlag.simulate.traces import write_traces

    from benchmarks.native import write_native

    if window.is_vllm:
        write_traces(made, path.with_suffix(".jsonl"), form="vllm")
        return str(path.with_suffix(".jsonl"))
    write_native(made, path.with_suffix(".parquet"), drop=window.drop)
    return str(path.with_suffix(".parquet"))


def _middle_s(made: Any) -> float:
    """The middle of a run's arrivals, as unix seconds."""
    from tokenlag.simulate.timeline import DEFAULT_END_NS

    arrivals = [r.arrival_s for r in made.requests]
    middle = (min(arrivals) + max(arrivals)) / 2
    return DEFAULT_END_NS / 1e9 + middle - float(made.last_instant_s)


def _diagnosed(request: Any) -> dict[str, Any]:
    """What the diagnosis says of a window in which nothing is wrong."""
    from tokenlag.pipeline import diagnose

    began = time.process_time()
    outcome = diagnose(request, now_ns=0, tz=UTC)
    diagnosis = outcome.diagnosis
    is_healthy = diagnosis.verdict.status == "healthy"
    findings = [f for f in diagnosis.findings if f.severity == "problem" and f.confidence >= STATED]
    return {
        "status": diagnosis.verdict.status,
        "said": diagnosis.verdict.cause,
        "summary": None if is_healthy else diagnosis.verdict.summary,
        "confidence": round(findings[0].confidence, 3) if findings else None,
        "findings": [
            [f.rule, round(f.confidence, 2), round(f.effect_ms or 0), f.summary] for f in findings
        ],
        "weak": sorted(
            {
                f.rule
                for f in diagnosis.findings
                if f.severity == "problem" and f.confidence < STATED
            }
        ),
        "baseline": diagnosis.baseline is not None,
        "problems": [str(problem) for problem in outcome.problems],
        "cpu_s": round(time.process_time() - began, 2),
    }


# --- many --------------------------------------------------------------------------------------


def run_hours(hours: float, seed: int, jobs: int, out: Path) -> list[dict[str, Any]]:
    """Runs windows until so many healthy hours are there; rows go to `out` as they come."""
    rows: list[dict[str, Any]] = []
    out.parent.mkdir(parents=True, exist_ok=True)
    began = time.time()
    with out.open("w", encoding="utf-8") as file:
        for some in _windows(seed, jobs):
            rows += some
            file.writelines(json.dumps(row) + "\n" for row in some)
            file.flush()
            for row in some:
                if row["status"] != "healthy":
                    print(json.dumps(row), flush=True)
            done = sum(r["length_s"] for r in rows if not r["is_strained"]) / 3600
            if done >= hours:
                break
    print(f"{time.time() - began:.0f} s, rows in {out}")
    return rows


def _windows(seed: int, jobs: int) -> Iterator[list[dict[str, Any]]]:
    """Rows of window 0, 1, 2, …, some at a time where several processes run."""
    if jobs <= 1:
        number = 0
        while True:
            yield run_window(number, seed)
            number += 1
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(jobs, mp_context=context) as pool:
        ahead = [pool.submit(run_window, n, seed) for n in range(2 * jobs)]
        number = len(ahead)
        try:
            while True:
                yield ahead.pop(0).result()
                ahead.append(pool.submit(run_window, number, seed))
                number += 1
        finally:
            pool.shutdown(cancel_futures=True)


# --- the report --------------------------------------------------------------------------------


def poisson_interval(k: int, share: float = 0.95) -> tuple[float, float]:
    """The exact interval of a Poisson mean of which `k` were counted."""
    tail = (1 - share) / 2
    low = 0.0 if k == 0 else _mean_at(k - 1, 1 - tail)
    return low, _mean_at(k, tail)


def _mean_at(k: int, chance: float) -> float:
    """The mean at which `k` or fewer come with this chance."""
    low, high = 0.0, k + 10 * math.sqrt(k + 1) + 10
    for _ in range(100):
        mean = (low + high) / 2
        at_most = sum(
            math.exp(-mean + n * math.log(mean) - math.lgamma(n + 1)) for n in range(k + 1)
        )
        low, high = (mean, high) if at_most > chance else (low, mean)
    return (low + high) / 2


def report(rows: list[dict[str, Any]]) -> None:
    """False alarms an hour, what was said, and in which kinds of windows."""
    healthy = [r for r in rows if not r["is_strained"]]
    strained = [r for r in rows if r["is_strained"]]
    _print_rate("healthy", healthy)
    for key in ("compared", "shape"):
        for value in sorted({r[key] for r in healthy}):
            _print_rate(f"  {value}", [r for r in healthy if r[key] == value])
    if strained:
        _print_rate("truly wait or stand still", strained)
    said: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        if row["status"] != "healthy":
            name = row["said"] or f"({row['status']})"
            said["strained" if row["is_strained"] else "healthy"][name] += 1
    for kind, counts in said.items():
        print(f"said of {kind} windows: {dict(counts)}")
    hours = sum(r["length_s"] for r in rows) / 3600
    cpu_s = sum(r["cpu_s"] + r["simulated_cpu_s"] for r in rows)
    print(f"{cpu_s / max(hours, 1e-9):.1f} s of processor time an hour, {cpu_s:.0f} s in all")


def _print_rate(label: str, rows: list[dict[str, Any]]) -> None:
    hours = sum(r["length_s"] for r in rows) / 3600
    alarms = sum(r["status"] == "problem" for r in rows)
    sure = sum(r["status"] == "problem" and (r["confidence"] or 0) >= SURE for r in rows)
    cannot = sum(r["status"] == "inconclusive" for r in rows)
    low, high = poisson_interval(alarms)
    per_300 = 300 / max(hours, 1e-9)
    print(
        f"{label:22} {hours:7.1f} h {len(rows):5} windows {alarms:3} alarms ({sure} sure), "
        f"{cannot:2} cannot tell; in 300 h {alarms * per_300:.2f} ({low * per_300:.2f} to "
        f"{high * per_300:.2f})"
    )
