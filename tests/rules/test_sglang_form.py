"""The same workloads as SGLang's own spans: steps are reconstructed, and name who did it."""

from __future__ import annotations

import pytest

from tests.rules.lab import Fixture, Lab, causes, problems

FAULTS = [
    ("S02", "mixed-2048"), ("S02", "prefill-first-3456"), ("S03", "fault"), ("slow", "fault"),
    ("slow", "host"),
]  # fmt: skip
QUIET = [("S02", "control"), ("S03", "control"), ("chat", "healthy"), ("slow", "healthy")]


@pytest.mark.parametrize(("recipe", "variant"), FAULTS)
def test_the_cause_is_found(recipe: str, variant: str, lab: Lab) -> None:
    fixture = Fixture(recipe, variant, form="sglang")
    found = lab.diagnose(fixture)
    assert found.coverage.steps > 0
    assert any("reconstructed" in note for note in found.coverage.notes)
    assert found.verdict.cause == fixture.truth.cause, found.verdict.summary
    assert not set(fixture.truth.must_not) & set(causes(found))


def test_the_long_prompt_is_named(lab: Lab) -> None:
    found = lab.diagnose(Fixture("S02", "mixed-2048", form="sglang"))
    (culprit,) = found.findings[0].blame
    named = lab.diagnose(Fixture("S02", "mixed-2048")).findings[0].blame
    assert int(culprit.culprit[:8], 16) == int(named[0].culprit.removeprefix("req-"))
    assert culprit.victims == named[0].victims
    assert culprit.ms == pytest.approx(named[0].ms, rel=0.05)


@pytest.mark.parametrize(("recipe", "variant"), QUIET)
def test_the_control_is_quiet(recipe: str, variant: str, lab: Lab) -> None:
    found = lab.diagnose(Fixture(recipe, variant, form="sglang"))
    assert problems(found) == []
    assert found.verdict.status == "healthy", found.verdict.summary
