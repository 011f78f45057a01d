"""Cases of two faults, of fleets and of traces that lack something: what each of them is."""

from __future__ import annotations

from collections import Counter

import pytest
from tokenlag.errors import InputError
from tokenlag.simulate.fleet import FleetConfig
from tokenlag.simulate.run import run
from tokenlag.simulate.traces import DROPS
from tokenlag.simulate.variety import ALL_FAULTS, MISSING, PLACES, SETS, make


@pytest.mark.parametrize("set_name", SETS)
def test_a_number_names_a_case(set_name: str) -> None:
    for number in range(5):
        first, again = make(set_name, number, 3), make(set_name, number, 3)
        assert first == again
        assert first.recipe.table == again.recipe.table
    assert make(set_name, 0, 3).recipe.table != make(set_name, 0, 4).recipe.table


def test_pairs_are_of_different_places() -> None:
    place = {kind: name for name, kinds in PLACES.items() for kind in kinds}
    seen: Counter[str] = Counter()
    for number in range(200):
        case = make("pairs", number, 1)
        kinds = [part.kind for part in case.parts]
        assert len({place[kind] for kind in kinds}) == 2
        assert [part.cause for part in case.parts] == [ALL_FAULTS[kind].cause for kind in kinds]
        seen.update(kinds)
    assert set(seen) == set(place), "every fault comes"


def test_what_is_alone_wrong_in_a_part_is_as_large_as_in_the_pair() -> None:
    for number in range(40):
        case = make("pairs", number, 2)
        for part in case.parts:
            both, alone = case.recipe.table, part.alone.table
            if part.kind in ("factor", "constant"):
                assert alone["step"]["changes"] == both["step"]["changes"]
            elif part.kind in ("pauses", "tax", "prefill"):
                assert alone["step"]["effects"] == both["step"]["effects"]
            elif part.kind in ("buffer", "reader"):
                assert alone["delivery"] == both["delivery"]
                assert "delivery" not in case.twin.table


def test_of_a_fleet_one_engine_is_at_fault_and_no_other() -> None:
    found: set[str] = set()
    for number in range(60):
        case = make("fleets", number, 1)
        fleet = case.recipe.table["fleet"]
        found.add(case.kind)
        if case.kind.endswith("-one"):
            [bad] = fleet["affected"]
            assert case.engines == (f"sim-{bad}",)
        elif case.kind in ("healthy", "slow-all"):
            assert case.engines == ()
        assert "changes" not in case.twin.table["step"]
    assert found == {"slow-one", "host-one", "pauses-one", "hot", "slow-all", "healthy"}


def test_a_change_of_affected_engines_leaves_the_others_alone() -> None:
    case = next(c for n in range(60) if (c := make("fleets", n, 1)).kind == "slow-one")
    bad = int(case.engines[0].removeprefix("sim-"))
    [factor] = [change["factor"] for change in case.recipe.table["step"]["changes"]]
    medians = []
    for log in run(case.recipe).epochs:
        took = sorted(s.end_s - s.start_s for s in log.steps if not s.n_prefill)
        medians.append(took[len(took) // 2])
    others = [took for number, took in enumerate(medians) if number != bad]
    # Slower steps also keep streams longer: its batches are larger.
    assert medians[bad] > 0.95 * factor * max(others)
    assert max(others) < 1.1 * min(others)


def test_an_engine_that_is_not_there_is_not_affected() -> None:
    with pytest.raises(InputError, match="from 0"):
        FleetConfig(engines=2, affected=(2,))


def test_what_is_missing_can_be_left_out_and_every_kind_comes() -> None:
    for lack in MISSING.values():
        assert lack.drop <= set(DROPS)
    kinds = [make("missing", number, 1).kind for number in range(400)]
    assert {kind.split(" without ")[1] for kind in kinds} == set(MISSING)
    assert {kind.split(" without ")[0] for kind in kinds} == {"healthy", *ALL_FAULTS}
