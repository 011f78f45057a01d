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
    return diagnose(Request([str(path)], n_workers=1), now_ns=0, tz=UTC).diagnosis


@pytest.mark.parametrize("key", ["tokenlag.model.name", "tokenlag.device.name"])
def test_another_model_or_accelerator_is_no_slow_replica(
    lab: Lab, tmp_path: Path, key: str
) -> None:
    source = lab.traces(Fixture("S05", SLOW))
    engines = judged(source).coverage.engines
    assert causes(judged(source)) == ["slow-replica"]
    slow = engines[2]
    path = tmp_path / "named.jsonl"
    with_resource(source, path, key, {e: "large" if e == slow else "small" for e in engines})
    assert causes(judged(path)) == []


def test_the_same_model_everywhere_still_shows_the_slow_one(lab: Lab, tmp_path: Path) -> None:
    source = lab.traces(Fixture("S05", SLOW))
    found = judged(source)
    assert found.verdict.summary.endswith("the other engines take for its batch.")
    path = tmp_path / "named.jsonl"
    with_resource(source, path, "tokenlag.model.name", dict.fromkeys(found.coverage.engines, "one"))
    assert causes(judged(path)) == ["slow-replica"]
