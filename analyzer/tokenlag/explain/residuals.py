"""What the steps' residuals look like: shifted, stopped, jumping at a size, taxed by a feature.

Fills `step_shift`, `stoppages`, `pauses`, `ceilings` and `step_tax` from `step_costs`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tokenlag.explain import across, changepoint, shift, stepmodel, stoppage, together
from tokenlag.explain.arrays import Columns, Floats, Ints, nullable
from tokenlag.explain.sql import query
from tokenlag.store.connection import Store

Bools = npt.NDArray[np.bool_]

N_BLOCKS = 20
MIN_TAX_STEPS = 30
MIN_AT_SIZE = 5
SURE_Z = 5.0
# Steps that cost half as much more before are no beginning: what a step adds varies.
WAS_DEAR = 0.5


def write_residuals(store: Store) -> None:
    """Fills the residual tables for the windows that `step_costs` holds."""
    rows = Columns(store, query("observed"))
    if rows.n_rows == 0:
        return
    taxed = _write_tax(store, rows)
    jumping = _write_ceilings(store, rows, taxed)
    shifted = _write_shifts(store, rows, jumping)
    together.write_contexts(store, rows, ~taxed, shifted)
    _write_stoppages(store, rows)


def _observed(rows: Columns, chosen: Bools) -> shift.Observed:
    names = (
        "wall_ms",
        "n_prefill_tokens",
        "n_decode",
        "attention_work",
        "n_context_tokens",
        "n_streams",
    )
    return shift.Observed(*(rows.floats(name)[chosen] for name in names))


def _write_shifts(store: Store, rows: Columns, jumping: set[str]) -> set[str]:
    """Fills `step_shift`; engines in `jumping` have a batch size above which steps cost more.

    Returns:
        The engines whose speed changed where a model of both windows would not tell.
    """
    shifted: set[str] = set()
    window, engine = rows.objects("window_name"), rows.objects("engine_id")
    current = window == "current"
    makes = Columns(store, query("makes"))
    engines = sorted(set(engine[current].tolist()))
    has_baseline = bool((window == "baseline").any())
    for name in engines:
        own = current & (engine == name)
        if has_baseline:
            before = (window == "baseline") & (engine == name)
            # A baseline from elsewhere may name its engines otherwise: then all of it counts.
            elsewhere = (window == "baseline") & _alike(rows, own, makes)
            reference = before if before.sum() >= shift.MIN_STEPS else elsewhere
            basis = "baseline"
        elif len(engines) > 1:
            reference = current & (engine != name) & _alike(rows, own, makes)
            basis = "other engines"
        else:
            continue
        sides = (_observed(rows, reference), _observed(rows, own))
        found = across.complete(shift.find_shift(*sides), *sides, is_jumping=name in jumping)
        if found is not None:
            if found.is_across and not found.ratio_lo <= 1.0 <= found.ratio_hi:
                shifted.add(name)
            store.insert(
                "step_shift",
                {
                    "engine_id": [name],
                    "basis": [basis],
                    "n_decode_steps": [found.n_decode_steps],
                    "n_mixed_steps": [found.n_mixed_steps],
                    "is_across": [found.is_across],
                    **{
                        key: nullable(np.array([getattr(found, key)]))
                        for key in (
                            "slope", "intercept_ms", "ratio_decode", "ratio_mixed", "ratio_near",
                            "mixed_excess_ms", "mixed_error_ms", "ratio_lo", "ratio_hi",
                            "expected_ms", "excess_ms", "stream_ms",
                        )
                    },
                },
            )  # fmt: skip
    return shifted


def _alike(rows: Columns, own: Bools, makes: Columns) -> Bools:
    """Steps of engines that are not known to be of another make than these.

    Another model, accelerator, split of the layers or role has another price for the same batch.
    """
    epochs = makes.ints("epoch_key")
    mine = np.isin(epochs, rows.ints("epoch_key")[own])
    alike = np.ones(len(epochs), dtype=bool)
    for name in makes.names:
        if name == "epoch_key":
            continue
        told = makes.objects(name)
        values = {value for value in told[mine].tolist() if value is not None}
        if values:
            alike &= np.array([value is None or value in values for value in told.tolist()])
    return np.isin(rows.ints("epoch_key"), epochs[alike])


def _write_stoppages(store: Store, rows: Columns) -> None:
    window, engine = rows.objects("window_name"), rows.objects("engine_id")
    epoch, age = rows.ints("epoch_key"), rows.floats("age_s")
    excess, fitted = rows.floats("excess_ms"), rows.floats("fitted_ms")
    prefill, n_decode = rows.ints("n_prefill_tokens"), rows.ints("n_decode")
    classes = stoppage.shape_classes(prefill, n_decode)
    first = np.zeros(rows.n_rows, dtype=bool)
    for key in np.unique(epoch):
        first[epoch == key] = stoppage.is_first_of_shape(classes[epoch == key])
    for name in ("current", "baseline"):
        for which in sorted(set(engine[window == name].tolist())):
            own = np.flatnonzero((window == name) & (engine == which))
            hit = own[
                stoppage.find_stoppages(excess[own], fitted[own], rows.ints("n_streams")[own])
            ]
            if len(hit) == 0:
                continue
            store.insert(
                "stoppages",
                {
                    "window_name": np.full(len(hit), name, dtype=object),
                    "epoch_key": epoch[hit],
                    "step_index": rows.ints("step_index")[hit],
                    "end_ns": rows.ints("end_ns")[hit],
                    "excess_ms": excess[hit],
                    "n_streams": rows.ints("n_streams")[hit],
                    "n_victims": rows.ints("n_victims")[hit],
                    "n_prefill_tokens": prefill[hit],
                    "shape": np.array([_shape(c) for c in classes[hit].tolist()], dtype=object),
                    "is_first_of_shape": first[hit],
                    "age_s": age[hit],
                },
            )
            _write_rhythm(store, rows, name, which, hit, first, len(own))


def _shape(shape_class: int) -> str:
    if shape_class >= 0:
        return f"prompt tokens up to {2**shape_class}"
    return f"streams up to {2 ** (-1 - shape_class)}"


def _write_rhythm(
    store: Store, rows: Columns, window: str, engine: str, hit: Ints, first: Bools, n_steps: int
) -> None:
    excess = rows.floats("excess_ms")[hit]
    found = stoppage.rhythm(rows.ints("end_ns")[hit], excess)
    if found is None:
        return
    if found.spacing_cv > stoppage.MAX_FOLDED_CV:
        large = stoppage.outstanding(excess)
        again = stoppage.rhythm(rows.ints("end_ns")[hit[large]], excess[large])
        if again is not None and again.spacing_cv <= stoppage.MAX_FOLDED_CV:
            found, hit, excess = again, hit[large], excess[large]
    store.insert(
        "pauses",
        {
            "window_name": [window],
            "engine_id": [engine],
            "n_pauses": [found.n_pauses],
            "period_s": [found.period_s],
            "spacing_cv": nullable(np.array([found.spacing_cv])),
            "size_ms": [found.size_ms],
            "size_cv": [found.size_cv],
            "duty_frac": [found.duty_frac],
            "first_shape_frac": [float(first[hit].mean())],
            "held_ms": [float((excess * rows.floats("n_victims")[hit]).sum())],
            "steps_frac": [len(hit) / n_steps],
        },
    )


def _write_ceilings(store: Store, rows: Columns, taxed: Bools) -> set[str]:
    """Fills `ceilings`; returns the engines that have one."""
    jumping: set[str] = set()
    window, engine = rows.objects("window_name"), rows.objects("engine_id")
    prefill = rows.ints("n_prefill_tokens")
    for name in sorted(set(engine[window == "current"].tolist())):
        own = (window == "current") & (engine == name)
        # Large batches hold a request that makes steps dearer more often.
        pure = own & (prefill == 0) & ~taxed
        if not pure.any():
            continue
        n_decode = rows.ints("n_decode")
        found = stoppage.find_ceiling(
            rows.floats("wall_ms")[pure], n_decode[pure], rows.floats("n_context_tokens")[pure]
        )
        if found is None:
            continue
        jumping.add(name)
        above = own & (n_decode > found.threshold)
        store.insert(
            "ceilings",
            {
                "engine_id": [name],
                "threshold": [found.threshold],
                "jump_ms": [found.jump_ms],
                "below_ms": [found.below_ms],
                "n_below": [found.n_below],
                "n_above": [found.n_above],
                "sharpness": [found.sharpness],
                "held_ms": [found.jump_ms * float(rows.floats("n_victims")[above].sum())],
            },
        )
    return jumping


def _write_tax(store: Store, rows: Columns) -> Bools:
    """Fills `step_tax`; returns which steps hold a request of a feature that surely costs."""
    taxed = np.zeros(rows.n_rows, dtype=bool)
    runs = Columns(store, query("feature_runs"))
    if runs.n_rows == 0:
        return taxed
    current = rows.objects("window_name") == "current"
    victims = rows.floats("n_victims")
    level = rows.ints("n_decode")
    for feature in sorted(set(runs.objects("feature").tolist())):
        marked = _marked(rows, runs, runs.objects("feature") == feature)
        usual = _usual_without(rows, current, marked)
        residual = rows.floats("wall_ms") - usual
        residual = residual - _usual_at(level, residual, current & ~marked)
        known = current & np.isfinite(residual)
        # Where it began within the window, the marked steps by themselves show when.
        since = _dearer_since(rows, residual, usual, known & marked)
        known &= since
        with_it, without = known & marked, known & ~marked
        if with_it.sum() < MIN_TAX_STEPS or without.sum() < MIN_TAX_STEPS:
            continue
        extra, error = _difference(residual[with_it], residual[without])
        if extra >= SURE_Z * error:
            taxed |= marked & since
        store.insert(
            "step_tax",
            {
                "feature": [feature],
                "n_with": [int(with_it.sum())],
                "n_without": [int(without.sum())],
                "extra_ms": [extra],
                "usual_ms": [float(np.median(usual[without]))],
                "z": [extra / max(error, 1e-9)],
                # What was compared is a sample: all steps with such a request carry it.
                "held_ms": [extra * float(victims[current & marked & since].sum())],
            },
        )
    return taxed


def _dearer_since(rows: Columns, residual_ms: Floats, usual_ms: Floats, marked: Bools) -> Bools:
    """The steps since marked ones became dearer for good; all where they were from the first.

    In shares of one usual step: what is added to every step is a larger share of a small one.
    """
    everywhere = np.ones(rows.n_rows, dtype=bool)
    if not marked.any():
        return everywhere
    end_ns = rows.ints("end_ns")
    order = np.flatnonzero(marked)[np.argsort(end_ns[marked], kind="stable")]
    extra_ms = residual_ms[order]
    ratio = 1.0 + extra_ms / float(np.median(usual_ms[order]))
    at = changepoint.find_slower(end_ns[order], np.maximum(ratio, 0.01))
    if at is None:
        return everywhere
    before, after = extra_ms[end_ns[order] < at], extra_ms[end_ns[order] >= at]
    if np.median(before) >= WAS_DEAR * np.median(after):
        return everywhere
    return np.asarray(end_ns >= at)


def _usual_at(level: Ints, residual: Floats, plain: Bools) -> Floats:
    """The median residual of plain steps of the same batch size; NaN where there are too few.

    Large batches hold such a request more often: what the batch size does must not count.
    """
    out = np.full(len(level), np.nan)
    known = plain & np.isfinite(residual)
    for size in np.unique(level[known]).tolist():
        own = known & (level == size)
        if own.sum() >= MIN_AT_SIZE:
            out[level == size] = np.median(residual[own])
    return out


def _usual_without(rows: Columns, current: Bools, marked: Bools) -> Floats:
    """What each step should cost by a model of the steps without such a request.

    One model of all steps would hold part of the very tax that is asked for.
    """
    out = np.full(rows.n_rows, np.nan)
    observed = _observed(rows, np.ones(rows.n_rows, dtype=bool))
    for key in np.unique(rows.ints("epoch_key")):
        own = np.flatnonzero(current & (rows.ints("epoch_key") == key))
        plain = ~marked[own]
        if plain.sum() < MIN_TAX_STEPS:
            continue
        arrays = stepmodel.StepArrays(
            observed.wall_ms[own], observed.n_prefill_tokens[own], observed.n_decode[own],
            observed.attention_work[own], observed.n_context_tokens[own], plain,
        )  # fmt: skip
        model = stepmodel.fit(arrays)
        if not model.has_decode:
            continue
        usual = model.predict(
            arrays.n_prefill_tokens, arrays.n_decode, arrays.attention_work, arrays.n_context_tokens
        )
        if not model.has_prefill:
            usual[arrays.n_prefill_tokens > 0] = np.nan
        out[own] = usual
    return out


def _marked(rows: Columns, runs: Columns, chosen: Bools) -> Bools:
    """Steps in which a request with the feature decodes."""
    epoch, index = rows.ints("epoch_key"), rows.ints("step_index")
    out = np.zeros(rows.n_rows, dtype=bool)
    for key in np.unique(epoch):
        own = np.flatnonzero(epoch == key)
        mine = chosen & (runs.ints("epoch_key") == key)
        first = np.searchsorted(index[own], runs.ints("first_step")[mine])
        last = np.searchsorted(index[own], runs.ints("last_step")[mine], side="right")
        change = np.zeros(len(own) + 1, dtype=np.int64)
        np.add.at(change, first, 1)
        np.add.at(change, last, -1)
        out[own] = np.cumsum(change[:-1]) > 0
    return out


def _difference(with_it: Floats, without: Floats) -> tuple[float, float]:
    """Difference of medians and its standard error over blocks of time."""

    def centre(values: Floats) -> tuple[float, float]:
        blocks = [float(np.median(b)) for b in np.array_split(values, N_BLOCKS) if len(b)]
        return float(np.median(values)), float(np.std(blocks)) / np.sqrt(len(blocks))

    a, error_a = centre(with_it)
    b, error_b = centre(without)
    return a - b, float(np.hypot(error_a, error_b))
