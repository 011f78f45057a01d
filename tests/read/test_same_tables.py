"""The canonical tables of a real trace, whole and damaged, stay what they were.

The digests were made by the loader as it was before it learnt to take short cuts: every
window over every row, every pairing tried. A digest changes only with what a table means.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenlag.read.load import load_traces
from tokenlag.store.connection import Store
from tokenlag_tracer import conventions as c

TRACE = Path(__file__).parents[2] / "fixtures" / "traces" / "long-prompt.jsonl.gz"
TABLES = (
    "epochs", "requests", "sequences", "phases", "steps", "chunks", "memberships", "preemptions"
)  # fmt: skip

Span = dict[str, Any]
Damage = Callable[[int, Span], list[Span]]


def _value(span: Span, key: str) -> Any:
    found = [one["value"] for one in span["attributes"] if one["key"] == key]
    return next(iter(found[0].values())) if found else None


def _without(span: Span, *keys: str) -> Span:
    return span | {"attributes": [one for one in span["attributes"] if one["key"] not in keys]}


def _lossy(_: int, span: Span) -> list[Span]:
    is_lost = span["name"] == c.SPAN_ENGINE_STEP and int(_value(span, c.STEP_INDEX)) % 5 == 3
    return [] if is_lost else [span]


def _restarting(_: int, span: Span) -> list[Span]:
    """No epoch is told, and half-way the index begins anew."""
    span = _without(span, c.ENGINE_EPOCH)
    if span["name"] == c.SPAN_ENGINE_STEP:
        index = int(_value(span, c.STEP_INDEX))
        span = _without(span, c.STEP_INDEX)
        told = {"key": c.STEP_INDEX, "value": {"intValue": str(index % 900)}}
        span["attributes"] = [*span["attributes"], told]
    return [span]


DAMAGES: dict[str, Damage] = {
    "whole": lambda _, span: [span],
    "twice": lambda i, span: [span] * (1 + (i % 3 == 0)),
    "lost steps": _lossy,
    "no steps": lambda _, span: [] if span["name"] == c.SPAN_ENGINE_STEP else [span],
    "no phases": lambda _, span: (
        [] if span["name"] in (c.SPAN_QUEUE, c.SPAN_PREFILL, c.SPAN_DECODE) else [span]
    ),
    "no requests": lambda _, span: [] if span["name"] == c.SPAN_REQUEST else [span],
    "no sequences": lambda _, span: [] if span["name"] == c.SPAN_ENGINE_REQUEST else [span],
    "no epochs": _restarting,
}

DIGESTS = {
    "whole": "da0a4822c6aebf3cded6808327edb970",
    "twice": "da0a4822c6aebf3cded6808327edb970",
    "lost steps": "7872abe755c16056d09ba34d613b78de",
    "no steps": "ceaffc4c02c7d4801952c5124ad3bf31",
    "no phases": "0991b88acbbc201bf3b144ad3a598654",
    "no requests": "f25abeff00550337afa9685010b5103e",
    "no sequences": "faa7f38a6d37ddbc37e09ddb9c53475d",
    "no epochs": "9c0e413e15eba654b08a1fa83e88e057",
}


def damaged(damage: Damage, out: Path) -> None:
    n = 0
    with gzip.open(TRACE, "rt") as lines, out.open("w") as file:
        for line in lines:
            export = json.loads(line)
            for block in export["resourceSpans"]:
                for scope_spans in block["scopeSpans"]:
                    kept: list[Span] = []
                    for span in scope_spans["spans"]:
                        kept += damage(n, {"attributes": []} | span)
                        n += 1
                    scope_spans["spans"] = kept
            file.write(json.dumps(export) + "\n")


# Columns that came later; what they mean is tested where they are read.
NEW_COLUMNS = {"requests": ["n_client_chunks"]}


def digest(store: Store) -> str:
    def selected(table: str) -> str:
        new = NEW_COLUMNS.get(table)
        return f"select * exclude ({', '.join(new)}) from {table}" if new else f"from {table}"

    rows = {table: sorted(map(repr, store.fetchall(selected(table)))) for table in TABLES}
    assert rows["requests"]
    return hashlib.md5(repr(rows).encode(), usedforsecurity=False).hexdigest()


@pytest.mark.parametrize("name", DAMAGES)
def test_tables_are_what_they_were(name: str, tmp_path: Path) -> None:
    damaged(DAMAGES[name], tmp_path / "trace.jsonl")
    with Store() as store:
        load_traces(store, [tmp_path / "trace.jsonl"], work_dir=tmp_path)
        assert digest(store) == DIGESTS[name]
