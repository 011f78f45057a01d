"""What the maths needs of one engine epoch, fetched from the store."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tokenlag.explain import streams
from tokenlag.explain.arrays import Columns, Floats, Ints
from tokenlag.explain.sql import query
from tokenlag.store.connection import Store


@dataclass(frozen=True)
class Handles:
    """What is known of the handles that steps use: sorted by handle."""

    handle: Ints
    seq_key: Ints
    request_key: Ints
    name: npt.NDArray[np.object_]
    tenant: npt.NDArray[np.object_]
    n_new: Floats

    def at(self, handle: Ints) -> Ints:
        """Row of each handle, −1 where unknown."""
        if len(self.handle) == 0:
            return np.full(len(handle), -1, dtype=np.int64)
        where = np.minimum(np.searchsorted(self.handle, handle), len(self.handle) - 1)
        return np.where(self.handle[where] == handle, where, -1)

    def take(self, column: Ints, handle: Ints) -> Ints:
        """A key of each handle, −1 where unknown."""
        row = self.at(handle)
        return np.where(row >= 0, column[np.maximum(row, 0)] if len(column) else -1, -1)


@dataclass(frozen=True)
class Epoch:
    """Everything of one epoch that the maths needs."""

    key: int
    engine_id: str
    max_seqs: float
    max_batch_tokens: float
    columns: Columns
    steps: streams.Steps
    chunks: streams.Chunks
    runs: streams.Runs
    handles: Handles
    windows: list[tuple[str, int, int]]

    def window_of(self, ns: Ints) -> npt.NDArray[np.object_]:
        """The window of each instant, None outside all."""
        out = np.full(len(ns), None, dtype=object)
        for name, from_ns, to_ns in self.windows:
            out[(ns >= from_ns) & (ns < to_ns)] = name
        return out


def read_epoch(store: Store, key: int) -> Epoch:
    """Fetches one epoch's rows."""
    engine_id, max_seqs, max_tokens = store.fetchall(query("epoch"), [key])[0]
    columns = Columns(store, query("epoch_steps"), [key])
    steps = streams.Steps(
        index=columns.ints("step_index"),
        start_ns=columns.ints("start_ns"),
        end_ns=columns.ints("end_ns"),
        cadence_ms=columns.floats("cadence_ms"),
        n_prefill_tokens=columns.ints("n_prefill_tokens"),
        n_decode=columns.ints("n_decode"),
    )
    chunk = Columns(store, query("epoch_chunks"), [key])
    at = steps.position(chunk.ints("step_index"))
    held = at < len(steps.index)
    held[held] = steps.index[at[held]] == chunk.ints("step_index")[held]
    run = Columns(store, query("epoch_runs"), [key])
    first = steps.position(run.ints("first_step"))
    last = np.searchsorted(steps.index, run.ints("last_step"), side="right") - 1
    real = last >= first
    known = Columns(store, query("epoch_handles"), [key])
    order = np.argsort(known.ints("request_index"), kind="stable")
    return Epoch(
        key=key,
        engine_id=str(engine_id),
        max_seqs=float(max_seqs) if max_seqs else np.inf,
        max_batch_tokens=float(max_tokens) if max_tokens else np.inf,
        columns=columns,
        steps=steps,
        chunks=streams.Chunks(
            handle=chunk.ints("request_index")[held],
            position=at[held],
            n_tokens=chunk.ints("n_tokens")[held],
            n_context=chunk.ints("n_context", null=0)[held],
        ),
        runs=streams.Runs(
            run.ints("request_index")[real], first[real], last[real].astype(np.int64)
        ),
        handles=Handles(
            handle=known.ints("request_index")[order],
            seq_key=known.ints("seq_key")[order],
            request_key=known.ints("request_key")[order],
            name=known.objects("request_id")[order],
            tenant=known.objects("tenant")[order],
            n_new=known.floats("n_new")[order],
        ),
        windows=[
            (str(n), int(a), int(b)) for n, a, b in store.fetchall(query("epoch_windows"), [key])
        ],
    )
