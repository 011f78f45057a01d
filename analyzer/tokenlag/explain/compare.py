"""Window against baseline, split exactly: which term of the mean moved, and why.

Means are additive, so `mean(e2e) = Σ mean(phase)`. Prefill and decode are split further into
work and price. With the mean prompt P, the uncached share u = Σ new ÷ Σ prompt and the price
s = Σ prefill ms ÷ Σ new tokens, mean(prefill) = P·u·s, and the difference of two such products
is split by Shapley over the three switches; decode likewise with the mean number of tokens
after the first and the price per token. Both splits sum to the difference exactly
(docs/comparison.md). Intervals come from a block bootstrap: whole stretches of time are
drawn, since neighbours in time are not independent.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tokenlag.explain.arrays import Columns
from tokenlag.explain.sql import query
from tokenlag.store.connection import Store

Floats = npt.NDArray[np.float64]

N_BLOCKS = 20
N_DRAWS = 400
SEED = 20_261_129
MIN_REQUESTS = 5

PHASES = (
    "network_in",
    "frontend",
    "queue",
    "requeue",
    "prefill",
    "decode",
    "delivery",
    "uncovered",
)


def shapley_product(before: Sequence[float], after: Sequence[float]) -> list[float]:
    """Exact additive split of Π after − Π before among the factors; NaN if any factor is."""
    n = len(before)
    shares = [0.0] * n
    for i in range(n):
        others = [j for j in range(n) if j != i]
        for size in range(n):
            weight = math.factorial(size) * math.factorial(n - 1 - size) / math.factorial(n)
            for on in itertools.combinations(others, size):
                rest = math.prod(after[j] if j in on else before[j] for j in others)
                shares[i] += weight * rest * (after[i] - before[i])
    return shares


@dataclass(frozen=True)
class Sums:
    """Weighted sums over requests of a window's blocks: shape (blocks,)."""

    columns: dict[str, Floats]

    def total(self, draw: npt.NDArray[np.int64] | None) -> dict[str, float]:
        """Sums over all blocks, or over the drawn ones."""
        if draw is None:
            return {name: float(values.sum()) for name, values in self.columns.items()}
        return {name: float(values[draw].sum()) for name, values in self.columns.items()}


def block_sums(columns: dict[str, Floats], arrival_ns: Floats, weight: Floats) -> Sums:
    """Sums and counts by block of time, `N_BLOCKS` of them with equally many requests."""
    blocks = np.array_split(np.argsort(arrival_ns, kind="stable"), min(N_BLOCKS, len(arrival_ns)))
    out: dict[str, list[float]] = {}

    def add(name: str, value: float) -> None:
        out.setdefault(name, []).append(value)

    prefill, new, prompt = columns["prefill"], columns["n_new"], columns["n_prompt"]
    decode, later = columns["decode"], np.maximum(columns["n_output"] - 1.0, 0.0)
    for rows in blocks:
        w = weight[rows]
        for name, values in columns.items():
            known = np.isfinite(values[rows])
            add(f"{name}.n", float(w[known].sum()))
            add(f"{name}.sum", float((w * values[rows])[known].sum()))
        both = np.isfinite(prefill[rows]) & np.isfinite(new[rows]) & np.isfinite(prompt[rows])
        for name, values in (("ms", prefill), ("new", new), ("prompt", prompt)):
            add(f"prefill_of.{name}", float((w * values[rows])[both].sum()))
        add("prefill_of.n", float(w[both].sum()))
        both = np.isfinite(decode[rows]) & np.isfinite(later[rows])
        add("decode_of.ms", float((w * decode[rows])[both].sum()))
        add("decode_of.later", float((w * later[rows])[both].sum()))
        add("decode_of.n", float(w[both].sum()))
    return Sums({name: np.array(values) for name, values in out.items()})


def effects(before: dict[str, float], after: dict[str, float]) -> dict[tuple[str, str], float]:
    """All differences of means, by (metric, factor); NaN where a window does not tell."""
    out: dict[tuple[str, str], float] = {}
    for metric in (*PHASES, "ttft", "e2e"):
        out[metric, "total"] = _mean(after, metric) - _mean(before, metric)
    names = ("prompt_mix", "cache", "rate")
    split = shapley_product(_prefill_factors(before), _prefill_factors(after))
    out.update({("prefill", name): value for name, value in zip(names, split, strict=True)})
    split = shapley_product(_decode_factors(before), _decode_factors(after))
    out.update({("decode", n): v for n, v in zip(("output_mix", "rate"), split, strict=True)})
    return out


def _mean(sums: dict[str, float], metric: str) -> float:
    n = sums[f"{metric}.n"]
    return sums[f"{metric}.sum"] / n if n > 0 else math.nan


def _ratio(a: float, b: float) -> float:
    return a / b if b > 0 else math.nan


def _prefill_factors(sums: dict[str, float]) -> list[float]:
    return [
        _ratio(sums["prefill_of.prompt"], sums["prefill_of.n"]),
        _ratio(sums["prefill_of.new"], sums["prefill_of.prompt"]),
        _ratio(sums["prefill_of.ms"], sums["prefill_of.new"]),
    ]


def _decode_factors(sums: dict[str, float]) -> list[float]:
    return [
        _ratio(sums["decode_of.later"], sums["decode_of.n"]),
        _ratio(sums["decode_of.ms"], sums["decode_of.later"]),
    ]


def write_changes(store: Store) -> None:
    """Fills `changes` from `request_facts`; nothing where there is no baseline to compare with."""
    facts = Columns(store, query("compare_inputs"))
    window, arrival = facts.objects("window_name"), facts.floats("arrival_ns")
    columns = {phase: facts.floats(f"{phase}_ms") for phase in (*PHASES, "ttft", "e2e")}
    columns |= {name: facts.floats(name) for name in ("n_prompt", "n_new", "n_output")}
    weight = facts.floats("weight")
    parts: dict[str, Sums] = {}
    for name in ("baseline", "current"):
        rows = window == name
        if rows.sum() < MIN_REQUESTS:
            return
        parts[name] = block_sums(
            {key: values[rows] for key, values in columns.items()}, arrival[rows], weight[rows]
        )
    before, after = parts["baseline"].total(None), parts["current"].total(None)
    point = effects(before, after)
    low, high = _intervals(parts["baseline"], parts["current"], list(point))
    keys = [key for key, value in point.items() if math.isfinite(value)]
    base = _levels(before)
    now = _levels(after)
    store.insert(
        "changes",
        {
            "metric": [metric for metric, _ in keys],
            "factor": [factor for _, factor in keys],
            "baseline": np.ma.masked_invalid([base.get(key, math.nan) for key in keys]),
            "current": np.ma.masked_invalid([now.get(key, math.nan) for key in keys]),
            "effect_ms": [point[key] for key in keys],
            "lo_ms": np.ma.masked_invalid([low[key] for key in keys]),
            "hi_ms": np.ma.masked_invalid([high[key] for key in keys]),
        },
    )


def _levels(sums: dict[str, float]) -> dict[tuple[str, str], float]:
    """The level of each term: means for totals, the factor itself for the splits."""
    out = {(metric, "total"): _mean(sums, metric) for metric in (*PHASES, "ttft", "e2e")}
    prompt, uncached, price = _prefill_factors(sums)
    later, per_token = _decode_factors(sums)
    out |= {
        ("prefill", "prompt_mix"): prompt,
        ("prefill", "cache"): uncached,
        ("prefill", "rate"): price,
        ("decode", "output_mix"): later,
        ("decode", "rate"): per_token,
    }
    return out


def _intervals(
    before: Sums, after: Sums, keys: list[tuple[str, str]]
) -> tuple[dict[tuple[str, str], float], dict[tuple[str, str], float]]:
    """5 % and 95 % points of the effects over block bootstrap draws."""
    rng = np.random.default_rng(SEED)
    draws: dict[tuple[str, str], list[float]] = {key: [] for key in keys}

    def pick(sums: Sums) -> dict[str, float]:
        n = len(next(iter(sums.columns.values())))
        return sums.total(rng.integers(0, n, n))

    for _ in range(N_DRAWS):
        for key, value in effects(pick(before), pick(after)).items():
            draws[key].append(value)
    return _quantiles(draws, 0.05), _quantiles(draws, 0.95)


def _quantiles(draws: dict[tuple[str, str], list[float]], q: float) -> dict[tuple[str, str], float]:
    quantile: Callable[[Floats], float] = lambda v: float(np.quantile(v, q))  # noqa: E731
    out = {}
    for key, values in draws.items():
        known = np.array(values)[np.isfinite(values)]
        out[key] = quantile(known) if len(known) else math.nan
    return out
