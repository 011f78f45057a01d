"""SGLang's request slices, whose attribute for prefill includes the queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenlag.store.connection import Store
from tokenlag_tracer import conventions as c

from tests.read.span_rows import MS, T0, Row, load_rows, span

Load = Callable[..., Store]
ATTRIBUTES = {
    "gen_ai.latency.time_to_first_token": 0.4,
    "gen_ai.latency.e2e": 1.0,
    "gen_ai.latency.time_in_model_prefill": 0.38,  # dispatch → first token: queue and prefill
    "gen_ai.latency.time_in_model_decode": 0.6,
    "gen_ai.usage.prompt_tokens": 700,
    "gen_ai.usage.completion_tokens": 7,
    "gen_ai.usage.cached_tokens": 64,
}


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    with Store() as store:

        def run(rows: list[Row], events: list[Row] | None = None) -> Store:
            load_rows(store, tmp_path, rows, events)
            return store

        yield run


def sglang(name: str, start: float, end: float, **more: Any) -> Row:
    return span(name, start, end, scope="sglang server", **more)


def root(
    start: float = 0, end: float = 1000, rid: str = "0123456789abcdef", role: str = "", **more: Any
) -> Row:
    told = {
        "rid": rid,
        "module": "sglang::request",
        c.FINISH_REASONS: ['{"type": "length", "length": 7}'],
    }
    return sglang(f"{role} Req {rid[:8]}", start, end, **({"id_": f"root{role}"} | told | more))


def thread(label: str, start: float, end: float, **more: Any) -> Row:
    told = {"rid": "0123456789abcdef", "thread_label": label, "host_id": "h", "pid": "77"}
    return sglang(f"{label} (host:h | pid:77)", start, end, **(told | more))


def slices(**more: Any) -> list[Row]:
    return [
        root(**(ATTRIBUTES | more)),
        thread("Tokenizer", 0, 1000, id_="tok", parent="root", pid="70"),
        sglang("tokenize", 1, 15, parent="tok"),
        sglang("api_server_dispatch", 15, 20, parent="tok"),
        thread("Scheduler", 21, 990, id_="sch", parent="root", tp_rank=0),
        sglang("request_process", 21, 25, parent="sch"),
        sglang("prefill_waiting", 25, 275, parent="sch"),
        sglang("prefill_forward", 275, 395, parent="sch", id_="pf"),
        sglang("chunked_prefill", 275, 330, parent="pf"),
        sglang("decode_forward", 395, 990, parent="sch", id_="df"),
        sglang("decode_loop", 395, 500, parent="df", id_="dl"),
        # A second rank draws the same; it is no second request and no second wait.
        thread("Scheduler", 21, 990, id_="sch1", parent="root", tp_rank=1, pid="78"),
        sglang("prefill_waiting", 26, 276, parent="sch1"),
        sglang("prefill_forward", 276, 396, parent="sch1"),
    ]


def phases(store: Store) -> list[tuple[str, str | None, float, float, str]]:
    return [
        (kind, detail, (start - T0) / MS, (end - T0) / MS, origin)
        for kind, detail, start, end, origin in store.fetchall(
            "select kind, detail, start_ns, end_ns, origin from phases order by start_ns, end_ns"
        )
    ]


def test_slices_are_the_phases(load: Load) -> None:
    store = load(slices())
    assert phases(store) == [
        ("uncovered", None, 0, 1, "derived"),
        ("frontend", "tokenize", 1, 15, "measured"),
        ("frontend", "dispatch", 15, 20, "measured"),
        ("uncovered", None, 20, 21, "derived"),
        ("frontend", "preprocess", 21, 25, "measured"),
        ("queue", "arrival", 25, 275, "measured"),
        ("prefill", None, 275, 395, "measured"),
        ("decode", None, 395, 990, "measured"),
        ("delivery", None, 990, 1000, "derived"),
    ]
    assert store.fetchall(
        "select dialects, request_id, ttft_ms, e2e_ms, n_prompt, n_cached, n_output, "
        "finish_reason, n_preemptions, is_aborted from requests"
    ) == [("sglang", "0123456789abcdef", 400, 1000, 700, 64, 7, "length", 0, False)]
    assert store.fetchall("select engine_id, engine_name from epochs") == [("h:77", "sglang")]


def test_prefill_that_includes_the_queue_is_never_taken_for_prefill(load: Load) -> None:
    store = load([root(**ATTRIBUTES)])
    assert phases(store) == [
        ("frontend", None, 0, 20, "derived"),
        ("prefill", "includes queue", 20, 400, "derived"),
        ("decode", None, 400, 1000, "measured"),
    ]


def test_with_the_queue_given_it_is_taken_off(load: Load) -> None:
    store = load([root(**ATTRIBUTES, **{"gen_ai.latency.time_in_queue": 0.3})])
    assert phases(store) == [
        ("frontend", None, 0, 20, "derived"),
        ("queue", None, 20, 320, "measured"),
        ("prefill", None, 320, 400, "derived"),
        ("decode", None, 400, 1000, "measured"),
    ]


def test_an_abort_has_a_root_without_numbers(load: Load) -> None:
    rows = slices()
    for key in ATTRIBUTES:
        del rows[0][key]
    del rows[0][c.FINISH_REASONS]
    rows = [row for row in rows if row["name"] not in ("decode_forward", "decode_loop")]
    next(row for row in rows if row["span_id"] == "sch")["status_code"] = c.STATUS_ERROR
    store = load(rows)
    assert store.fetchall("select is_aborted, ttft_ms, e2e_ms, n_prompt from requests") == [
        (True, None, 1000, None)
    ]


RETRACT = {"trace_id": "a" * 32, "span_id": "dl", "time_ns": T0 + 500 * MS, "name": "retract"}


def test_the_wait_after_a_retraction_is_found(load: Load) -> None:
    rows = [
        *slices(),
        sglang("prefill_forward", 650, 700, parent="df"),
        sglang("decode_forward", 700, 990, parent="df"),
    ]
    store = load(rows, [RETRACT])
    assert [part[:4] for part in phases(store)][6:] == [
        ("prefill", None, 275, 395),
        ("decode", None, 395, 500),
        ("requeue", "preempted", 500, 650),
        ("prefill", None, 650, 700),
        ("decode", None, 700, 990),
        ("delivery", None, 990, 1000),
    ]
    assert store.fetchall("select n_preemptions from requests") == [(1,)]
    assert store.fetchall(
        "select is_recompute from phases where kind = 'prefill' order by start_ns"
    ) == [(False,), (True,)]
    assert store.fetchall("select ttft_ms, (prefilled_ns - ?) / 1e6 from requests", [T0]) == [
        (400, 395)
    ]


def test_a_wait_that_stays_hidden_is_said(load: Load) -> None:
    store = load(slices(), [RETRACT])
    assert store.fetchall("select n_preemptions from requests") == [(1,)]
    assert store.fetchall("select n from quality where kind = 'hidden_requeue'") == [(1,)]


def test_a_split_in_prefill_and_decode_is_one_request(load: Load) -> None:
    rows = [
        root(0, 500, role="Prefill"),
        thread("Prefill Scheduler", 5, 490, id_="ps", parent="rootPrefill", pid="1"),
        sglang("prefill_waiting", 5, 100, parent="ps"),
        sglang("prefill_forward", 100, 400, parent="ps"),
        sglang("prefill_transfer_kv_cache", 400, 490, parent="ps"),
        root(0, 1000, role="Decode", **ATTRIBUTES),
        thread("Decode Scheduler", 5, 1000, id_="ds", parent="rootDecode", pid="2"),
        sglang("decode_transferred", 400, 510, parent="ds"),
        sglang("decode_waiting", 510, 520, parent="ds"),
        sglang("decode_forward", 520, 1000, parent="ds"),
    ]
    store = load(rows)
    assert store.fetchall("select count(*), min(e2e_ms) from requests") == [(1, 1000)]
    assert store.fetchall("select role from sequences order by 1") == [("decode",), ("prefill",)]
    assert store.fetchall("select engine_id from epochs order by 1") == [("h:1",), ("h:2",)]
    assert [part[:2] for part in phases(store) if part[3] > part[2]] == [
        ("uncovered", None),
        ("queue", "arrival"),
        ("prefill", None),
        ("queue", "kv_transfer"),  # the sender's
        ("queue", "kv_transfer"),  # the receiver's
        ("queue", "decode"),
        ("decode", None),
    ]


def test_old_slice_names_have_blanks(load: Load) -> None:
    rows = [
        root(**ATTRIBUTES),
        thread("Scheduler", 21, 990, id_="sch", parent="root"),
        sglang("prefill", 275, 395, parent="sch"),
        sglang("decode loop", 395, 500, parent="sch"),
        sglang("decode loop", 500, 990, parent="sch"),
    ]
    assert [part[:4] for part in phases(load(rows))] == [
        ("uncovered", None, 0, 275),
        ("prefill", None, 275, 395),
        ("decode", None, 395, 990),
        ("delivery", None, 990, 1000),
    ]
