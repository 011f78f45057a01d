"""What the tracer wrote on a real vLLM with faults made for real: the analyzer names each one."""

from __future__ import annotations

import json
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from tokenlag.judge.diagnosis import Diagnosis
from tokenlag.pipeline import Request, diagnose
from tokenlag.read.load import load_traces
from tokenlag.store.connection import Store

from tests.tracer.support import REPO

CAPTURED = REPO / "fixtures" / "captured"
NAMES = sorted(path.parent.name for path in CAPTURED.glob("vllm-*/truth.json"))


def truth_of(name: str) -> dict[str, Any]:
    return json.loads((CAPTURED / name / "truth.json").read_text())


def judge(name: str) -> Diagnosis:
    before = truth_of(name).get("baseline")
    request = Request(
        [str(CAPTURED / name / "traces.jsonl.gz")],
        baseline_traces=[str(CAPTURED / f"vllm-{before}" / "traces.jsonl.gz")] if before else [],
        n_workers=1,
    )
    outcome = diagnose(request, now_ns=0, tz=UTC)
    assert outcome.problems == []
    return outcome.diagnosis


def test_there_are_some() -> None:
    assert {"vllm-healthy", "vllm-queue-slots", "vllm-long-prompt"} <= set(NAMES)
    assert all((CAPTURED / name / "traces.jsonl.gz").stat().st_size < 300_000 for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_injected_cause_is_named(name: str) -> None:
    truth, found = truth_of(name)["truth"], judge(name)
    problems = [finding for finding in found.findings if finding.severity == "problem"]
    if truth.get("healthy"):
        assert found.verdict.status == "healthy", found.verdict.summary
        assert problems == []
        return
    assert found.verdict.cause == truth["cause"], found.verdict.summary
    allowed = {truth["cause"], *truth.get("notes", ())}
    assert {finding.rule for finding in problems} <= allowed
    facts = problems[0].facts
    for key in ("limit", "mode"):
        if key in truth:
            assert facts[key] == truth[key]
    if "limit" in truth:
        assert facts["limit_basis"] == "told by the engine"


@pytest.mark.parametrize("name", NAMES)
def test_it_is_whole(name: str, tmp_path: Path) -> None:
    truth = truth_of(name)
    with Store() as store:
        result = load_traces(
            store, [CAPTURED / name / "traces.jsonl.gz"], work_dir=tmp_path, n_workers=1
        )
        assert not result.problems
        [[n_requests, n_open, n_joined]] = store.fetchall(
            "select count(*), count(*) filter (is_open), "
            "count(*) filter (engine_ns is not null and arrival_ns < engine_ns) from requests"
        )
        assert (n_requests, n_open) == (truth["client"]["requests"], 0)
        assert n_joined == n_requests
        [[n_holes, n_dropped]] = store.fetchall(
            "select count(*) filter (is_after_hole), (select coalesce(max(n_dropped), 0) "
            "from epochs) from steps"
        )
        assert (n_holes, n_dropped) == (0, 0)
