"""One side of a comparison of two loads: what was sent, how it was loaded, what it took."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tokenlag.explain.arrivals import is_closed_loop
from tokenlag.read.loadtest.run import Floats, Requests, Run

CLOSED_FULL: Final = 0.8  # of the permitted number in flight, on average: the limit sets the load


@dataclass(frozen=True)
class Load:
    """What the server had to carry.

    Args:
        loop: "closed" where a fixed number of clients wait for their answers, "open" where
            requests come at their own times; None: the file does not show which.
        offered: clients of a closed loop, requests/s of an open one.
        in_flight: requests open at once, on average, by Little's law.
    """

    loop: str | None
    offered: float | None
    in_flight: float | None

    @property
    def text(self) -> str:
        """As a person says it."""
        if self.loop == "closed" and self.offered is not None:
            return f"{self.offered:g} clients"
        if self.loop == "open" and self.offered is not None:
            return f"{self.offered:.3g} requests/s"
        return "unknown" if self.in_flight is None else f"{self.in_flight:.3g} in flight"


def load_of(run: Run) -> Load:
    """The load of a run, from what its file says or else from its requests."""
    n, mean_ms = run.n_done, None
    if "e2e_ms" in run.metrics:
        mean_ms = run.metrics["e2e_ms"].mean
    in_flight = None
    if n and mean_ms and run.duration_s:
        in_flight = n * mean_ms / 1e3 / run.duration_s
    rate = n / run.duration_s if n and run.duration_s else None
    clients = run.max_concurrency
    if clients is not None:
        is_full = in_flight is None or in_flight >= CLOSED_FULL * clients
        if run.rate_per_s is None or is_full:
            return Load("closed", clients, in_flight or clients)
    if run.rate_per_s is not None:
        return Load("open", run.rate_per_s, in_flight)
    requests = run.requests
    if requests is not None and requests.sent_ns is not None and n and n >= 20:
        sent, ends = _bounds(requests)
        if is_closed_loop(sent, ends):
            return Load("closed", _clients(sent, ends), in_flight)
        return Load("open", rate, in_flight)
    return Load(None, None, in_flight)


def in_flight_at_send(requests: Requests) -> Floats:
    """How many other requests were open when each was sent."""
    sent, ends = _times(requests)
    began = np.searchsorted(np.sort(sent), sent, side="left")
    ended = np.searchsorted(np.sort(ends), sent, side="right")
    return np.asarray(np.maximum(began - ended, 0), dtype=np.float64)


def in_flight_during(requests: Requests) -> Floats:
    """How many requests were open on average while each was: the integral over its time."""
    sent, ends = _times(requests)
    moments = np.unique(np.concatenate([sent, ends]))
    level = np.searchsorted(np.sort(sent), moments, side="right") - np.searchsorted(
        np.sort(ends), moments, side="right"
    )
    area = np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(moments) / 1e9)])
    span = (ends - sent) / 1e9
    of = area[np.searchsorted(moments, ends)] - area[np.searchsorted(moments, sent)]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(span > 0, of / span, np.nan)


def _times(requests: Requests) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    sent = requests.sent_ns
    if sent is None:
        raise ValueError("the requests have no send times")
    took = np.nan_to_num(requests.e2e_ms, nan=0.0)
    return sent, sent + np.round(took * 1e6).astype(np.int64)


def _bounds(requests: Requests) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    sent, ends = _times(requests)
    return np.sort(sent), np.sort(ends[np.isfinite(requests.e2e_ms)])


def _clients(sent: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> float:
    """The usual number of open requests just after a send."""
    began = np.arange(1, len(sent) + 1)
    ended = np.searchsorted(ends, sent, side="right")
    return float(np.median(began - ended))
