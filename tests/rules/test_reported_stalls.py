"""Stalls that users of other engines reported, on engines with those parameters.

Sources of the figures: mlx-serve pull request 205; FlashML-org/FreeToken pull request 484;
blazux issue 9; llama.cpp issue 29175; a public trace of vLLM 0.7.3 on an L40S.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path

import pytest
from tokenlag.pipeline import Request, diagnose
from tokenlag.simulate.recipe import Recipe
from tokenlag.simulate.run import run
from tokenlag.simulate.traces import write_traces

N_STREAMS = 4


@dataclass(frozen=True)
class Reported:
    """An engine, a long prompt, and what its users saw.

    Attributes:
        gap_ms: the usual time between tokens.
        chunk_ms: time of a full chunk.
        budget: prompt tokens in a step.
        prompt: length of the long prompt.
        mode: how the engine takes it.
        stall_ms: the longest gap that was reported.
        held_ms: how long a stream was held up in all.
    """

    gap_ms: float
    chunk_ms: float
    budget: int
    prompt: int
    mode: str
    stall_ms: float
    held_ms: float

    @property
    def n_chunks(self) -> int:
        # In steps of both kinds the streams' own tokens come first.
        own = N_STREAMS if self.mode == "mixed" else 0
        return math.ceil(self.prompt / (self.budget - own))


CASES = {
    # 9.1k tokens at once: all streams frozen for 0.80 s, where a gap is 10.5 ms.
    "mlx-serve": Reported(10.5, 1431.0, 16384, 9100, "mixed", 800, 790),
    # 1.35 s for 3,456 tokens, streams wait for the whole of 200k: 77 to 79 s.
    "freetoken": Reported(16.8, 1350.0, 3456, 200_000, "prefill-first", 78_200, 78_200),
    # 3.5 s for 8,192 tokens: from 30 tokens a second to 0.3.
    "blazux": Reported(33.0, 3500.0, 8192, 65_536, "mixed", 3500, 27_700),
    # As many stalls as the prompt has batches; 8 s become 31 s.
    "llama.cpp": Reported(40.0, 1580.0, 2048, 30_000, "mixed", 1580, 22_500),
    # Full steps of 2,048 take 7.3 times a decode-only one, for every stream in them.
    "vllm-l40s": Reported(20.2, 147.5, 2048, 32_000, "mixed", 147.5, 1990),
}


def recipe(name: str, case: Reported) -> Recipe:
    usual_s = case.gap_ms / 1e3
    n_output = int(20 / usual_s) + 200
    table = {
        "engine": {
            "max_seqs": 32, "max_batch_tokens": case.budget, "kv_tokens": 2_000_000,
            "policy": case.mode,
        },
        "step": {
            "a_ms": case.gap_ms - 0.4, "b_ms": (case.chunk_ms - case.gap_ms) / case.budget,
            "c_ms": 0.1, "d_ms": 0.0, "noise_sigma": 0.005,
        },
        "workload": {
            "streams": {
                "kind": "at", "times_s": [0.0], "n": N_STREAMS, "prompt": [180, 220],
                "output": n_output,
            },
            # Short prompts before it, so that steps with prompt tokens have a price.
            "short": {
                "kind": "at", "times_s": [1.0], "every_s": 0.4, "n_times": 14,
                "prompt": [50, 400], "output": 4,
            },
            "long": {"kind": "at", "times_s": [10.0], "prompt": case.prompt, "output": 8},
        },
        "horizon_s": 400.0,
        "truth": {"cause": "long-prompt-stalled-streams"},
    }  # fmt: skip
    return Recipe(name=name, shows=name, seed=1, path=Path("here"), table=table)


@pytest.mark.parametrize("name", CASES)
def test_the_ledger_says_what_users_reported(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    path = tmp_path / "t.jsonl"
    write_traces(run(recipe(name, case)), path)
    found = diagnose(Request([str(path)], n_workers=0), now_ns=0, tz=UTC).diagnosis
    assert found.verdict.cause == "long-prompt-stalled-streams", found.verdict.summary
    top = found.findings[0]
    assert top.facts["worst_gap_ms"] == pytest.approx(case.stall_ms, rel=0.05)
    assert top.facts["n_steps"] == case.n_chunks
    assert top.facts["usual_gap_ms"] == pytest.approx(case.gap_ms, rel=0.05)
    # One culprit, each stream its victim; what they lost is what its prefill took.
    [culprit] = top.blame
    assert culprit.victims == N_STREAMS
    assert culprit.ms / N_STREAMS == pytest.approx(case.held_ms, rel=0.05)
