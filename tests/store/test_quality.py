"""Facts about what the traces lack, on tables filled by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tokenlag.store.connection import Store

MS = 1_000_000
N_STEPS = 200


@pytest.fixture
def store() -> Iterator[Store]:
    with Store() as opened:
        yield opened


def assess(store: Store) -> dict[str, tuple[Any, ...]]:
    store.run_script("tokenlag.store", "quality.sql", {"dataset": 0})
    return {
        kind: rest
        for kind, *rest in store.fetchall("select kind, place, n, share_frac, text from quality")
    }


def epoch(store: Store, key: int = 0, **more: Any) -> None:
    told = {
        "epoch_key": key,
        "dataset": 0,
        "engine_id": "e0",
        "start_ns": 0,
        "end_ns": N_STEPS * MS,
    }
    store.insert("epochs", {name: [value] for name, value in (told | more).items()})


def steps(store: Store, indexes: list[int], n_running: int = 3, key: int = 0) -> None:
    n = len(indexes)
    store.insert(
        "steps",
        {
            "epoch_key": [key] * n,
            "step_index": indexes,
            "start_ns": [i * MS for i in indexes],
            "end_ns": [(i + 1) * MS for i in indexes],
            "cadence_ms": [1.0] * n,
            "idle_ms": [0.0] * n,
            **{
                name: [0] * n
                for name in ("n_prefill_tokens", "n_chunks", "n_new_tokens", "n_preempted")
            },
            "attention_work": [0.0] * n,
            "n_decode": [n_running] * n,
            "n_running": [n_running] * n,
            "is_after_hole": [False] * n,
        },
    )


def requests(store: Store, n: int, n_running: int = 3, **more: list[Any]) -> None:
    """`n` requests that run side by side from the first step to the last."""
    keys = list(range(n))
    told = {
        "request_key": keys,
        "dataset": [0] * n,
        "dialects": ["contract"] * n,
        "arrival_ns": [0] * n,
        "end_ns": [N_STEPS * MS] * n,
        "is_aborted": [False] * n,
        "is_open": [False] * n,
        "is_prefill_only": [False] * n,
        "weight": [1.0] * n,
    }
    store.insert("requests", told | more)
    store.insert(
        "sequences",
        {
            "seq_key": keys,
            "request_key": keys,
            "epoch_key": [0] * n,
            "start_ns": [0] * n,
            "end_ns": [N_STEPS * MS] * n,
        },
    )
    store.insert(
        "chunks",
        {
            "epoch_key": [0] * n,
            "step_index": [0] * n,
            "seq_key": keys,
            "request_index": keys,
            "n_tokens": [9] * n,
        },
    )
    store.insert(
        "phases",
        {
            "request_key": keys,
            "kind": ["decode"] * n,
            "start_ns": [0] * n,
            "end_ns": [N_STEPS * MS] * n,
            "origin": ["measured"] * n,
        },
    )


def test_nothing_to_say(store: Store) -> None:
    epoch(store)
    steps(store, list(range(N_STEPS)))
    requests(store, 3)
    assert assess(store) == {}


def test_an_empty_store_has_nothing_to_say(store: Store) -> None:
    assert assess(store) == {}


def test_littles_law_notices_requests_without_spans(store: Store) -> None:
    epoch(store)
    steps(store, list(range(N_STEPS)), n_running=4)
    requests(store, 3)
    place, n, share, text = assess(store)["little_law"]
    assert (place, n) == ("e0", N_STEPS)
    assert share == pytest.approx(0.25)
    assert "4.0 running" in text
    assert "3.0" in text


def test_littles_law_counts_sampled_requests_by_their_weight(store: Store) -> None:
    epoch(store)
    steps(store, list(range(N_STEPS)), n_running=30)
    requests(store, 3, weight=[10.0] * 3)
    found = assess(store)
    assert "little_law" not in found
    assert found["sampled"][1:3] == [3, 1.0]
    assert "stand for 30" in found["sampled"][3]


def test_littles_law_says_nothing_about_a_few_steps(store: Store) -> None:
    epoch(store)
    steps(store, list(range(50)), n_running=4)
    requests(store, 1)
    assert "little_law" not in assess(store)


def test_littles_law_leaves_out_pauses_that_no_sequence_runs_through(store: Store) -> None:
    """One request after the other, each a step of 1 ms, and 9 ms in which nobody is there."""
    epoch(store, end_ns=(10 * N_STEPS - 9) * MS)
    steps(store, list(range(N_STEPS)), n_running=1)
    store.execute(
        "update steps set start_ns = start_ns * 10, end_ns = start_ns * 10 + 1_000_000, "
        "idle_ms = case when step_index > 0 then 9 end"
    )
    keys = list(range(N_STEPS))
    store.insert(
        "sequences",
        {
            "seq_key": keys,
            "epoch_key": [0] * N_STEPS,
            "start_ns": [10 * i * MS for i in keys],
            # Noticed a little after the step that was its last.
            "end_ns": [10 * i * MS + MS + 50_000 for i in keys],
        },
    )
    chunks = {"seq_key": keys, "step_index": keys, "request_index": keys}
    same = {"epoch_key": [0] * N_STEPS, "n_tokens": [9] * N_STEPS}
    store.insert("chunks", chunks | same)
    assert "little_law" not in assess(store)
    store.execute("update steps set n_running = 2")
    place, _, share, text = assess(store)["little_law"]
    assert (place, share) == ("e0", pytest.approx(0.5))
    assert "2.0 running" in text
    assert "1.0;" in text


def test_littles_law_counts_pauses_that_sequences_run_through(store: Store) -> None:
    """The host needs 4 ms between two steps while three requests wait for it."""
    epoch(store, end_ns=(5 * N_STEPS - 4) * MS)
    steps(store, list(range(N_STEPS)), n_running=4)
    store.execute(
        "update steps set start_ns = start_ns * 5, end_ns = start_ns * 5 + 1_000_000, "
        "idle_ms = case when step_index > 0 then 4 end"
    )
    requests(store, 3)
    store.execute("update sequences set end_ns = end_ns * 5")
    _, _, share, text = assess(store)["little_law"]
    assert share == pytest.approx(0.25)
    assert "4.0 running" in text
    assert "3.0;" in text


def test_lost_and_skipped_steps(store: Store) -> None:
    epoch(store, n_dropped=20, n_skipped=7)
    steps(store, [i for i in range(N_STEPS) if not 100 <= i < 150])
    requests(store, 3)
    found = assess(store)
    assert found["lost_steps"][:3] == ["e0", 50, 0.25]
    assert "7 out by choice" in found["lost_steps"][3]
    assert found["dropped_steps"][1] == 20


def test_a_request_without_phases_and_one_with_a_hole(store: Store) -> None:
    epoch(store)
    steps(store, list(range(N_STEPS)))
    requests(store, 3)
    store.execute("delete from phases where request_key = 2")
    store.execute(
        "insert into phases (request_key, kind, start_ns, end_ns, origin) values "
        "(2, 'uncovered', 0, 200_000_000, 'derived'), (1, 'uncovered', 0, 100, 'derived')"
    )
    found = assess(store)
    assert found["no_phases"][1:3] == [1, pytest.approx(1 / 3)]
    assert found["uncovered"][1] == 2
    assert found["uncovered"][2] == pytest.approx(1 / 3, rel=1e-3)
    assert "p99" in found["uncovered"][3]


def test_the_other_dataset_is_not_counted(store: Store) -> None:
    epoch(store, dataset=1, n_dropped=9)
    steps(store, [0, 5])
    assert assess(store) == {}


# --- in flight at the end of the data -----------------------------------------------------------


def streams(store: Store, members: dict[int, tuple[int, int]], known: list[int]) -> None:
    """Who decodes in which steps, by handle; those in `known` have a sequence of that key."""
    store.insert(
        "memberships",
        {
            "epoch_key": [0] * len(members),
            "seq_key": [handle if handle in known else None for handle in members],
            "request_index": list(members),
            "first_step": [first for first, _ in members.values()],
            "last_step": [last for _, last in members.values()],
        },
    )


def prompts(store: Store, at: dict[int, int]) -> None:
    """Prompt chunks of handles without a sequence: the step of each."""
    n = len(at)
    told = {"epoch_key": [0] * n, "step_index": list(at.values()), "request_index": list(at)}
    store.insert("chunks", told | {"n_tokens": [9] * n})


def test_what_runs_when_the_data_end_is_in_flight_and_not_lost(store: Store) -> None:
    epoch(store)
    steps(store, list(range(N_STEPS)), n_running=4)
    requests(store, 3)
    # A fourth, without a span yet, runs beside them to the last step.
    streams(store, {0: (1, 199), 1: (1, 199), 2: (1, 199), 7: (1, 199)}, known=[0, 1, 2])
    prompts(store, {7: 0})
    found = assess(store)
    assert set(found) == {"in_flight"}
    assert found["in_flight"][:3] == ["e0", 1, 0.25]


def test_what_ended_before_the_data_and_has_no_span_is_lost(store: Store) -> None:
    epoch(store)
    steps(store, list(range(N_STEPS)), n_running=4)
    requests(store, 3)
    streams(store, {0: (1, 199), 1: (1, 199), 2: (1, 199), 7: (1, 150)}, known=[0, 1, 2])
    found = assess(store)
    assert "in_flight" not in found
    assert found["unknown_handles"][:3] == ["e0", 1, 0.25]
    assert found["little_law"][2] == pytest.approx(0.25)


def test_an_engine_that_fell_silent_lost_what_it_had(store: Store) -> None:
    """Another engine's data go on for eleven seconds."""
    epoch(store)
    epoch(store, key=1, engine_id="e1", end_ns=(N_STEPS + 11_000) * MS)
    steps(store, list(range(N_STEPS)), n_running=1)
    streams(store, {7: (1, 199)}, known=[])
    found = assess(store)
    assert "in_flight" not in found
    assert found["unknown_handles"][:3] == ["e0", 1, 1.0]


def test_an_unfinished_prompt_is_in_flight_and_more_than_steps_count_are_lost(store: Store) -> None:
    epoch(store)
    steps(store, list(range(N_STEPS)), n_running=4)
    store.execute("update steps set n_decode = 3")
    requests(store, 3)
    streams(store, {0: (1, 199), 1: (1, 199), 2: (1, 199)}, known=[0, 1, 2])
    # One prompt is being computed at the end, as the last step counts; two came out and are gone.
    prompts(store, {7: 199, 8: 120, 9: 50})
    found = assess(store)
    assert found["in_flight"][1] == 1
    assert found["unknown_handles"][1] == 2


def test_what_was_put_back_to_the_queue_and_not_taken_again_is_in_flight(store: Store) -> None:
    epoch(store)
    steps(store, list(range(N_STEPS)))
    requests(store, 3)
    streams(store, {0: (1, 199), 1: (1, 199), 2: (1, 199), 7: (1, 150)}, known=[0, 1, 2])
    put_back = {"epoch_key": [0], "step_index": [151], "request_index": [7]}
    store.insert("preemptions", put_back)
    found = assess(store)
    assert found["in_flight"][1] == 1
    assert "unknown_handles" not in found


def test_a_sequence_that_computes_no_prompt_runs_from_its_first_decode_step(store: Store) -> None:
    """A decode engine, whose requests' prompts ran on another one."""
    epoch(store)
    steps(store, list(range(N_STEPS)))
    requests(store, 3)
    store.execute("delete from chunks")
    streams(store, {0: (0, 199), 1: (0, 199), 2: (0, 199)}, known=[0, 1, 2])
    assert assess(store) == {}
    store.execute("update steps set n_running = 6")
    assert assess(store)["little_law"][2] == pytest.approx(0.5)


def test_littles_law_notices_what_is_counted_twice(store: Store) -> None:
    epoch(store)
    steps(store, list(range(N_STEPS)), n_running=2)
    requests(store, 3)
    assert assess(store)["little_law"][2] == pytest.approx(0.5)
