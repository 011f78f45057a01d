"""Windows of prompts that are only embedded are of one shape, as far as outputs go."""

from __future__ import annotations

import random
from datetime import UTC
from pathlib import Path

import pytest
from tokenlag.judge.diagnosis import Diagnosis
from tokenlag.pipeline import Request, diagnose
from tokenlag_tracer import conventions as c

from tests.read.otlp import SPAN, line, span

S = 1_000_000_000


def embedded(path: Path, at_s: int, n_output: int) -> Path:
    """A hundred requests, one a second, of about 600 prompt tokens and this many output tokens."""
    rng = random.Random(at_s)
    spans = []
    for i in range(100):
        start = (1_780_000_000 + at_s + i) * S
        attributes = {
            c.OPERATION_NAME: "chat" if n_output else "embeddings",
            c.REQUEST_ID: f"{at_s}-{i}",
            c.USAGE_INPUT_TOKENS: rng.randint(550, 650),
            c.USAGE_OUTPUT_TOKENS: n_output,
        }
        fields = {
            "traceId": f"{at_s + i + 1:032x}",
            "startTimeUnixNano": str(start),
            "endTimeUnixNano": str(start + S // 4),
        }
        spans.append(span(c.SPAN_REQUEST, **fields, **attributes))
        fields |= {"spanId": "00000000000000aa", "parentSpanId": SPAN}
        spans.append(span(c.SPAN_PREFILL, **fields))
    path.write_text(line(*spans))
    return path


def judged(tmp_path: Path, now: int, before: int) -> Diagnosis:
    current = embedded(tmp_path / "now.jsonl", 10_000, now)
    baseline = embedded(tmp_path / "before.jsonl", 0, before)
    request = Request([str(current)], baseline_traces=[str(baseline)], n_workers=0)
    return diagnose(request, now_ns=0, tz=UTC).diagnosis


@pytest.mark.parametrize(("now", "before", "is_noted"), [(0, 0, False), (50, 0, True)])
def test_no_output_on_both_sides_is_no_difference(
    tmp_path: Path, now: int, before: int, is_noted: bool
) -> None:
    fired = {f.rule for f in judged(tmp_path, now, before).findings}
    assert ("throughput-without-shape" in fired) == is_noted
