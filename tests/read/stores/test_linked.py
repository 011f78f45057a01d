"""Links out of ClickHouse: text-generation-inference's batches are those of the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.read.otlp import export
from tests.read.stores.clickhouse import VARIANTS, Front, rows_of_otlp
from tests.read.stores.test_clickhouse import everything, tables_of
from tests.read.tgi_server import load, serve, spans


@pytest.fixture(autouse=True)
def _nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("CLICKHOUSE_USER", "CLICKHOUSE_PASSWORD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.parametrize("variant", VARIANTS)
def test_links_come_with_the_spans_that_have_them(
    variant: str, front: Front, tmp_path: Path
) -> None:
    """Batches' own spans are traces of no request and stay there; links are enough."""
    requests = load(30, seed=6)
    made = spans(requests, serve(requests), has_prompts=True, has_batches=False)
    text = json.dumps(export(made, resource={"service.name": "tgi.router"}))
    path = tmp_path / "a.json"
    path.write_text(text)
    database = f"linked_{variant}"
    front.create(database, variant)
    front.insert(database, rows_of_otlp([text], variant))
    expected = tables_of([path], tmp_path / "a", None)
    assert expected["memberships"][0] > 30
    assert tables_of([front.url(database)], tmp_path / "b", everything()) == expected


def test_a_table_without_links_is_read(front: Front, tmp_path: Path) -> None:
    front.create("linkless")
    for column in ("TraceId", "SpanId", "TraceState", "Attributes"):
        front.send(f"ALTER TABLE linkless.otel_traces DROP COLUMN `Links.{column}`")
    requests = load(10, seed=7)
    made = spans(requests, serve(requests), has_links=False, has_batches=False)
    rows = rows_of_otlp([json.dumps(export(made))], "maps")
    kept = [{key: value for key, value in row.items() if key[:6] != "Links."} for row in rows]
    front.insert("linkless", kept)
    found = tables_of([front.url("linkless")], tmp_path / "b", everything())
    assert (found["requests"][0], found["memberships"][0]) == (10, 0)
