"""Where steps tell the time on the accelerator, it says whether the host is late or not."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC
from pathlib import Path

import msgspec
import pytest
from tokenlag.judge.diagnosis import Diagnosis
from tokenlag.pipeline import Request, diagnose

from tests.rules.lab import Fixture, Lab, causes

LATE_MS = 30.7
USUAL_MS = 31.3
"""S09: what its host is late by, and what a decode-only step takes without that."""


def with_device(source: Path, target: Path, device_ms: Callable[[float], float]) -> Path:
    """A copy whose steps tell the accelerator's time, made from their length in milliseconds."""
    with source.open("rb") as lines, target.open("wb") as out:
        for line in lines:
            told = msgspec.json.decode(line)
            for block in told["resourceSpans"]:
                for span in (s for scope in block["scopeSpans"] for s in scope["spans"]):
                    if span["name"] != "llm.engine_step":
                        continue
                    length = int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])
                    value = {"intValue": str(int(1e6 * device_ms(length / 1e6)))}
                    span["attributes"].append({"key": "tokenlag.step.device_ns", "value": value})
            out.write(msgspec.json.encode(told) + b"\n")
    return target


def judged(
    lab: Lab,
    tmp_path: Path,
    variant: str,
    now: Callable[[float], float],
    before: Callable[[float], float],
) -> Diagnosis:
    """S09's variant against its healthy twin, with these times on the accelerator."""
    fixture = Fixture("S09", variant)
    twin = fixture.twin
    assert twin is not None
    current = with_device(lab.traces(fixture), tmp_path / "current.jsonl", now)
    baseline = with_device(lab.traces(twin), tmp_path / "baseline.jsonl", before)
    request = Request([str(current)], baseline_traces=[str(baseline)], n_workers=0)
    return diagnose(request, now_ns=0, tz=UTC).diagnosis


def nearly_all(step_ms: float) -> float:
    return 0.95 * step_ms


def test_a_constant_that_the_device_takes_is_not_the_hosts(lab: Lab, tmp_path: Path) -> None:
    found = judged(lab, tmp_path, "host", nearly_all, nearly_all)
    assert "host-starves-steps" not in causes(found)


def test_a_constant_that_the_device_does_not_take_is_the_hosts(lab: Lab, tmp_path: Path) -> None:
    found = judged(lab, tmp_path, "host", lambda ms: ms - LATE_MS - 1, lambda ms: ms - 1)
    assert found.verdict.cause == "host-starves-steps"


def test_late_now_and_then_is_the_hosts_where_the_device_is_as_before(
    lab: Lab, tmp_path: Path
) -> None:
    # By the steps alone it is no constant.
    assert "host-starves-steps" not in causes(lab.diagnose(Fixture("S09", "flip")))

    def flat(step_ms: float) -> float:
        return min(step_ms, USUAL_MS) - 1 if step_ms < 2 * USUAL_MS else step_ms - 1

    found = judged(lab, tmp_path, "flip", flat, flat)
    (late,) = [f for f in found.findings if f.rule == "host-starves-steps"]
    assert late.facts["basis"] == "device time"
    assert late.facts["device_rise_ms"] == pytest.approx(0.0, abs=1.0)
