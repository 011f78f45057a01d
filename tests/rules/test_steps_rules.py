"""Step-time faults, hand-over and load generators: what is said, over seeds and both ways."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path

import pytest
from tokenlag.judge.diagnosis import Diagnosis, Finding
from tokenlag.pipeline import Request, diagnose
from tokenlag.simulate.recipe import load_recipe
from tokenlag.simulate.run import run
from tokenlag.simulate.traces import write_traces

from tests.rules.lab import Fixture, Lab, causes, problems

# The recipe's own seed by default, two more with `-m slow`.
SEEDS = (None, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2)))
SURE = 0.9

ALONE = [
    ("S08", "pauses", "periodic-pauses"),
    ("S08", "compile", "cold-start"),
    ("step-tax", "fault", "per-request-step-tax"),
    ("S12", "burst-1", "measurement-artefact"),
    ("S12", "burst-200", "measurement-artefact"),
    ("S12", "client-queue-long", "measurement-artefact"),
    ("S11", "fault", "pd-handoff-wait"),
    ("S11", "recompute", "pd-handoff-wait"),
    ("S11", "clients", "measurement-artefact"),
    ("grammar-wait", "fault", "grammar-wait"),
    ("prefill-slow", "fault", "prefill-runs-slow"),
    ("slow", "fault", "steps-run-slow"),
    ("slow", "host", "host-starves-steps"),
    ("speculation", "fault", "speculation-not-paying"),
]
"""Named from the traces by themselves: no baseline is given."""

COMPARED = [
    ("S09", "host", "host-starves-steps"),
    ("S09", "clock", "steps-run-slow"),
    ("S09", "flip", "steps-run-slow"),
    ("S09", "ramp", "steps-run-slow"),
    ("S09", "idle", "steps-run-slow"),
    ("speculation", "fault", "speculation-not-paying"),
]
"""Named against the traces of the healthy twin."""

QUIET = [
    ("S08", "healthy"),
    ("S10", "control"),
    ("step-tax", "control"),
    ("S12", "client-in-time"),
    ("S03", "control"),
    ("grammar-wait", "healthy"),
    ("prefill-slow", "healthy"),
    ("context-grew", "healthy"),
    ("slow", "healthy"),
    ("speculation", "short-outputs"),
]


def other(fixture: Fixture) -> Fixture:
    """The healthy twin with another seed."""
    name = load_recipe(fixture.recipe).control
    return Fixture(fixture.recipe, name or "healthy", 1000 + (fixture.seed or 0))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("recipe", "variant", "cause"), ALONE)
def test_named_without_a_baseline(
    recipe: str, variant: str, cause: str, seed: int | None, lab: Lab
) -> None:
    found = lab.diagnose(Fixture(recipe, variant, seed))
    assert found.verdict.cause == cause, found.verdict.summary
    assert not set(load_recipe(recipe).variant(variant).truth.must_not) & set(causes(found))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("recipe", "variant", "cause"), COMPARED)
def test_named_against_the_healthy_twin(
    recipe: str, variant: str, cause: str, seed: int | None, lab: Lab
) -> None:
    fixture = Fixture(recipe, variant, seed)
    found = lab.diagnose(fixture, other(fixture))
    assert found.verdict.cause == cause, found.verdict.summary
    assert not set(fixture.truth.must_not) & set(causes(found))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("recipe", "variant"), QUIET)
def test_quiet_on_healthy_controls(recipe: str, variant: str, seed: int | None, lab: Lab) -> None:
    found = lab.diagnose(Fixture(recipe, variant, seed))
    assert [f.rule for f in problems(found)] == []
    assert found.verdict.status == "healthy", found.verdict.summary


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("recipe", "variant"), [("S09", "healthy"), ("speculation", "healthy")])
def test_quiet_against_an_equal_baseline(
    recipe: str, variant: str, seed: int | None, lab: Lab
) -> None:
    fixture = Fixture(recipe, variant, seed)
    found = lab.diagnose(fixture, other(fixture))
    assert [f.rule for f in problems(found)] == []


def top(found: Diagnosis) -> Finding:
    return found.findings[0]


@pytest.mark.parametrize("seed", SEEDS)
def test_pauses_and_first_uses_are_told_apart(seed: int | None, lab: Lab) -> None:
    pauses = top(lab.diagnose(Fixture("S08", "pauses", seed)))
    assert pauses.facts["period_s"] == pytest.approx(1.5, abs=0.01)
    assert pauses.facts["size_ms"] == pytest.approx(200, rel=0.1)
    assert "not in the trace" in pauses.summary, "what pauses it is never stated as a fact"
    compiled = lab.diagnose(Fixture("S08", "compile", seed))
    assert "periodic-pauses" not in {f.rule for f in compiled.findings}
    assert top(compiled).facts["worst_ms"] == pytest.approx(800, rel=0.1)


@pytest.mark.parametrize("seed", SEEDS)
def test_constant_and_factor_are_told_apart(seed: int | None, lab: Lab) -> None:
    host = Fixture("S09", "host", seed)
    found = top(lab.diagnose(host, other(host)))
    assert found.facts["slope"] == pytest.approx(1.0, abs=0.05)
    assert found.facts["constant_ms"] == pytest.approx(30.7, rel=0.05)
    clock = Fixture("S09", "clock", seed)
    assert top(lab.diagnose(clock, other(clock))).facts["factor"] == pytest.approx(1.49, abs=0.05)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_kernel_of_decode_alone_is_never_surely_the_host(seed: int | None, lab: Lab) -> None:
    fixture = Fixture("S09", "decode-kernel", seed)
    found = lab.diagnose(fixture, other(fixture))
    sure = [f.rule for f in problems(found) if f.confidence >= SURE]
    assert "host-starves-steps" not in sure
    assert found.verdict.cause in ("steps-run-slow", "host-starves-steps")


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_captured_size_that_was_crossed_is_placed_exactly(seed: int, lab: Lab) -> None:
    found = lab.diagnose(Fixture("S10", "fault", seed))
    assert found.verdict.cause == "graph-ceiling-crossed"
    assert top(found).facts["threshold"] == 32
    assert top(found).facts["jump_ms"] == pytest.approx(15.5, rel=0.1)
    assert not {"queueing-not-prefill", "decode-batch-grew"} & set(causes(found))


def test_long_prompts_are_no_pauses(lab: Lab) -> None:
    found = lab.diagnose(Fixture("S02", "mixed-8192"))
    assert "periodic-pauses" not in {f.rule for f in found.findings}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_start_burst_is_no_queue_and_a_queue_no_burst(seed: int | None, lab: Lab) -> None:
    burst = lab.diagnose(Fixture("S12", "burst-200", seed))
    assert top(burst).facts["kind"] == "start burst"
    assert top(burst).facts["later_ms"] == pytest.approx(438, rel=0.05)
    queue = lab.diagnose(Fixture("S01", "fault", seed))
    assert "measurement-artefact" not in {f.rule for f in queue.findings}


@pytest.mark.parametrize(
    ("variant", "part"), [("fault", "decode slot"), ("recompute", "second prefill")]
)
@pytest.mark.parametrize("seed", SEEDS)
def test_parts_of_the_hand_over_are_told_apart(
    variant: str, part: str, seed: int | None, lab: Lab
) -> None:
    found = top(lab.diagnose(Fixture("S11", variant, seed)))
    assert found.rule == "pd-handoff-wait"
    assert part.split()[-1] in str(found.facts["part"])
    assert found.facts["prefill_ms"] == pytest.approx(137, rel=0.05)
    assert found.facts["moved_frac"] == (0.0 if variant == "recompute" else 1.0)


def without(tmp_path: Path, fixture: Fixture, *drop: str) -> Diagnosis:
    """The diagnosis of a fixture of which a part was not recorded."""
    path = tmp_path / "traces.jsonl"
    done = run(load_recipe(fixture.recipe), seed=fixture.seed, variant=fixture.variant)
    write_traces(done, path, drop=drop)
    outcome = diagnose(Request([str(path)], n_workers=0), now_ns=0, tz=UTC)
    assert outcome.problems == []
    return outcome.diagnosis


@pytest.mark.parametrize(
    ("recipe", "variant", "drop", "rule", "needs"),
    [
        ("S01", "fault", "queue", "queueing-not-prefill", "queue"),
        ("S02", "mixed-8192", "steps", "long-prompt-stalled-streams", "steps"),
        ("S04", "bust", "cached", "prefix-reuse-lost", "cached_tokens"),
        ("S08", "pauses", "steps", "periodic-pauses", "steps"),
        ("S08", "compile", "steps", "cold-start", "steps"),
        ("S10", "fault", "steps", "graph-ceiling-crossed", "steps"),
        ("S09", "host", "steps", "host-starves-steps", "steps"),
        ("step-tax", "fault", "steps", "per-request-step-tax", "steps"),
        ("grammar-wait", "fault", "queue", "grammar-wait", "queue"),
    ],
)
def test_what_was_not_recorded_is_named(
    recipe: str, variant: str, drop: str, rule: str, needs: str, tmp_path: Path
) -> None:
    found = without(tmp_path, Fixture(recipe, variant), drop)
    assert rule not in {f.rule for f in found.findings}
    missing = {n.rule: n.needs for n in found.not_evaluated}
    assert needs in missing[rule]


def test_without_events_of_preemption_repeated_positions_tell(tmp_path: Path) -> None:
    found = without(tmp_path, Fixture("S03", "fault"), "preemptions")
    assert found.verdict.cause == "kv-preemption-thrash"


def test_a_rate_over_prefill_and_decode_is_not_given_for_the_decode_rate(lab: Lab) -> None:
    found = lab.diagnose(Fixture("S12", "mixed-rate"))
    expected = load_recipe("S12").variant("mixed-rate").expected
    assert found.throughput.per_stream_tokens_per_s == pytest.approx(
        expected["decode_tokens_per_s"], rel=0.01
    )
    assert found.latency["prefill"].mean == pytest.approx(expected["prefill_s"] * 1e3, rel=0.01)
    # 64 tokens over the whole 47.6 s: what a load test would print as tokens per second.
    mixed = 64e3 / found.latency["e2e"].mean
    assert mixed == pytest.approx(1.35, abs=0.01)
    rates = [found.throughput.per_stream_tokens_per_s, found.throughput.output_tokens_per_s]
    assert mixed not in [pytest.approx(rate, rel=0.05) for rate in rates]


def test_a_wait_in_the_client_needs_the_client(tmp_path: Path) -> None:
    found = without(tmp_path, Fixture("S12", "client-queue"), "client")
    assert "measurement-artefact" not in {f.rule for f in found.findings}
    assert "client" in found.coverage.blind


def test_the_roofline_says_what_bytes_and_batch_would_do(lab: Lab) -> None:
    found = lab.diagnose(Fixture("outputs-grew", "healthy"))
    notes = {f.rule: f for f in found.findings if f.severity == "note"}
    facts = notes["decode-at-memory-bound"].facts
    assert facts["decode_ms"] == pytest.approx(8.0, rel=0.03)
    assert facts["fp8_ms"] == pytest.approx(4.0, rel=0.03), "weights of half the bytes"
    assert facts["memory_share"] == pytest.approx(0.91, abs=0.01)
    assert facts["compute"] < 0.05, "twice the FLOP/s would not be noticed"
    # One read of the weights for 32 tokens instead of one.
    assert facts["batch32_ms"] == pytest.approx(8.0 / 32, rel=0.2)
