"""Every rule on its own firing fixtures, written without engine steps: it does as it declares.

What vLLM's own spans, gateways and load tests give: requests with their phases, no steps. The
contract's form of it holds all else that rules read; vLLM's own form holds less still.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tokenlag.judge.diagnosis import Diagnosis
from tokenlag.judge.rule import OF_STEPS, Rule
from tokenlag.judge.rulebook import Rulebook, load_rules
from tokenlag.simulate.recipe import load_recipe

from tests.rules.lab import Fixture, Lab, fixture_of_case, problems

SURE = 0.9
UNSEEN = "engine steps were not recorded"
RULES = load_rules([])
SPANS_ALONE = ("steps", "chunks")
"""What is left out: reconstructed steps need chunks."""


def firing(rule: Rule) -> list[Fixture]:
    """The rule's firing fixtures, the recipe's spans alone."""
    cases = [case for case in rule.cases if case.expect == "fires"]
    made = [fixture_of_case(case.fixture, case.variant) for case in cases]
    return [Fixture(f.recipe, f.variant, f.seed, damage=f.damage, drop=SPANS_ALONE) for f in made]


def _params() -> Sequence[object]:
    """The first firing fixture of each rule; the others with `-m slow`."""
    params = []
    for rule in RULES:
        for number, fixture in enumerate(firing(rule)):
            marks = [pytest.mark.slow] if number else []
            params.append(pytest.param(rule, fixture, id=f"{rule.id}-{fixture.name}", marks=marks))
    return params


def diagnosed(rule: Rule, fixture: Fixture, lab: Lab) -> Diagnosis:
    """Against the healthy twin where the rule needs a baseline and steps alone split the window."""
    found = lab.diagnose(fixture)
    if rule.steps == "required" or found.baseline or ("baseline",) not in rule.needs:
        return found
    control = load_recipe(fixture.recipe).control or "healthy"
    return lab.diagnose(fixture, Fixture(fixture.recipe, control, 1000, drop=SPANS_ALONE))


@pytest.mark.parametrize(("rule", "fixture"), _params())
def test_a_rule_does_without_steps_as_it_declares(rule: Rule, fixture: Fixture, lab: Lab) -> None:
    found = diagnosed(rule, fixture, lab)
    assert found.coverage.steps == 0
    fired = rule.id in {f.rule for f in found.findings}
    needs = {n.rule: n.needs for n in found.not_evaluated}.get(rule.id)
    if rule.steps == "required":
        assert not fired
        assert needs is not None
        assert OF_STEPS & set(needs.replace(" or ", ", ").split(", "))
    else:
        assert needs is None
        names = {rule.id, f"{rule.id} on {fixture.recipe}:{fixture.variant}"}
        assert fired or (rule.steps == "helpful" and names & MAY_BE_SILENT)
    truth = fixture.truth
    true = {rule.id, truth.cause, *truth.notes}
    wrong = [f for f in problems(found) if f.rule not in true and f.consequence_of not in true]
    assert [(f.rule, f.confidence) for f in wrong if f.confidence >= SURE] == []
    if truth.cause is not None and found.verdict.cause not in true:
        _is_honest(found)


# What steps alone count; prefill that on a busy engine slows the tokens of others as well; and a
# start burst, of which only steps tell what it waited for.
MAY_BE_SILENT = {
    "trace-incomplete", "prefill-runs-slow", "queueing-not-prefill on S01:reservation"
}  # fmt: skip


def _is_honest(found: Diagnosis) -> None:
    """A real fault that is not named: its symptom asks for steps, or is not claimed to be seen."""
    if found.verdict.status == "problem":
        assert found.findings[0].confidence < SURE
    elif found.verdict.status == "inconclusive":
        assert "steps" in found.verdict.missing
    else:
        assert UNSEEN in found.verdict.summary


@pytest.mark.parametrize(
    ("recipe", "variant", "wrong"),
    [
        ("S01", "ghosts", "queueing-not-prefill"),
        ("tenant-flood", "fault", "queueing-not-prefill"),
        ("context-grew", "fault", "prompts-grew"),
    ],
)
def test_what_is_stated_in_its_place_from_vllms_own_spans_is_not_sure(
    recipe: str, variant: str, wrong: str, lab: Lab
) -> None:
    found = lab.diagnose(Fixture(recipe, variant, form="vllm"))
    assert all(f.confidence < SURE for f in found.findings if f.rule == wrong)
    assert found.verdict.status != "healthy"


def test_by_the_same_traffic_alone_a_shape_is_not_surely_too_dear(lab: Lab) -> None:
    # If all requests were slow, the fast share of them would be as well.
    found = lab.diagnose(Fixture("tab-completion", "fault", drop=SPANS_ALONE))
    [shape] = [f for f in found.findings if f.rule == "shape-exceeds-budget"]
    assert shape.confidence == 0.75


def test_slots_that_nothing_seen_holds_are_told(lab: Lab) -> None:
    found = lab.diagnose(Fixture("S01", "ghosts", drop=SPANS_ALONE))
    [queue] = [f for f in found.findings if f.rule == "queueing-not-prefill"]
    assert (queue.facts["limit"], queue.facts["filled_by"]) == ("capacity", "unseen")
    pinned, slots = queue.facts["pinned_at"], queue.facts["max_seqs"]
    assert isinstance(pinned, int)
    assert isinstance(slots, int)
    assert pinned < slots
    assert queue.confidence < SURE
    assert not any("--max-num-seqs" in (r.setting or "") for r in queue.remedies)
    # All slots taken by requests that are seen: the slots are the limit.
    [queue] = [
        f
        for f in lab.diagnose(Fixture("S01", "fault", drop=SPANS_ALONE)).findings
        if f.rule == "queueing-not-prefill"
    ]
    assert (queue.facts["limit"], queue.facts["filled_by"]) == ("slots", "limit")


def test_each_rule_declares_what_steps_are_to_it(rulebook: Rulebook) -> None:
    for rule in rulebook:
        assert rule.steps is not None
        assert (rule.steps == "required") == rule.needs_steps
