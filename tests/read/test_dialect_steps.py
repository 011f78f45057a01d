"""The trace contract's engine steps, and what joins them to requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenlag.store.connection import Store
from tokenlag_tracer import conventions as c

from tests.read.contract_rows import ENGINE, EPOCH, STEPS, WHOLE, one, phases, request, step
from tests.read.span_rows import MS, T0, Row, load_rows, span

Load = Callable[..., Store]


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    with Store() as store:

        def run(rows: list[Row], dataset: int = 0) -> Store:
            load_rows(store, tmp_path, rows, dataset=dataset)
            return store

        yield run


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
    assert one(store, "select n from quality where kind = 'in_flight'") == 4


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
