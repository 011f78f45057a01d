"""The window's figures: latencies, throughput, capabilities, what the excess is.

Percentiles of request metrics are over requests (one value each); those of `itl` are pooled
over all gaps of all streams, since one freeze among four hundred tokens vanishes in a
request's mean. `itl_worst` is each request's longest gap. See docs/metrics.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from tokenlag.explain.arrays import Columns
from tokenlag.judge.diagnosis import Stat, StepModel, Throughput
from tokenlag.judge.sql import query
from tokenlag.store.connection import Store

Floats = npt.NDArray[np.float64]

REQUEST_METRICS = {
    "ttft": "ttft_ms",
    "tpot": "tpot_ms",
    "e2e": "e2e_ms",
    "queue": "queue_ms",
    "prefill": "prefill_ms",
    "decode": "decode_ms",
    "network": "network_in_ms",
    "frontend": "frontend_ms",
    "delivery": "delivery_ms",
    "uncovered": "uncovered_ms",
    "itl_worst": "itl_max_ms",
}


@dataclass(frozen=True)
class Requests:
    """Request columns of one window; NaN where not measured."""

    columns: Columns
    rows: npt.NDArray[np.bool_]

    def floats(self, name: str) -> Floats:
        """One column of the window's requests."""
        return self.columns.floats(name)[self.rows]

    def objects(self, name: str) -> npt.NDArray[np.object_]:
        """One column of the window's requests."""
        return self.columns.objects(name)[self.rows]

    def bools(self, name: str) -> npt.NDArray[np.bool_]:
        """One column of the window's requests."""
        return self.columns.bools(name)[self.rows]

    def __len__(self) -> int:
        return int(self.rows.sum())


def requests_of(columns: Columns, window: str) -> Requests:
    """The requests of one window."""
    return Requests(columns, columns.objects("window_name") == window)


def weighted_quantile(values: Floats, weight: Floats, q: float) -> float:
    """Linear-interpolated quantile of weighted values; equal weights give numpy's own."""
    order = np.argsort(values)
    values, weight = values[order], weight[order]
    if np.all(weight == weight[0]):
        return float(np.quantile(values, q))
    centre = np.cumsum(weight) - weight / 2.0
    return float(np.interp(q * weight.sum(), centre, values))


def stat(values: Floats, weight: Floats) -> Stat:
    """The figures of one metric; None throughout where nothing was measured."""
    known = np.isfinite(values)
    values, weight = values[known], weight[known]
    if len(values) == 0:
        return Stat(None, None, None, None, 0)
    p50, p90, p99 = (weighted_quantile(values, weight, q) for q in (0.5, 0.9, 0.99))
    mean = float(np.average(values, weights=weight))
    return Stat(p50, p90, p99, mean, len(values), max=float(values.max()))


def gap_stat(store: Store, window: str) -> tuple[Stat, float]:
    """ITL over all gaps of the window, and the summed excess over the streams' own steps."""
    gaps = Columns(store, query("gap_columns"), [window])
    if gaps.n_rows == 0:
        return Stat(None, None, None, None, 0), float("nan")
    value, n = gaps.floats("gap_ms"), gaps.floats("n")
    up_to = np.cumsum(n)
    p50, p90, p99 = (float(value[np.searchsorted(up_to, q * up_to[-1])]) for q in (0.5, 0.9, 0.99))
    mean = float(np.average(value, weights=n))
    excess = float(np.nansum(gaps.floats("excess_ms")))
    return Stat(p50, p90, p99, mean, int(up_to[-1]), max=float(value[-1])), excess


def latency(store: Store, columns: Columns, *, has_baseline: bool) -> dict[str, Stat]:
    """All latency figures, each with its baseline."""
    out: dict[str, Stat] = {}
    current, baseline = requests_of(columns, "current"), requests_of(columns, "baseline")
    for name, column in REQUEST_METRICS.items():
        now = _request_stat(current, name, column)
        then = _request_stat(baseline, name, column) if has_baseline else None
        out[name] = _with_baseline(now, then)
        if name == "tpot":
            gaps = gap_stat(store, "current")[0]
            before = gap_stat(store, "baseline")[0] if has_baseline else None
            out["itl"] = _with_baseline(gaps, before)
    return out


def _with_baseline(now: Stat, then: Stat | None) -> Stat:
    return Stat(
        now.p50, now.p90, now.p99, now.mean, now.n, max=now.max, origin=now.origin, baseline=then
    )


def _request_stat(requests: Requests, name: str, column: str) -> Stat:
    values = requests.floats(column).copy()
    if name == "e2e":
        # What was given up says nothing of how long it would have taken.
        values[requests.bools("is_aborted")] = np.nan
    return stat(values, requests.floats("weight"))


def throughput(columns: Columns, spans_s: dict[str, float], window: str) -> Throughput | None:
    """Rates of a window; prompt and output tokens apart."""
    requests, span_s = requests_of(columns, window), spans_s.get(window, 0.0)
    if len(requests) == 0 or span_s <= 0:
        return None
    weight = requests.floats("weight")

    def per_s(name: str) -> float | None:
        values = requests.floats(name)
        known = np.isfinite(values)
        return float((values * weight)[known].sum()) / span_s if known.any() else None

    def median(name: str) -> float | None:
        values = requests.floats(name)
        known = np.isfinite(values)
        return weighted_quantile(values[known], weight[known], 0.5) if known.any() else None

    tpot = requests.floats("tpot_ms")
    tpot = tpot[np.isfinite(tpot) & (tpot > 0)]
    return Throughput(
        prompt_tokens_per_s=per_s("n_prompt"),
        output_tokens_per_s=per_s("n_output"),
        per_stream_tokens_per_s=1000.0 / float(np.mean(tpot)) if len(tpot) else None,
        input_tokens_p50=median("n_prompt"),
        output_tokens_p50=median("n_output"),
        requests_per_s=float(weight.sum()) / span_s,
    )


def with_baseline(now: Throughput | None, then: Throughput | None) -> Throughput:
    """The current window's rates with the baseline's beside them."""
    return msgspec.structs.replace(now or Throughput(None, None, None, None, None), baseline=then)


def share_within(requests: Requests, limits_ms: dict[str, float]) -> float | None:
    """Weighted share of the requests that meet every limit; unknown figures miss.

    None where a figure is known of no request: that says nothing of them.
    """
    columns = {"ttft": "ttft_ms", "tpot": "tpot_ms", "e2e": "e2e_ms", "itl": "itl_max_ms"}
    meets = ~requests.bools("is_aborted") & ~requests.bools("is_open")
    for metric, limit in limits_ms.items():
        values = requests.floats(columns[metric])
        single = (metric in ("tpot", "itl")) & (requests.floats("n_output") < 2)
        if meets.any() and not (np.isfinite(values) | single)[meets].any():
            return None
        meets &= np.where(np.isfinite(values), values <= limit, single)
    weight = requests.floats("weight")
    return float((weight * meets).sum() / weight.sum()) if len(weight) else 0.0


def capabilities(store: Store) -> set[str]:
    """What the current window can show, in the words that rules' `needs` use."""
    row = Columns(store, query("capabilities"))
    return {name for name in row.names if bool(row.bools(name)[0])}


def step_models(store: Store) -> list[StepModel]:
    """The step models of the window's engines, for the report."""
    rows = store.fetchall(query("models"))
    return [
        StepModel(
            engine=engine,
            n_steps=n_steps,
            n_mixed=n_mixed,
            error_decode_frac=error_decode,
            error_mixed_frac=error_mixed,
            base_ms=base if level != "none" else None,
            per_sequence_ms=per_seq if level != "none" else None,
            per_prefill_token_ms=per_token if level in ("hinge", "linear") else None,
            per_context_ktoken_ms=per_context * 1000.0 if level != "none" else None,
            knee_tokens=knee if level == "hinge" else None,
            reason=reason,
        )
        for (
            engine, level, reason, n_steps, n_mixed, error_decode, error_mixed,
            base, per_seq, per_token, per_context, knee,
        ) in rows
    ]  # fmt: skip
