"""Two faults at once, fleets, and what was not recorded: whether the diagnosis stays right.

    python benchmarks/variety.py --set pairs --cases 40 --seed N
    python benchmarks/variety.py --set fleets --case 7 --seed N     one case, with what was found
    python benchmarks/variety.py --rows FILE…                        the tables of rows

Cases are `tokenlag.simulate.variety`'s. What must hold: of two faults both are listed, the one
that costs more first; of a fleet the engine at fault is named; of what was not recorded the right
cause is, or none, and what would have told it. A wrong cause is never stated with 0.9 or more.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import itertools
import json
import math
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
for folder in (ROOT, ROOT / "tracer", ROOT / "analyzer", ROOT / "benchmarks"):
    sys.path.insert(0, str(folder))

from benchmarks.counting import MOVED, RESULTS, STATED, SURE, share  # noqa: E402

# Costs of two faults that differ by less have no order.
CLEARLY_MORE = 1.5


def run_variety(set_name: str, number: int, seed: int) -> dict[str, Any]:
    """Simulates, writes, diagnoses and judges one case; a row of plain values."""
    from tokenlag.pipeline import Request, diagnose
    from tokenlag.simulate.run import run
    from tokenlag.simulate.traces import write_traces
    from tokenlag.simulate.variety import make

    case = make(set_name, number, seed)
    bad = run(case.recipe)
    twin = run(case.twin) if case.parts else bad
    from_s = case.change_s or 0.0
    whole, before = _seen(bad, from_s), _seen(twin, from_s)
    is_pair = len(case.parts) == 2
    alone = [_seen(run(part.alone), from_s) if is_pair else whole for part in case.parts]
    parts = []
    for part, own, rest in zip(
        case.parts, alone, reversed(alone) if is_pair else [before], strict=False
    ):
        # Put in, and taken out of the whole: one fault may hide another, or make it larger.
        steps = [(before, own), (rest, whole)]
        parts.append(
            {
                "kind": part.kind, "cause": part.cause, "right": sorted(part.right),
                "moved": min(_rise(a, b, part.symptom) for a, b in steps),
                "lost_s": round(_mean([_lost_s(a, b, part.symptom) for a, b in steps]), 1),
            }
        )  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        path, lack = Path(name) / "case.jsonl", case.unrecorded
        write_traces(bad, path, drop=lack.drop, damage=lack.damage)
        baseline = []
        if case.compared == "apart":
            other = Path(name) / "before" / "twin.jsonl"
            healthy = run(case.twin, seed=case.twin.seed + 1)
            write_traces(healthy, other, drop=lack.drop, damage=lack.damage)
            baseline = [str(other)]
        began = time.process_time()
        request = Request(
            [str(path)], baseline_traces=baseline, n_workers=1,
            by="engine" if set_name == "fleets" else None,
        )  # fmt: skip
        outcome = diagnose(request, now_ns=0, tz=UTC)
        cpu_s = round(time.process_time() - began, 2)
    row = {
        "set": set_name, "number": number, "seed": seed, "kind": case.kind, "parts": parts,
        "compared": case.compared, "engines": list(case.engines), "n_engines": len(bad.epochs),
        "cpu_s": cpu_s, "broken": [str(problem) for problem in outcome.problems],
    } | _said(outcome.diagnosis)  # fmt: skip
    return row | judge(row)


def _said(diagnosis: Any) -> dict[str, Any]:
    """What the diagnosis says, as plain values."""
    verdict = diagnosis.verdict
    top = [f for f in diagnosis.findings if f.severity == "problem" and f.confidence >= STATED]
    return {
        "status": verdict.status,
        "said": verdict.cause,
        "missing": verdict.missing,
        "summary": verdict.summary,
        "confidence": round(top[0].confidence, 3) if top else None,
        "said_engines": top[0].engines if top else [],
        "findings": [
            [f.rule, round(f.confidence, 2), f.consequence_of, round(f.effect_ms or 0.0), f.share]
            for f in diagnosis.findings
            if f.severity == "problem" or f.consequence_of
        ],
        "not_evaluated": {item.rule: item.needs for item in diagnosis.not_evaluated},
        "groups": {g.value: [g.verdict.status, g.verdict.cause] for g in diagnosis.groups},
    }


# --- what clients saw --------------------------------------------------------------------------


def _seen(run: Any, from_s: float) -> dict[str, list[float]]:
    """TTFT, E2E, time per token, worst gap (s): what clients saw of requests from `from_s` on."""
    edge = run.variant.edge
    way_s = (edge.delivery_ms + edge.network_ms) / 1e3
    seen: dict[str, list[float]] = {"ttft": [], "e2e": [], "tpot": [], "worst": []}
    for request in run.requests:
        if request.sent_s < from_s or request.is_ghost or not request.done_s:
            continue
        got = (run.received or {}).get(request.number)
        if not got:
            log = run.epochs[request.epoch]
            got = [token_s + way_s for token_s in log.token_times_s(request)]
        if not got:
            continue
        seen["ttft"].append(got[0] - request.sent_s)
        seen["e2e"].append(got[-1] - request.sent_s)
        if len(got) > 1:
            seen["tpot"].append((got[-1] - got[0]) / (len(got) - 1))
            seen["worst"].append(max(b - a for a, b in itertools.pairwise(got)))
    return seen


def _rise(before: dict[str, list[float]], after: dict[str, list[float]], symptom: str) -> float:
    """By how much the symptom rose: the largest of the ways people measure it."""
    rises = [0.0]
    for name in ("tpot", "worst") if symptom == "itl" else (symptom,):
        if not before[name] or not after[name]:
            return math.inf
        pairs = [(_mean(before[name]), _mean(after[name]))]
        if symptom != "itl":
            pairs.append((_p90(before[name]), _p90(after[name])))
        rises += [b / a - 1 for a, b in pairs if a > 0]
    return round(max(rises), 3)


def _lost_s(before: dict[str, list[float]], after: dict[str, list[float]], symptom: str) -> float:
    """Time lost in the symptom, summed over requests."""
    name = "ttft" if symptom == "ttft" else "e2e"
    lost = sum(after[name]) - sum(before[name])
    return lost - (sum(after["ttft"]) - sum(before["ttft"]) if symptom == "itl" else 0.0)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _p90(values: list[float]) -> float:
    return sorted(values)[min(int(0.9 * len(values)), len(values) - 1)]


# --- against the truth ---------------------------------------------------------------------------


def judge(row: dict[str, Any]) -> dict[str, Any]:
    """The outcome of a row, in words that the tables count."""
    visible = [p for p in row["parts"] if p["moved"] >= MOVED]
    right = {rule for p in row["parts"] for rule in p["right"]}
    is_wrong = row["said"] is not None and row["said"] not in right
    found = {"is_sure_wrong": is_wrong and (row["confidence"] or 0.0) >= SURE}
    if not visible:
        return found | {"outcome": _of_nothing(row, is_wrong=is_wrong)}
    if row["set"] == "pairs":
        return found | _of_pair(row, visible, is_wrong=is_wrong)
    if row["set"] == "fleets":
        return found | _of_fleet(row, is_wrong=is_wrong)
    return found | _of_missing(row, visible, is_wrong=is_wrong)


def _of_nothing(row: dict[str, Any], *, is_wrong: bool) -> str:
    """Nothing is wrong, or nothing that anybody would notice."""
    if not row["parts"]:
        alarms = [row["status"], *(status for status, _ in row["groups"].values())]
        return "alarm" if "problem" in alarms else "quiet"
    return "small, wrong" if is_wrong else "small"


def _listed(row: dict[str, Any]) -> dict[str, int]:
    """Place of each stated rule; consequences count, after the problems."""
    stated = [f for f in row["findings"] if f[1] >= STATED]
    ordered = sorted(stated, key=lambda f: f[2] is not None)
    return {rule: at for at, (rule, *_) in reversed(list(enumerate(ordered)))}


def _of_pair(row: dict[str, Any], visible: list[Any], *, is_wrong: bool) -> dict[str, Any]:
    places = _listed(row)
    at = [min((places[r] for r in p["right"] if r in places), default=-1) for p in visible]
    n_listed = sum(place >= 0 for place in at)
    found: dict[str, Any] = {"outcome": f"{n_listed} of {len(visible)} listed"}
    if is_wrong:
        found["outcome"] += ", another first"
    if len(visible) == 2 and n_listed == 2:
        lost = [p["lost_s"] for p in visible]
        if max(lost) >= CLEARLY_MORE * max(min(lost), 0.0):
            found["is_ordered"] = (at[0] < at[1]) == (lost[0] > lost[1])
    return found


def _of_fleet(row: dict[str, Any], *, is_wrong: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"outcome": _ending(row, is_wrong=is_wrong)}
    if row["engines"]:
        bad = set(row["engines"])
        found["is_engine_named"] = found["outcome"] == "right" and set(row["said_engines"]) == bad
        accused = {name for name, (status, _) in row["groups"].items() if status == "problem"}
        found["is_group_told"] = accused == bad
    return found


def _of_missing(row: dict[str, Any], visible: list[Any], *, is_wrong: bool) -> dict[str, Any]:
    outcome = _ending(row, is_wrong=is_wrong)
    if outcome in ("healthy", "no cause"):
        untested = any(r in row["not_evaluated"] for p in visible for r in p["right"])
        outcome += ", rule named as not evaluated" if untested else ""
    return {"outcome": outcome}


def _ending(row: dict[str, Any], *, is_wrong: bool) -> str:
    if is_wrong:
        return "wrong"
    if row["said"]:
        return "right"
    if row["status"] == "inconclusive":
        return "cannot tell, missing named" if row["missing"] else "cannot tell"
    return "healthy" if row["status"] == "healthy" else "no cause"


# --- the report ----------------------------------------------------------------------------------


def report(rows: list[dict[str, Any]]) -> None:
    """A table for each set: the outcomes as shares, then each miss in a line."""
    for set_name in dict.fromkeys(row["set"] for row in rows):
        members = [row for row in rows if row["set"] == set_name]
        faulty = [r for r in members if any(p["moved"] >= MOVED for p in r["parts"])]
        others = [r for r in members if r not in faulty]
        print(f"\n{set_name}: {len(members)} cases")
        for outcome, n in Counter(r["outcome"] for r in faulty).most_common():
            print(f"  {outcome:52} {share(n, len(faulty))}")
        for outcome, n in Counter(r["outcome"] for r in others).most_common():
            print(f"  (nothing to notice) {outcome:32} {share(n, len(others))}")
        for key, label in (
            ("is_ordered", "what costs clearly more stands first"),
            ("is_engine_named", "the engine at fault is named, and no other"),
            ("is_group_told", "--by engine: a problem on that engine alone"),
        ):
            told = [r[key] for r in faulty if key in r]
            if told:
                print(f"  {label:52} {share(sum(told), len(told))}")
        n_sure = sum(r["is_sure_wrong"] for r in members)
        print(f"  {'wrong with a confidence of 0.9 and more':52} {share(n_sure, len(members))}")


def main() -> int:
    """Runs the cases; returns an exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--set", choices=("pairs", "fleets", "missing"), dest="set_name")
    parser.add_argument("--cases", type=int, default=40)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--case", type=int, help="only this number, with what was found")
    parser.add_argument("--rows", type=Path, nargs="+", help="print the tables of rows")
    parser.add_argument("-o", "--out", type=Path, help="rows, as JSON lines")
    options = parser.parse_args()
    if options.rows:
        texts = [line for path in options.rows for line in path.read_text().splitlines()]
        rows = [json.loads(text) for text in texts]
        report([row | judge(row) for row in rows])
        return 0
    if options.set_name is None:
        parser.error("--set or --rows is needed")
    numbers = range(options.first, options.first + options.cases)
    return run_set(
        options.set_name, options.case, numbers, options.seed, options.jobs, options.out
    )  # fmt: skip


def run_set(
    set_name: str, case: int | None, numbers: range, seed: int, jobs: int, out: Path | None
) -> int:
    """One case with what was found, or many as rows and tables; returns an exit status.

    Rows go to `out` as they come: anew from case 0 on, else behind those that are there.
    """
    if case is not None:
        print(json.dumps(run_variety(set_name, case, seed), indent=1))
        return 0
    out = out or RESULTS / f"{set_name}-{seed}.jsonl"
    out.parent.mkdir(parents=True, exist_ok=True)
    rows = []
    with out.open("a" if numbers.start else "w", encoding="utf-8") as file:
        for row in _run_all(set_name, numbers, seed, jobs):
            rows.append(row)
            file.write(json.dumps(row) + "\n")
            file.flush()
    report(rows)
    return 0


def _run_all(set_name: str, numbers: range, seed: int, jobs: int) -> Any:
    if jobs <= 1:
        yield from (run_variety(set_name, number, seed) for number in numbers)
        return
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(jobs, mp_context=context) as pool:
        yield from pool.map(run_variety, *zip(*((set_name, n, seed) for n in numbers), strict=True))


if __name__ == "__main__":
    raise SystemExit(main())
