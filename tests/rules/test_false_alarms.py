"""What healthy windows looked like a problem by, once; and the fault beside it that is one."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from tokenlag.judge.diagnosis import Diagnosis
from tokenlag.pipeline import Request, diagnose
from tokenlag.simulate.generate import generate
from tokenlag.simulate.healthy import healthy_window
from tokenlag.simulate.recipe import Recipe
from tokenlag.simulate.run import run
from tokenlag.simulate.traces import write_traces


def judged(recipe: Recipe, folder: Path, slo: str | None = None) -> Diagnosis:
    """What is said of a recipe's run with nothing to compare it with but an objective."""
    write_traces(run(recipe), folder / "traces.jsonl")
    outcome = diagnose(Request([str(folder)], slo=slo, n_workers=0), now_ns=0, tz=UTC)
    assert not outcome.problems
    return outcome.diagnosis


def compared(
    now: Recipe, before: Recipe, folder: Path, before_seed: int | None = None
) -> Diagnosis:
    """What is said of a recipe's run with another's as its baseline."""
    write_traces(run(now), folder / "now" / "traces.jsonl")
    write_traces(run(before, seed=before_seed), folder / "before" / "traces.jsonl")
    request = Request([str(folder / "now")], baseline_traces=[str(folder / "before")], n_workers=0)
    outcome = diagnose(request, now_ns=0, tz=UTC)
    assert not outcome.problems
    return outcome.diagnosis


@pytest.mark.slow
def test_a_queue_of_busy_minutes_is_chance(tmp_path: Path) -> None:
    """Two fifths of the time to first token are waiting, most of it in a tenth of the time."""
    case = generate(19, 44, "healthy")
    found = judged(case.recipe, tmp_path)
    assert found.verdict.status == "healthy", found.verdict.summary


@pytest.mark.slow
def test_more_arrivals_than_an_engine_takes_are_not(tmp_path: Path) -> None:
    case = next(c for n in range(60) if (c := generate(n, 61, "surge")).compared == "none")
    found = judged(case.recipe, tmp_path)
    assert found.verdict.cause == "queueing-not-prefill", found.verdict.summary


@pytest.mark.slow
def test_waits_of_an_engine_at_eight_tenths_are_told_of_where_an_objective_is_missed(
    tmp_path: Path,
) -> None:
    """Three requests in ten wait for several steps, one in ten for a second."""
    case = generate(68, 57)
    assert case.kind == "healthy"
    found = judged(case.recipe, tmp_path)
    assert found.verdict.status == "healthy", found.verdict.summary
    missed = judged(case.recipe, tmp_path, slo="ttft_p90=500ms")
    assert missed.verdict.cause == "queueing-not-prefill", missed.verdict.summary


@pytest.mark.slow
def test_groups_of_requests_wait_for_each_other(tmp_path: Path) -> None:
    window = healthy_window(4, 103)
    assert window.shape == "groups"
    assert window.before is not None
    found = judged(window.before, tmp_path)
    assert found.verdict.status == "healthy", found.verdict.summary


@pytest.mark.slow
def test_a_queue_no_longer_than_the_baselines_is_nothing_new(tmp_path: Path) -> None:
    """Half of the time to first token is waiting, on this day as on the other."""
    case = generate(32, 46, "healthy")
    assert case.compared == "apart"
    found = compared(case.recipe, case.twin, tmp_path, case.twin.seed + 1)
    assert found.verdict.status == "healthy", found.verdict.summary


@pytest.mark.slow
def test_a_queue_that_rose_by_chance_is_nothing_new(tmp_path: Path) -> None:
    """Waits a third longer than on another day, minutes of both days being further apart."""
    window = healthy_window(139, 111)
    assert window.before is not None
    found = compared(window.recipe, window.before, tmp_path)
    assert found.verdict.status == "healthy", found.verdict.summary


@pytest.mark.slow
def test_waits_behind_longer_prompts_are_what_a_busy_engine_has(tmp_path: Path) -> None:
    window = healthy_window(157, 77)
    assert (window.shape, window.engines) == ("mixed", 3)
    found = judged(window.recipe, tmp_path)
    assert found.verdict.status == "healthy", found.verdict.summary


@pytest.mark.slow
def test_a_batch_that_grew_by_chance_is_no_problem(tmp_path: Path) -> None:
    """On a busy engine a sixth more arrivals, which chance makes, let batches grow by a third."""
    case = generate(23, 50)
    assert (case.kind, case.load, case.compared) == ("healthy", "high", "apart")
    found = compared(case.recipe, case.twin, tmp_path, case.twin.seed + 1)
    assert found.verdict.status == "healthy", found.verdict.summary


@pytest.mark.slow
def test_a_queue_that_slower_prefill_filled_stands_below_it(tmp_path: Path) -> None:
    """The queue costs twelve times what prefill itself lost."""
    case = generate(68, 50)
    assert (case.kind, case.compared) == ("prefill", "apart")
    found = compared(case.recipe, case.twin, tmp_path, case.twin.seed + 1)
    assert found.verdict.cause == "prefill-runs-slow", found.verdict.summary
    queue = next(f for f in found.findings if f.rule == "queueing-not-prefill")
    assert queue.consequence_of == "prefill-runs-slow"
    assert (queue.effect_ms or 0) > 5 * (found.findings[0].effect_ms or 0)
    assert (found.findings[0].share or 0) > 0.8, "what it led to is its own"


@pytest.mark.slow
def test_text_that_stands_still_in_pieces_is_told(tmp_path: Path) -> None:
    """Three gaps of a quarter of a second in a row, thirty times the usual one."""
    case = generate(204, 53)
    assert (case.kind, case.compared) == ("long", "none")
    found = judged(case.recipe, tmp_path)
    assert found.verdict.cause == "long-prompt-stalled-streams", found.verdict.summary


@pytest.mark.slow
def test_first_prompts_of_agents_are_what_such_a_service_is_made_of(tmp_path: Path) -> None:
    """One request in eleven is of 6,000 tokens and holds streams for half a second in pieces."""
    window = healthy_window(23, 117)
    assert window.shape == "agents"
    assert window.before is not None
    found = judged(window.before, tmp_path / "alone")
    assert found.verdict.status == "healthy", found.verdict.summary
    missed = judged(window.before, tmp_path / "missed", slo="tpot_p50=1ms")
    assert missed.verdict.cause == "long-prompt-stalled-streams", missed.verdict.summary


def long_prompts(seed: int, every_s: float) -> Recipe:
    """Short prompts, and now and then one that stops their streams twice for half a second."""
    table: dict[str, Any] = {
        "engine": {"max_seqs": 64, "max_batch_tokens": 8192, "kv_tokens": 900_000},
        "step": {"a_ms": 8, "b_ms": 0.06, "c_ms": 0.05, "d_ms": 1e-5, "noise_sigma": 0.01},
        "workload": {
            "main": {
                "kind": "poisson", "rate_per_s": 4.0, "until_s": 70,
                "prompt": [100, 300], "output": [150, 300],
            },
            "long": {
                "kind": "at", "times_s": [5 + every_s * n for n in range(int(60 / every_s) + 1)],
                "prompt": 16_000, "output": 20,
            },
        },
        "horizon_s": 140.0,
        "truth": {},
    }  # fmt: skip
    return Recipe(name="long", shows="long", seed=seed, path=Path("here"), table=table)


@pytest.mark.slow
def test_stalls_that_the_baseline_had_too_are_nothing_new(tmp_path: Path) -> None:
    cause = "long-prompt-stalled-streams"
    often, seldom = long_prompts(1, 10.0), long_prompts(2, 1000.0)
    alone = judged(often, tmp_path / "alone")
    assert alone.verdict.cause == cause, alone.verdict.summary
    as_before = compared(often, long_prompts(3, 10.0), tmp_path / "as-before")
    assert as_before.verdict.status == "healthy", as_before.verdict.summary
    new = compared(often, seldom, tmp_path / "new")
    assert new.verdict.cause == cause, new.verdict.summary
