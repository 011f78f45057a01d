"""A queue that slower service fills is a place and no cause, if what is slower is not recorded."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path
from typing import Any

from tokenlag.judge.diagnosis import Diagnosis
from tokenlag.pipeline import Request, diagnose
from tokenlag.simulate.recipe import Recipe
from tokenlag.simulate.run import run
from tokenlag.simulate.traces import write_traces

QUEUE = "queueing-not-prefill"


def traces(path: Path, seed: int, token_ms: float, rate_per_s: float, max_seqs: int) -> str:
    """vLLM's own spans, which tell neither cached tokens nor steps, of two minutes."""
    table: dict[str, Any] = {
        "engine": {"max_seqs": max_seqs, "max_batch_tokens": 8192, "kv_tokens": 900_000},
        "step": {"a_ms": 6, "b_ms": token_ms, "c_ms": 0.04, "d_ms": 1e-5, "noise_sigma": 0.02},
        "workload": {
            "main": {
                "kind": "poisson", "rate_per_s": rate_per_s, "until_s": 120,
                "prompt": [2000, 4000], "output": [100, 200],
            },
        },
        "horizon_s": 240.0,
        "truth": {},
    }  # fmt: skip
    recipe = Recipe(name="two", shows="two", seed=seed, path=Path("here"), table=table)
    write_traces(run(recipe), path, form="vllm")
    return str(path)


def judged(current: str, baseline: str) -> Diagnosis:
    request = Request([current], baseline_traces=[baseline], n_workers=0)
    return diagnose(request, now_ns=0, tz=UTC).diagnosis


def test_slower_service_that_spans_do_not_explain_is_not_called_a_queue(tmp_path: Path) -> None:
    before = traces(tmp_path / "before.jsonl", 1, 0.02, 1.9, 64)
    found = judged(traces(tmp_path / "now.jsonl", 2, 0.2, 1.9, 64), before)
    (queue,) = [f for f in found.findings if f.rule == QUEUE]
    assert queue.facts["filled_by"] == "speed"
    assert queue.confidence < 0.5
    assert found.verdict.status == "inconclusive", found.verdict.summary
    assert "cached_tokens" in found.verdict.missing
    assert "slower service" in found.verdict.summary


def test_more_requests_than_slots_are_stated_from_the_same_spans(tmp_path: Path) -> None:
    before = traces(tmp_path / "before.jsonl", 1, 0.02, 1.9, 4)
    found = judged(traces(tmp_path / "now.jsonl", 2, 0.02, 4.5, 4), before)
    assert found.verdict.cause == QUEUE, found.verdict.summary
