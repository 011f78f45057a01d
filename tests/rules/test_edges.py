"""Fleets, front ends, gateways, readers, tenants and the way in: told from their look-alikes.

Each scenario with three seeds in both directions, with other faults beside it, and with
records missing.
"""

from __future__ import annotations

from datetime import UTC
from pathlib import Path

import pytest
from tokenlag.judge.diagnosis import Diagnosis, Finding
from tokenlag.pipeline import Request, diagnose
from tokenlag.simulate.recipe import load_recipe
from tokenlag.simulate.run import run
from tokenlag.simulate.traces import Damage, write_traces

from tests.rules.lab import Fixture, Lab, causes, problems

# The recipe's own seed by default, two more with `-m slow`.
SEEDS = [None, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (101, 102))]

FAULTS = [
    ("S05", "fault"),
    ("S05", "slow-machine"),
    ("S06", "fault"),
    ("S06", "overload"),
    ("S06", "burst"),
    ("S07", "fault"),
    ("S07", "long"),
    ("S07", "short"),
    ("slow-reader", "fault"),
    ("tenant-flood", "fault"),
    ("tenant-flood", "all-grow"),
    ("network-in", "fault"),
    ("network-in", "skewed-fault"),
]
CONTROLS = [
    ("S05", "control"),
    ("S05", "least-loaded"),
    ("S06", "control"),
    ("S06", "overload-2"),
    ("S07", "direct"),
    ("S07", "speculation"),
    ("slow-reader", "control"),
    ("tenant-flood", "control"),
    ("network-in", "control"),
    ("network-in", "skewed"),
]


def finding(found: Diagnosis, rule: str) -> Finding:
    [one] = [f for f in found.findings if f.rule == rule]
    return one


def damaged(
    folder: Path, name: str, variant: str | None = None, drop: tuple[str, ...] = (),
    form: str = "contract", damage: Damage | None = None,
) -> Diagnosis:  # fmt: skip
    """A diagnosis of a recipe's traces with records left out."""
    path = folder / "t.jsonl"
    done = run(load_recipe(name), variant=variant)
    write_traces(done, path, form=form, drop=drop, damage=damage or Damage())
    outcome = diagnose(Request([str(path)], n_workers=0), now_ns=0, tz=UTC)
    assert outcome.problems == []
    return outcome.diagnosis


def not_evaluated(found: Diagnosis) -> dict[str, str]:
    return {n.rule: n.needs for n in found.not_evaluated}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("name", "variant"), FAULTS, ids=[f"{n}-{v}" for n, v in FAULTS])
def test_the_cause_is_found(name: str, variant: str, seed: int | None, lab: Lab) -> None:
    fixture = Fixture(name, variant, seed)
    found, truth = lab.diagnose(fixture), fixture.truth
    assert (found.verdict.status, found.verdict.cause) == ("problem", truth.cause)
    assert found.verdict.symptom == truth.symptom
    assert not set(truth.must_not) & set(causes(found))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("name", "variant"), CONTROLS, ids=[f"{n}-{v}" for n, v in CONTROLS])
def test_the_control_is_silent(name: str, variant: str, seed: int | None, lab: Lab) -> None:
    found = lab.diagnose(Fixture(name, variant, seed))
    assert [f.rule for f in problems(found)] == []
    assert found.verdict.status == "healthy", found.verdict.summary


# --- what is said -----------------------------------------------------------------------------


def test_hot_spot_says_how_hot_and_why(lab: Lab) -> None:
    hot = finding(lab.diagnose(Fixture("S05", "fault")), "replica-hot-spot")
    assert hot.engines == ["sim-0"]
    assert 3.5 < hot.facts["in_hand_ratio"] <= 4.0
    assert hot.facts["skew"] == "prefix"
    assert hot.facts["others_in_flight"] < 0.1 * hot.facts["max_seqs"]
    # Its batches are beyond what the others run, so that its speed cannot be compared.
    assert "queueing-not-prefill" in {r.rule for r in hot.ruled_out}
    queue = finding(lab.diagnose(Fixture("S05", "fault")), "queueing-not-prefill")
    assert queue.consequence_of == "replica-hot-spot"


def test_slow_machine_names_the_engine_and_its_factor(lab: Lab) -> None:
    slow = finding(lab.diagnose(Fixture("S05", "slow-machine")), "slow-replica")
    assert slow.engines == ["sim-2"]
    assert slow.facts["factor"] == pytest.approx(1.5, rel=0.05)


def test_front_end_counts_its_workers(lab: Lab) -> None:
    one = finding(lab.diagnose(Fixture("S06", "fault")), "frontend-wait").facts
    assert one["work_ms"] == pytest.approx(150, rel=0.02)
    assert one["spacing_ms"] == pytest.approx(150, rel=0.02)
    assert one["n_workers"] == 1
    assert one["queue_p95_ms"] < 10
    two = finding(lab.diagnose(Fixture("S06", "burst-2")), "frontend-wait").facts
    assert two["basis"] == "measured"


def test_a_buffer_and_a_reader_are_told_apart(lab: Lab) -> None:
    buffer = finding(lab.diagnose(Fixture("S07", "long")), "slow-delivery")
    assert buffer.facts["kind"] == "buffer"
    assert buffer.facts["held_tokens"] == 67
    assert buffer.facts["end_late_p50_ms"] < 1
    assert any("proxy_buffering off" in r.do for r in buffer.remedies)
    reader = finding(lab.diagnose(Fixture("slow-reader", "fault")), "slow-delivery")
    assert reader.facts["kind"] == "reader"
    assert reader.facts["growth_ms_per_s"] > 100
    assert not any("proxy_buffering" in r.do for r in reader.remedies)


def test_a_whole_stream_that_comes_at_its_end_is_a_buffer(lab: Lab) -> None:
    found = finding(lab.diagnose(Fixture("S07", "fault")), "slow-delivery")
    assert "as a whole" in found.summary
    assert found.facts["late_p50_ms"] == pytest.approx(14_750, rel=0.01)


def test_flood_names_the_tenant_and_its_victims(lab: Lab) -> None:
    flood = finding(lab.diagnose(Fixture("tenant-flood", "fault")), "one-tenant-floods")
    assert [b.culprit for b in flood.blame] == ["tenant docs"]
    assert flood.facts["tenant_share"] > 0.8
    assert flood.facts["others_growth"] == pytest.approx(1, abs=0.2)
    assert flood.facts["growth"] == pytest.approx(4, rel=0.2)


def test_the_way_in_is_bounded_by_the_round_trip_across_clocks(lab: Lab) -> None:
    same = finding(lab.diagnose(Fixture("network-in", "fault")), "network-before-server")
    across = finding(lab.diagnose(Fixture("network-in", "skewed-fault")), "network-before-server")
    assert same.facts["basis"] == "same clock"
    assert across.facts["basis"] == "above the fastest, within the round trip"
    assert across.effect_ms == pytest.approx(same.effect_ms, rel=0.03)


# --- two faults at once -------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_reuse_and_hot_spot_are_both_listed_by_time(seed: int | None, lab: Lab) -> None:
    found = lab.diagnose(Fixture("S05", "and-clock", seed))
    assert causes(found) == ["prefix-reuse-lost", "replica-hot-spot"]
    effects = [finding(found, rule).effect_ms for rule in causes(found)]
    assert effects == sorted(effects, reverse=True)


@pytest.mark.parametrize("seed", SEEDS)
def test_queue_and_buffer_are_both_listed_by_time(seed: int | None, lab: Lab) -> None:
    found = lab.diagnose(Fixture("S07", "and-queue", seed))
    assert causes(found) == ["queueing-not-prefill", "slow-delivery"]


# --- look-alikes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_a_queue_in_the_engine_is_not_one_before_it(seed: int | None, lab: Lab) -> None:
    found = lab.diagnose(Fixture("S01", "fault", seed))
    assert causes(found) == ["queueing-not-prefill"]


@pytest.mark.parametrize("skew_ms", [-900, 900])
def test_a_skewed_clock_changes_no_verdict(skew_ms: float, tmp_path: Path) -> None:
    skew = Damage(client_skew_ms=skew_ms)
    assert damaged(tmp_path, "S06", "control", damage=skew).verdict.status == "healthy"
    assert damaged(tmp_path, "S06", damage=skew).verdict.cause == "frontend-wait"
    assert damaged(tmp_path, "S07", "direct", damage=skew).verdict.status == "healthy"
    assert damaged(tmp_path, "S07", damage=skew).verdict.cause == "slow-delivery"
    assert damaged(tmp_path, "slow-reader", damage=skew).verdict.cause == "slow-delivery"


# --- records missing ------------------------------------------------------------------------


def test_without_spans_of_the_front_end_stamps_tell(tmp_path: Path) -> None:
    found = damaged(tmp_path, "S06", drop=("frontend", "client", "network"))
    assert found.verdict.cause == "frontend-wait"
    assert finding(found, "frontend-wait").facts["basis"] == "between stamps"


def test_an_engine_alone_looks_healthy_and_what_was_not_seen_is_named(tmp_path: Path) -> None:
    found = damaged(tmp_path, "S06", drop=("request", "frontend", "client", "network"))
    assert problems(found) == []
    assert found.verdict.status == "healthy"
    assert {"frontend", "network", "client"} <= set(found.coverage.blind)
    missing = not_evaluated(found)
    assert missing["frontend-wait"] == "frontend"
    assert "client" in missing["slow-delivery"]
    assert "network" in missing["network-before-server"]


def test_without_clients_a_buffer_is_not_seen_and_that_is_said(tmp_path: Path) -> None:
    found = damaged(tmp_path, "S07", drop=("client", "network"))
    assert problems(found) == []
    assert "client" in found.coverage.blind
    assert not_evaluated(found)["slow-delivery"] == "client"


def test_without_replica_ids_no_replica_is_blamed(tmp_path: Path) -> None:
    found = damaged(tmp_path, "S05", drop=("replica",))
    assert not {"replica-hot-spot", "slow-replica"} & {f.rule for f in found.findings}
    assert "engines" in not_evaluated(found)["replica-hot-spot"]


def test_without_tenants_the_queue_is_all_that_is_said(tmp_path: Path) -> None:
    found = damaged(tmp_path, "tenant-flood", drop=("tenant",))
    assert found.verdict.cause == "queueing-not-prefill"
    assert "tenant" in not_evaluated(found)["one-tenant-floods"]


def test_a_rest_is_not_stated_as_the_front_ends_wait(tmp_path: Path) -> None:
    # vLLM's own spans have no front end: what its figures leave over also holds long steps.
    found = damaged(tmp_path, "S02", "mixed-8192", form="vllm")
    assert found.verdict.cause != "frontend-wait"
    found = damaged(tmp_path, "S06", form="vllm")
    [weak] = [f for f in found.findings if f.rule == "frontend-wait"]
    assert weak.confidence < 0.5
    assert weak.facts["basis"] == "derived"
