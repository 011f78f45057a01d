"""Pairs that look alike are told apart in both directions; ten seeds each with `-m slow`."""

from __future__ import annotations

import pytest
from tokenlag.judge.diagnosis import Diagnosis

from tests.rules.lab import Fixture, Lab, causes

SEEDS = (None, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 11)))

PAIRS = [
    (("S01", "fault"), ("S01", "ghosts")),
    (("S02", "mixed-8192"), ("S08", "pauses")),
    (("S02", "mixed-8192"), ("S03", "fault")),
    (("S08", "pauses"), ("S08", "compile")),
    (("S09", "host"), ("S09", "clock")),
    (("S05", "fault"), ("S05", "slow-machine")),
    (("S06", "fault"), ("S01", "fault")),
    (("S12", "burst-200"), ("S01", "fault")),
]


def diagnosed(recipe: str, variant: str, seed: int | None, lab: Lab) -> Diagnosis:
    return lab.diagnose(Fixture(recipe, variant, seed))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("one", "other"), PAIRS, ids=lambda side: "-".join(side))
def test_told_apart_both_ways(
    one: tuple[str, str], other: tuple[str, str], seed: int | None, lab: Lab
) -> None:
    wanted = [Fixture(*side).truth.cause for side in (one, other)]
    for side, cause, not_it in ((one, *wanted), (other, *reversed(wanted))):
        found = diagnosed(*side, seed, lab)
        assert found.verdict.cause == cause, found.verdict.summary
        assert not_it not in causes(found)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_wait_for_a_slot_and_a_second_prefill_are_told_apart(seed: int | None, lab: Lab) -> None:
    parts = {}
    for variant in ("fault", "recompute"):
        top = diagnosed("S11", variant, seed, lab).findings[0]
        assert top.rule == "pd-handoff-wait"
        parts[variant] = top.facts["part"]
    assert parts["fault"] != parts["recompute"]
