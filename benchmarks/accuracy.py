"""How often the diagnosis is right, on generated cases whose truth is known.

    python benchmarks/accuracy.py --cases 300               about 300 cases, two at a time
    python benchmarks/accuracy.py --cases 60 --seed 5 --show-misses
    python benchmarks/accuracy.py --case 17 --seed 5        one case, with what was found
    python benchmarks/accuracy.py --healthy-hours 300       false alarms alone; see `healthy.py`
    python benchmarks/accuracy.py --set pairs --cases 40    two faults at once, or `fleets`, or
                                                            `missing`; see `variety.py`

Each fault's case is compared with its own healthy twin: only where the fault moved the symptom
by a fifth does it count for top-1 (others are told apart as `small`). Two-period cases start
from no hint: the tool finds the change by itself. Rows go to benchmarks/results/ as JSON lines.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import math
import multiprocessing
import sys
import tempfile
import time
from collections import Counter, defaultdict
from datetime import UTC
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
for folder in (ROOT, ROOT / "tracer", ROOT / "analyzer", ROOT / "benchmarks"):
    sys.path.insert(0, str(folder))

from benchmarks import healthy, variety  # noqa: E402
from benchmarks.counting import MOVED, RESULTS, STATED, SURE, share  # noqa: E402


def run_case(number: int, seed: int, kind: str | None) -> dict[str, Any]:
    """Simulates, writes, diagnoses and judges one case; a row of plain values."""
    from thresholds import alerts, gauges
    from tokenlag.pipeline import Request, diagnose
    from tokenlag.simulate.generate import generate
    from tokenlag.simulate.run import run
    from tokenlag.simulate.traces import write_traces

    case = generate(number, seed, kind)
    row: dict[str, Any] = {
        "number": number, "seed": seed, "kind": case.kind, "cause": case.cause, "load": case.load,
        "form": case.form, "size": case.size, "compared": case.compared,
    }  # fmt: skip
    bad = run(case.recipe)
    twin = run(case.twin) if case.cause else bad
    from_s = case.change_s or 0.0
    row["moved"] = _moved(bad, twin, case.symptom, from_s) if case.cause else None
    row["span_s"] = bad.end_s
    row["alerts"] = alerts(gauges(bad, from_s))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "case.jsonl"
        write_traces(bad, path)
        baseline = []
        if case.compared == "apart":
            other = Path(folder) / "before" / "twin.jsonl"
            write_traces(run(case.twin, seed=case.twin.seed + 1), other)
            baseline = [str(other)]
        began = time.process_time()
        request = Request([str(path)], baseline_traces=baseline, n_workers=1)
        outcome = diagnose(request, now_ns=0, tz=UTC)
        row["cpu_s"] = round(time.process_time() - began, 2)
    row.update(_found(outcome.diagnosis, case, bad))
    row["broken"] = [str(problem) for problem in outcome.problems]
    return row


def _found(diagnosis: Any, case: Any, bad: Any) -> dict[str, Any]:
    """What the diagnosis says, against the truth."""
    verdict = diagnosis.verdict
    stated = [f for f in diagnosis.findings if f.severity == "problem" and f.confidence >= STATED]
    right = {case.cause, *case.accept} - {None}
    row: dict[str, Any] = {
        "status": verdict.status,
        "said": verdict.cause,
        "findings": [
            [f.rule, round(f.confidence, 2), f.consequence_of, f.effect_ms] for f in stated
        ],
        "top1": verdict.cause in right,
        "top3": any(f.rule in right for f in stated[:3]),
        "confidence": round(stated[0].confidence, 3) if stated else None,
        "share": stated[0].share if stated else None,
    }
    if case.change_s is not None and diagnosis.baseline is not None:
        row["late_s"] = round(_since_start_s(diagnosis.window.start, bad) - case.change_s, 2)
    if case.culprit and row["top1"]:
        by_id = {f"req-{r.number}": r.source for r in bad.requests}
        blamed = stated[0].blame
        row["culprit"] = bool(blamed) and by_id.get(blamed[0].culprit) == case.culprit
    return row


def _since_start_s(text: str, run: Any) -> float:
    """A time of the report as seconds of the run."""
    from datetime import datetime

    from tokenlag.simulate.timeline import DEFAULT_END_NS

    whole, _, rest = text.partition(".")
    digits = rest.rstrip("Z").split("+")[0]
    stamp = datetime.fromisoformat(whole.removesuffix("Z") + "+00:00").timestamp()
    return stamp + float(f"0.{digits or 0}") - DEFAULT_END_NS / 1e9 + run.last_instant_s


def _moved(bad: Any, twin: Any, symptom: str, from_s: float) -> float:
    """By how much the symptom rose over the twin's: the largest of the ways people measure it."""
    before, after = _levels(twin, symptom, from_s), _levels(bad, symptom, from_s)
    rises = [a / b - 1 for b, a in zip(before, after, strict=True) if b > 0]
    return round(max(rises, default=0.0), 3)


def _levels(run: Any, symptom: str, from_s: float) -> list[float]:
    import numpy as np

    done = [
        r
        for r in run.requests
        if r.sent_s >= from_s and r.first_token_s and r.done_s and not r.is_ghost
    ]
    if not done:
        return [math.inf]
    if symptom == "ttft":
        values = np.array([r.first_token_s - r.sent_s for r in done])
        return [float(values.mean()), float(np.quantile(values, 0.9))]
    if symptom == "e2e":
        values = np.array([r.done_s - r.sent_s for r in done])
        return [float(values.mean()), float(np.quantile(values, 0.9))]
    tpot = [(r.done_s - r.first_token_s) / (r.n_output - 1) for r in done if r.n_output > 1]
    worst = []
    for request in done:
        times = run.epochs[request.epoch].token_times_s(request)
        if len(times) > 1:
            worst.append(float(np.diff(times).max()))
    return [float(np.mean(tpot)), float(np.mean(worst))]


# --- the report --------------------------------------------------------------------------------


def peer_says(row: dict[str, Any]) -> tuple[bool, bool]:
    """Whether the first alert, and any of the first three, is commonly read as the true cause."""
    from thresholds import READ_AS

    hits = [row["cause"] in READ_AS[name] for name in row["alerts"]]
    return bool(hits and hits[0]), any(hits[:3])


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """All figures of a run."""
    faults = [r for r in rows if r["cause"] and r["moved"] >= MOVED]
    small = [r for r in rows if r["cause"] and r["moved"] < MOVED]
    healthy = [r for r in rows if not r["cause"]]
    hours = sum(r["span_s"] for r in healthy) / 3600
    alarms = [r for r in healthy if r["status"] == "problem"]
    peer = [peer_says(r) for r in faults]
    late = sorted(abs(r["late_s"]) / r["span_s"] for r in faults if "late_s" in r)
    culprits = [r["culprit"] for r in faults if "culprit" in r]
    sure_wrong = [
        r
        for r in faults + small + healthy
        if r["said"] and not r["top1"] and (r["confidence"] or 0) >= SURE
    ]
    return {
        "n": len(rows),
        "top1": [sum(r["top1"] for r in faults), len(faults)],
        "top3": [sum(r["top3"] for r in faults), len(faults)],
        "wrong": [sum(bool(r["said"]) and not r["top1"] for r in faults), len(faults)],
        "without_cause": [
            sum(r["status"] == "problem" and not r["said"] for r in faults), len(faults)
        ],
        "abstained": [sum(r["status"] == "inconclusive" for r in faults), len(faults)],
        "missed": [sum(r["status"] == "healthy" for r in faults), len(faults)],
        "wrong_and_sure": [len(sure_wrong), len(rows)],
        "alarms": [len(alarms), len(healthy)],
        "healthy_hours": round(hours, 3),
        "alarms_by_hour": round(len(alarms) / hours, 3) if hours else None,
        "small": [sum(r["top1"] for r in small), len(small)],
        "small_wrong": [sum(bool(r["said"]) and not r["top1"] for r in small), len(small)],
        "culprit": [sum(culprits), len(culprits)],
        "late_median_frac": round(late[len(late) // 2], 4) if late else None,
        "late_within_5_percent": [sum(x <= 0.05 for x in late), len(late)],
        "cpu_s_median": sorted(r["cpu_s"] for r in rows)[len(rows) // 2],
        "peer_top1": [sum(a for a, _ in peer), len(peer)],
        "peer_top3": [sum(b for _, b in peer), len(peer)],
        "peer_silent": [sum(not r["alerts"] for r in faults), len(faults)],
        "peer_alarms": [sum(bool(r["alerts"]) for r in healthy), len(healthy)],
    }  # fmt: skip


def print_summary(found: dict[str, Any]) -> None:
    """The figures, as lines."""
    rows = [
        ("right cause first", "top1"), ("right cause among three", "top3"),
        ("wrong cause", "wrong"), ("problem, no cause named", "without_cause"),
        ("cannot tell", "abstained"), ("said healthy", "missed"),
        ("wrong with confidence of 0.9 and more", "wrong_and_sure"),
        ("culprit request named", "culprit"), ("change found within 5 % of the run",
        "late_within_5_percent"), ("faults below a fifth: right", "small"),
        ("faults below a fifth: wrong", "small_wrong"),
        ("healthy cases with a problem", "alarms"), ("thresholds: right first", "peer_top1"),
        ("thresholds: right among three", "peer_top3"), ("thresholds: silent", "peer_silent"),
        ("thresholds: healthy with an alert", "peer_alarms"),
    ]  # fmt: skip
    for label, key in rows:
        print(f"{label:40} {share(*found[key])}")
    print(
        f"healthy hours {found['healthy_hours']}, false alarms an hour {found['alarms_by_hour']}; "
        f"median processor time {found['cpu_s_median']} s a case"
    )


def print_by_kind(rows: list[dict[str, Any]]) -> None:
    """One line a fault: how many were right, and what was said instead."""
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        if row["cause"] is None or row["moved"] >= MOVED:
            groups[row["kind"]].append(row)
    print(f"\n{'fault':10} {'right':>7}  said instead")
    for kind, members in sorted(groups.items()):
        right = sum(r["top1"] if r["cause"] else r["status"] == "healthy" for r in members)
        other = Counter(
            r["said"] or f"({r['status']})"
            for r in members
            if not (r["top1"] if r["cause"] else r["status"] == "healthy")
        )
        print(f"{kind:10} {right:3}/{len(members):3}  {dict(other) or ''}")


def print_reliability(rows: list[dict[str, Any]]) -> None:
    """How often stated causes are right, by their confidence and by whether they have a rival."""
    said = [r for r in rows if r["said"]]
    print(f"\n{'confidence':16} {'mean':>5}  right")
    for low, high in ((0.5, 0.6), (0.6, 0.7), (0.7, 0.8), (0.8, 0.9), (0.9, 1.01)):
        inside = [r for r in said if low <= (r["confidence"] or 0) < high]
        _print_right(f"{low:.1f} to {min(high, 1.0):.1f}", inside)
    _print_right("without a rival", [r for r in said if not is_contested(r)])
    _print_right("with a rival", [r for r in said if is_contested(r)])


def _print_right(label: str, rows: list[dict[str, Any]]) -> None:
    mean = f"{sum(r['confidence'] for r in rows) / len(rows):.2f}" if rows else "-"
    print(f"{label:16} {mean:>5}  {share(sum(r['top1'] for r in rows), len(rows))}")


# Two harms of one culprit, which are no rivals.
TOGETHER = {"long-prompt-stalled-streams", "short-behind-long-prompt"}


def is_contested(row: dict[str, Any]) -> bool:
    """Whether another cause, one that follows from none, was stated beside the first."""
    causes = {rule for rule, _, consequence_of, *_ in row["findings"] if consequence_of is None}
    return len(causes) > 1 and not causes <= TOGETHER


def report(rows: list[dict[str, Any]]) -> None:
    """All tables."""
    print_summary(summary(rows))
    print_by_kind(rows)
    print_reliability(rows)


def _healthy(options: argparse.Namespace) -> int:
    """Healthy windows alone: one, or hours of them."""
    if options.healthy_window is not None:
        print(json.dumps(healthy.run_window(options.healthy_window, options.seed), indent=1))
        return 0
    out = options.out or RESULTS / f"healthy-{options.seed}.jsonl"
    healthy.report(healthy.run_hours(options.healthy_hours, options.seed, options.jobs, out))
    return 0


def main() -> int:
    """Runs the cases; returns an exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--kind", help="only this fault, or `healthy`")
    parser.add_argument("--case", type=int, help="only this number, with what was found")
    parser.add_argument("--healthy-hours", type=float, help="so many hours of healthy windows")
    parser.add_argument("--healthy-window", type=int, help="only this one, with what was found")
    parser.add_argument("--set", choices=("pairs", "fleets", "missing"), dest="set_name")
    parser.add_argument("--rows", type=Path, help="print the tables of rows that are there")
    parser.add_argument("--show-misses", action="store_true")
    parser.add_argument("-o", "--out", type=Path, help="rows, as JSON lines")
    options = parser.parse_args()
    if options.set_name is not None:
        return variety.run_set(
            options.set_name, options.case, range(options.cases), options.seed, options.jobs,
            options.out,
        )  # fmt: skip
    if options.case is not None:
        print(json.dumps(run_case(options.case, options.seed, options.kind), indent=1))
        return 0
    if options.healthy_window is not None or options.healthy_hours:
        return _healthy(options)
    out = options.out or RESULTS / f"accuracy-{options.seed}.jsonl"
    out.parent.mkdir(parents=True, exist_ok=True)
    if options.rows:
        rows = [json.loads(line) for line in options.rows.read_text().splitlines()]
        if rows and "is_strained" in rows[0]:
            healthy.report(rows)
        elif rows and "set" in rows[0]:
            variety.report([row | variety.judge(row) for row in rows])
        else:
            report([row for row in rows if "kind" in row])
        return 0
    began = time.time()
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        jobs = [pool.submit(run_case, n, options.seed, options.kind) for n in range(options.cases)]
        rows = []
        with out.with_suffix(".part").open("w", encoding="utf-8") as part:
            # As they come: a run that is stopped leaves what it has.
            for job in concurrent.futures.as_completed(jobs):
                rows.append(job.result())
                part.write(json.dumps(rows[-1]) + "\n")
                part.flush()
    out.with_suffix(".part").unlink()
    rows.sort(key=lambda row: row["number"])
    found = summary(rows)
    lines = [json.dumps({"summary": found}), *(json.dumps(row) for row in rows)]
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    report(rows)
    if options.show_misses:
        for row in rows:
            is_right = row["top1"] if row["cause"] else row["status"] == "healthy"
            if not is_right and (row["cause"] is None or row["moved"] >= MOVED):
                print(json.dumps(row))
    print(f"{time.time() - began:.0f} s, rows in {out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
