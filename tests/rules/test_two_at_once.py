"""Two things that go wrong together, and a change that only a few steps show."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path

from tokenlag.judge.diagnosis import Diagnosis, Finding
from tokenlag.pipeline import Request, diagnose
from tokenlag.simulate.generate import Case, generate
from tokenlag.simulate.run import run
from tokenlag.simulate.traces import write_traces
from tokenlag.simulate.variety import VarietyCase, make

STATED = 0.5


def apart(case: Case | VarietyCase, folder: Path) -> Diagnosis:
    """What is said of a case with its healthy twin's traces as the baseline."""
    assert case.compared == "apart"
    (folder / "before").mkdir()
    write_traces(run(case.recipe), folder / "now.jsonl")
    write_traces(run(case.twin, seed=case.twin.seed + 1), folder / "before" / "twin.jsonl")
    request = Request(
        [str(folder / "now.jsonl")], baseline_traces=[str(folder / "before")], n_workers=0
    )
    return diagnose(request, now_ns=0, tz=UTC).diagnosis


def stated(found: Diagnosis) -> dict[str, Finding]:
    return {f.rule: f for f in found.findings if f.severity == "problem" and f.confidence >= STATED}


def test_a_late_host_that_begins_with_longer_contexts_is_not_laid_at_their_door(
    tmp_path: Path,
) -> None:
    """No step of the window is like one of the baseline: contexts are four times as long."""
    found = apart(make("pairs", 13, 230), tmp_path)
    assert found.verdict.cause == "host-starves-steps", found.verdict.summary
    assert "by a model of either window" in found.verdict.summary
    causes = stated(found)
    assert "prompts-grew" in causes
    assert "context-grew" not in causes
    assert causes["host-starves-steps"].confidence <= 0.8


def test_longer_outputs_stand_beside_slower_steps(tmp_path: Path) -> None:
    causes = stated(apart(make("pairs", 13, 231), tmp_path))
    assert list(causes)[:2] == ["steps-run-slow", "outputs-grew"]


def test_a_slower_prefill_within_the_run_shows_in_few_steps_with_chunks(tmp_path: Path) -> None:
    """95 of 4,400 steps have prompt chunks; nothing else tells where the change is."""
    case = generate(91, 54)
    assert (case.kind, case.compared) == ("prefill", "within")
    write_traces(run(case.recipe), tmp_path / "case.jsonl")
    found = diagnose(
        Request([str(tmp_path / "case.jsonl")], n_workers=0), now_ns=0, tz=UTC
    ).diagnosis
    assert found.verdict.cause == "prefill-runs-slow", found.verdict.summary
    assert found.findings[0].facts["decode_factor"] < 1.05


def test_slower_prefill_on_an_engine_that_it_filled_is_not_called_slow_steps(
    tmp_path: Path,
) -> None:
    """Hardly a step after one with chunks is of a batch that the baseline had."""
    case = generate(103, 56)
    assert case.kind == "prefill"
    found = apart(case, tmp_path)
    assert found.verdict.cause == "prefill-runs-slow", found.verdict.summary
    assert "steps-run-slow" not in stated(found)
