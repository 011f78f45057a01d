"""The simulator beside a real engine: captured requests, played by its scheduler and step model."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import pytest

from benchmarks.lab import simulated
from tests.conftest import REPO

CAPTURED = REPO / "fixtures" / "captured"


@cache
def capture_of(name: str) -> simulated.Capture:
    return simulated.read(CAPTURED / name / "traces.jsonl.gz", name)


@cache
def figures(name: str) -> dict[str, Any]:
    return simulated.compare(capture_of(name))


@pytest.mark.parametrize("name", ["vllm-healthy", "vllm-queue-slots", "vllm-long-prompt"])
def test_the_scheduler_makes_the_batches_that_the_real_one_made(name: str) -> None:
    told = figures(name)
    real, played = told["steps"]
    assert played == pytest.approx(real, rel=0.05)
    real, played = told["steps_with_prompts"]
    assert played == pytest.approx(real, abs=5)
    real, played = told["mean_decoding"]
    assert played == pytest.approx(real, rel=0.05)
    assert told["most_running"][0] == told["most_running"][1]
    assert set(told["bounds"][0]) == set(told["bounds"][1])


@pytest.mark.parametrize("name", ["vllm-healthy", "vllm-long-prompt"])
def test_first_tokens_come_when_they_came(name: str) -> None:
    # Not of the one whose slots are nearly full: there a few per cent of speed are half the wait.
    real, played = figures(name)["first_token_p90_s"]
    assert played == pytest.approx(real, rel=0.3)


def test_a_slot_is_free_for_others_one_step_after_its_last_token() -> None:
    """Two steps deep, the next batch is made before the end of this one's requests is known."""
    capture = capture_of("vllm-queue-slots")
    log = simulated.play(capture, *simulated.fitted(capture))
    ends = sorted(runs[-1][1] for r in log.requests if (runs := log.decode_runs(r)))
    gaps: Counter[int] = Counter()
    for request in log.requests:
        first = request.prefills[0][0].step
        if first and log.steps[first - 1].n_waiting:
            gaps[first - ends[int(np.searchsorted(ends, first)) - 1]] += 1
    [(usual, n_usual)] = gaps.most_common(1)
    assert usual == capture.usual_gap == 2
    assert n_usual > 0.8 * gaps.total()
    # Meanwhile it counts as running, though it decodes no more.
    for steps in (
        {(row[6], row[2]) for row in capture.steps if row[5] and not row[1]},
        {(s.n_running, s.n_decode) for s in log.steps if s.n_waiting and not s.n_prefill},
    ):
        assert steps == {(2, 2), (2, 1)}


def test_long_prompts_need_the_term_of_attention() -> None:
    capture = capture_of("vllm-long-prompt")
    model, _ = simulated.fitted(capture)
    assert model.e_ms > 0
    # A prompt of 8,000 tokens in one step: attention is more than half of what its tokens cost.
    attention_ms = model.e_ms * 8000 * 4000
    assert 0.3 < attention_ms / model.cost_ms(8000, 0, 0, 8000 * 4000) < 0.9
