"""No prompt or output text in any byte that is written, whatever an adapter hands over."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

from tokenlag_tracer import conventions as names
from tokenlag_tracer.files import TraceFiles, otlp_lines
from tokenlag_tracer.spans import attributes_of

from tests.tracer.support import Bench

MARK = "MARKED-PROMPT"
TEXT = f"Tell me, {MARK}, what you know. " * 20


def test_what_has_no_key_does_not_get_out(tmp_path: Path) -> None:
    """Keys that the contract has not, messages of errors, and text where a word belongs."""
    bench = Bench()
    engine = bench.engine("e", resource={names.ENGINE_NAME: "fake", "prompt": TEXT})
    front = bench.front()
    request = front.arrived(
        "r", at_ns=0, model="m", operation=TEXT, features=TEXT, prompt=TEXT, messages=[TEXT],
        body={"messages": TEXT},
    )  # fmt: skip
    request.stage(TEXT, 0, 1)
    request.update(completion=TEXT)
    index = engine.queued(
        "r", at_ns=0, prompt_tokens=5, reason=TEXT, role=TEXT, prompt=TEXT, traceparent=TEXT
    )
    engine.waiting(index, TEXT, at_ns=1)
    engine.record_step(1, 2, prefill=[(index, 5, 0)], admit_bound=TEXT, graph=TEXT)
    engine.finished(index, TEXT, at_ns=3, error_type=f"ValueError: {TEXT}")
    request.finished(
        at_ns=4, finish_reasons=[TEXT, "stop"], error_type=f"bad request: {TEXT}", output=TEXT
    )
    front.client(front.new_context(), 0, 5, model="m", error_type=TEXT, chunk_ms=TEXT)
    rows = bench.settle()
    assert len(rows) >= 5
    data = otlp_lines(rows, bench.resources)
    assert MARK.encode() not in data
    assert b"_OTHER" in data, "that there was an error is told"
    TraceFiles(tmp_path, 1 << 20).write(rows, bench.resources)
    for path in tmp_path.rglob("*"):
        assert MARK.encode() not in gzip.decompress(path.read_bytes())
    for row in rows:
        assert set(row.attributes) <= set(names.SPAN_ATTRIBUTE_TYPES)
    assert all(set(r) <= set(names.RESOURCE_ATTRIBUTE_TYPES) for r in bench.resources.values())


def test_names_and_ids_are_short() -> None:
    """A label is cut: a prompt that was put into one by mistake is not carried whole."""
    values: dict[str, Any] = {names.TENANT: "x" * 5000, names.REQUEST_ID: "y" * 5000}
    assert [len(str(value)) for value in attributes_of(values).values()] == [256, 256]
