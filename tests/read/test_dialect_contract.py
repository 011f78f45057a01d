"""The trace contract, read into canonical rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenlag.store.connection import Store
from tokenlag_tracer import conventions as c

from tests.read.span_rows import MS, T0, Row, load_rows, span

EPOCH = T0 - 60_000 * MS
ENGINE = {c.SERVICE_INSTANCE_ID: "e0", c.ENGINE_NAME: "vllm", c.CONFIG_HASH: "cafe"}
FRONT = {c.SERVICE_INSTANCE_ID: "api", c.HOST_NAME: "h1"}
CLIENT = {c.SERVICE_INSTANCE_ID: "load", c.HOST_NAME: "h1"}

Load = Callable[..., Store]


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    with Store() as store:

        def run(rows: list[Row], dataset: int = 0) -> Store:
            load_rows(store, tmp_path, rows, dataset=dataset)
            return store

        yield run


def request(
    name: str = "r0",
    at: float = 0,
    *,
    trace: str = "a" * 32,
    index: int = 0,
    engine_trace: str | None = None,
    compact: bool = False,
    client: bool = True,
    front: bool = True,
    parts: bool = True,
    **more: Any,
) -> list[Row]:
    """One request: sent at `at`, received +2, engine +5, scheduled +15, first token +35,
    last token +75, end +80 (ms)."""
    own = {c.ENGINE_ID: "e0", c.ENGINE_EPOCH: EPOCH, c.REQUEST_INDEX: index}
    usage = {c.USAGE_INPUT_TOKENS: 100, c.USAGE_OUTPUT_TOKENS: 5, c.USAGE_CACHED_TOKENS: 20}
    key = f"{trace[:4]}{name}"
    rows = []
    if client:
        rows += [
            span(
                f"chat {name}", at, at + 85, trace=trace, id_=f"{key}-c", kind=c.KIND_CLIENT,
                resource=CLIENT, REQUEST_ID=name, OPERATION_NAME="chat", REQUEST_MODEL="m",
                TIME_TO_FIRST_CHUNK=0.040, CLIENT_INTENDED_NS=1 * MS, CLIENT_GAP_P50_NS=10 * MS,
                CLIENT_GAP_MAX_NS=12 * MS,
            ),
            span(
                c.SPAN_NETWORK, at, at + 2, trace=trace, parent=f"{key}-c", DIRECTION="in",
                CLOCK="same", resource=CLIENT,
            ),
        ]  # fmt: skip
    if front:
        rows += [
            span(
                c.SPAN_REQUEST, at + 2, at + 80, trace=trace, id_=f"{key}-r", kind=c.KIND_SERVER,
                parent=f"{key}-c" if client else None, resource=FRONT,
                **({"REQUEST_ID": name, "OPERATION_NAME": "chat", "REQUEST_MODEL": "m",
                    "FINISH_REASONS": ["length"], "TENANT": "t", "REQUEST_MAX_TOKENS": 5,
                    "FIRST_TOKEN_NS": 33 * MS, "LAST_TOKEN_NS": 73 * MS}
                   | usage | (own if compact else {}) | more),
            ),
            span(c.SPAN_FRONTEND, at + 2, at + 5, trace=trace, parent=f"{key}-r", STAGE="tokenize",
                 resource=FRONT),
        ]  # fmt: skip
    where = engine_trace or trace
    parent = f"{key}-r" if compact else f"{key}-e"
    if not compact:
        rows.append(
            span(
                c.SPAN_ENGINE_REQUEST, at + 5, at + 75, trace=where, id_=f"{key}-e",
                parent=f"{key}-r" if where == trace and front else None, resource=ENGINE,
                **({"REQUEST_ID": name, "SEQUENCE": 0, "PREEMPTIONS": 0} | own | usage),
            )
        )  # fmt: skip
    if parts:
        rows += [
            span(c.SPAN_QUEUE, at + 5, at + 15, trace=where, parent=parent, resource=ENGINE,
                 QUEUE_REASON="arrival"),
            span(c.SPAN_PREFILL, at + 15, at + 35, trace=where, parent=parent, id_=f"{key}-p",
                 resource=ENGINE, PREFILL_TOKENS=80, PREFILL_RECOMPUTE=False),
            span(c.SPAN_PREFILL_CHUNK, at + 15, at + 35, trace=where, parent=f"{key}-p",
                 resource=ENGINE, STEP_INDEX=0, CHUNK_TOKENS=80, CHUNK_CONTEXT=20),
            span(c.SPAN_DECODE, at + 35, at + 75, trace=where, parent=parent, resource=ENGINE,
                 DECODE_FIRST_STEP=1, DECODE_LAST_STEP=4, DECODE_TOKENS=4),
        ]  # fmt: skip
    return rows


def step(
    index: int, start: float, end: float, *, engine: str = "e0", resource: Row | None = None,
    epoch: int | None = EPOCH, count: int = 0, **attributes: Any,
) -> Row:  # fmt: skip
    told = {"ENGINE_ID": engine, "STEP_INDEX": index, "STEP_DECODE_COUNT": count}
    if epoch is not None:
        told["ENGINE_EPOCH"] = epoch
    return span(
        c.SPAN_ENGINE_STEP, start, end, trace="f" * 32, resource=resource or ENGINE,
        **(told | attributes),
    )  # fmt: skip


STEPS = [
    step(0, 15, 35, STEP_PREFILL_REQUESTS=[0], STEP_PREFILL_TOKENS=[80],
         STEP_PREFILL_CONTEXT=[20], STEP_RUNNING=1, STEP_WAITING=0),
    step(1, 35, 45, count=1, STEP_DECODE_JOINED="0", STEP_RUNNING=1),
    step(2, 45, 55, count=1, STEP_RUNNING=1),
    step(3, 55, 65, count=1, STEP_RUNNING=1),
    step(4, 65, 75, count=1, STEP_RUNNING=1),
]  # fmt: skip


def phases(store: Store, key: int = 0) -> list[tuple[str, str | None, float, float]]:
    return [
        (kind, detail, (start - T0) / MS, (end - T0) / MS)
        for kind, detail, start, end in store.fetchall(
            "select kind, detail, start_ns, end_ns from phases where request_key = ? "
            "order by start_ns, end_ns",
            [key],
        )
    ]


def one(store: Store, sql: str) -> Any:
    rows = store.fetchall(sql)
    assert len(rows) == 1, rows
    return rows[0] if len(rows[0]) > 1 else rows[0][0]


WHOLE = [
    ("network_in", None, 0, 2),
    ("frontend", "tokenize", 2, 5),
    ("queue", "arrival", 5, 15),
    ("prefill", None, 15, 35),
    ("decode", None, 35, 75),
    ("delivery", None, 75, 80),
]


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


# --- steps -----------------------------------------------------------------------------------


def steps(store: Store, columns: str) -> list[tuple[Any, ...]]:
    return store.fetchall(f"select {columns} from steps order by epoch_key, step_index")


def test_cadence_of_steps_two_deep(load: Load) -> None:
    store = load([step(0, 0, 10), step(1, 6, 20), step(2, 16, 30), step(3, 45, 50)])
    assert steps(store, "cadence_ms, idle_ms") == [(10, None), (10, 0), (10, 0), (5, 15)]


def test_heartbeats_are_not_steps(load: Load) -> None:
    store = load(
        [step(7, 0, 10, count=0), step(7, 5000, 5000), step(7, 9000, 9000), step(8, 9500, 9510)]
    )
    assert steps(store, "step_index, is_after_hole") == [(7, False), (8, False)]
    assert store.fetchall("select * from quality") == []


def test_a_hole_is_a_lost_record(load: Load) -> None:
    store = load([step(0, 0, 10), step(1, 10, 20), step(4, 40, 50, STEP_DROPPED=2)])
    assert steps(store, "step_index, is_after_hole, idle_ms") == [
        (0, False, None),
        (1, False, 0),
        (4, True, None),
    ]
    assert one(store, "select n, share_frac from quality where kind = 'lost_steps'") == (2, 0.4)
    assert one(store, "select n_dropped from epochs") == 2


def test_a_step_that_came_twice_is_kept_once(load: Load) -> None:
    store = load([step(0, 0, 10), step(1, 10, 20), step(1, 10, 20)])
    assert steps(store, "step_index") == [(0,), (1,)]
    assert one(store, "select n from quality where kind = 'duplicate_steps'") == 1


def test_a_span_that_came_twice_is_kept_once(load: Load) -> None:
    rows = request()
    store = load(rows + [dict(row) for row in rows])
    assert phases(store) == WHOLE
    assert one(store, "select n from quality where kind = 'duplicate_spans'") == len(rows)


def test_a_restart_is_a_new_epoch(load: Load) -> None:
    store = load([step(0, 0, 10), step(1, 10, 20), step(0, 500, 510, epoch=EPOCH + 1)])
    assert steps(store, "epoch_key, step_index, is_after_hole") == [
        (0, 0, False),
        (0, 1, False),
        (1, 0, False),
    ]


def test_an_index_that_falls_back_is_a_restart_where_the_epoch_is_absent(load: Load) -> None:
    rows = [
        step(5, 0, 10, epoch=None, count=1, STEP_DECODE_REQUESTS="3"),
        step(6, 10, 20, epoch=None, count=1),
        step(0, 500, 510, epoch=None),
        step(1, 510, 520, epoch=None, count=1, STEP_DECODE_JOINED="3"),
    ]
    # The handle 3 is another request after the restart.
    for name, start, end in (("old", 0, 20), ("new", 490, 520)):
        rows.append(
            span(c.SPAN_ENGINE_REQUEST, start, end, trace=name[0] * 32, resource=ENGINE,
                 ENGINE_ID="e0", REQUEST_INDEX=3, REQUEST_ID=name)
        )  # fmt: skip
    store = load(rows)
    assert store.fetchall(
        "select m.epoch_key, r.request_id, m.first_step, m.last_step, s.epoch_key "
        "from memberships m join sequences s using (seq_key) "
        "join requests r using (request_key) order by 1"
    ) == [(0, "old", 5, 6, 0), (1, "new", 1, 1, 1)]


def test_a_changed_setting_is_a_new_epoch_and_sequences_live_on(load: Load) -> None:
    other = ENGINE | {c.CONFIG_HASH: "beef", c.ENGINE_MAX_SEQS: 8}
    rows = [row for row in request(client=False) if row["name"] != c.SPAN_PREFILL_CHUNK]
    rows += [
        *STEPS[:3],
        *(dict(row) | {f"resource.{k}": v for k, v in other.items()} for row in STEPS[3:]),
    ]
    store = load(rows)
    assert store.fetchall("select config_hash, max_seqs from epochs order by epoch_key") == [
        ("cafe", None),
        ("beef", 8),
    ]
    assert store.fetchall(
        "select epoch_key, seq_key, first_step, last_step from memberships order by 1"
    ) == [(0, 0, 1, 2), (1, 0, 3, 4)]


def test_two_engines_at_once_with_one_id(load: Load) -> None:
    store = load([
        *(step(i, i * 500, i * 500 + 400) for i in range(10)),
        *(step(i, i * 500 + 50, i * 500 + 450, epoch=EPOCH + 1) for i in range(10)),
    ])  # fmt: skip
    assert one(store, "select n, place from quality where kind = 'overlapping_epochs'") == (1, "e0")


def test_everything_a_step_tells(load: Load) -> None:
    store = load([
        step(
            3, 0, 10, count=2, STEP_DECODE_REQUESTS="4,6", STEP_PREFILL_REQUESTS=[7, 8],
            STEP_PREFILL_TOKENS=[100, 20], STEP_PREFILL_CONTEXT=[0, 50],
            STEP_DECODE_NEW_TOKENS=[3, 0], STEP_CONTEXT_TOKENS=999, STEP_RUNNING=4, STEP_WAITING=5,
            STEP_WAITING_TOKENS=600, STEP_OLDEST_WAIT_NS=7 * MS, STEP_KV_USAGE=0.5,
            STEP_KV_RESERVED=0.25, STEP_ADMIT_BOUND="kv", STEP_GRAPH="eager", STEP_DRAFTED=6,
            STEP_ACCEPTED=1, STEP_DEVICE_NS=8 * MS,
        )
    ])  # fmt: skip
    told = dict(zip(store.columns("steps"), one(store, "select * from steps"), strict=True))
    assert told == {
        "epoch_key": 0, "step_index": 3, "start_ns": T0, "end_ns": T0 + 10 * MS, "cadence_ms": 10,
        "idle_ms": None, "n_prefill_tokens": 120, "n_chunks": 2,
        "attention_work": 100 * 50 + 20 * (50 + 10), "n_decode": 2, "n_new_tokens": 3,
        "n_context_tokens": 999, "n_running": 4, "n_waiting": 5, "n_waiting_tokens": 600,
        "oldest_wait_ms": 7, "kv_usage_frac": 0.5, "kv_reserved_frac": 0.25, "n_preempted": 0,
        "admit_bound": "kv", "graph": "eager", "n_drafted": 6, "n_accepted": 1, "device_ms": 8,
        "is_after_hole": False,
    }  # fmt: skip
    # Nobody told of these requests: the handles stay, without a sequence.
    assert store.fetchall("select request_index, seq_key from chunks order by 1") == [
        (7, None),
        (8, None),
    ]
    assert store.fetchall("select request_index, seq_key from memberships order by 1") == [
        (4, None),
        (6, None),
    ]
    assert one(store, "select n from quality where kind = 'unknown_handles'") == 2


def test_lists_win_over_decode_runs_and_decode_runs_fill_holes(load: Load) -> None:
    rows = request(client=False)
    decode = next(row for row in rows if row["name"] == c.SPAN_DECODE)
    decode[c.DECODE_LAST_STEP] = 7
    rows += [
        step(0, 15, 35, STEP_PREFILL_REQUESTS=[0], STEP_PREFILL_TOKENS=[80]),
        step(1, 35, 40, count=1, STEP_DECODE_JOINED="0"),
        step(2, 40, 45, STEP_DECODE_LEFT="0"),  # prefill only: nobody decodes
        step(3, 45, 50, count=1, STEP_DECODE_JOINED="0"),
        # 4 is lost, and with it what 5 is relative to
        step(5, 55, 60, count=1),
        step(6, 60, 65, count=1, STEP_DECODE_REQUESTS="0"),
        step(7, 65, 75, count=1),
    ]
    assert load(rows).fetchall("select first_step, last_step from memberships order by 1") == [
        (1, 1),
        (3, 7),
    ]


def test_a_writer_without_lists_is_read_by_its_decode_runs(load: Load) -> None:
    rows = [*request(client=False), *(dict(row) for row in STEPS)]
    for row in rows:
        row.pop(c.STEP_DECODE_JOINED, None)
    assert load(rows).fetchall("select seq_key, first_step, last_step from memberships") == [
        (0, 1, 4)
    ]


def test_a_chunk_of_a_lost_step_comes_from_the_request(load: Load) -> None:
    store = load([*request(client=False), *STEPS[1:]])
    assert store.fetchall("select step_index, seq_key, n_tokens, n_context from chunks") == [
        (0, 0, 80, 20)
    ]


def test_datasets_do_not_mix(load: Load) -> None:
    load([*request(), *STEPS])
    store = load([*request(TENANT="other"), *STEPS], dataset=1)
    assert store.fetchall("select dataset, request_key, tenant from requests order by 1") == [
        (0, 0, "t"),
        (1, 1, "other"),
    ]
    assert store.fetchall("select dataset, epoch_key from epochs order by 1") == [(0, 0), (1, 1)]
    assert store.fetchall("select epoch_key, seq_key from memberships order by 1") == [
        (0, 0),
        (1, 1),
    ]
    assert store.fetchall("select request_key, seq_key, epoch_key from sequences order by 1") == [
        (0, 0, 0),
        (1, 1, 1),
    ]
    for table in ("steps", "chunks"):
        assert store.fetchall(f"select epoch_key, count(*) from {table} group by 1 order by 1") == (
            [(0, 5), (1, 5)] if table == "steps" else [(0, 1), (1, 1)]
        )
    assert phases(store, 1) == WHOLE


def test_a_trace_with_nothing_of_ours(load: Load) -> None:
    store = load([span("GET /", 0, 5, kind=c.KIND_SERVER, scope="http")])
    assert one(store, "select count(*) from requests") == 0


def test_weights_count_as_sampling(load: Load) -> None:
    store = load(request(SAMPLE_WEIGHT=20.0))
    assert one(store, "select weight from requests") == 20
    assert one(store, "select n from quality where kind = 'sampled'") == 1


@pytest.mark.parametrize("value", [-1, 2**62, -(2**62)])
def test_minus_one_and_absurd_numbers_are_not_measured(load: Load, value: int) -> None:
    rows = [*request(), *STEPS]
    numbers = {
        key
        for row in rows
        for key, told in row.items()
        if key.startswith(("tokenlag.", "gen_ai."))
        and type(told) is int
        and key not in (c.ENGINE_EPOCH, c.REQUEST_INDEX, c.STEP_INDEX)
    }
    assert len(numbers) > 10
    for row in rows:
        for key in numbers & set(row):
            row[key] = value
        for key in (c.STEP_PREFILL_TOKENS, c.STEP_PREFILL_CONTEXT):
            if key in row:
                row[key] = [value]
    store = load(rows)
    assert store.fetchall("select n_prompt, n_output, n_cached, ttft_ms from requests") == [
        (None, None, None, 33)  # the end of the prompt is still known
    ]
    assert store.fetchall("select max(n_running), max(n_prefill_tokens) from steps") == [(None, 0)]
    assert [kind for kind, *_ in phases(store)] == [kind for kind, *_ in WHOLE]


def test_times_beyond_belief(load: Load) -> None:
    rows = request("r1", trace="b" * 32, index=1)
    for row in rows:
        row["start_ns"] = 2**63 - 5
        row["end_ns"] = 2**63 - 1
    store = load([*request(), *rows])
    assert one(store, "select count(*) from requests") == 1
    assert one(store, "select n from quality where kind = 'bad_spans'") == 7


def test_an_id_that_all_share_is_no_id(load: Load) -> None:
    n = 120
    rows = [
        row
        for i in range(n)
        for row in request(f"r{i}", 100 * i, index=i, client=False, REQUEST_ID="same")
    ]
    for row in rows:
        if row["name"] == c.SPAN_ENGINE_REQUEST:
            row[c.REQUEST_ID] = "same"
    store = load(rows)
    assert store.fetchall(
        "select kind, count(*), min(end_ns - start_ns) = max(end_ns - start_ns) from phases "
        "group by 1 order by min(start_ns)"
    ) == [(kind, n, True) for kind, *_ in WHOLE[1:]]
