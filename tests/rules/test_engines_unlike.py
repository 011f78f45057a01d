"""Engines of which the traces say that they are of another make are not compared by speed."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tokenlag.judge.diagnosis import Diagnosis
from tokenlag.pipeline import Request, diagnose
from tokenlag.simulate.recipe import load_recipe
from tokenlag.simulate.run import run
from tokenlag.simulate.traces import write_traces

from tests.rules.lab import Fixture, Lab, causes

SLOW = "slow-machine"


def engine_of(block: dict[str, Any]) -> Iterator[str]:
    """Ids of the engines that a resource's spans name."""
    for scope in block["scopeSpans"]:
        for span in scope["spans"]:
            for attribute in span["attributes"]:
                if attribute["key"] == "tokenlag.engine.id":
                    yield attribute["value"]["stringValue"]


def with_resource(source: Path, target: Path, key: str, values: dict[str, str]) -> None:
    """A copy whose engines' resources have an attribute more."""
    with source.open("rb") as lines, target.open("wb") as out:
        for line in lines:
            told = msgspec.json.decode(line)
            for block in told["resourceSpans"]:
                engine = next(engine_of(block), None)
                if engine is not None:
                    value = {"stringValue": values[engine]}
                    block["resource"]["attributes"].append({"key": key, "value": value})
            out.write(msgspec.json.encode(told) + b"\n")


def judged(path: Path) -> Diagnosis:
    return diagnose(Request([str(path)], n_workers=0), now_ns=0, tz=UTC).diagnosis


@pytest.mark.parametrize("key", ["tokenlag.model.name", "tokenlag.device.name"])
def test_another_model_or_accelerator_is_no_slow_replica(
    lab: Lab, tmp_path: Path, key: str
) -> None:
    source = lab.traces(Fixture("S05", SLOW))
    found = lab.diagnose(Fixture("S05", SLOW))
    assert causes(found) == ["slow-replica"]
    engines = found.coverage.engines
    slow = engines[2]
    path = tmp_path / "named.jsonl"
    with_resource(source, path, key, {e: "large" if e == slow else "small" for e in engines})
    assert causes(judged(path)) == []


def test_the_same_model_everywhere_still_shows_the_slow_one(lab: Lab, tmp_path: Path) -> None:
    source, found = lab.traces(Fixture("S05", SLOW)), lab.diagnose(Fixture("S05", SLOW))
    assert found.verdict.summary.endswith("the other engines take for its batch.")
    path = tmp_path / "named.jsonl"
    with_resource(source, path, "tokenlag.model.name", dict.fromkeys(found.coverage.engines, "one"))
    assert causes(judged(path)) == ["slow-replica"]


def without_steps(lab: Lab, tmp_path: Path, variant: str) -> Diagnosis:
    """S05's variant of which no engine recorded steps."""
    path = tmp_path / f"{variant}.jsonl"
    done = run(load_recipe("S05"), variant=variant)
    write_traces(done, path, drop=("steps",))
    return judged(path)


def test_without_steps_the_time_per_token_shows_the_slow_one(lab: Lab, tmp_path: Path) -> None:
    found = without_steps(lab, tmp_path, SLOW)
    assert found.verdict.cause == "slow-replica", found.verdict.summary
    assert found.findings[0].engines == lab.diagnose(Fixture("S05", SLOW)).findings[0].engines
    assert found.findings[0].facts["basis"] == "request spans"


@pytest.mark.parametrize("variant", ["control", "least-loaded", "affinity"])
def test_without_steps_more_work_is_no_slow_engine(lab: Lab, tmp_path: Path, variant: str) -> None:
    base = load_recipe("S05").base
    found = without_steps(lab, tmp_path, base if variant == "affinity" else variant)
    assert "slow-replica" not in {f.rule for f in found.findings}
