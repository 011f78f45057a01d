"""Three honest endings, and what each of them claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from tokenlag.judge.diagnosis import Stat, Verdict
from tokenlag.judge.excess import Excess
from tokenlag.judge.verdict import NO_STEPS, Situation, decide

from tests.judge.making import a_store, finding, requests

ALL = {"queue", "prefill", "decode", "steps", "cached_tokens"}


def stat(n: int = 50, value: float = 100.0) -> Stat:
    return Stat(value, value, value, value, n)


def excess(symptom: str, n: int, **more: Any) -> Excess:
    told: dict[str, Any] = {
        "alone_ms": 0.0, "rise_ms": float("nan"), "is_visible": False, "is_hinted": False,
        "slow": np.zeros(n, dtype=bool), "reason": "it is so",
    }  # fmt: skip
    return Excess(symptom, **told | more)


def verdict(
    n: int = 50,
    findings: tuple[Any, ...] = (),
    visible: dict[str, dict[str, Any]] | None = None,
    capabilities: set[str] = ALL,
    missed: tuple[str, ...] = (),
    latency: dict[str, Stat] | None = None,
    rows: Sequence[Mapping[str, Any]] | None = None,
    n_steps: int = 1000,
    unjudged: dict[str, bool] | None = None,
) -> Verdict:
    plain: Sequence[Mapping[str, Any]] = [
        {"ttft_ms": 100.0, "alone_ttft_ms": 90.0, "e2e_ms": 500.0}
    ] * n
    told = rows if rows is not None else plain
    with a_store() as store:
        current = requests(store, told)
        of = {
            s: excess(s, len(told), **(visible or {}).get(s, {}))
            for s in ("ttft", "itl", "e2e", "client")
        }
        figures = {"ttft": stat(), "itl": stat(), "e2e": stat()} | (latency or {})
        return decide(
            Situation(
                findings, of, set(capabilities), figures, current, missed, n_steps,
                unjudged=unjudged or {},
            )
        )  # fmt: skip


def test_the_first_cause_is_the_verdict() -> None:
    got = verdict(findings=(finding("prompts-grew"), finding("queueing-not-prefill")))
    assert (got.status, got.cause, got.symptom) == ("problem", "prompts-grew", "ttft")
    assert got.summary == "prompts-grew happened"
    assert got.missing == []


@pytest.mark.parametrize(
    "weak",
    [
        finding("prompts-grew", confidence=0.49),
        finding("trace-incomplete", severity="note"),
        finding("queueing-not-prefill", consequence_of="prompts-grew"),
    ],
    ids=["unsure", "note", "consequence"],
)
def test_what_is_unsure_a_note_or_a_consequence_is_no_cause(weak: Any) -> None:
    assert verdict(findings=(weak,)).status == "healthy"
    got = verdict(findings=(weak, finding("frontend-wait")))
    assert got.cause == "frontend-wait"


def test_nothing_wrong_says_within_what_bound() -> None:
    got = verdict(capabilities=ALL | {"baseline"})
    assert (got.status, got.cause, got.symptom) == ("healthy", None, None)
    assert "50 requests, 1000 steps" in got.summary
    assert "30 %" in got.summary
    assert "no baseline" in verdict().summary
    blind = verdict(visible={"ttft": {"alone_ms": float("nan")}})
    assert "only waiting could be judged" in blind.summary


def test_a_rise_that_busy_minutes_excuse_is_named() -> None:
    got = verdict(visible={"ttft": {"is_excused": True}}, capabilities=ALL | {"baseline"})
    assert got.status == "healthy"
    assert "no mean but of TTFT rose by 30 %" in got.summary


def test_an_objective_that_nothing_tells_is_not_met_in_silence() -> None:
    got = verdict(capabilities=ALL - {"steps"}, unjudged={"itl_p99": False})
    assert got.status == "healthy"
    assert "itl_p99 was asked for, and nothing recorded tells it" in got.summary
    got = verdict(capabilities=ALL - {"steps"}, unjudged={"itl_p99": True})
    assert (got.status, got.symptom, got.missing) == ("inconclusive", "itl", ["steps"])


@pytest.mark.parametrize(
    ("symptom", "missing"),
    [
        ("ttft", ["queue", "prefill", "steps", "cached_tokens"]),
        ("itl", ["steps"]),
        ("e2e", ["decode", "steps"]),
        ("client", ["network"]),
    ],
)
def test_a_slowness_whose_parts_were_not_recorded_cannot_be_told(
    symptom: str, missing: list[str]
) -> None:
    got = verdict(visible={symptom: {"is_visible": True}}, capabilities=set())
    assert (got.status, got.missing) == ("inconclusive", missing)
    assert got.symptom == ("ttft" if symptom == "client" else symptom)
    assert got.cause is None
    for name in missing:
        assert name in got.summary


def test_a_real_slowness_that_fits_no_cause_is_a_problem_without_one() -> None:
    rows = [
        {"ttft_ms": 2000.0 if i < 20 else 100.0, "tenant": "docs" if i < 22 else "chat",
         "n_prompt": 100}
        for i in range(60)
    ]  # fmt: skip
    slow = np.arange(60) < 20
    got = verdict(rows=rows, visible={"ttft": {"is_visible": True, "slow": slow}})
    assert (got.status, got.cause, got.symptom) == ("problem", None, "ttft")
    assert got.dimension == {"tenant": "docs"}
    assert "tenant = docs" in got.summary


def test_a_weak_finding_that_explains_much_is_told_as_what_fits_best() -> None:
    visible = {"itl": {"is_visible": True}}
    weak = finding("steps-run-slow", confidence=0.45, share=0.8)
    little = finding("prompts-grew", confidence=0.45, share=0.1)
    got = verdict(findings=(little, weak), visible=visible)
    assert (got.status, got.cause) == ("problem", None)
    assert "no cause is sure. What fits best: steps-run-slow happened" in got.summary
    assert "no known cause" in verdict(findings=(little,), visible=visible).summary


def test_a_weak_finding_is_told_as_well_where_something_was_not_recorded() -> None:
    weak = finding("frontend-wait", confidence=0.4, share=0.9)
    got = verdict(findings=(weak,), visible={"ttft": {"is_visible": True}}, capabilities=set())
    assert got.status == "inconclusive"
    assert got.summary.endswith("not recorded. What fits best: frontend-wait happened")


def test_a_cause_of_little_is_not_the_verdict_where_the_rest_cannot_be_told() -> None:
    rose = {"ttft": {"is_visible": True, "rise_ms": 9000.0}}
    little = finding("short-behind-long-prompt", share=0.07)
    got = verdict(findings=(little,), visible=rose, capabilities=ALL - {"steps"})
    assert (got.status, got.missing) == ("inconclusive", ["steps"])
    # With all recorded, of what is half, of a rise that nobody knows, and beside a larger cause.
    assert verdict(findings=(little,), visible=rose).cause == little.rule
    for findings, visible in (
        ((finding("queueing-not-prefill", share=0.5),), rose),
        ((little,), {"ttft": {"is_visible": True}}),
        ((finding("prompts-grew"), little), rose),
    ):
        got = verdict(findings=findings, visible=visible, capabilities=ALL - {"steps"})
        assert got.cause == findings[0].rule


def test_where_slow_requests_are_like_all_no_dimension_is_named() -> None:
    rows = [{"ttft_ms": 100.0, "tenant": f"t{i % 2}", "n_prompt": 100} for i in range(60)]
    slow = np.arange(60) % 6 < 2
    got = verdict(rows=rows, visible={"ttft": {"is_visible": True, "slow": slow}})
    assert got.dimension is None


def test_lengths_are_told_as_classes() -> None:
    rows = [{"ttft_ms": 1.0, "n_prompt": 5000 if i < 20 else 100} for i in range(60)]
    got = verdict(rows=rows, visible={"ttft": {"is_visible": True, "slow": np.arange(60) < 20}})
    assert got.dimension == {"prompt": "4096 to 8192 tokens"}


def test_a_missed_objective_alone_is_a_problem() -> None:
    got = verdict(missed=("tpot_p90",))
    assert (got.status, got.symptom) == ("problem", "itl")
    assert "tpot_p90" in got.summary
    blind = verdict(missed=("ttft_p90",), capabilities={"queue"})
    assert (blind.status, blind.missing) == ("inconclusive", ["prefill", "steps", "cached_tokens"])


def test_a_handful_of_requests_is_too_few_to_call() -> None:
    got = verdict(n=4)
    assert (got.status, got.missing) == ("inconclusive", ["requests"])
    assert verdict(n=4, findings=(finding("frontend-wait"),)).status == "problem"


def test_requests_that_never_tell_their_end_are_not_healthy() -> None:
    nothing = Stat(None, None, None, None, 0)
    got = verdict(latency={"e2e": nothing, "ttft": nothing})
    assert got.status == "inconclusive"


def test_a_hint_is_not_called_healthy_where_its_parts_were_not_recorded() -> None:
    hinted = {"ttft": {"is_hinted": True}}
    assert verdict(visible=hinted).status == "healthy"
    assert verdict(visible=hinted, capabilities={"queue", "prefill"}).status == "inconclusive"


def test_a_burst_at_the_start_cannot_be_judged_without_steps() -> None:
    rows = [{"ttft_ms": 900.0, "alone_ttft_ms": 100.0, "is_first_wave": True}] * 40
    blind = verdict(rows=rows, capabilities=ALL - {"steps"}, n_steps=0)
    assert (blind.status, blind.missing) == ("inconclusive", ["steps"])
    assert verdict(rows=rows).status == "healthy"


def test_the_symptom_with_slow_requests_goes_before_the_larger_sum() -> None:
    slow = np.arange(50) < 10
    got = verdict(
        visible={
            "ttft": {"is_visible": True, "slow": slow, "alone_ms": 10.0},
            "e2e": {"is_visible": True, "alone_ms": 1e9},
        }
    )
    assert got.symptom == "ttft"


def slower_tokens() -> Sequence[Mapping[str, Any]]:
    """Requests one after another, of which the second half takes twice as long for a token."""
    return [
        {
            "arrival_ns": i * 10**9, "ttft_ms": 100.0, "alone_ttft_ms": 90.0, "n_output": 20,
            "tpot_ms": 10.0 * (1 + (i >= 100)) * (1 + 0.01 * (i % 7)), "e2e_ms": 500.0,
        }
        for i in range(200)
    ]  # fmt: skip


def test_tokens_that_became_slower_ask_for_steps_where_there_are_none() -> None:
    found = verdict(200, rows=slower_tokens(), capabilities=ALL - {"steps"})
    assert (found.status, found.symptom, found.missing) == ("inconclusive", "itl", ["steps"])
    assert "2.0 times" in found.summary
    assert verdict(200, rows=slower_tokens()).status == "healthy", "steps would tell a cause"


def test_healthy_without_steps_says_what_it_could_not_see() -> None:
    assert NO_STEPS in verdict(capabilities=ALL - {"steps"}, n_steps=0).summary
    assert NO_STEPS not in verdict().summary
