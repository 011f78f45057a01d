"""Stops that come by the clock are a fault if somebody notices them."""

from __future__ import annotations

import random
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from tokenlag.judge.diagnosis import Diagnosis
from tokenlag.pipeline import Request, diagnose
from tokenlag.simulate.recipe import Recipe
from tokenlag.simulate.run import run
from tokenlag.simulate.traces import write_traces


def judged(folder: Path, effects: list[dict[str, Any]]) -> Diagnosis:
    """A minute and a half of a quiet engine that stops."""
    table: dict[str, Any] = {
        "engine": {"max_seqs": 128, "max_batch_tokens": 2048, "kv_tokens": 400_000},
        "step": {
            "a_ms": 6, "b_ms": 0.032, "c_ms": 0.04, "d_ms": 4e-5, "noise_sigma": 0.02,
            "effects": effects,
        },
        "workload": {
            "main": {
                "kind": "poisson", "rate_per_s": 6, "until_s": 90, "prompt": [200, 800],
                "output": [150, 250],
            },
        },
        "horizon_s": 100.0,
        "truth": {},
    }  # fmt: skip
    path = folder / "t.jsonl"
    recipe = Recipe(name="stops", shows="stops", seed=5, path=Path("here"), table=table)
    write_traces(run(recipe), path)
    return diagnose(Request([str(path)], n_workers=0), now_ns=0, tz=UTC).diagnosis


@pytest.mark.parametrize(("stop_ms", "cause"), [(450.0, "periodic-pauses"), (90.0, None)])
def test_long_stops_at_any_time_are_stops(
    tmp_path: Path, stop_ms: float, cause: str | None
) -> None:
    rng = random.Random(7)
    at_s, times = 1.0, []
    while at_s < 90:
        at_s += rng.expovariate(1 / 4.0)
        once = {"every_s": at_s, "until_s": at_s + 1.0}
        times.append({"kind": "pauses", "add_ms": stop_ms, **once})
    found = judged(tmp_path, times)
    assert found.verdict.cause == cause, found.verdict.summary
    if cause:
        assert not found.findings[0].facts["is_regular"]
        assert "at irregular times" in found.verdict.summary


@pytest.mark.parametrize(
    ("every_s", "stop_ms", "cause"),
    [
        (4.0, 60.0, None),  # 1.5 % of the time, in gaps of seven hundredths of a second
        (0.9, 60.0, "periodic-pauses"),  # as short, and 7 %
        (4.0, 250.0, "periodic-pauses"),
    ],
)
def test_short_and_rare_stops_are_no_problem(
    tmp_path: Path, every_s: float, stop_ms: float, cause: str | None
) -> None:
    found = judged(tmp_path, [{"kind": "pauses", "every_s": every_s, "add_ms": stop_ms}])
    assert found.verdict.cause == cause, found.verdict.summary
