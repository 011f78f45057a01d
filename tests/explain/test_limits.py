"""Which limit kept the queue waiting: told, or inferred where something waited."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tokenlag.explain.limits import LimitInputs, find_bounds

NAN = float("nan")


def bounds(n: int = 4, **given: Any) -> tuple[list[Any], list[bool]]:
    plain: dict[str, Any] = {
        "n_waiting": 3.0, "n_running": 5.0, "n_tokens": 100.0, "kv_usage_frac": 0.2,
        "kv_reserved_frac": NAN, "told": None, "wall_ms": 10.0,
    }  # fmt: skip
    columns = {}
    for name, value in plain.items():
        value = given.pop(name, value)
        if name == "told":
            columns[name] = np.array(
                value if isinstance(value, list) else [value] * n, dtype=object
            )
        else:
            columns[name] = np.broadcast_to(np.asarray(value, dtype=np.float64), (n,)).copy()
    limits = {"max_seqs": np.inf, "max_batch_tokens": np.inf} | given
    bound, told = find_bounds(LimitInputs(**columns, **limits))
    return bound.tolist(), told.tolist()


def test_what_the_engine_told_is_believed() -> None:
    found, told = bounds(told=["kv", None, "none", "slots"], max_seqs=5.0)
    assert found == ["kv", "slots", "none", "slots"]
    assert told == [True, False, True, True]


@pytest.mark.parametrize(
    ("given", "bound"),
    [
        ({"max_seqs": 5.0}, "slots"),
        ({"kv_usage_frac": 0.96}, "kv"),
        ({"kv_reserved_frac": 0.99}, "kv"),
        ({"max_batch_tokens": 100.0}, "tokens"),
        ({"max_batch_tokens": 101.0}, "tokens"),
        ({}, "capacity"),
        ({"max_seqs": 6.0, "max_batch_tokens": 200.0}, "capacity"),
        ({"kv_usage_frac": NAN, "n_running": NAN, "max_seqs": 5.0}, "capacity"),
    ],
)
def test_inferred_from_what_is_full(given: dict[str, float], bound: str) -> None:
    assert bounds(**given) == ([bound] * 4, [False] * 4)


def test_slots_come_before_a_full_cache_and_that_before_a_full_budget() -> None:
    full = {"max_seqs": 5.0, "kv_usage_frac": 0.97, "max_batch_tokens": 100.0}
    assert bounds(**full)[0][0] == "slots"
    assert bounds(**full | {"max_seqs": np.inf})[0][0] == "kv"


@pytest.mark.parametrize("waiting", [0.0, NAN])
def test_where_nothing_waits_nothing_binds(waiting: float) -> None:
    assert bounds(n_waiting=waiting, max_seqs=5.0) == ([None] * 4, [False] * 4)


def test_an_unknown_slot_limit_shows_where_running_is_pinned() -> None:
    running = np.full(40, 8.0)
    assert set(bounds(40, n_running=running)[0]) == {"slots"}
    assert set(bounds(10, n_running=running[:10])[0]) == {"capacity"}, "too few to tell"
    wavering = 8.0 - np.arange(40) % 3
    assert set(bounds(40, n_running=wavering)[0]) == {"capacity"}
