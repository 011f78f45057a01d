"""Generated cases: their number names them, and their twins differ by the fault alone."""

from __future__ import annotations

import pytest
from tokenlag.simulate.faults import FAULTS
from tokenlag.simulate.generate import generate
from tokenlag.simulate.run import run


def test_a_number_names_a_case() -> None:
    for number in range(5):
        first, again = generate(number, 3), generate(number, 3)
        assert first == again
        assert first.recipe.table == again.recipe.table
    assert generate(0, 3).recipe.table != generate(0, 4).recipe.table


def test_all_kinds_come_and_about_a_third_are_healthy() -> None:
    kinds = [generate(number, 1).kind for number in range(400)]
    assert set(kinds) == {*FAULTS, "healthy"}
    assert 0.2 < kinds.count("healthy") / len(kinds) < 0.4


@pytest.mark.parametrize("kind", sorted(FAULTS))
def test_every_kind_runs_and_so_does_its_twin(kind: str) -> None:
    case = generate(11, 1, kind)
    bad, twin = run(case.recipe), run(case.twin)
    assert bad.n_steps > 50
    assert twin.n_steps > 50
    assert case.cause == FAULTS[kind].cause
    assert (case.change_s is not None) == (case.compared == "within")
    if kind in ("factor", "constant", "pauses", "compile", "ceiling", "prefill", "tax", "slots"):
        sizes = [[(r.n_prompt, r.n_output, r.sent_s) for r in d.requests] for d in (bad, twin)]
        assert sizes[0] == sizes[1], "the fault moved the workload"


@pytest.mark.parametrize("kind", ["factor", "constant", "pauses", "batch", "outputs"])
def test_a_fault_within_the_run_leaves_the_time_before_it_alone(kind: str) -> None:
    case = next(
        c for n in range(60) if (c := generate(n, 2, kind)).compared == "within" and c.change_s
    )
    bad, twin = run(case.recipe), run(case.twin)
    before = [
        [(s.start_s, s.end_s) for s in d.epochs[0].steps if s.end_s < case.change_s]
        for d in (bad, twin)
    ]
    n = min(len(part) for part in before)
    assert n > 10
    if kind in ("factor", "constant", "pauses"):
        assert before[0] == before[1]
