"""The blame of one engine epoch, into `blame`, `blame_victims` and its requests' waits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tokenlag.explain import blame, streams
from tokenlag.explain.arrays import Columns, Floats, Ints, nullable, nullable_keys
from tokenlag.explain.epoch import Epoch
from tokenlag.explain.sql import query
from tokenlag.store.connection import Store

MAX_CULPRITS_WITH_VICTIMS = 20
MAX_CULPRITS_WITH_MEDIAN = 1000
MAX_VICTIMS = 50


def write_stream_blame(
    store: Store, epoch: Epoch, found: streams.Streams, held: Floats, share: Floats
) -> None:
    """Writes what prompts cost streams: `held` by step, `share` by chunk."""
    known = np.nan_to_num(held, nan=0.0)
    culprits = blame.blame_streams(epoch.steps, epoch.chunks, found, known, share)
    guilty = np.flatnonzero(culprits.effect_ms > 0)
    worst = guilty[np.argsort(-culprits.effect_ms[guilty])]
    tokens = epoch.handles.n_new[np.maximum(epoch.handles.at(found.alive_handle), 0)]
    tokens[epoch.handles.at(found.alive_handle) < 0] = np.nan
    median = np.full(len(culprits.handle), np.nan)
    for c in worst[:MAX_CULPRITS_WITH_MEDIAN].tolist():
        hit = (found.alive_first < culprits.last[c]) & (found.alive_last >= culprits.first[c])
        beside = tokens[hit & (found.alive_handle != culprits.handle[c]) & np.isfinite(tokens)]
        median[c] = float(np.median(beside)) if len(beside) else np.nan
    for c in worst[:MAX_CULPRITS_WITH_VICTIMS].tolist():
        victims, ms = blame.victims_of(int(culprits.handle[c]), epoch.chunks, found, known, share)
        _write_victims(store, epoch, "stream", culprits, c, victims, ms)
    mixed = culprits.n_mixed_steps * 2 >= culprits.n_steps
    _insert_blame(
        store, epoch, "stream", culprits.handle[guilty], culprits.n_tokens[guilty],
        culprits.n_victims[guilty], culprits.effect_ms[guilty], culprits.hold_ms[guilty],
        culprits.worst_gap_ms[guilty], median[guilty], culprits.first[guilty],
        culprits.last[guilty], culprits.n_steps[guilty],
        np.where(mixed[guilty], "mixed", "prefill_first").astype(object),
    )  # fmt: skip


def _write_victims(
    store: Store,
    epoch: Epoch,
    kind: str,
    culprits: blame.Culprits,
    c: int,
    victims: Ints,
    ms: Floats,
) -> None:
    keep = np.argsort(-ms)[:MAX_VICTIMS]
    victims, ms = victims[keep], ms[keep]
    window = epoch.window_of(epoch.steps.end_ns[culprits.last[c : c + 1]])[0]
    if window is None:
        return
    culprit = epoch.handles.take(epoch.handles.seq_key, culprits.handle[c : c + 1])
    store.insert(
        "blame_victims",
        {
            "kind": np.full(len(ms), kind, dtype=object),
            "window_name": np.full(len(ms), window, dtype=object),
            "culprit_seq_key": nullable_keys(np.repeat(culprit, len(ms))),
            "victim_key": nullable_keys(epoch.handles.take(epoch.handles.request_key, victims)),
            "victim_id": _names(epoch, victims),
            "held_ms": ms,
        },
    )


def _names(epoch: Epoch, handle: Ints) -> npt.NDArray[np.object_]:
    rows = epoch.handles.at(handle)
    named = [
        epoch.handles.name[r] if r >= 0 and epoch.handles.name[r] else f"#{h}"
        for r, h in zip(rows.tolist(), handle.tolist(), strict=True)
    ]
    out = np.empty(len(named), dtype=object)
    out[:] = named
    return out


def _insert_blame(
    store: Store,
    epoch: Epoch,
    kind: str,
    handle: Ints,
    n_tokens: Ints,
    n_victims: Ints,
    effect_ms: Floats,
    hold: Floats,
    worst: Floats,
    median: Floats,
    first: Ints,
    last: Ints,
    n_steps: Ints,
    mode: npt.NDArray[np.object_],
) -> None:
    window = epoch.window_of(epoch.steps.end_ns[last])
    rows = epoch.handles.at(handle)
    tenant = np.array(
        [epoch.handles.tenant[r] if r >= 0 else None for r in rows.tolist()], dtype=object
    )
    inside = window != None  # noqa: E711
    lengths = blame.prompt_lengths(epoch.chunks)
    store.insert(
        "blame",
        {
            "kind": np.full(int(inside.sum()), kind, dtype=object),
            "window_name": window[inside],
            "epoch_key": np.full(int(inside.sum()), epoch.key),
            "culprit_key": nullable_keys(
                epoch.handles.take(epoch.handles.request_key, handle)[inside]
            ),
            "culprit_seq_key": nullable_keys(
                epoch.handles.take(epoch.handles.seq_key, handle)[inside]
            ),
            "culprit_id": _names(epoch, handle)[inside],
            "culprit_tenant": tenant[inside],
            "n_tokens": n_tokens[inside],
            "n_prompt": np.array([lengths.get(h, 0) for h in handle[inside].tolist()]),
            "n_victims": n_victims[inside],
            "effect_ms": effect_ms[inside],
            "hold_ms": hold[inside],
            "worst_gap_ms": nullable(worst[inside]),
            "victim_median_tokens": nullable(median[inside]),
            "from_ns": epoch.steps.start_ns[first[inside]],
            "to_ns": epoch.steps.end_ns[last[inside]],
            "n_steps": n_steps[inside],
            "mode": mode[inside],
        },
    )


def write_queue_blame(
    store: Store,
    epoch: Epoch,
    share: Floats,
    held: Floats,
    may_charge: npt.NDArray[np.bool_],
) -> None:
    """Writes what long prompts cost waiting requests, and those requests' `behind_*`."""
    wait = Columns(store, query("epoch_waits"), [epoch.key])
    waits = blame.Waits(
        wait.ints("request_index"), wait.ints("start_ns"), wait.ints("end_ns"), wait.floats("n_new")
    )
    known = np.nan_to_num(held, nan=0.0)
    result = blame.blame_queue(epoch.steps, epoch.chunks, share, known, may_charge, waits)
    if len(result.culprit):
        of = {int(h): np.flatnonzero(epoch.chunks.handle == h) for h in result.culprit.tolist()}
        first = np.array([epoch.chunks.position[of[h]].min() for h in result.culprit.tolist()])
        last = np.array([epoch.chunks.position[of[h]].max() for h in result.culprit.tolist()])
        _insert_blame(
            store, epoch, "queue", result.culprit,
            np.array([int(epoch.chunks.n_tokens[of[h]].sum()) for h in result.culprit.tolist()]),
            result.n_victims, result.effect_ms, result.worst_ms, result.worst_ms,
            result.median_victim_tokens, first, last,
            np.array([len(of[h]) for h in result.culprit.tolist()]),
            np.full(len(result.culprit), None, dtype=object),
        )  # fmt: skip
    hit = result.behind_ms > 0
    if hit.any():
        store.execute(query("behind_table"))
        store.insert(
            "behind",
            {
                "request_key": epoch.handles.take(epoch.handles.request_key, waits.handle[hit]),
                "behind_ms": result.behind_ms[hit],
                "behind_key": nullable_keys(
                    epoch.handles.take(epoch.handles.request_key, result.behind_handle[hit])
                ),
            },
        )
        store.run_script("tokenlag.explain.sql", "behind.sql")
