"""The four tickets, whatever the seed: the cause on the fault, quiet on the control.

Alone, and with the control's traces as the baseline.
"""

from __future__ import annotations

import pytest
from tokenlag.judge.diagnosis import Diagnosis
from tokenlag.simulate.recipe import load_recipe

from tests.rules.lab import Fixture, Lab, causes, problems

TICKETS = ("S01", "S02", "S03", "S04")
MANY = range(5, 13)
# Two seeds always, one of them alone and one against the control; ten both ways when asked for.
RUNS = [
    (3, False),
    (4, True),
    *(
        pytest.param(seed, against, marks=pytest.mark.slow)
        for seed, against in [(3, True), (4, False), *((s, b) for s in MANY for b in (False, True))]
    ),
]


def sides(ticket: str, seed: int) -> tuple[list[Fixture], Fixture]:
    """Faults of a ticket, and its control."""
    recipe = load_recipe(ticket)
    if ticket == "S04":
        return [Fixture("S04", "bust", seed), Fixture("S04", "pinned", seed)], Fixture(
            "S04", "good", seed
        )
    assert recipe.control is not None
    return [Fixture(ticket, recipe.base, seed)], Fixture(ticket, recipe.control, seed)


def check_fault(found: Diagnosis, fixture: Fixture) -> None:
    truth = fixture.truth
    assert found.verdict.status == "problem", found.verdict.summary
    assert found.verdict.cause == truth.cause
    assert not set(truth.must_not) & set(causes(found))
    if truth.limit:
        assert found.findings[0].facts["limit"] == truth.limit
    if truth.mode:
        assert found.findings[0].facts["mode"] == truth.mode


@pytest.mark.parametrize(("seed", "is_against_control"), RUNS)
@pytest.mark.parametrize("ticket", TICKETS)
def test_the_fault_has_its_cause(
    ticket: str, seed: int, is_against_control: bool, lab: Lab
) -> None:
    faults, control = sides(ticket, seed)
    for fault in faults:
        check_fault(lab.diagnose(fault, baseline=control if is_against_control else None), fault)


@pytest.mark.parametrize(("seed", "is_against_control"), RUNS)
@pytest.mark.parametrize("ticket", TICKETS)
def test_the_control_is_quiet(ticket: str, seed: int, is_against_control: bool, lab: Lab) -> None:
    _, control = sides(ticket, seed)
    _, other = sides(ticket, seed + 100)
    found = lab.diagnose(control, baseline=other if is_against_control else None)
    assert found.verdict.status == "healthy", found.verdict.summary
    assert problems(found) == []
