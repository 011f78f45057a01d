"""What was asked for stands in every report, met, missed or not to be told."""

from __future__ import annotations

import msgspec
from tokenlag.judge.diagnosis import Goodput, ObjectiveOutcome
from tokenlag.report import objectives
from tokenlag.report.tables import about_window, bound

from tests.report import diagnoses


def test_each_objective_is_told_with_what_was_measured() -> None:
    outcomes = [
        ObjectiveOutcome("ttft", 90.0, 500.0, 183.0, True),
        ObjectiveOutcome("e2e", 99.0, 2000.0, 3000.0, False),
        ObjectiveOutcome("itl", 99.5, 50.0, None, None),
    ]
    told = msgspec.structs.replace(
        diagnoses.healthy(), objectives=outcomes, goodput=Goodput({"ttft": 60.0}, 0.953, 12.2)
    )
    assert objectives.rows(told) == [
        (
            "asked",
            "ttft p90 ≤ 500 ms (met: 183 ms), e2e p99 ≤ 2.00 s (missed: 3.00 s), "
            "itl p99.5 ≤ 50.0 ms (nothing recorded tells it)",
        ),
        ("goodput", "95 % of requests within ttft 60.0 ms, 12.2 requests/s"),
    ]
    assert about_window(told)[-2:] == objectives.rows(told)
    within = bound(told)
    assert within is not None
    assert "ttft p90 is 183 ms, within its objective of 500 ms" in within


def test_a_goodput_that_cannot_be_told_says_so() -> None:
    told = msgspec.structs.replace(
        diagnoses.healthy(), goodput=Goodput({"itl": 50.0, "ttft": 500.0}, None, None)
    )
    ((_, text),) = objectives.rows(told)
    assert text == "cannot be told: no request tells a figure of itl 50.0 ms and ttft 500 ms"
