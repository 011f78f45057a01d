"""The queries from canonical to derived tables: small tables, and the rows they must give."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from tokenlag.explain.run import prepare
from tokenlag.explain.sql import query
from tokenlag.store.connection import Store

from tests.explain.tables import MS, add


@pytest.fixture
def store() -> Iterator[Store]:
    with Store() as opened:
        prepare(opened)
        yield opened


def run(store: Store, name: str, select: str) -> list[tuple[Any, ...]]:
    store.execute(query(name))
    return store.fetchall(select)


# --- facts ------------------------------------------------------------------------------------


def request(key: int, arrival_ms: int, **more: Any) -> dict[str, Any]:
    return {"request_key": key, "arrival_ns": arrival_ms * MS, "end_ns": None} | more


def phase(key: int, kind: str, start: int, end: int, **more: Any) -> dict[str, Any]:
    told = {"request_key": key, "kind": kind, "start_ns": start * MS, "end_ns": end * MS}
    return told | more


def test_a_request_is_in_the_window_of_its_arrival(store: Store) -> None:
    add(
        store, "windows",
        {"name": "baseline", "from_ns": 0, "to_ns": 100 * MS},
        {"name": "current", "from_ns": 100 * MS, "to_ns": 200 * MS},
    )  # fmt: skip
    add(store, "requests", *(request(k, at) for k, at in enumerate((0, 99, 100, 199, 200))))
    add(store, "requests", request(9, 150, dataset=1))
    assert run(store, "facts", "select request_key, window_name from request_facts order by 1") == [
        (0, "baseline"),
        (1, "baseline"),
        (2, "current"),
        (3, "current"),
    ]


def test_phases_of_a_kind_sum_and_what_was_not_told_is_null(store: Store) -> None:
    add(store, "windows", {"name": "current"})
    add(store, "requests", request(1, 0, end_ns=100 * MS), request(2, 5))
    add(
        store, "phases",
        phase(1, "frontend", 0, 5), phase(1, "frontend", 5, 7), phase(1, "queue", 7, 20),
        phase(1, "prefill", 20, 50), phase(1, "requeue", 60, 65), phase(1, "prefill", 65, 70),
        phase(1, "decode", 50, 60), phase(1, "decode", 70, 98), phase(1, "uncovered", 98, 100),
    )  # fmt: skip
    columns = (
        "network_in_ms, frontend_ms, queue_ms, requeue_ms, prefill_ms, decode_ms, delivery_ms, "
        "uncovered_ms"
    )
    rows = run(store, "facts", f"select {columns} from request_facts order by request_key")
    assert rows == [(None, 7, 13, 5, 35, 38, None, 2), (None,) * 8]
    assert sum(v for v in rows[0] if v is not None) == 100


def test_a_prefill_that_may_hold_the_queue_says_nothing_of_prefill(store: Store) -> None:
    add(store, "windows", {"name": "current"})
    add(store, "requests", request(1, 0))
    add(store, "phases", phase(1, "prefill", 0, 30, detail="includes queue"))
    assert run(store, "facts", "select prefill_ms from request_facts") == [(None,)]


def test_new_tokens_are_the_prompt_without_what_was_cached(store: Store) -> None:
    add(store, "windows", {"name": "current"})
    add(
        store, "requests",
        request(1, 0, n_prompt=100, n_cached=64), request(2, 0, n_prompt=100),
        request(3, 0), request(4, 0, n_prompt=10, n_cached=16),
    )  # fmt: skip
    got = run(store, "facts", "select n_new from request_facts order by request_key")
    assert got[:2] == [(36,), (100,)]
    assert got[3] == (0,)


def test_a_prompt_of_unknown_length_has_unknown_new_tokens(store: Store) -> None:
    add(store, "windows", {"name": "current"})
    add(store, "requests", request(1, 0))
    assert run(store, "facts", "select n_new from request_facts") == [(None,)]


def test_the_last_sequence_to_finish_decides(store: Store) -> None:
    add(store, "windows", {"name": "current"})
    add(store, "epochs", {"epoch_key": 0}, {"epoch_key": 1, "engine_id": "e1"})
    add(store, "requests", request(1, 0), request(2, 0))
    add(
        store, "sequences",
        {"seq_key": 10, "request_key": 1, "epoch_key": 0, "end_ns": 50},
        {"seq_key": 11, "request_key": 1, "epoch_key": 1, "end_ns": 60},
        {"seq_key": 12, "request_key": 2, "epoch_key": 1, "end_ns": 60},
        {"seq_key": 13, "request_key": 2, "epoch_key": 0, "end_ns": None},
    )  # fmt: skip
    assert run(
        store, "facts", "select seq_key, engine_id from request_facts order by request_key"
    ) == [(11, "e1"), (13, "e0")]


# --- demand and growth ------------------------------------------------------------------------


def test_demand_weighs_requests_and_leaves_out_what_was_not_told(store: Store) -> None:
    add(store, "windows", {"name": "current", "to_ns": 10_000 * MS})
    add(
        store, "request_facts",
        {"request_key": 1, "n_prompt": 100, "n_new": 50, "n_cached": 50, "n_output": 11,
         "prefill_ms": 5.0, "decode_ms": 100.0, "weight": 3.0},
        {"request_key": 2, "n_prompt": 300, "n_new": 300, "n_cached": 0, "n_output": 1,
         "prefill_ms": 60.0, "weight": 1.0},
        {"request_key": 3, "weight": 1.0},
    )  # fmt: skip
    [row] = run(
        store, "demand",
        "select n_requests, requests_per_s, mean_prompt, mean_new, mean_cached_frac, mean_output, "
        "prefill_ms_per_token, itl_ms from demand",
    )  # fmt: skip
    assert row == pytest.approx((5.0, 0.5, 150.0, 112.5, 150 / 600, 34 / 4, (0.1 + 0.2) / 2, 10.0))


def test_demand_of_steps_is_over_steps_of_the_window(store: Store) -> None:
    add(store, "windows", {"name": "current", "to_ns": 100 * MS})
    add(store, "request_facts", {"request_key": 1})
    add(
        store, "steps",
        {"step_index": 0, "start_ns": 0, "end_ns": 10, "n_running": 2, "n_waiting": 0},
        {"step_index": 1, "start_ns": 10, "end_ns": 40, "n_running": 6, "n_waiting": 4},
    )  # fmt: skip
    add(
        store, "step_costs",
        {"step_index": 0, "n_decode": 2, "cadence_ms": 10.0, "wall_ms": 10.0, "prefill_ms": 0.0},
        {"step_index": 1, "n_decode": 6, "cadence_ms": 30.0, "wall_ms": 30.0, "prefill_ms": 20.0},
    )  # fmt: skip
    [row] = run(
        store, "demand",
        "select mean_batch, prefill_share_frac, busy_frac, mean_running, mean_waiting from demand",
    )  # fmt: skip
    # A token sees the batch it is in: (2·2 + 6·6) ÷ 8.
    assert row == pytest.approx((5.0, 0.5, 0.4, 5.0, 3.0))


def both_windows(store: Store, now: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    plain = {
        "requests_per_s": 1.0, "mean_prompt": 100.0, "mean_new": 100.0, "mean_output": 50.0,
        "prefill_ms_per_token": 0.1, "prefill_share_frac": 0.5,
    }  # fmt: skip
    add(
        store, "demand",
        plain | {"window_name": "current"} | now, plain | {"window_name": "baseline"} | before,
    )  # fmt: skip
    rows = run(store, "growth", "select factor, log_growth, share_frac from growth")
    return {factor: (log, share) for factor, log, share in rows}


@pytest.mark.parametrize(
    ("now", "factor", "weight"),
    [
        ({"requests_per_s": 2.0}, "arrivals", 1.0),
        ({"mean_prompt": 200.0, "mean_new": 200.0}, "prompts", 0.5),
        ({"mean_new": 200.0}, "cache", 0.5),
        ({"mean_output": 100.0}, "outputs", 0.5),
        ({"prefill_ms_per_token": 0.2}, "speed", 0.5),
    ],
)
def test_what_alone_grew_has_all_the_growth(
    store: Store, now: dict[str, Any], factor: str, weight: float
) -> None:
    got = both_windows(store, now, {})
    assert got[factor] == pytest.approx((weight * math.log(2), 1.0))
    assert {name for name, (log, _) in got.items() if abs(log) > 1e-12} == {factor}


def test_shares_of_growth_sum_to_one_and_what_shrank_has_none(store: Store) -> None:
    now = {"requests_per_s": 3.0, "mean_prompt": 50.0, "mean_new": 50.0, "mean_output": 80.0}
    got = both_windows(store, now, {})
    assert sum(share for _, share in got.values()) == pytest.approx(1.0)
    assert got["prompts"] == (pytest.approx(-0.5 * math.log(2)), 0.0)


def test_without_growth_shares_are_zero(store: Store) -> None:
    assert {share for _, share in both_windows(store, {}, {}).values()} == {0.0}


def test_a_limit_counts_as_far_as_it_fell(store: Store) -> None:
    add(store, "epochs", {"epoch_key": 0, "max_seqs": 64}, {"epoch_key": 1, "max_seqs": 16})
    add(
        store, "request_facts",
        {"request_key": 1, "window_name": "baseline", "epoch_key": 0},
        {"request_key": 2, "epoch_key": 1},
    )  # fmt: skip
    assert both_windows(store, {}, {})["limit"] == pytest.approx((math.log(4), 1.0))


# --- reuse ------------------------------------------------------------------------------------


def turn(key: int, of: str | None, n_prompt: int, n_cached: int | None, **more: Any):
    told = {"request_key": key, "conversation_id": of, "arrival_ns": key}
    return told | {"n_prompt": n_prompt, "n_cached": n_cached} | more


def test_a_turn_can_share_the_longest_prompt_before_it(store: Store) -> None:
    add(
        store, "request_facts",
        turn(1, "a", 100, 0), turn(2, "a", 300, 96), turn(3, "a", 200, 200), turn(4, "b", 500, 0),
        turn(5, None, 100, 0), turn(6, "a", 900, None), turn(7, "a", 700, 0),
        turn(8, "a", 800, 0, window_name="baseline"),
    )  # fmt: skip
    assert run(
        store, "reuse",
        "select request_key, group_id, turn, n_reusable, n_cached from reuse order by 1",
    ) == [(2, "a", 1, 100, 96), (3, "a", 2, 200, 200), (7, "a", 3, 300, 0)]  # fmt: skip


# --- ghosts -----------------------------------------------------------------------------------


def engine(store: Store, n: int = 3, each_ms: int = 100) -> None:
    """`n` requests whose streams run for `each_ms`, one after another, in steps of 10 ms."""
    add(store, "windows", {"name": "current", "to_ns": 10_000 * MS})
    add(store, "epochs", {"epoch_key": 0})
    add(
        store, "steps",
        *({"step_index": i, "start_ns": i * 10 * MS, "end_ns": (i + 1) * 10 * MS}
          for i in range(600)),
    )  # fmt: skip
    per = each_ms // 10
    add(
        store,
        "requests",
        *(request(k, k * each_ms, end_ns=(k + 1) * each_ms * MS) for k in range(n)),
    )
    add(
        store, "sequences",
        *({"seq_key": k, "request_key": k, "epoch_key": 0, "request_index": k,
           "end_ns": (k + 1) * each_ms * MS} for k in range(n)),
    )  # fmt: skip
    add(
        store, "memberships",
        *({"epoch_key": 0, "seq_key": k, "request_index": k, "first_step": k * per,
           "last_step": (k + 1) * per - 1} for k in range(n)),
    )  # fmt: skip


GHOSTS = "select request_index, reason, held_ms, n_tokens from ghosts order by 1"


def test_where_every_stream_has_its_request_there_is_no_ghost(store: Store) -> None:
    engine(store)
    assert run(store, "ghosts", GHOSTS) == []


def test_a_stream_that_nothing_tells_of_and_that_runs_far_longer_is_one(store: Store) -> None:
    engine(store)
    ghost = {"epoch_key": 0, "request_index": 77, "first_step": 0, "last_step": 99}
    short = {"epoch_key": 0, "request_index": 78, "first_step": 0, "last_step": 25}
    add(store, "memberships", ghost, short)
    assert run(store, "ghosts", GHOSTS) == [(77, "never told of", 1000.0, 100)]


def test_a_sequence_that_outlives_its_request_is_one_from_then_on(store: Store) -> None:
    engine(store)
    store.execute("update sequences set end_ns = ? where seq_key = 2", [4300 * MS])
    store.execute("update memberships set last_step = 429 where seq_key = 2")
    assert run(store, "ghosts", GHOSTS) == [(2, "outlives its request", 4000.0, 410)]


def test_a_client_that_gave_up_before_the_server_noticed(store: Store) -> None:
    engine(store)
    store.execute("update requests set client_end_ns = end_ns - 10000000 where request_key = 2")
    assert run(store, "ghosts", GHOSTS) == [], "within a second"


def test_without_a_front_end_nobody_can_be_seen_to_be_missing(store: Store) -> None:
    engine(store)
    store.execute("update sequences set request_key = null")
    ghost = {"epoch_key": 0, "request_index": 77, "first_step": 0, "last_step": 99}
    add(store, "memberships", ghost)
    assert run(store, "ghosts", GHOSTS) == []


# --- binding ----------------------------------------------------------------------------------

BINDING = "select bound, basis, share_frac, n_pinned from binding"


def waiting(
    store: Store, n: int = 40, slots: int = 2, service_ms: int = 10, every_ms: int = 2
) -> None:
    """Requests at an engine with so many slots, each in line until one is free."""
    free = [0] * slots
    rows = []
    for key in range(n):
        arrival = key * every_ms
        free.sort()
        start = max(arrival, free[0])
        free[0] = start + service_ms
        rows.append({
            "request_key": key, "arrival_ns": arrival * MS, "end_ns": free[0] * MS,
            "queue_ms": float(start - arrival),
        })  # fmt: skip
    add(store, "request_facts", *rows)


def test_the_bound_under_which_most_was_waited_is_named(store: Store) -> None:
    waiting(store)
    add(
        store, "step_costs",
        {"step_index": 0, "bound": "slots", "n_waiting": 2, "wall_ms": 30.0},
        {"step_index": 1, "bound": "tokens", "n_waiting": 5, "wall_ms": 10.0},
        {"step_index": 2, "bound": "none", "n_waiting": 90, "wall_ms": 90.0},
        {"step_index": 3, "bound": "kv", "n_waiting": 0, "wall_ms": 900.0},
    )  # fmt: skip
    assert run(store, "binding", BINDING) == [
        ("slots", "told by the engine", pytest.approx(60 / 110), 2)
    ]


def test_what_was_inferred_from_steps_says_so(store: Store) -> None:
    waiting(store)
    add(
        store, "step_costs",
        {"step_index": 0, "bound": "kv", "n_waiting": 2, "is_bound_told": False},
    )  # fmt: skip
    assert run(store, "binding", BINDING)[0][:2] == ("kv", "inferred from steps")


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_from_requests_alone_a_pinned_number_is_the_slot_limit(store: Store, slots: int) -> None:
    waiting(store, n=60, slots=slots, every_ms=1)
    [(bound, basis, share, pinned)] = run(store, "binding", BINDING)
    assert (bound, basis, pinned) == ("slots", "inferred from concurrency", slots)
    assert share >= 0.8


def test_a_few_waits_are_not_a_slot_limit(store: Store) -> None:
    waiting(store, n=12)
    [(bound, _, _, pinned)] = run(store, "binding", BINDING)
    assert (bound, pinned) == ("capacity", None)


def test_where_nobody_waited_nothing_binds(store: Store) -> None:
    waiting(store, every_ms=50)
    assert run(store, "binding", BINDING) == []
