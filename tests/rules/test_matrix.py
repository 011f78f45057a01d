"""Rules × fixtures: what fires on each is what the recipe says is true of it, and nothing else."""

from __future__ import annotations

import pytest
from tokenlag.judge.rule import Case
from tokenlag.judge.rulebook import Rulebook, load_rules
from tokenlag.simulate.recipe import load_recipe
from tokenlag.simulate.traces import NO_DAMAGE

from tests.rules.lab import (
    DAMAGED,
    HEAD,
    JUDGED,
    MATRIX,
    RULE_NOT_WRITTEN,
    Fixture,
    Lab,
    all_fixtures,
    causes,
    fixture_of_case,
    problems,
    row,
)

CASES = [(rule.id, case) for rule in load_rules([]) for case in rule.cases]
SURE = 0.9


@pytest.mark.parametrize("fixture", all_fixtures(), ids=lambda f: f.name)
def test_what_fires_is_what_is_true(fixture: Fixture, lab: Lab) -> None:
    found, truth = lab.diagnose(fixture), fixture.truth
    fired = {f.rule for f in problems(found)}
    assert not set(truth.must_not) & set(causes(found))
    if truth.cause in RULE_NOT_WRITTEN:
        blamed = [f.rule for f in problems(found) if f.confidence >= SURE]
        assert blamed == [], "a cause without a rule is laid at another's door"
    elif truth.cause is None:
        assert fired == set()
        assert found.verdict.status == "healthy", found.verdict.summary
    else:
        assert (found.verdict.status, found.verdict.cause) == ("problem", truth.cause)
        assert found.verdict.symptom == truth.symptom
        stray = {
            f.rule
            for f in problems(found)
            if f.rule not in {truth.cause, *truth.notes} and f.consequence_of != truth.cause
        }
        assert stray == set(), "fired, and the recipe does not say so"
    if _is_intact(fixture):
        assert "trace-incomplete" not in {f.rule for f in found.findings}
    _check_facts(found.findings[0].facts if found.findings else {}, fixture)
    wanted = [line for line in MATRIX.read_text().splitlines() if line.startswith(_key(fixture))]
    assert wanted == [row(fixture, found)], "the reviewed table says otherwise"


def _is_intact(fixture: Fixture) -> bool:
    """Whether nothing is missing: a restart loses spans, and a ghost's never were."""
    return (
        fixture.damage == NO_DAMAGE
        and "trace-incomplete" not in fixture.truth.notes
        and fixture.truth.cause != "ghost-requests"
    )


def _key(fixture: Fixture) -> str:
    """How the fixture's line in the table begins."""
    for name in DAMAGED:
        if fixture_of_case(name, None) == fixture:
            return f"{name} "
    return f"{fixture.recipe}:{fixture.variant} "


def _check_facts(facts: dict[str, object], fixture: Fixture) -> None:
    truth = fixture.truth
    if truth.limit is not None and truth.cause == "queueing-not-prefill":
        assert facts["limit"] == truth.limit
    if truth.mode is not None:
        assert facts["mode"] == truth.mode


@pytest.mark.parametrize(
    ("rule", "case"), CASES, ids=[f"{r}-{c.fixture}-{c.variant}-{c.expect}" for r, c in CASES]
)
def test_each_rules_own_cases_hold(rule: str, case: Case, lab: Lab) -> None:
    if case.fixture not in {*JUDGED, *DAMAGED}:
        pytest.skip(f"recipe {case.fixture} is not judged yet")
    found = lab.diagnose(fixture_of_case(case.fixture, case.variant))
    fired = rule in {f.rule for f in found.findings}
    assert fired == (case.expect == "fires"), f"not evaluated: {found.not_evaluated}"


def test_each_rule_has_a_case_both_ways(rulebook: Rulebook) -> None:
    for rule in rulebook:
        assert {case.expect for case in rule.cases} == {"fires", "silent"}, rule.id


def test_the_table_has_a_row_for_each_fixture_and_no_other() -> None:
    lines = MATRIX.read_text().splitlines()
    assert lines[: len(HEAD)] == HEAD
    assert [line.split(" ")[0] for line in lines[len(HEAD) :]] == [
        _key(f).strip() for f in all_fixtures()
    ]


def test_what_has_no_rule_yet_is_said_in_one_place(rulebook: Rulebook) -> None:
    have = {rule.id for rule in rulebook}
    wanted = {
        load_recipe(name).variant(variant).truth.cause
        for name in JUDGED
        for variant in load_recipe(name).variants
    } - {None}
    assert wanted - have == RULE_NOT_WRITTEN
