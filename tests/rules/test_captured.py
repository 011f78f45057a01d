"""A real vLLM with faults made for real: named, and the healthy one quiet."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path

import pytest
from tokenlag.judge.diagnosis import Diagnosis
from tokenlag.pipeline import Request, diagnose

from tests.rules.lab import causes, problems

CONTRACT, OWN = "traces.jsonl.gz", "vllm-otlp.jsonl.gz"


def judge(shared: Path, name: str, form: str, baseline: str | None = None) -> Diagnosis:
    folder = shared / "captured" / "vllm-lab"
    if not folder.is_dir():
        pytest.skip("no captures of a real vLLM in the shared folder")
    request = Request(
        [str(folder / name / form)],
        baseline_traces=[str(folder / baseline / form)] if baseline else [],
        n_workers=0,
    )
    outcome = diagnose(request, now_ns=0, tz=UTC)
    assert outcome.problems == [], [str(p) for p in outcome.problems]
    return outcome.diagnosis


@pytest.mark.parametrize("form", [CONTRACT, OWN])
def test_healthy_is_quiet(shared: Path, form: str) -> None:
    found = judge(shared, "healthy", form)
    assert problems(found) == []
    assert found.verdict.status == "healthy", found.verdict.summary


@pytest.mark.parametrize("form", [CONTRACT, OWN])
@pytest.mark.parametrize("baseline", [None, "healthy"])
def test_two_slots_are_queueing_for_slots(shared: Path, form: str, baseline: str | None) -> None:
    found = judge(shared, "queue-slots", form, baseline)
    assert found.verdict.cause == "queueing-not-prefill"
    assert found.findings[0].facts["limit"] == "slots"
    assert causes(found) == ["queueing-not-prefill"]
    if form == CONTRACT:
        # vLLM's own spans before the clients start are a warm-up of one at a time.
        assert found.latency["queue"].p50 == pytest.approx(15_400, rel=0.05)


def test_grown_prompts_are_named_and_queueing_follows_from_them(shared: Path) -> None:
    for form in (CONTRACT, OWN):
        found = judge(shared, "prompts-grew", form)
        assert found.verdict.cause == "prompts-grew", form
        assert causes(found) == ["prompts-grew"]


@pytest.mark.parametrize(
    ("name", "chunk"), [("long-prompt", 8192), ("long-prompt-chunked", 512)]
)  # fmt: skip
def test_long_prompts_hold_up_streams(shared: Path, name: str, chunk: int) -> None:
    found = judge(shared, name, CONTRACT)
    assert found.verdict.cause == "long-prompt-stalled-streams"
    # What was captured holds both: short prompts that arrive behind a long one wait seconds too.
    assert set(causes(found)[1:]) <= {"short-behind-long-prompt"}
    assert found.findings[0].facts["mode"] == "mixed"
    worst = found.latency["itl"].max
    assert worst is not None
    assert (worst > 9_000) == (chunk == 8192), "one freeze, or one for each chunk"


@pytest.mark.parametrize("name", ["long-prompt", "long-prompt-chunked"])
def test_without_steps_it_cannot_be_told_or_is_named_as_waiting(shared: Path, name: str) -> None:
    """The streams' gaps need steps; the short prompts' wait behind the long ones does not."""
    found = judge(shared, name, OWN)
    assert found.verdict.status != "healthy"
    assert found.verdict.cause in (None, "queueing-not-prefill", "short-behind-long-prompt")
    if found.verdict.cause is None:
        assert "steps" in found.verdict.missing
