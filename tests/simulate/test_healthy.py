"""Windows in which nothing is wrong: what names them, what strains them, how they are written."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tokenlag.pipeline import Request, diagnose
from tokenlag.simulate.healthy import COMPARED, SHAPES, healthy_window, is_strained
from tokenlag.simulate.recipe import Recipe
from tokenlag.simulate.run import run
from tokenlag.simulate.traces import write_traces
from tokenlag.simulate.workload import Edge, Workload

from benchmarks.healthy import poisson_interval
from benchmarks.native import write_native


def short(shape: str, **engine: Any) -> Recipe:
    """The recipe of a short window of a shape, with other limits."""
    window = next(
        w
        for n in range(1000)
        if (w := healthy_window(n, 1)).shape == shape
        and w.length_s < 300
        and w.compared != "earlier"
        and w.engines == 1
    )
    table = dict(window.recipe.table)
    table["engine"] = table["engine"] | engine
    return replace(window.recipe, table=table)


def test_a_number_names_a_window() -> None:
    first, again = healthy_window(3, 7), healthy_window(3, 7)
    assert first == again
    assert first.recipe.table == again.recipe.table
    assert healthy_window(3, 8).recipe.table != first.recipe.table


def test_all_kinds_come_and_most_hours_are_long() -> None:
    windows = [healthy_window(n, 1) for n in range(300)]
    assert {w.shape for w in windows} == set(SHAPES)
    assert {w.compared for w in windows} == set(COMPARED)
    assert {w.engines for w in windows} == {1, 2, 3}
    assert {w.form for w in windows} >= {"line", "knee", "tiles", "line-ar", "tiles-ar"}
    hours = [w.length_s / 3600 for w in windows]
    assert sum(h for h in hours if h > 0.5) > 0.6 * sum(hours)
    assert max(w.load for w in windows) <= 0.73
    assert all((w.before is None) == (w.compared != "apart") for w in windows)


@pytest.mark.parametrize("shape", sorted(set(SHAPES)))
def test_every_shape_runs_and_its_requests_end(shape: str) -> None:
    made = run(short(shape))
    done = [r for r in made.requests if r.done_s is not None]
    assert len(done) > 0.8 * len(made.requests)
    assert len(done) > 20


def test_conversations_are_under_way_when_a_window_begins() -> None:
    """As many turns come in its first tenth as in any other, and of all turns there are."""
    main = short("agents").table["workload"]["main"]
    # Answers come at once, so that a turn takes its pause alone.
    table = main | {"sessions": 3000, "start_over_s": 1000.0, "pause_s": 10.0, "turn_every_s": 10.0}
    load = Workload({"main": table}, Edge(), seed=3)
    asked = load.initial()
    for request in asked:  # grows by what each answer is followed by
        asked += load.follow_up(request, request.sent_s)
    per_tenth = [
        sum(100.0 * i <= request.sent_s < 100.0 * (i + 1) for request in asked) for i in range(10)
    ]
    assert max(per_tenth) < 1.15 * min(per_tenth)
    first = [request.turn for request in asked if request.sent_s < 10.0]
    assert set(first) == set(range(main["turns"]))


def test_too_few_slots_strain_and_room_does_not() -> None:
    roomy = short("steady", max_seqs=1024, max_batch_tokens=4096, policy="mixed")
    assert not is_strained(roomy, run(roomy))
    tight = short("steady", max_seqs=1)
    assert is_strained(tight, run(tight))


def test_streams_that_stand_still_strain() -> None:
    recipe = short("steady", max_seqs=1024, max_batch_tokens=131072, policy="mixed")
    assert not is_strained(recipe, run(recipe))
    # A prompt now and then that takes two seconds of one step.
    price_ms = recipe.table["step"]["b_ms"]
    giant = {"kind": "at", "times_s": [5.0], "every_s": 5.0, "n_times": 60,
             "prompt": round(2000.0 / price_ms), "output": 4}  # fmt: skip
    load = recipe.table["workload"] | {"giant": giant}
    frozen = replace(recipe, table=recipe.table | {"workload": load})
    assert is_strained(frozen, run(frozen))


def test_native_rows_say_what_the_traces_say(tmp_path: Path) -> None:
    made = run(short("mixed"))
    drop = frozenset({"admit_bound"})
    n = write_traces(made, tmp_path / "json" / "a.jsonl", drop=drop)
    assert write_native(made, tmp_path / "native" / "a.parquet", drop=drop) == n
    told = [
        diagnose(Request([str(tmp_path / name)], n_workers=0), now_ns=0, tz=UTC)
        for name in ("json", "native")
    ]
    assert not told[0].problems
    assert not told[1].problems
    first, second = (msgspec.to_builtins(outcome.diagnosis) for outcome in told)
    assert first == second


def test_poisson_intervals() -> None:
    assert poisson_interval(0) == pytest.approx((0.0, 3.689), abs=1e-3)
    assert poisson_interval(1) == pytest.approx((0.0253, 5.572), abs=1e-3)
    assert poisson_interval(10) == pytest.approx((4.795, 18.39), abs=1e-2)
