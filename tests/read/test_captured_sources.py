"""Traces of real engines: the rows agree with a plain walk over the JSON."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tokenlag.read.vocabulary import CONTRACT
from tokenlag_tracer import conventions as c

from tests.read.otlp import read, rows_of, shared

FILES = [
    "vllm-lab/healthy/traces.jsonl.gz",
    "vllm-lab/healthy/vllm-otlp.jsonl.gz",
    "vllm-lab/long-prompt/traces.jsonl.gz",
    "vllm-lab/queue-slots/vllm-otlp.jsonl.gz",
    "engines/transformers-5.8.1-cb-traces.jsonl.gz",
    "engines/vllm-0.32.0-cpu-rich-traces.jsonl.gz",
]


def walked(path: Path) -> Counter[tuple[Any, ...]]:
    """Every span's identity, times and step index, by a walk over the parsed JSON."""
    found: Counter[tuple[Any, ...]] = Counter()
    with gzip.open(path, "rt") as file:
        for text in file:
            for block in json.loads(text).get("resourceSpans", []):
                resource = values(block["resource"].get("attributes", []))
                for scope in block["scopeSpans"]:
                    for span in scope["spans"]:
                        found[identity(span, resource, scope["scope"]["name"])] += 1
    return found


def identity(span: dict[str, Any], resource: dict[str, Any], scope: str) -> tuple[Any, ...]:
    attributes = values(span.get("attributes", []))
    step, lists = attributes.get(c.STEP_INDEX), attributes.get(c.STEP_PREFILL_TOKENS)
    usage = attributes.get(c.USAGE_INPUT_TOKENS)
    return (
        span["traceId"],
        span["spanId"],
        span.get("parentSpanId") or None,
        span["name"],
        span.get("kind", 0),
        int(span["startTimeUnixNano"]),
        int(span["endTimeUnixNano"]),
        scope,
        resource.get(c.SERVICE_NAME),
        attributes.get(c.REQUEST_ID),
        None if step is None else int(step),
        None if usage is None else int(usage),
        None if lists is None else tuple(int(item["intValue"]) for item in lists["values"]),
    )


def values(attributes: list[dict[str, Any]]) -> dict[str, Any]:
    return {item["key"]: next(iter(item["value"].values())) for item in attributes}


@pytest.mark.parametrize("name", FILES)
def test_every_span_of_a_real_trace_is_a_row(name: str, tmp_path: Path) -> None:
    path = shared("captured", *name.split("/"))
    result = read(path, tmp_path / "out", CONTRACT)
    assert result.problems == []
    assert result.notes == []
    found = Counter(
        (
            row["trace_id"],
            row["span_id"],
            row["parent_id"],
            row["name"],
            row["kind"],
            row["start_ns"],
            row["end_ns"],
            row["scope"],
            row["resource." + c.SERVICE_NAME],
            row[c.REQUEST_ID],
            row[c.STEP_INDEX],
            row[c.USAGE_INPUT_TOKENS],
            None if row[c.STEP_PREFILL_TOKENS] is None else tuple(row[c.STEP_PREFILL_TOKENS]),
        )
        for row in rows_of(result.span_files)
    )
    assert found == walked(path)


def test_a_folder_of_a_capture_passes_over_what_is_no_trace(tmp_path: Path) -> None:
    folder = shared("captured", "vllm-lab", "healthy")
    result = read(folder, tmp_path / "out", CONTRACT, n_workers=2)
    assert result.n_files == 2
    n_spans = sum(walked(folder / "traces.jsonl.gz").values())
    n_spans += sum(walked(folder / "vllm-otlp.jsonl.gz").values())
    assert result.n_spans == n_spans
    skipped = " ".join(note.text for note in result.notes)
    assert all(name in skipped for name in ("client.jsonl.gz", "steps.jsonl.gz", "how.txt"))
