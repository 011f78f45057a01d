"""The same workloads as vLLM's own request spans: no steps, and still the cause."""

from __future__ import annotations

import pytest
from tokenlag.judge.rulebook import Rulebook

from tests.rules.lab import Fixture, Lab, causes, problems

FAULTS = [
    ("S01", "fault"), ("prompts-grew", "fault"), ("outputs-grew", "fault"), ("peak-hour", "fault")
]  # fmt: skip
QUIET = [("S01", "control"), ("prompts-grew", "healthy"), ("outputs-grew", "healthy")]
ALONE_IN_STEPS = {
    "long-prompt-stalled-streams", "decode-batch-grew",
    "ghost-requests",
}  # fmt: skip


@pytest.mark.parametrize(("recipe", "variant"), FAULTS)
def test_the_cause_is_found(recipe: str, variant: str, lab: Lab) -> None:
    fixture = Fixture(recipe, variant, form="vllm")
    found = lab.diagnose(fixture)
    assert found.coverage.steps == 0
    assert found.verdict.cause == fixture.truth.cause, found.verdict.summary
    assert not set(fixture.truth.must_not) & set(causes(found))
    if fixture.truth.limit:
        assert found.findings[0].facts["limit"] == fixture.truth.limit


@pytest.mark.parametrize(("recipe", "variant"), QUIET)
def test_the_control_is_quiet(recipe: str, variant: str, lab: Lab) -> None:
    found = lab.diagnose(Fixture(recipe, variant, form="vllm"))
    assert problems(found) == []
    assert found.verdict.status == "healthy", found.verdict.summary


@pytest.mark.parametrize(("recipe", "variant"), [("S01", "fault"), ("prompts-grew", "fault")])
def test_rules_that_need_steps_say_so(
    recipe: str, variant: str, lab: Lab, rulebook: Rulebook
) -> None:
    found = lab.diagnose(Fixture(recipe, variant, form="vllm"))
    needs = {n.rule: n.needs for n in found.not_evaluated}
    for rule in rulebook:
        if ("steps",) in [tuple(group) for group in rule.needs]:
            assert "steps" in needs[rule.id]
    assert set(needs) >= ALONE_IN_STEPS
    assert set(needs) & {"queueing-not-prefill", "trace-incomplete"} == set()
