"""The serving lesson: two opposite shapes on one engine, and what another card would help."""

from __future__ import annotations

from datetime import UTC

import pytest
from tokenlag.judge.diagnosis import Diagnosis
from tokenlag.pipeline import Request, diagnose
from tokenlag.simulate.recipe import load_recipe
from tokenlag.simulate.run import run
from tokenlag.simulate.traces import write_traces


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Diagnosis:
    """Long outputs against long prompts."""
    folder = tmp_path_factory.mktemp("shapes")
    for variant in ("long-in", "long-out"):
        write_traces(run(load_recipe("two-shapes"), variant=variant), folder / f"{variant}.jsonl")
    request = Request(
        [str(folder / "long-out.jsonl")],
        baseline_traces=[str(folder / "long-in.jsonl")],
        n_workers=0,
        is_comparison=True,
    )
    return diagnose(request, now_ns=0, tz=UTC).diagnosis


def test_which_shape_has_the_higher_ttft_and_which_the_higher_e2e(compared: Diagnosis) -> None:
    assert compared.comparison is not None
    moved = {c.metric: c for c in compared.comparison.changes}
    # Prefill of 2,000 tokens is 0.2 s; 2,000 steps of 8 ms are 16 s.
    assert moved["ttft"].moved == "lower"
    assert moved["ttft"].a == pytest.approx(200, rel=0.1)
    assert moved["ttft"].b == pytest.approx(30, rel=0.2)
    assert moved["e2e"].moved == "higher"
    assert moved["e2e"].a == pytest.approx(1_800, rel=0.1)
    assert moved["e2e"].b == pytest.approx(16_000, rel=0.1)


def test_the_time_per_token_does_not_move_and_it_is_the_shape(compared: Diagnosis) -> None:
    assert compared.comparison is not None
    moved = {c.metric: c.moved for c in compared.comparison.changes}
    assert moved["tpot"] == "same"
    assert compared.comparison.why["e2e"] == "shape"
    assert compared.comparison.why["ttft"] == "shape"


def test_more_flops_help_the_prompt_and_more_bandwidth_the_tokens(compared: Diagnosis) -> None:
    decode = next(f for f in compared.findings if f.rule == "decode-at-memory-bound")
    assert decode.facts["compute"] < 0.05, "twice the FLOP/s would not be noticed"
    assert decode.facts["fp8_ms"] == pytest.approx(4.0, rel=0.1), "half the bytes of weights"
