"""Requests that were under way in a window, however long before it they began."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tokenlag.read.stores.asked import Span
from tokenlag.read.stores.clickhouse import FAR_NS, Pulled

from tests.read.otlp import Json, export, span
from tests.read.stores.clickhouse import VARIANTS, Front, rows_of_otlp
from tests.read.stores.test_clickhouse import spans_of

HOUR_NS = 3600 * 10**9
FROM_NS = 1_795_996_800_000_000_000
WINDOW = Span(FROM_NS, FROM_NS + HOUR_NS)


@pytest.fixture(autouse=True)
def _nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("CLICKHOUSE_USER", "CLICKHOUSE_PASSWORD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def request(
    number: int, start_ns: int, end_ns: int, *, engine: str = "e-0", has_root: bool = True
) -> Iterator[Json]:
    """The spans of a request: its queue, and a decode run of its last ten seconds."""
    trace, root, own = f"{number:032x}", f"{number:015x}a", f"{number:015x}b"

    def made(name: str, letter: str, parent: str, start_ns: int, end_ns: int, **keys: Any) -> Json:
        return span(
            name,
            traceId=trace,
            spanId=f"{number:015x}{letter}",
            parentSpanId=parent,
            startTimeUnixNano=str(start_ns),
            endTimeUnixNano=str(end_ns),
            **keys,
        )

    if has_root:
        yield made("llm.request", "a", "", start_ns, end_ns)
        keys = {"tokenlag.engine.id": engine, "tokenlag.request.index": number}
        yield made("llm.engine_request", "b", root, start_ns, end_ns, **keys)
    yield made("llm.queue", "c", own, start_ns, start_ns + 10**9)
    yield made("llm.decode", "d", own, end_ns - 10 * 10**9, end_ns)


# Name, beginning and end in hours after the window's beginning, and what of it comes.
WHOLE, PHASES, NOTHING = "whole", "phases", ""
REQUESTS: tuple[tuple[str, float, float, str], ...] = (
    ("in the window", 0.1, 0.2, WHOLE),
    ("into the window", -0.5, 0.3, WHOLE),
    ("an hour and more into it", -1.5, 0.4, WHOLE),
    ("half a day into it", -12.0, 0.5, WHOLE),
    ("through all of it", -5.0, 6.0, WHOLE),
    ("more than a day into it", -30.0, 0.6, PHASES),
    ("long, but before it", -12.0, -2.0, NOTHING),
    ("short, and before it", -2.2, -2.1, NOTHING),
    ("after it", 1.5, 1.6, NOTHING),
)


def at(hours: float) -> int:
    return FROM_NS + int(hours * HOUR_NS)


def filled(front: Front, database: str, variant: str, spans: Sequence[Json]) -> None:
    front.create(database, variant)
    front.insert(database, rows_of_otlp([json.dumps(export(spans))], variant))


def came(pulled: Pulled) -> dict[int, set[str]]:
    """Names of the spans that came, by request."""
    frame = pl.read_parquet(pulled.span_files, missing_columns="insert")
    found: dict[int, set[str]] = {}
    for trace, name in frame.select("trace_id", "name").iter_rows():
        found.setdefault(int(trace, 16), set()).add(name)
    return found


@pytest.mark.parametrize("has_lookup", [True, False], ids=["lookup", "no lookup"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_long_requests_come_whole(
    variant: str, has_lookup: bool, front: Front, tmp_path: Path
) -> None:
    database = f"long_{variant}_{has_lookup}".lower()
    spans = [
        one
        for number, (_, start, end, _) in enumerate(REQUESTS, 1)
        for one in request(number, at(start), at(end))
    ]
    filled(front, database, variant, spans)
    if not has_lookup:
        front.send(f"DROP TABLE {database}.otel_traces_trace_id_ts_mv")
        front.send(f"DROP TABLE {database}.otel_traces_trace_id_ts")
    store, _ = spans_of(front.url(database), None)
    pulled = store.pull(WINDOW, tmp_path, "x")
    found = came(pulled)
    for number, (name, _, _, expected) in enumerate(REQUESTS, 1):
        names = found.get(number, set())
        if expected == WHOLE:
            assert names == {"llm.request", "llm.engine_request", "llm.queue", "llm.decode"}, name
        elif expected == PHASES:
            assert "llm.decode" in names, name
            assert "llm.request" not in names or has_lookup, name
        else:
            assert not names, name


def test_requests_of_which_only_phases_came_are_counted(front: Front, tmp_path: Path) -> None:
    spans = [
        *request(1, at(0.1), at(0.2)),
        *request(2, at(-30.0), at(0.6)),
        *request(3, at(0.2), at(0.3), has_root=False),
    ]
    filled(front, "headless", "maps", spans)
    front.send("TRUNCATE TABLE headless.otel_traces_trace_id_ts")
    store, _ = spans_of(front.url("headless"), None)
    (note,) = store.pull(WINDOW, tmp_path, "x").notes
    assert (note.kind, note.n) == ("requests_without_beginning", 2)
    assert f"more than {FAR_NS // HOUR_NS} h before the window" in note.text


def test_long_requests_of_chosen_engines_come(front: Front, tmp_path: Path) -> None:
    spans = [
        *request(1, at(-12.0), at(0.5), engine="e-1"),
        *request(2, at(-12.0), at(0.5), engine="e-2"),
    ]
    filled(front, "chosen", "maps", spans)
    store, _ = spans_of(front.url("chosen"), None, ["e-2"])
    found = came(store.pull(WINDOW, tmp_path, "x"))
    assert {number: len(names) for number, names in found.items()} == {2: 4}


def test_the_day_before_is_not_gone_through_for_them(front: Front) -> None:
    """The index on durations leaves out what has no long span; times leave out other days."""
    filled(front, "far", "maps", list(request(1, at(-12.0), at(0.5))))
    front.send(
        "INSERT INTO far.otel_traces (Timestamp, TraceId, SpanId, SpanName, Duration) SELECT "
        f"fromUnixTimestamp64Nano({FROM_NS} - toInt64(number % 400000 * 1000000000)), "
        "lower(hex(MD5(toString(number)))), lower(hex(sipHash64(number))), 'llm.request', 1000 "
        "FROM numbers(400000)"
    )
    store, _ = spans_of(front.url("far"), None)
    asked = store.values(from_ns=WINDOW.start_ns, to_ns=WINDOW.end_ns)
    (part,) = [one for one in store.traces.split("union all") if "far_ns" in one]
    statement = part.rsplit(")", 1)[0].split("group by")[0].strip().removesuffix(")")
    client = store.client
    rows = client.rows(f"explain indexes = 1 {statement}", asked)
    granules = [
        tuple(map(int, line["explain"].split(":")[1].split("/")))
        for line in rows
        if line["explain"].strip().startswith("Granules:")
    ]
    assert granules[0][1] > 40, rows
    assert granules[-1][0] <= 2, rows
