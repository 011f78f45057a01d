"""A reader that does not keep up holds the server's socket: the last byte is accepted late."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tokenlag.judge.diagnosis import Diagnosis
from tokenlag.pipeline import Request, diagnose
from tokenlag_tracer import conventions as c

from tests.rules.lab import Fixture, Lab, causes

READ_MS = 30.0


def spans_of(told: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for block in told["resourceSpans"]:
        for scope in block["scopeSpans"]:
            yield from scope["spans"]


def value_of(span: dict[str, Any], key: str) -> Any:
    return next(
        (next(iter(a["value"].values())) for a in span["attributes"] if a["key"] == key), None
    )


def held_back(source: Path, target: Path, one_in: int) -> Path:
    """A copy in which one of so many clients takes `READ_MS` for a token, and the server waits."""
    with source.open("rb") as lines, target.open("wb") as out:
        for line in lines:
            told = msgspec.json.decode(line)
            for span in spans_of(told):
                if int(span["traceId"], 16) % one_in == 0:
                    _hold(span)
            out.write(msgspec.json.encode(told) + b"\n")
    return target


def _hold(span: dict[str, Any]) -> None:
    # Every stream of the recipe has about 256 tokens, which the engine makes in 2.3 s.
    late_ns = int(256 * (READ_MS - 9.0) * 1e6)
    is_out = span["name"] == c.SPAN_NETWORK and value_of(span, c.DIRECTION) == "out"
    if span["name"] == c.SPAN_REQUEST or span["kind"] == 3 or is_out:
        span["endTimeUnixNano"] = str(int(span["endTimeUnixNano"]) + late_ns)
    for attribute in span["attributes"]:
        if attribute["key"] == c.CLIENT_GAP_P50_NS:
            attribute["value"] = {"intValue": str(int(READ_MS * 1e6))}


def judged(path: Path) -> Diagnosis:
    return diagnose(Request([str(path)], n_workers=0), now_ns=0, tz=UTC).diagnosis


@pytest.mark.parametrize(("one_in", "is_found"), [(3, True), (50, False)])
def test_what_the_server_waits_for_its_readers_is_slow_delivery(
    lab: Lab, tmp_path: Path, one_in: int, is_found: bool
) -> None:
    source = lab.traces(Fixture("slow-reader", "control"))
    found = judged(held_back(source, tmp_path / "held.jsonl", one_in))
    assert ("slow-delivery" in causes(found)) == is_found, found.verdict.summary
    if is_found:
        finding = found.findings[0]
        assert finding.facts["kind"] == "lag"
        assert finding.facts["late_frac"] == pytest.approx(1 / one_in, rel=0.2)
