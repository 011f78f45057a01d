"""A gateway before a server that writes its own spans only, and a gateway alone."""

from __future__ import annotations

import json
from datetime import UTC
from pathlib import Path

import pytest
from tokenlag.judge.diagnosis import Diagnosis
from tokenlag.pipeline import Request, diagnose
from tokenlag.simulate.recipe import load_recipe

from tests.rules.lab import Fixture, Lab

RECIPE = "gateway-adds-wait"
SCALES = {"pool": "connections", "timer": "timer", "bytes": "size"}


@pytest.mark.parametrize("variant", load_recipe(RECIPE).variants)
def test_beside_vllms_own_spans(variant: str, lab: Lab) -> None:
    fixture = Fixture(RECIPE, variant, form="vllm")
    found = lab.diagnose(fixture)
    if fixture.truth.healthy:
        assert found.verdict.status == "healthy"
        return
    assert found.verdict.cause == fixture.truth.cause
    assert not {f.rule for f in found.findings} & set(fixture.truth.must_not)
    if variant in SCALES:
        assert found.findings[0].facts["scales_with"] == SCALES[variant]
    if variant == "pool":
        assert found.findings[0].facts["connections"] == 16


def gateway_alone(lab: Lab, variant: str, folder: Path) -> Diagnosis:
    path = folder / "gateway.jsonl"
    with lab.traces(Fixture(RECIPE, variant, form="vllm")).open() as lines, path.open("w") as out:
        for line in lines:
            export = json.loads(line)
            kept = [
                one
                for one in export["resourceSpans"]
                if one["scopeSpans"][0]["scope"]["name"] != "vllm.tracing.otel"
            ]
            if kept:
                out.write(json.dumps({"resourceSpans": kept}) + "\n")
    return diagnose(Request(paths=[str(path)]), now_ns=0, tz=UTC).diagnosis


def test_a_gateway_alone_shows_its_own_queue(lab: Lab, tmp_path: Path) -> None:
    found = gateway_alone(lab, "pool", tmp_path)
    assert found.verdict.cause == RECIPE
    assert found.findings[0].facts["of"] == "end-to-end time"
    assert "gateway" in found.coverage.sees
    assert list(found.coverage.sources) == ["production-stack"]


def test_a_gateway_alone_that_holds_nothing_accuses_nobody(lab: Lab, tmp_path: Path) -> None:
    found = gateway_alone(lab, "quick", tmp_path)
    assert RECIPE not in {f.rule for f in found.findings}
