"""Client spans, alone and beside what servers told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenlag.store.connection import Store
from tokenlag_tracer import conventions as c

from tests.read.span_rows import MS, T0, Row, load_rows, span

Load = Callable[..., Store]


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    with Store() as store:

        def run(rows: list[Row]) -> Store:
            load_rows(store, tmp_path, rows)
            return store

        yield run


def client(start: float = 0, end: float | None = 900, **more: Any) -> Row:
    frame = {key: more.pop(key) for key in ("trace", "id_", "parent", "status") if key in more}
    told = {"OPERATION_NAME": "chat", "REQUEST_MODEL": "m", "TIME_TO_FIRST_CHUNK": 0.3,
            "USAGE_INPUT_TOKENS": 50, "USAGE_OUTPUT_TOKENS": 7}  # fmt: skip
    return span("chat m", start, end, kind=c.KIND_CLIENT, scope="sdk", **frame, **(told | more))


def test_a_client_alone_is_a_request(load: Load) -> None:
    store = load([client()])
    assert store.fetchall(
        "select dialects, ttft_ms, ttft_origin, e2e_ms, n_prompt, n_output, is_open, "
        "(arrival_ns - ?) / 1e6, (sent_ns - ?) / 1e6, (end_ns - ?) / 1e6, first_token_ns "
        "from requests",
        [T0, T0, T0],
    ) == [("genai-client", 300, "measured", 900, 50, 7, False, 0, 0, 900, None)]
    assert store.fetchall("select kind, (end_ns - start_ns) / 1e6 from phases") == [
        ("uncovered", 900)
    ]
    assert store.fetchall("select kind, n from quality") == [("client_only", 1)]


@pytest.mark.parametrize("nonsense", [300.0, -1.0, 1.7e9])
def test_a_first_chunk_outside_the_span_is_not_believed(load: Load, nonsense: float) -> None:
    store = load([client(TIME_TO_FIRST_CHUNK=nonsense)])
    assert store.fetchall("select ttft_ms, ttft_origin from requests") == [(None, None)]


def test_a_failed_call(load: Load) -> None:
    store = load([client(status=c.STATUS_ERROR, ERROR_TYPE="timeout", TIME_TO_FIRST_CHUNK=None)])
    assert store.fetchall("select is_aborted, error_type, ttft_ms from requests") == [
        (True, "timeout", None)
    ]


@pytest.mark.parametrize("operation", ["execute_tool", "invoke_agent", "create_agent"])
def test_agents_and_tools_are_no_requests(load: Load, operation: str) -> None:
    store = load([client(OPERATION_NAME=operation)])
    assert store.fetchall("select count(*) from requests") == [(0,)]


def test_an_sdk_inside_a_client_is_the_same_call(load: Load) -> None:
    store = load([
        client(id_="outer"),
        client(10, 890, id_="gateway", parent="outer", TIME_TO_FIRST_CHUNK=0.28),
        span(c.SPAN_REQUEST, 20, 880, parent="gateway", kind=c.KIND_SERVER,
             FIRST_TOKEN_NS=250 * MS),
    ])  # fmt: skip
    assert store.fetchall(
        "select dialects, ttft_ms, (sent_ns - ?) / 1e6, (client_end_ns - ?) / 1e6 from requests",
        [T0, T0],
    ) == [("contract,genai-client", 250, 0, 900)]


def test_clients_of_one_trace_go_to_their_own_servers(load: Load) -> None:
    store = load([
        client(0, 100, id_="c1", USAGE_INPUT_TOKENS=1, TIME_TO_FIRST_CHUNK=0.05),
        client(200, 300, id_="c2", USAGE_INPUT_TOKENS=2, TIME_TO_FIRST_CHUNK=0.05),
        span(c.SPAN_REQUEST, 1, 99, parent="c1", kind=c.KIND_SERVER),
        span(c.SPAN_REQUEST, 201, 299, parent="c2", kind=c.KIND_SERVER),
        client(400, 500, id_="c3", USAGE_INPUT_TOKENS=3, TIME_TO_FIRST_CHUNK=0.05),
    ])  # fmt: skip
    assert store.fetchall(
        "select n_prompt, dialects, (sent_ns - ?) / 1e6 from requests order by arrival_ns", [T0]
    ) == [
        (1, "contract,genai-client", 0),
        (2, "contract,genai-client", 200),
        (3, "genai-client", 400),
    ]


def test_a_call_that_was_retried_inside(load: Load) -> None:
    store = load([
        client(0, 500, id_="c1"),
        span(c.SPAN_REQUEST, 1, 100, parent="c1", kind=c.KIND_SERVER, ERROR_TYPE="500"),
        span(c.SPAN_REQUEST, 200, 499, parent="c1", kind=c.KIND_SERVER),
    ])  # fmt: skip
    assert store.fetchall(
        "select is_aborted, sent_ns is null from requests order by arrival_ns"
    ) == [
        (True, True),
        (False, False),
    ]


def test_trace_context_that_was_not_passed_on(load: Load) -> None:
    store = load([
        client(0, 100, trace="c" * 32, REQUEST_ID="r1", TIME_TO_FIRST_CHUNK=0.05),
        span(c.SPAN_REQUEST, 1, 99, trace="d" * 32, kind=c.KIND_SERVER, REQUEST_ID="r1"),
        span(c.SPAN_REQUEST, 90_000, 90_100, trace="e" * 32, kind=c.KIND_SERVER, REQUEST_ID="r1"),
    ])  # fmt: skip
    assert store.fetchall("select dialects from requests order by arrival_ns") == [
        ("contract,genai-client",),
        ("contract",),
    ]
