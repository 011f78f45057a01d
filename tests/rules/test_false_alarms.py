"""What healthy windows looked like a problem by, once; and the fault beside it that is one."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path

import pytest
from tokenlag.judge.diagnosis import Diagnosis
from tokenlag.pipeline import Request, diagnose
from tokenlag.simulate.generate import generate
from tokenlag.simulate.healthy import healthy_window, is_strained
from tokenlag.simulate.recipe import Recipe
from tokenlag.simulate.run import run
from tokenlag.simulate.traces import write_traces


def judged(recipe: Recipe, folder: Path) -> Diagnosis:
    """What is said of a recipe's run with nothing to compare it with."""
    write_traces(run(recipe), folder / "traces.jsonl")
    outcome = diagnose(Request([str(folder)], n_workers=0), now_ns=0, tz=UTC)
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
def test_groups_of_requests_wait_for_each_other(tmp_path: Path) -> None:
    window = healthy_window(4, 103)
    assert window.shape == "groups"
    assert window.before is not None
    assert not is_strained(window.before, run(window.before))
    found = judged(window.before, tmp_path)
    assert found.verdict.status == "healthy", found.verdict.summary


@pytest.mark.slow
def test_a_queue_no_longer_than_the_baselines_is_nothing_new(tmp_path: Path) -> None:
    """Half of the time to first token is waiting, on this day as on the other."""
    case = generate(32, 46, "healthy")
    assert case.compared == "apart"
    write_traces(run(case.recipe), tmp_path / "now" / "traces.jsonl")
    write_traces(run(case.twin, seed=case.twin.seed + 1), tmp_path / "before" / "traces.jsonl")
    request = Request(
        [str(tmp_path / "now")], baseline_traces=[str(tmp_path / "before")], n_workers=0
    )
    found = diagnose(request, now_ns=0, tz=UTC).diagnosis
    assert found.verdict.status == "healthy", found.verdict.summary
