"""An objective that most requests miss even alone is the shape's to meet, whatever waits."""

from __future__ import annotations

from datetime import UTC

import pytest
from tokenlag.judge.diagnosis import Diagnosis
from tokenlag.pipeline import Request, diagnose

from tests.rules.lab import Fixture, Lab, causes

RULE = "shape-exceeds-budget"


def judged(lab: Lab, slo: str) -> Diagnosis:
    """A busy and healthy engine (S01's control), judged by an objective."""
    path = lab.traces(Fixture("S01", "control"))
    return diagnose(Request([str(path)], slo=slo, n_workers=0), now_ns=0, tz=UTC).diagnosis


@pytest.mark.parametrize("slo", ["ttft_p50=10ms", "itl_p50=5ms"])
def test_what_no_request_meets_alone_is_the_shapes(lab: Lab, slo: str) -> None:
    found = judged(lab, slo)
    assert found.verdict.cause == RULE, found.verdict.summary
    assert found.findings[0].confidence < 0.9
    assert found.verdict.summary.endswith("sharing the engine adds the rest.")


def test_what_most_requests_meet_alone_is_not(lab: Lab) -> None:
    assert RULE not in causes(judged(lab, "ttft_p90=40ms"))
