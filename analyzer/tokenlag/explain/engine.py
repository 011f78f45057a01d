"""One engine epoch at a time: model, step costs, gaps and blame, from and to the store."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tokenlag.explain import blame, limits, stepmodel, streams
from tokenlag.explain.arrays import Columns, Floats, Ints, nullable, nullable_keys
from tokenlag.explain.sql import query
from tokenlag.store.connection import Store

MAX_CULPRITS_WITH_VICTIMS = 20
MAX_CULPRITS_WITH_MEDIAN = 1000
MAX_VICTIMS = 50


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


def explain_epoch(store: Store, key: int) -> stepmodel.StepModel:
    """Fills step_fit, step_costs, gaps, blame and blame_victims for one epoch.

    Returns the model. Also sets `behind_long_ms`, `behind_key` and `itl_max_ms` of its requests.
    """
    epoch = read_epoch(store, key)
    model = _fit(epoch)
    _write_fit(store, epoch, model)
    if len(epoch.steps.index) == 0:
        return model
    fitted, decode_only, prefill = _costs(epoch, model)
    found = streams.find_streams(epoch.steps, epoch.chunks, epoch.runs)
    bound, is_told = limits.find_bounds(_limit_inputs(epoch))
    window = epoch.window_of(epoch.steps.end_ns)
    _write_costs(store, epoch, window, (fitted, decode_only, prefill), model, found, bound, is_told)
    _write_gaps(store, epoch, found, decode_only, prefill)
    share = blame.chunk_shares(
        epoch.chunks, model.per_token_ms, model.per_attention_ms, len(epoch.steps.index)
    )
    held = blame.hold_ms(epoch.steps, prefill)
    _write_stream_blame(store, epoch, found, held, share)
    may_charge = ~np.isin(bound.astype(str), ["slots", "kv"])
    _write_queue_blame(store, epoch, share, held, may_charge)
    _write_worst_gaps(store, epoch, found)
    return model


def _fit(epoch: Epoch) -> stepmodel.StepModel:
    columns = epoch.columns
    idle = np.nan_to_num(columns.floats("idle_ms"), nan=1.0)
    overlaps = epoch.steps.start_ns[1:] < epoch.steps.end_ns[:-1]
    # Two steps deep, the first step after a pause shows its whole latency, not its cadence.
    pipelined = len(overlaps) > 0 and float(overlaps.mean()) > 0.5
    usable = ~columns.bools("is_after_hole")
    if pipelined:
        usable &= idle <= 0
    return stepmodel.fit(
        stepmodel.StepArrays(
            cadence_ms=epoch.steps.cadence_ms,
            n_prefill_tokens=epoch.steps.n_prefill_tokens.astype(np.float64),
            n_decode=epoch.steps.n_decode.astype(np.float64),
            attention_work=columns.floats("attention_work"),
            n_context_tokens=np.nan_to_num(columns.floats("n_context_tokens"), nan=0.0),
            usable=usable,
        )
    )


def _costs(epoch: Epoch, model: stepmodel.StepModel) -> tuple[Floats, Floats, Floats]:
    """Per step: fitted, decode-only and prompt-chunk milliseconds; NaN without a model."""
    n = len(epoch.steps.index)
    cadence = epoch.steps.cadence_ms
    if not model.has_decode:
        nothing = np.full(n, np.nan)
        pure = (epoch.steps.n_decode == 0) & (epoch.steps.n_prefill_tokens > 0)
        return nothing, nothing, np.where(pure, cadence, np.nan)
    tokens = epoch.steps.n_prefill_tokens.astype(np.float64)
    n_decode = epoch.steps.n_decode.astype(np.float64)
    attention = epoch.columns.floats("attention_work")
    ctx = np.nan_to_num(epoch.columns.floats("n_context_tokens"), nan=0.0)
    zero = np.zeros(n)
    decode_only = model.predict(zero, n_decode, zero, ctx)
    if model.has_prefill:
        fitted = model.predict(tokens, n_decode, attention, ctx)
        marginal = fitted - decode_only
    else:
        # Chunks have no price of their own: what such a step took above decoding is theirs.
        fitted = np.where(tokens > 0, np.nan, decode_only)
        marginal = np.where(tokens > 0, cadence - decode_only, 0.0)
    prefill = np.where(tokens > 0, np.clip(marginal, 0.0, cadence), 0.0)
    return fitted, decode_only, prefill


def _limit_inputs(epoch: Epoch) -> limits.LimitInputs:
    columns = epoch.columns
    return limits.LimitInputs(
        n_waiting=columns.floats("n_waiting"),
        n_running=columns.floats("n_running"),
        n_tokens=(epoch.steps.n_prefill_tokens + epoch.steps.n_decode).astype(np.float64),
        kv_usage_frac=columns.floats("kv_usage_frac"),
        kv_reserved_frac=columns.floats("kv_reserved_frac"),
        told=columns.objects("admit_bound"),
        wall_ms=epoch.steps.wall_ms,
        max_seqs=epoch.max_seqs,
        max_batch_tokens=epoch.max_batch_tokens,
    )


def _write_fit(store: Store, epoch: Epoch, model: stepmodel.StepModel) -> None:
    names = (
        "level", "reason", "n_steps", "n_decode_steps", "n_mixed_steps", "base_ms", "per_seq_ms",
        "per_token_ms", "knee_tokens", "per_attention_ms", "per_context_ms",
        "error_decode_frac", "error_mixed_frac", "residual_sd_frac",
    )  # fmt: skip
    row = {name: [getattr(model, name)] for name in names}
    store.insert("step_fit", {"epoch_key": [epoch.key], "engine_id": [epoch.engine_id], **row})


def _write_costs(
    store: Store,
    epoch: Epoch,
    window: npt.NDArray[np.object_],
    costs: tuple[Floats, Floats, Floats],
    model: stepmodel.StepModel,
    found: streams.Streams,
    bound: npt.NDArray[np.object_],
    is_told: npt.NDArray[np.bool_],
) -> None:
    fitted, decode_only, prefill = costs
    steps, inside = epoch.steps, window != None  # noqa: E711
    # Between steps the host is late only if somebody waits: otherwise the engine was idle.
    waited = (found.n_waiting_on > 0) | _waits_before(epoch)
    wall = np.where(waited, steps.wall_ms, steps.cadence_ms)
    ctx = np.nan_to_num(epoch.columns.floats("n_context_tokens"), nan=0.0)
    store.insert(
        "step_costs",
        {
            "epoch_key": np.full(int(inside.sum()), epoch.key),
            "step_index": steps.index[inside],
            "window_name": window[inside],
            "start_ns": steps.start_ns[inside],
            "end_ns": steps.end_ns[inside],
            "wall_ms": wall[inside],
            "cadence_ms": steps.cadence_ms[inside],
            "n_prefill_tokens": steps.n_prefill_tokens[inside],
            "n_decode": steps.n_decode[inside],
            "n_waiting": nullable(epoch.columns.floats("n_waiting")[inside]),
            "fitted_ms": nullable(fitted[inside]),
            "decode_only_ms": nullable(decode_only[inside]),
            "prefill_ms": nullable(prefill[inside]),
            "residual_ms": nullable((steps.cadence_ms - fitted)[inside]),
            "context_ms": nullable(
                (model.per_context_ms * ctx if model.has_decode else fitted)[inside]
            ),
            "n_streams": found.n_waiting_on[inside],
            "bound": bound[inside],
            "is_bound_told": is_told[inside],
        },
    )


def _waits_before(epoch: Epoch) -> npt.NDArray[np.bool_]:
    """Whether requests were left waiting after the step before."""
    waiting = np.nan_to_num(epoch.columns.floats("n_waiting"), nan=0.0) > 0
    out = np.zeros(len(waiting), dtype=bool)
    out[1:] = waiting[:-1]
    return out


def _write_gaps(
    store: Store, epoch: Epoch, found: streams.Streams, decode_only: Floats, prefill: Floats
) -> None:
    steps = epoch.steps
    held = blame.hold_ms(steps, np.nan_to_num(prefill, nan=0.0))
    until = np.concatenate([[0.0], np.cumsum(held)])
    unknown = np.isnan(prefill).any()
    at = np.flatnonzero(found.n_continuing > 0)
    at = at[at > 0]
    _insert_gaps(
        store, epoch, at - 1, at, np.full(len(at), -1, dtype=np.int64), found.n_continuing[at],
        steps.wall_ms[at], decode_only[at], prefill[at], np.zeros(len(at), dtype=bool),
    )  # fmt: skip
    gap_ms = (steps.end_ns[found.gap_to] - steps.end_ns[found.gap_from]) / 1e6
    others = until[found.gap_to + 1] - until[found.gap_from + 1]
    _insert_gaps(
        store, epoch, found.gap_from, found.gap_to,
        epoch.handles.take(epoch.handles.seq_key, found.gap_handle),
        np.ones(len(gap_ms), dtype=np.int64), gap_ms, decode_only[found.gap_to],
        np.full(len(gap_ms), np.nan) if unknown else others, found.gap_is_preempted,
    )  # fmt: skip


def _insert_gaps(
    store: Store,
    epoch: Epoch,
    from_at: Ints,
    to_at: Ints,
    seq_key: Ints,
    n_streams: Ints,
    gap_ms: Floats,
    own_ms: Floats,
    prefill_ms: Floats,
    is_preempted: npt.NDArray[np.bool_],
) -> None:
    window = epoch.window_of(epoch.steps.end_ns[to_at])
    inside = window != None  # noqa: E711
    store.insert(
        "gaps",
        {
            "epoch_key": np.full(int(inside.sum()), epoch.key),
            "window_name": window[inside],
            "from_step": epoch.steps.index[from_at[inside]],
            "to_step": epoch.steps.index[to_at[inside]],
            "end_ns": epoch.steps.end_ns[to_at[inside]],
            "seq_key": nullable_keys(seq_key[inside]),
            "n_streams": n_streams[inside],
            "gap_ms": gap_ms[inside],
            "own_ms": nullable(own_ms[inside]),
            "prefill_ms": nullable(prefill_ms[inside]),
            "is_preempted": is_preempted[inside],
        },
    )


def _write_stream_blame(
    store: Store, epoch: Epoch, found: streams.Streams, held: Floats, share: Floats
) -> None:
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


def _write_queue_blame(
    store: Store,
    epoch: Epoch,
    share: Floats,
    held: Floats,
    may_charge: npt.NDArray[np.bool_],
) -> None:
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
        store.execute(
            "create or replace temp table behind "
            "(request_key integer, behind_ms double, behind_key integer)"
        )
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


def _write_worst_gaps(store: Store, epoch: Epoch, found: streams.Streams) -> None:
    """Each request's longest gap: over the runs of its steps, and its other gaps."""
    wall = epoch.steps.wall_ms
    runs = epoch.runs
    handle = np.concatenate([runs.handle, found.gap_handle])
    if len(handle) == 0:
        return
    worst = np.zeros(len(runs.handle))
    inner = runs.last > runs.first
    if inner.any():
        bounds = np.column_stack([runs.first[inner] + 1, runs.last[inner] + 1]).ravel()
        worst[inner] = np.maximum.reduceat(np.append(wall, 0.0), bounds)[::2]
    gap_ms = (epoch.steps.end_ns[found.gap_to] - epoch.steps.end_ns[found.gap_from]) / 1e6
    store.execute("create or replace temp table worst_gaps (seq_key integer, itl_max_ms double)")
    store.insert(
        "worst_gaps",
        {
            "seq_key": nullable_keys(epoch.handles.take(epoch.handles.seq_key, handle)),
            "itl_max_ms": np.concatenate([worst, gap_ms]),
        },
    )
    store.run_script("tokenlag.explain.sql", "worst_gaps.sql")
