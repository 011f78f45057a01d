"""A load test's own result file shows when the load generator makes the number."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path

import pytest
from tokenlag.judge.diagnosis import Diagnosis
from tokenlag.pipeline import Request, diagnose
from tokenlag.report import render
from tokenlag.simulate.emit_results import write_result
from tokenlag.simulate.recipe import load_recipe
from tokenlag.simulate.run import run as simulate
from tokenlag.simulate.timeline import DEFAULT_END_NS
from tokenlag.simulate.traces import write_traces

from tests.rules.lab import Fixture, Lab


def diagnosed(folder: Path, variant: str, tool: str, form: str | None = None) -> Diagnosis:
    run = simulate(load_recipe("S12"), variant=variant)
    result = folder / "result.json"
    write_result(run, result, tool, end_ns=DEFAULT_END_NS)
    paths = [str(result)]
    if form is not None:
        write_traces(run, folder / "t.jsonl", form, ["client", "network"] * (form == "contract"))
        paths.append(str(folder / "t.jsonl"))
    return diagnose(Request(paths=paths), now_ns=DEFAULT_END_NS, tz=UTC).diagnosis


@pytest.mark.parametrize("tool", ["vllm", "aiperf", "guidellm"])
def test_the_start_burst_shows_in_the_result_alone(tool: str, tmp_path: Path) -> None:
    found = diagnosed(tmp_path, "burst-200", tool)
    assert (found.verdict.status, found.verdict.cause) == ("problem", "measurement-artefact")
    assert found.findings[0].facts["kind"] == "start burst"
    assert found.coverage.sources == {"load-test": 320}


@pytest.mark.parametrize("tool", ["aiperf", "guidellm"])
@pytest.mark.parametrize(("variant", "fires"), [("client-queue", True), ("client-in-time", False)])
def test_sends_later_than_planned(tool: str, variant: str, fires: bool, tmp_path: Path) -> None:
    found = diagnosed(tmp_path, variant, tool)
    rules = [f.rule for f in found.findings]
    assert ("measurement-artefact" in rules) == fires


def test_the_clients_own_queue_needs_the_servers_side(tmp_path: Path) -> None:
    """Engines that tell no steps: the number of clients comes from the load test."""
    found = diagnosed(tmp_path, "burst-1", "vllm", "vllm")
    assert found.verdict.cause == "measurement-artefact"
    assert found.findings[0].facts["kind"] == "closed loop"
    assert "32 clients" in found.verdict.summary or "31 clients" in found.verdict.summary
    assert found.coverage.sources == {"vllm": 320, "load-test": 320}
    assert found.coverage.requests == 320
    assert not any("clocks differ" in note for note in found.coverage.notes)


def test_two_sets_of_traces_are_compared_as_two_loads(lab: Lab) -> None:
    a, b = (lab.traces(Fixture("slow", name)) for name in ("healthy", "fault"))
    request = Request(paths=[str(b)], baseline_traces=[str(a)], is_comparison=True)
    found = diagnose(request, now_ns=DEFAULT_END_NS, tz=UTC).diagnosis
    assert found.comparison is not None
    assert set(found.comparison.why.values()) == {"speed"}
    assert {c.metric: c.moved for c in found.comparison.changes}["tpot"] == "higher"
    assert "Compared\n   B is slower: the same work takes another time." in render(found, "text")
    assert '"schema": "tokenlag.comparison/1"' in render(found, "json")
    plain = diagnose(Request(paths=[str(b)]), now_ns=DEFAULT_END_NS, tz=UTC).diagnosis
    assert plain.comparison is None
    assert "comparison" not in render(plain, "json")
