"""The trace contract's requests, read into canonical rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenlag.store.connection import Store
from tokenlag_tracer import conventions as c

from tests.read.contract_rows import ENGINE, EPOCH, FRONT, STEPS, WHOLE, one, phases, request, step
from tests.read.span_rows import MS, T0, Row, load_rows, span

Load = Callable[..., Store]


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    with Store() as store:

        def run(rows: list[Row], dataset: int = 0) -> Store:
            load_rows(store, tmp_path, rows, dataset=dataset)
            return store

        yield run


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("shuffled", [False, True])
def test_a_request_in_both_forms(load: Load, compact: bool, shuffled: bool) -> None:
    rows = [*request(compact=compact), *STEPS]
    store = load(rows[::-1] if shuffled else rows)
    told = dict(
        zip(
            store.columns("requests"),
            one(store, "select * from requests"),
            strict=True,
        )
    )
    at = {key: (value - T0) / MS for key, value in told.items() if key.endswith("_ns") and value}
    assert at == {
        "intended_ns": -1, "sent_ns": 0, "arrival_ns": 2, "engine_ns": 5, "scheduled_ns": 15,
        "prefilled_ns": 35, "first_token_ns": 35, "last_token_ns": 75, "end_ns": 80,
        "client_first_ns": 40, "client_end_ns": 85,
    }  # fmt: skip
    assert told["dialects"] == "contract"
    assert (told["ttft_ms"], told["ttft_origin"]) == (33, "measured")
    assert (told["e2e_ms"], told["e2e_origin"]) == (78, "measured")
    assert told["tpot_ms"] == pytest.approx(10)
    assert (told["n_prompt"], told["n_cached"], told["n_output"]) == (100, 20, 5)
    assert (told["n_computed"], told["finish_reason"], told["tenant"]) == (80, "length", "t")
    assert told["client_gap_p50_ms"] == 10
    assert not told["is_aborted"]
    assert not told["is_open"]
    assert not told["is_prefill_only"]
    assert phases(store) == WHOLE
    assert one(store, "select seq_key, request_index, n_tokens, n_context from chunks") == (
        0, 0, 80, 20,
    )  # fmt: skip
    assert one(store, "select seq_key, first_step, last_step from memberships") == (0, 1, 4)
    assert one(store, "select engine_id, epoch, engine_name, config_hash from epochs") == (
        "e0", EPOCH, "vllm", "cafe",
    )  # fmt: skip
    assert store.fetchall("select * from read_notes") == []
    assert store.fetchall("select * from quality") == []


def test_the_two_sides_join_by_request_id_across_traces(load: Load) -> None:
    rows = request(engine_trace="b" * 32)
    # The id comes again after a restart: each engine span goes to the request in flight.
    rows += request(at=60_000, trace="c" * 32, engine_trace="d" * 32, index=1)
    store = load(rows)
    assert phases(store, 0) == WHOLE
    assert [kind for kind, *_ in phases(store, 1)] == [kind for kind, *_ in WHOLE]
    assert store.fetchall("select request_key, request_index from sequences order by 1") == [
        (0, 0),
        (1, 1),
    ]


def test_network_hangs_where_it_likes(load: Load) -> None:
    rows = request()
    network = next(row for row in rows if row["name"] == c.SPAN_NETWORK)
    network["parent_id"] = None
    assert phases(load(rows)) == WHOLE


def test_an_engine_alone_is_a_request_only_if_no_front_end_is_traced(load: Load) -> None:
    alone = request("ghost", 100, trace="b" * 32, client=False, front=False, index=1)
    store = load(alone)
    assert one(store, "select request_id, e2e_ms, e2e_origin, ttft_ms, ttft_origin "
               "from requests") == (
        "ghost", 70, "derived", 30, "derived",
    )  # fmt: skip
    assert [kind for kind, *_ in phases(store)] == ["queue", "prefill", "decode"]


def test_engine_work_without_a_request_stays_a_sequence(load: Load) -> None:
    store = load([*request(), *request("g", 9, trace="b" * 32, client=False, front=False, index=1)])
    assert store.fetchall("select request_key, request_index from sequences order by 2") == [
        (0, 0),
        (None, 1),
    ]
    assert one(store, "select count(*) from requests") == 1


def test_a_lost_request_span_with_a_front_end_in_its_trace(load: Load) -> None:
    lost = [
        row for row in request("r1", 200, trace="b" * 32, index=1) if row["name"] != c.SPAN_REQUEST
    ]
    store = load([*request(), *lost])
    assert one(store, "select is_open, e2e_ms, e2e_origin from requests "
               "where request_id = 'r1'") == (
        False, 73, "derived",
    )  # fmt: skip
    assert [kind for kind, *_ in phases(store, 1)] == [
        "network_in", "frontend", "queue", "prefill", "decode",
    ]  # fmt: skip
    assert one(store, "select n from quality where kind = 'lost_roots'") == 1


def test_phases_whose_spans_above_have_not_ended_are_an_open_request(load: Load) -> None:
    running = [
        row
        for row in request("r1", 200, trace="b" * 32, index=1, client=False)
        if row["name"] in (c.SPAN_QUEUE, c.SPAN_PREFILL, c.SPAN_FRONTEND)
    ]
    store = load([*request(), *running])
    assert one(
        store,
        f"select is_open, end_ns, e2e_ms, (arrival_ns - {T0}) / 1e6 from requests where is_open",
    ) == (True, None, None, 202)
    assert [kind for kind, *_ in phases(store, 1)] == ["frontend", "queue", "prefill"]
    assert one(store, "select n from quality where kind = 'open'") == 1


def test_a_request_span_without_end_is_open(load: Load) -> None:
    rows = request(client=False)
    next(row for row in rows if row["name"] == c.SPAN_REQUEST)["end_ns"] = None
    store = load(rows)
    assert one(store, "select is_open, e2e_ms, ttft_ms from requests") == (True, None, 33)
    assert phases(store)[-1] == ("decode", None, 35, 75)


@pytest.mark.parametrize(
    "told",
    [{"FINISH_REASONS": ["abort"]}, {"ERROR_TYPE": "cancelled"}],
)
def test_an_abort_before_the_first_token_has_no_ttft(load: Load, told: dict[str, Any]) -> None:
    rows = request(client=False, **told)
    server = next(row for row in rows if row["name"] == c.SPAN_REQUEST)
    for key in (c.FIRST_TOKEN_NS, c.LAST_TOKEN_NS, c.USAGE_OUTPUT_TOKENS):
        del server[key]
    rows = [row for row in rows if row["name"] != c.SPAN_DECODE]
    engine = next(row for row in rows if row["name"] == c.SPAN_ENGINE_REQUEST)
    del engine[c.USAGE_OUTPUT_TOKENS]
    store = load(rows)
    assert one(store, "select is_aborted, is_open, ttft_ms, first_token_ns from requests") == (
        True, False, None, None,
    )  # fmt: skip
    assert one(store, "select n from quality where kind = 'aborted'") == 1


def test_first_token_without_its_stamp_is_the_end_of_the_prompt(load: Load) -> None:
    rows = request(client=False)
    server = next(row for row in rows if row["name"] == c.SPAN_REQUEST)
    del server[c.FIRST_TOKEN_NS], server[c.LAST_TOKEN_NS]
    store = load(rows)
    assert one(store, "select ttft_ms, ttft_origin, tpot_ms from requests") == (33, "derived", 10)


def test_a_first_token_outside_the_request_is_not_believed(load: Load) -> None:
    store = load(request(client=False, FIRST_TOKEN_NS=5_000_000 * MS))
    assert one(store, "select ttft_ms, tpot_ms from requests") == (None, None)
    assert one(store, "select n from quality where kind = 'impossible_ttft'") == 1


@pytest.mark.parametrize("operation", ["embeddings", None])
def test_prefill_only_has_no_token(load: Load, operation: str | None) -> None:
    rows = request(client=False, OPERATION_NAME=operation, FIRST_TOKEN_NS=None,
                   LAST_TOKEN_NS=None, USAGE_OUTPUT_TOKENS=None)  # fmt: skip
    rows = [row for row in rows if row["name"] != c.SPAN_DECODE]
    for row in rows:
        row.pop(c.USAGE_OUTPUT_TOKENS, None)
    store = load(rows)
    assert one(store, "select is_prefill_only, ttft_ms, tpot_ms, e2e_ms from requests") == (
        True, None, None, 78,
    )  # fmt: skip


def test_two_sequences_of_one_request(load: Load) -> None:
    rows = request(REQUEST_CHOICE_COUNT=2, USAGE_OUTPUT_TOKENS=12)
    rows.append(
        span(c.SPAN_ENGINE_REQUEST, 5, 79, parent="aaaar0-r", id_="second", resource=ENGINE,
             ENGINE_ID="e0", ENGINE_EPOCH=EPOCH, REQUEST_INDEX=1, SEQUENCE=1,
             USAGE_OUTPUT_TOKENS=7, PREEMPTIONS=1)
    )  # fmt: skip
    rows.append(span(c.SPAN_QUEUE, 5, 15, parent="second", resource=ENGINE, QUEUE_REASON="arrival"))
    rows.append(span(c.SPAN_PREFILL, 15, 35, parent="second", resource=ENGINE, PREFILL_TOKENS=80))
    rows.append(span(c.SPAN_DECODE, 35, 79, parent="second", resource=ENGINE, DECODE_TOKENS=6))
    store = load(rows)
    assert one(store, "select n_choices, n_output, n_preemptions from requests") == (2, 12, 1)
    # Six tokens after the first of the longer sequence, not eleven of both.
    assert one(store, "select tpot_ms from requests") == pytest.approx(40 / 6)
    assert one(store, "select count(*) from sequences where request_key = 0") == 2
    assert sum(end - start for _, _, start, end in phases(store)) == pytest.approx(80)


def test_a_preempted_request_waits_and_prefills_again(load: Load) -> None:
    rows = [row for row in request(client=False) if row["name"] != c.SPAN_DECODE]
    rows += [
        span(c.SPAN_DECODE, 35, 45, parent="aaaar0-e", DECODE_TOKENS=1, resource=ENGINE),
        span(c.SPAN_QUEUE, 45, 55, parent="aaaar0-e", QUEUE_REASON="preempted", resource=ENGINE),
        span(c.SPAN_PREFILL, 55, 65, parent="aaaar0-e", PREFILL_TOKENS=82,
             PREFILL_RECOMPUTE=True, resource=ENGINE),
        span(c.SPAN_DECODE, 65, 75, parent="aaaar0-e", DECODE_TOKENS=3, resource=ENGINE),
        step(9, 45, 55, STEP_PREEMPTED=[0, 77]),
    ]  # fmt: skip
    next(row for row in rows if row["name"] == c.SPAN_ENGINE_REQUEST)[c.PREEMPTIONS] = 1
    store = load(rows)
    assert [kind for kind, *_ in phases(store)] == [
        "frontend", "queue", "prefill", "decode", "requeue", "prefill", "decode", "delivery",
    ]  # fmt: skip
    assert one(store, "select n_preemptions, n_computed, prefilled_ns - arrival_ns "
               "from requests") == (
        1, 162, 33 * MS,
    )  # fmt: skip
    assert one(store, "select ttft_ms from requests") == 33
    assert store.fetchall("select request_index, seq_key from preemptions order by 1") == [
        (0, 0),
        (77, None),
    ]
    assert one(store, "select n_preempted from steps") == 2


def test_nested_and_late_frontend_stages_are_clipped(load: Load) -> None:
    rows = [*request(client=False)]
    rows += [
        span(c.SPAN_FRONTEND, 3, 4, parent="aaaar0-r", STAGE="template", resource=FRONT),
        # Runs beside decode: the engine's phase wins; what is left of it is after the last token.
        span(c.SPAN_FRONTEND, 40, 78, parent="aaaar0-r", STAGE="detokenize", resource=FRONT),
    ]
    assert phases(load(rows)) == [
        ("frontend", "tokenize", 2, 3),
        ("frontend", "template", 3, 4),
        ("frontend", "tokenize", 4, 5),
        ("queue", "arrival", 5, 15),
        ("prefill", None, 15, 35),
        ("decode", None, 35, 75),
        ("frontend", "detokenize", 75, 78),
        ("delivery", None, 78, 80),
    ]


def test_delivery_as_told_and_what_nothing_covers(load: Load) -> None:
    rows = [row for row in request(client=False) if row["name"] != c.SPAN_QUEUE]
    rows.append(
        span(
            c.SPAN_NETWORK, 75, 79, parent="aaaar0-r", DIRECTION="out", CLOCK="same", resource=FRONT
        )
    )
    store = load(rows)
    assert phases(store) == [
        ("frontend", "tokenize", 2, 5),
        ("uncovered", None, 5, 15),
        ("prefill", None, 15, 35),
        ("decode", None, 35, 75),
        ("delivery", None, 75, 79),
        ("delivery", None, 79, 80),
    ]
    assert one(store, "select share_frac from quality where kind = 'uncovered'") == pytest.approx(
        10 / 78
    )


def test_a_wait_of_no_length_is_still_measured(load: Load) -> None:
    rows = request(client=False)
    queue = next(row for row in rows if row["name"] == c.SPAN_QUEUE)
    queue["end_ns"] = queue["start_ns"]
    store = load(rows)
    assert ("queue", "arrival", 5, 5) in phases(store)
    assert sum(end - start for _, _, start, end in phases(store)) == pytest.approx(78)


def test_work_after_the_request_ended_is_not_the_requests(load: Load) -> None:
    rows = request(client=False, FINISH_REASONS=["abort"])
    server = next(row for row in rows if row["name"] == c.SPAN_REQUEST)
    server["end_ns"] = T0 + 50 * MS
    server[c.LAST_TOKEN_NS] = None
    store = load(rows)
    assert phases(store)[-1] == ("decode", None, 35, 50)
    assert one(store, "select (end_ns - start_ns) / 1e6 from sequences") == 70


def test_a_clients_clock_that_runs_ahead(load: Load) -> None:
    rows = request()
    for row in rows:
        if row["resource." + c.SERVICE_INSTANCE_ID] == "load":
            row["start_ns"] += 10_000 * MS
            row["end_ns"] += 10_000 * MS
        if row["name"] == c.SPAN_NETWORK:
            row["end_ns"] = T0 + 2 * MS
            row[c.CLOCK] = "remote"
    store = load(rows)
    assert phases(store) == WHOLE[1:]
    kinds = store.fetchall("select kind, place from quality order by 1, 2")
    assert kinds == [("clock_skew", "client"), ("clock_skew", "network")]


def test_an_engines_clock_that_runs_behind(load: Load) -> None:
    rows = request(client=False)
    for row in rows:
        if row["resource." + c.SERVICE_INSTANCE_ID] == "e0":
            row["start_ns"] -= 10 * MS
            row["end_ns"] -= 10 * MS
    store = load(rows)
    assert one(store, "select place from quality where kind = 'clock_skew'") == "engine"
    assert sum(end - start for _, _, start, end in phases(store)) == pytest.approx(78)


def test_network_time_on_two_hosts_clocks_is_said_so(load: Load) -> None:
    rows = request()
    next(row for row in rows if row["name"] == c.SPAN_NETWORK)[c.CLOCK] = "remote"
    store = load(rows)
    assert one(store, "select clock from phases where kind = 'network_in'") == "remote"
    assert one(store, "select n from quality where kind = 'remote_clock'") == 1


def test_a_client_without_a_network_span(load: Load) -> None:
    rows = [row for row in request() if row["name"] != c.SPAN_NETWORK]
    store = load(rows)
    assert one(
        store, "select clock, origin, end_ns - start_ns from phases where kind = 'network_in'"
    ) == ("same", "derived", 2 * MS)


@pytest.mark.parametrize("compact", [False, True])
def test_phases_that_only_steps_tell(load: Load, compact: bool) -> None:
    store = load([*request(parts=False, compact=compact, client=False), *STEPS])
    assert phases(store) == [
        (kind, detail if kind == "frontend" else None, start, end)
        for kind, detail, start, end in WHOLE[1:]
    ]
    assert store.fetchall(
        "select distinct origin from phases where kind in ('queue', 'prefill', 'decode')"
    ) == [("derived",)]
    assert one(store, "select (scheduled_ns - arrival_ns) / 1e6, n_computed from requests") == (
        13,
        80,
    )


def test_a_preemption_that_only_steps_tell(load: Load) -> None:
    store = load([
        *request(parts=False, client=False),
        step(0, 15, 25, STEP_PREFILL_REQUESTS=[0], STEP_PREFILL_TOKENS=[40]),
        step(1, 25, 35, STEP_PREFILL_REQUESTS=[0], STEP_PREFILL_TOKENS=[40]),
        step(2, 35, 45, count=1, STEP_DECODE_JOINED="0"),
        step(3, 45, 55, STEP_DECODE_LEFT="0", STEP_PREEMPTED=[0]),
        step(4, 55, 65, STEP_PREFILL_REQUESTS=[0], STEP_PREFILL_TOKENS=[82]),
        step(5, 65, 75, count=1, STEP_DECODE_JOINED="0"),
    ])  # fmt: skip
    assert phases(store)[1:] == [
        ("queue", None, 5, 15),
        ("prefill", None, 15, 35),
        ("decode", None, 35, 45),
        ("requeue", "preempted", 45, 55),
        ("prefill", None, 55, 65),
        ("decode", None, 65, 75),
        ("delivery", None, 75, 80),
    ]
    assert store.fetchall(
        "select is_recompute, n_tokens from phases where kind = 'prefill' order by start_ns"
    ) == [(False, 80), (True, 82)]
