"""One engine epoch at a time: model, step costs, gaps and blame, from and to the store."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tokenlag.explain import blame, ledger, limits, stepmodel, streams
from tokenlag.explain.arrays import Floats, Ints, nullable, nullable_keys
from tokenlag.explain.blame_tables import write_queue_blame, write_stream_blame
from tokenlag.explain.epoch import Epoch, read_epoch
from tokenlag.store.connection import Store


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
    _write_gaps(store, epoch, model, found, decode_only, prefill)
    share = blame.chunk_shares(
        epoch.chunks, model.per_token_ms, model.per_attention_ms, len(epoch.steps.index)
    )
    held = blame.hold_ms(epoch.steps, prefill)
    write_stream_blame(store, epoch, found, held, share)
    may_charge = ~np.isin(bound.astype(str), ["slots", "kv"])
    write_queue_blame(store, epoch, share, held, may_charge)
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
    store: Store,
    epoch: Epoch,
    model: stepmodel.StepModel,
    found: streams.Streams,
    decode_only: Floats,
    prefill: Floats,
) -> None:
    steps = epoch.steps
    held = blame.hold_ms(steps, np.nan_to_num(prefill, nan=0.0))
    terms = ledger.step_terms(
        steps,
        model,
        np.nan_to_num(epoch.columns.floats("n_context_tokens"), nan=0.0),
        decode_only,
        prefill,
        held,
        np.maximum(np.nan_to_num(epoch.columns.floats("idle_ms"), nan=0.0), 0.0),
    )
    at = np.flatnonzero(found.n_continuing > 0)
    at = at[at > 0]
    nobody = np.full(len(at), -1, dtype=np.int64)
    same = np.zeros(len(at), dtype=bool)
    _insert_gaps(store, epoch, terms, at - 1, at, nobody, found.n_continuing[at], same)
    seq_key = epoch.handles.take(epoch.handles.seq_key, found.gap_handle)
    ones = np.ones(len(found.gap_to), dtype=np.int64)
    _insert_gaps(
        store, epoch, terms, found.gap_from, found.gap_to, seq_key, ones, found.gap_is_preempted
    )


def _insert_gaps(
    store: Store,
    epoch: Epoch,
    terms: ledger.StepTerms,
    from_at: Ints,
    to_at: Ints,
    seq_key: Ints,
    n_streams: Ints,
    is_preempted: npt.NDArray[np.bool_],
) -> None:
    gap_ms = (epoch.steps.end_ns[to_at] - epoch.steps.end_ns[from_at]) / 1e6
    parts = ledger.split(terms, gap_ms, from_at, to_at)
    window = epoch.window_of(epoch.steps.end_ns[to_at])
    inside = window != None  # noqa: E711
    own = parts["alone_ms"] + parts["batch_ms"] + parts["context_ms"]
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
            "own_ms": nullable(own[inside]),
            **{name: nullable(values[inside]) for name, values in parts.items()},
            "is_preempted": is_preempted[inside],
        },
    )


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
