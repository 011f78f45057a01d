"""What comes out of ClickHouse's engine is what comes out of files."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Sequence
from datetime import UTC
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tokenlag.cli import main
from tokenlag.errors import InputError
from tokenlag.read.load import load_traces
from tokenlag.read.stores.address import parse_address
from tokenlag.read.stores.asked import Asked, Span
from tokenlag.read.stores.clickhouse import Spans
from tokenlag.read.stores.client import Client
from tokenlag.read.stores.credentials import Credentials
from tokenlag.read.stores.table import describe
from tokenlag.store.connection import Store

from tests.read.otlp import T0, VOCABULARY, Json, read, rows_of, span
from tests.read.stores.clickhouse import (
    JSONS,
    MAPS,
    VARIANTS,
    Front,
    lines_of,
    rows_of_otlp,
    running_front,
)

TRACE = Path(__file__).parents[3] / "fixtures" / "traces" / "long-prompt.jsonl.gz"
TABLES = (
    "epochs", "requests", "sequences", "phases", "steps", "chunks", "memberships", "preemptions"
)  # fmt: skip
WINDOW = ("--since", "2026-11-29T19:37:20Z", "--until", "2026-11-29T19:37:50Z")
BASELINE = ("--baseline", "2026-11-29T19:36:40Z/2026-11-29T19:37:15Z")
SECRET = "s3cr3t-of-ours"


@pytest.fixture(autouse=True)
def _nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("CLICKHOUSE_USER", "CLICKHOUSE_PASSWORD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module", params=VARIANTS)
def filled(request: pytest.FixtureRequest, front: Front) -> str:
    """The address of the fixture's trace, in a variant of the table."""
    database = f"trace_{request.param}"
    front.fill(database, TRACE, request.param)
    return front.url(database)


def everything() -> Asked:
    return Asked("@0", None, None, None, now_ns=time.time_ns(), tz=UTC)


def tables_of(paths: Sequence[str | Path], work_dir: Path, asked: Asked | None) -> Json:
    work_dir.mkdir()
    with Store() as store:
        load_traces(store, paths, work_dir=work_dir, asked=asked)
        found = {}
        for table in TABLES:
            columns = [name for name in store.columns(table) if name != "source"]
            told = f"select count(*), sum(hash({', '.join(columns)})::hugeint) from {table}"
            found[table] = store.fetchone(told)
        return found


def test_the_tables_are_those_of_the_file(filled: str, tmp_path: Path) -> None:
    from_file = tables_of([TRACE], tmp_path / "a", None)
    assert tables_of([filled], tmp_path / "b", everything()) == from_file
    assert from_file["steps"][0] > 2_000


def diagnosed(args: list[str], capsys: pytest.CaptureFixture[str]) -> Json:
    assert main([*args, "--format", "json"]) == 0
    told: Json = json.loads(capsys.readouterr().out)
    return told


def test_a_window_is_diagnosed_as_that_of_the_file(
    filled: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from_file = diagnosed([str(TRACE), *WINDOW, *BASELINE], capsys)
    from_store = diagnosed([filled, *WINDOW, *BASELINE], capsys)
    for key in ("window", "baseline", "throughput", "latency"):
        assert from_store[key] == from_file[key]
    for key in ("status", "symptom", "cause"):
        assert from_store["verdict"][key] == from_file["verdict"][key]
    assert from_store["verdict"]["status"] == "problem"
    assert from_store["coverage"]["steps"] == from_file["coverage"]["steps"]
    assert [one["rule"] for one in from_store["findings"]] == [
        one["rule"] for one in from_file["findings"]
    ]


def test_only_the_window_comes(front: Front, tmp_path: Path) -> None:
    """A day of the same load an hour apart; one hour of it is fetched."""
    database = "day"
    front.create(database)
    rows = list(rows_of_otlp(lines_of(TRACE), MAPS))
    front.insert(database, rows)
    columns = (
        "* REPLACE (Timestamp + toIntervalHour(h) AS Timestamp, "
        "concat(lower(leftPad(hex(h), 2, '0')), substring(TraceId, 3)) AS TraceId)"
    )
    front.send(
        f"INSERT INTO {database}.otel_traces SELECT {columns} FROM {database}.otel_traces "
        "ARRAY JOIN range(1, 24) AS h"
    )
    assert front.send(f"SELECT count() FROM {database}.otel_traces").strip() == str(24 * len(rows))
    start_ns = min(ns_of(row) for row in rows) + 5 * 3600 * 10**9
    spans, client = spans_of(front.url(database), None)
    front.log()
    before = client.moved.n_bytes
    pulled = spans.pull(Span(start_ns - 60 * 10**9, start_ns + 1800 * 10**9), tmp_path, "x")
    assert pulled.n_spans == len(rows)
    moved = sum(statement["bytes"] for statement in front.log())
    assert moved == client.moved.n_bytes - before
    assert moved < 400_000  # of 24 times as much


def ns_of(row: Json) -> int:
    second, _, fraction = row["Timestamp"].partition(".")
    return int(second) * 10**9 + int(fraction)


def spans_of(
    url: str, vocabulary: Any, engines: Sequence[str] | None = None
) -> tuple[Spans, Client]:
    from tokenlag.read.load import vocabulary as whole

    address = parse_address(url)
    client = Client(address, Credentials("default", "", "nothing"))
    return Spans(client, describe(client, address), vocabulary or whole(), engines), client


VALUES: list[dict[str, Any]] = [
    {"text": "a", "whole": 5, "number": 0.25, "truth": True, "wholes": [1, -2], "texts": ["x,y"]},
    {"text": "", "whole": "7", "number": "1e3", "truth": "no"},
    {"whole": 2**62, "number": 3, "wholes": "4, 5", "texts": "p,q"},
    {"text": 'it\'s \\ "quoted"\nand `so`', "whole": "12.0"},
    {"whole": "many", "number": "nan", "truth": "maybe", "wholes": "1,x"},
    {"kind": 3, "status": {"code": 2}, "undeclared": "never"},
    {"name": "llm.engine_step", "whole": 1, "wholes": [3]},
]
ODD: list[Json] = [
    span(values.pop("name", "llm.request"), spanId=f"{0xA0 + number:016x}", **values)
    for number, values in enumerate(VALUES)
]
ODD.append(
    span(
        "llm.request",
        spanId="00000000000000b0",
        parentSpanId="00000000000000a5",
        kind=0,
        events=[
            {"name": "first_token", "timeUnixNano": str(T0 + 1), "attributes": []},
            {"name": "other", "timeUnixNano": str(T0 + 2)},
        ],
    )
)
RESOURCE = {"service.name": "serve", "slots": 32}


def told(rows: Sequence[Json]) -> list[Json]:
    kept = [
        {key: value for key, value in row.items() if value is not None and key != "source"}
        for row in rows
    ]
    return sorted(kept, key=lambda row: row["span_id"] + str(row.get("name")))


@pytest.mark.parametrize("variant", VARIANTS)
def test_values_of_every_kind_are_those_of_otlp(variant: str, front: Front, tmp_path: Path) -> None:
    from tests.read.formats import WRITERS

    path = tmp_path / "odd.json"
    WRITERS["otlp.json"](path, ODD, RESOURCE)
    database = f"odd_{variant}"
    front.create(database, variant)
    rows = rows_of_otlp([path.read_text()], variant)
    front.insert(database, rows)
    spans, _ = spans_of(front.url(database), VOCABULARY)
    pulled = spans.pull(Span(T0 - 10, T0 + 10), tmp_path, "x")
    expected = read(path, tmp_path / "a")
    found = told(pl.read_parquet(pulled.span_files, missing_columns="insert").to_dicts())
    assert found == told(rows_of(expected.span_files))
    events = pl.read_parquet(pulled.event_files).to_dicts()
    assert told(events) == told(rows_of(expected.event_files))
    (note,) = [note for note in pulled.notes if note.kind == "unconvertible_values"]
    assert note.n == 4
    assert "number, truth, whole" in note.text


def test_columns_made_of_attributes_are_read_in_their_place(front: Front, tmp_path: Path) -> None:
    database = "materialised"
    column = "`tokenlag.step.index` String MATERIALIZED SpanAttributes['tokenlag.step.index']"
    front.create(database, MAPS, [column])
    front.insert(database, rows_of_otlp(lines_of(TRACE), MAPS))
    front.log()
    from_store = tables_of([front.url(database)], tmp_path / "a", everything())
    statements = "".join(statement["sql"] for statement in front.log())
    assert "SpanAttributes['tokenlag.step.index']" not in statements
    assert from_store == tables_of([TRACE], tmp_path / "b", None)


def test_without_the_lookup_table_it_is_the_same(front: Front, tmp_path: Path) -> None:
    front.fill("bare", TRACE)
    front.send("DROP TABLE bare.otel_traces_trace_id_ts_mv")
    front.send("DROP TABLE bare.otel_traces_trace_id_ts")
    from_store = tables_of([front.url("bare")], tmp_path / "a", everything())
    assert from_store == tables_of([TRACE], tmp_path / "b", None)


def test_what_no_dialect_knows_stays_there(front: Front, tmp_path: Path) -> None:
    """Other services' spans in the table cost nothing."""
    front.fill("busy", TRACE)
    front.send(
        "INSERT INTO busy.otel_traces (Timestamp, TraceId, SpanId, SpanName, SpanKind, "
        "ServiceName, Duration, SpanAttributes) "
        "SELECT (SELECT min(Timestamp) FROM busy.otel_traces), "
        "lower(hex(MD5(toString(number)))), lower(hex(sipHash64(number))), 'GET /cart', 'Server', "
        "'shop', 1000, map('http.request.method', 'GET') FROM numbers(50000)"
    )
    assert tables_of([front.url("busy")], tmp_path / "a", everything()) == tables_of(
        [TRACE], tmp_path / "b", None
    )


def refused(args: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(args) == 2
    shown = capsys.readouterr()
    assert not shown.out
    assert len(shown.err.splitlines()) == 1, shown.err
    assert SECRET not in shown.err
    return shown.err


def test_without_a_window_it_is_told_which_there_is(
    filled: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused([filled], capsys)
    assert "a store is read by time: its traces span 2026-11-29T19:36:37Z to" in said
    assert f"(hint: diagnose {filled} --since-end 1h)" in said
    said = refused(["compare", filled, filled], capsys)
    assert "--baseline 1h" in said


def test_a_window_without_a_request_is_told_with_the_command(
    filled: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused([filled, "--since", "10m", "--format", "md"], capsys)
    assert "no request in the window: the traces span 2026-11-29T19:36:37Z to" in said
    assert f"(hint: diagnose {filled} --format md --since-end 10m)" in said
    between = ["--since", "2026-11-29T19:37:35.5Z", "--until", "2026-11-29T19:37:35.501Z"]
    assert "the traces span 2026-11-29T19:36:37Z" in refused([filled, *between], capsys)


def test_what_is_no_store_of_spans_is_told(
    front: Front, capsys: pytest.CaptureFixture[str]
) -> None:
    front.send("CREATE DATABASE wrong")
    front.send("CREATE TABLE wrong.t (a Int64) ENGINE = MergeTree ORDER BY a")
    front.create("empty", JSONS)
    front.create("others")
    row = next(rows_of_otlp(lines_of(TRACE), MAPS)) | {"SpanName": "GET /", "SpanAttributes": {}}
    front.insert("others", [row])
    for url, why in (
        (front.url("wrong"), "no table 'otel_traces' (hint: name it in the URL"),
        (front.url("nowhere"), "no database 'nowhere'"),
        (front.url("wrong", "?table=t"), "'t' is no table of spans: it has no Timestamp, TraceId"),
        (front.url("empty"), "the table of spans is empty"),
        (front.url("others"), 'most spans are named "GET /" (1); none is a request'),
        ("clickhouse://127.0.0.1:1/d", "no ClickHouse answers there: the connection is refused"),
        (f"clickhouses://127.0.0.1:{front.port}/d", "no ClickHouse answers there: TLS"),
        (f"clickhouse://u:{SECRET}@h/d", "the URL holds a password"),
    ):
        assert why in refused([url, "--since-end", "1h"], capsys)


def test_a_password_is_asked_for_and_never_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_front(tmp_path / "db", FRONT_PASSWORD=SECRET) as guarded:
        url = guarded.url("default")
        said = refused([url, "--since", "1h"], capsys)
        assert "does not let in user 'default' with no password" in said
        assert "(hint: set CLICKHOUSE_USER and CLICKHOUSE_PASSWORD)" in said
        monkeypatch.setenv("CLICKHOUSE_PASSWORD", f"not-{SECRET}")
        monkeypatch.setenv("CLICKHOUSE_USER", "reader")
        said = refused([url, "--since", "1h"], capsys)
        assert "does not let in user 'reader' with CLICKHOUSE_PASSWORD" in said
        monkeypatch.setenv("CLICKHOUSE_PASSWORD", SECRET)
        assert "no table 'otel_traces'" in refused([url, "--since", "1h"], capsys)


@pytest.mark.parametrize(
    ("tail", "why"),
    [
        (b"PAR1 and some rows", "the answer is cut off"),
        (
            b"PAR1 rows\nCode: 241. DB::Exception: (total) memory limit exceeded: would use 9 GiB. "
            b"(MEMORY_LIMIT_EXCEEDED) (version 26.9)",
            "(total) memory limit exceeded: would use 9 GiB",
        ),
    ],
)
def test_an_answer_that_ends_early_is_no_answer(
    tail: bytes, why: str, front: Front, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = parse_address(front.url("default"))
    client = Client(address, Credentials("default", "", "nothing"))
    monkeypatch.setattr(client._client, "raw_stream", lambda *_a, **_k: io.BytesIO(tail))
    with pytest.raises(InputError) as caught:
        client.parquet("select 1", tmp_path / "x")
    assert caught.value.message == why
    assert caught.value.hint == "ask for a shorter time"


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (200, b"<html>hello</html>", "it is another kind of server"),
        (200, b"", "it is another kind of server"),
        (401, b"who?", "does not let in user 'default' with no password"),
        (404, b"nothing here", "no ClickHouse answers there"),
    ],
)
def test_another_kind_of_server_is_told(
    status: int, body: bytes, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("clickhouse_connect")

    class Other(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"clickhouse://127.0.0.1:{server.server_address[1]}/d"
        assert why in refused([url, "--since", "1h"], capsys)
        server.shutdown()
