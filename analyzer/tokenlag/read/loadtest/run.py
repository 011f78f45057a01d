"""What every load test's result file is turned into, in one set of names and units.

`tpot` is the mean time between tokens of one request, without the first:
(end − first token) ÷ (output tokens − 1). `itl` is the time between two chunks as the
client saw them, whatever number of tokens a chunk carried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

NS_PER_S: Final = 1_000_000_000
# Beyond it, a time in ms, a count or a rate is damage: 30 years in ms.
MAX_VALUE: Final = 1e12
_FLOAT_COLUMNS: Final = (
    "ttft_ms", "e2e_ms", "n_prompt", "n_output", "n_chunks", "gap_p50_ms", "gap_max_ms",
)  # fmt: skip
METRICS: Final = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms", "n_prompt", "n_output")


@dataclass(frozen=True)
class Spread:
    """Figures of one metric over a run's requests; None is "not in the file".

    Args:
        n: how many requests it is over.
        mean: arithmetic mean.
        sd: standard deviation.
        p50: median.
        p90: 90th percentile.
        p99: 99th percentile.
    """

    n: int | None = None
    mean: float | None = None
    sd: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None

    @property
    def is_known(self) -> bool:
        """Whether there is a mean or a median."""
        return self.mean is not None or self.p50 is not None


@dataclass(frozen=True)
class Requests:
    """A run's requests as columns of equal length; NaN (or None) is "not in the file".

    Args:
        sent_ns: the send, unix ns; with `has_wall_clock` false from an unknown moment.
        intended_ns: when it was meant to be sent, on the same clock.
        has_wall_clock: the file says when it was.
        ids: as the tool calls them; they reach the server only with some tools.
        errors: what went wrong; None for a request that was answered.
    """

    ttft_ms: Floats
    e2e_ms: Floats
    n_prompt: Floats
    n_output: Floats
    n_chunks: Floats
    gap_p50_ms: Floats
    gap_max_ms: Floats
    sent_ns: npt.NDArray[np.int64] | None
    intended_ns: npt.NDArray[np.int64] | None = None
    has_wall_clock: bool = True
    ids: Sequence[str | None] = ()
    errors: Sequence[str | None] = ()

    def __post_init__(self) -> None:
        for name in _FLOAT_COLUMNS:
            column = getattr(self, name)
            known = (column >= 0) & (column <= MAX_VALUE)
            object.__setattr__(self, name, np.where(known, column, np.nan))

    @property
    def is_good(self) -> npt.NDArray[np.bool_]:
        """Which requests were answered."""
        return np.array([error is None for error in self.errors], dtype=bool)

    @property
    def tpot_ms(self) -> Floats:
        """Time between tokens, without the first; NaN for fewer than two tokens."""
        return self._decode_per(self.n_output)

    @property
    def chunk_gap_ms(self) -> Floats:
        """Mean time between chunks."""
        return self._decode_per(self.n_chunks)

    def _decode_per(self, n: Floats) -> Floats:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(n >= 2, (self.e2e_ms - self.ttft_ms) / (n - 1), np.nan)


@dataclass(frozen=True)
class Run:
    """One load test: one load on one server.

    Args:
        tool: "vllm bench serve", "AIPerf", …
        source: the file, as it was given.
        level: which run of a sweep it is: "4 clients", "2 requests/s"; None for an only one.
        model: as the file calls it.
        ended_ns: unix ns, where the file says so.
        duration_s: from the first send to the last answer.
        n_failed: requests that got no answer.
        rate_per_s: requests/s that the tool was told to send; None: as fast as it could.
        burstiness: of the sends, 1 for Poisson.
        max_concurrency: how many requests it kept open at most; None: no limit.
        metrics: by name, see `METRICS`.
        requests: each request, where the file has them.
        translations: what is called differently here, one sentence each.
    """

    tool: str
    source: str
    metrics: dict[str, Spread]
    level: str | None = None
    model: str | None = None
    ended_ns: int | None = None
    duration_s: float | None = None
    n_failed: int = 0
    rate_per_s: float | None = None
    burstiness: float | None = None
    max_concurrency: float | None = None
    requests: Requests | None = None
    translations: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        told = {name: _believed(spread) for name, spread in self.metrics.items()}
        kept = {name: spread for name, spread in told.items() if spread.is_known}
        object.__setattr__(self, "metrics", kept)
        for name in ("duration_s", "rate_per_s", "burstiness", "max_concurrency"):
            object.__setattr__(self, name, believed(getattr(self, name)))
        object.__setattr__(self, "n_failed", int(believed(self.n_failed) or 0))

    @property
    def n_done(self) -> int | None:
        """Requests that were answered."""
        for name in ("e2e_ms", "ttft_ms", "n_output", "tpot_ms"):
            if self.metrics.get(name, Spread()).n is not None:
                return self.metrics[name].n
        return None


def spread_of(values: Floats) -> Spread:
    """Figures of what is known among the values."""
    known = values[np.isfinite(values)]
    if not len(known):
        return Spread()
    p50, p90, p99 = (float(v) for v in np.quantile(known, [0.5, 0.9, 0.99]))
    sd = float(known.std(ddof=1)) if len(known) > 1 else None
    return Spread(len(known), float(known.mean()), sd, p50, p90, p99)


def metrics_of(requests: Requests) -> dict[str, Spread]:
    """The metrics of a run whose requests are known, all by one definition."""
    good = requests.is_good
    columns = {
        "ttft_ms": requests.ttft_ms,
        "tpot_ms": requests.tpot_ms,
        "e2e_ms": requests.e2e_ms,
        "n_prompt": requests.n_prompt,
        "n_output": requests.n_output,
        "itl_ms": requests.chunk_gap_ms,
    }
    return {name: spread_of(values[good]) for name, values in columns.items()}


def floats(values: Sequence[float | int | None]) -> Floats:
    """A column; None becomes NaN, and so does what cannot be a time or a count."""
    known = (np.nan if value is None else min(value, 1e300) for value in values)
    column = np.fromiter(known, dtype=np.float64, count=len(values))
    return np.where((column >= 0) & (column <= MAX_VALUE), column, np.nan)


def believed(value: Any) -> float | None:
    """A figure, or None where it can be none: text, not finite, negative, beyond all bounds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= MAX_VALUE else None


def scaled(value: Any, factor: float) -> float | None:
    """A figure in another unit, or None where it can be none."""
    figure = believed(value)
    return None if figure is None else figure * factor


def _believed(spread: Spread) -> Spread:
    n = believed(spread.n)
    figures = (spread.mean, spread.sd, spread.p50, spread.p90, spread.p99)
    return Spread(None if n is None else int(n), *map(believed, figures))
