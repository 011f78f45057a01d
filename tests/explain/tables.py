"""Rows by hand into a store, with the columns that a test does not care about filled in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenlag.store.connection import Store

MS = 1_000_000

PLAIN: Mapping[str, Mapping[str, Any]] = {
    "windows": {"dataset": 0, "from_ns": 0, "to_ns": 100_000 * MS, "origin": "given"},
    "epochs": {"dataset": 0, "engine_id": "e0"},
    "requests": {
        "dataset": 0, "dialects": "contract", "weight": 1.0,
    },
    "request_facts": {
        "window_name": "current", "arrival_ns": 0, "weight": 1.0,
    },
    "phases": {"origin": "measured"},
    "steps": {
        "epoch_key": 0, "cadence_ms": 10.0, "n_prefill_tokens": 0, "n_chunks": 0,
        "attention_work": 0.0, "n_decode": 1, "n_new_tokens": 1, "n_preempted": 0,
    },
    "step_costs": {
        "epoch_key": 0, "window_name": "current", "wall_ms": 10.0, "cadence_ms": 10.0,
        "start_ns": 0, "end_ns": 0, "n_prefill_tokens": 0, "n_decode": 1, "n_streams": 1,
        "is_bound_told": True,
    },
    "demand": {"span_s": 100.0, "n_requests": 100.0},
    "gaps": {
        "epoch_key": 0, "window_name": "current", "from_step": 0, "to_step": 1, "end_ns": 0,
        "n_streams": 1,
    },
}  # fmt: skip


def add(store: Store, table: str, *rows: Mapping[str, Any]) -> None:
    """Insert rows; what they leave out is `PLAIN`, else false for a flag, else NULL."""
    flags = store.fetchall(
        "select column_name from duckdb_columns() "
        "where table_name = ? and data_type = 'BOOLEAN' and not is_nullable",
        [table],
    )
    plain = dict.fromkeys((name for (name,) in flags), False) | dict(PLAIN.get(table, {}))
    full = [plain | dict(row) for row in rows]
    names = sorted({name for row in full for name in row})
    store.insert(table, {name: [row.get(name) for row in full] for name in names})
