"""The budget table: lines that add up, and the one over budget marked."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenlag.judge.budget import budget_table
from tokenlag.judge.diagnosis import Budget
from tokenlag.window import Objective

from tests.judge.making import a_store, requests


def row(queue: float = 0.0, prefill: float = 100.0, decode: float = 400.0, **more: Any):
    told = {
        "network_in_ms": 5.0, "frontend_ms": 20.0, "queue_ms": queue, "prefill_ms": prefill,
        "decode_ms": decode, "delivery_ms": 3.0, "uncovered_ms": 0.0, "n_output": 51,
        "tpot_ms": decode / 50.0, "alone_prefill_ms": 100.0, "alone_itl_ms": 8.0,
        "ttft_ms": 25.0 + queue + prefill, "e2e_ms": 28.0 + queue + prefill + decode,
    }  # fmt: skip
    return told | more


def table(
    rows: list[dict[str, Any]],
    *pairs: tuple[Objective, float | None],
    before: list[dict[str, Any]] = (),  # type: ignore[assignment]
) -> Budget | None:
    with a_store() as store:
        current = requests(store, rows)
        return budget_table(current, requests(store, list(before), "baseline"), list(pairs))


def line(budget: Budget | None, name: str):
    assert budget is not None
    return next(item for item in budget.lines if item.line == name)


PHASE = st.floats(0, 5000)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(PHASE, PHASE, PHASE), min_size=20, max_size=60))
def test_lines_add_up_to_about_the_percentile(parts: list[tuple[float, float, float]]) -> None:
    budget = table([row(*p) for p in parts])
    assert budget is not None
    totals = sorted(28.0 + sum(p) for p in parts)
    total = sum(item.ms or 0.0 for item in budget.lines)
    # The mean of the band of five points either side lies in it, as the percentile does.
    low, high = totals[int(0.84 * len(totals)) - 1], totals[-1]
    assert low - 1e-6 <= total <= high + 1e-6
    assert low - 1e-6 <= (budget.actual_ms or 0.0) <= high + 1e-6


def test_lines_of_equal_requests_are_exactly_the_whole() -> None:
    budget = table([row(queue=50.0)] * 30)
    assert budget is not None
    assert sum(item.ms or 0.0 for item in budget.lines) == pytest.approx(budget.actual_ms)
    assert (budget.metric, budget.percentile, budget.objective_ms) == ("e2e", "p90", None)
    assert line(budget, "decode").detail == "50 × 8.0 ms"
    assert line(budget, "decode").alone_ms == pytest.approx(400.0)
    assert line(budget, "queue").alone_ms == 0.0
    assert line(budget, "frontend").alone_ms is None, "what it costs alone is not known"


def test_the_line_with_the_largest_excess_is_marked() -> None:
    budget = table([row(queue=2000.0)] * 30)
    assert budget is not None
    assert budget.over_line == "queue"
    assert [item.line for item in budget.lines if item.is_over] == ["queue"]


def test_nothing_is_marked_where_no_excess_is_a_real_part() -> None:
    budget = table([row(queue=50.0)] * 30)
    assert budget is not None
    assert budget.over_line is None


def objective(limit_ms: float, metric: str = "e2e") -> Objective:
    return Objective(metric, 90.0, limit_ms)


def test_a_shape_too_dear_for_the_objective_has_its_largest_line_marked() -> None:
    # 65 front end, 150 prefill, 136 decode against 300 ms: nothing waits.
    rows = [
        row(prefill=150.0, decode=136.0, frontend_ms=65.0, alone_prefill_ms=150.0,
            alone_itl_ms=136.0 / 50, e2e_ms=359.0)
    ] * 30  # fmt: skip
    budget = table(rows, (objective(300.0), 359.0))
    assert budget is not None
    assert (budget.objective_ms, budget.actual_ms) == (300.0, pytest.approx(359.0))
    assert budget.over_line == "prefill"


def test_an_objective_that_is_met_marks_nothing() -> None:
    budget = table([row(queue=2000.0)] * 30, (objective(9000.0), 2528.0))
    assert budget is not None
    assert budget.over_line is None


def test_an_objective_on_the_first_token_leaves_decoding_out() -> None:
    budget = table([row(queue=2000.0)] * 30, (objective(500.0, "ttft"), 2125.0))
    assert budget is not None
    assert budget.metric == "ttft"
    assert {item.line for item in budget.lines} == {
        "network", "frontend", "queue", "prefill", "uncovered",
    }  # fmt: skip
    assert sum(item.ms or 0.0 for item in budget.lines) == pytest.approx(budget.actual_ms)


def test_of_several_objectives_the_worst_missed_is_shown() -> None:
    budget = table(
        [row(queue=2000.0)] * 30,
        (objective(2400.0), 2528.0), (objective(500.0, "ttft"), 2125.0),
        (objective(1.0, "itl"), 8.0),
    )  # fmt: skip
    assert budget is not None
    assert (budget.metric, budget.objective_ms) == ("ttft", 500.0)


def test_the_baseline_stands_beside_each_line() -> None:
    budget = table([row(queue=2000.0)] * 30, before=[row(queue=10.0)] * 30)
    assert line(budget, "queue").baseline_ms == pytest.approx(10.0)


def test_a_phase_that_nobody_told_of_has_no_line() -> None:
    budget = table([row(delivery_ms=None)] * 30)
    assert budget is not None
    assert "delivery" not in {item.line for item in budget.lines}


def test_without_an_end_there_is_no_budget() -> None:
    assert table([row(e2e_ms=None)] * 30) is None
    nothing = dict.fromkeys(k for k in row() if k.endswith("_ms"))
    assert table([row(**nothing) | {"e2e_ms": 5.0}] * 30) is None
