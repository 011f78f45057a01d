"""How much slower the window is than it should be, by symptom, and whether that can be seen.

Excess is measured time minus the alone cost (what the shape costs on an idle engine); with a
baseline, also the rise of the mean over it. A symptom is *visible* where a share of requests
that a p90 would notice is well above its alone cost, or where the mean rose by more than its
bootstrap interval and by a size that a person would notice. `client` is what clients see beyond
what the server took, where their spans tell it. See docs/verdict.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tokenlag.judge.figures import Requests
from tokenlag.judge.sql import query
from tokenlag.store.connection import Store

Floats = npt.NDArray[np.float64]

SLOW_SHARE = 0.10
# A request above these is slow beyond what sharing a busy engine does to it; the lower pair is
# enough to ask for what was not recorded, not to call a problem.
SLOW_FACTOR = 5.0
SLOW_MS = 1000.0
HINT_FACTOR = 3.0
HINT_MS = 500.0
MOVED_FRAC = 0.30
MOVED_LO_FRAC = 0.10
MOVED_MS = 20.0
MIN_REQUESTS = 10
MIN_SLOW = 8
MIN_SLOW_HINT = 3
# What an engine's load excuses ends at three quarters: beyond, queues grow by themselves.
MAX_EXCUSED_LOAD = 0.75
# Arrivals this close were sent together: by chance alone one in twenty would be, or fewer.
TOGETHER_MS = 20.0
TOGETHER_FRAC = 0.05
N_BLOCKS = 20
Z_90 = 1.645
N_STRETCHES = 8
# Student's t for 14 degrees of freedom, 99.5 %.
T_STRETCHES = 2.98
MAX_LOAD = 0.9


@dataclass(frozen=True)
class Excess:
    """One symptom's excess in the window.

    `alone_ms` and `rise_ms` are sums over requests (or gaps); NaN where it cannot be known.
    `is_visible`: worth a verdict. `is_hinted`: too few to call, yet enough not to call it
    healthy where the parts that would explain it were not recorded. `slow`: which requests
    are slow by it. `factor`: above so many times the alone cost a request counts as slow.
    `is_excused`: the mean rose by as much as a visible one, and more arrivals or chance do that.
    """

    symptom: str
    alone_ms: float
    rise_ms: float
    is_visible: bool
    is_hinted: bool
    slow: npt.NDArray[np.bool_]
    reason: str
    factor: float = SLOW_FACTOR
    is_excused: bool = False


def find_excess(
    store: Store,
    requests: Requests,
    itl_excess_ms: float,
    *,
    is_closed_loop: bool,
    baseline: Requests | None = None,
) -> dict[str, Excess]:
    """Excess of ttft, itl, e2e and of what clients see, of the current window."""
    moved = {
        (str(metric), str(factor)): (effect, low, base)
        for metric, factor, base, _, effect, low, _ in store.fetchall(query("moved"))
    }
    n = len(requests)
    ttft_over = requests.floats("ttft_ms") - requests.floats("alone_ttft_ms")
    if is_closed_loop:
        # The client's own concurrency fills that queue; it says nothing of the service.
        ttft_over = ttft_over - np.nan_to_num(requests.floats("queue_ms"), nan=0.0)
    alone_ms, later = requests.floats("alone_ttft_ms"), ~requests.bools("is_first_wave")
    shared, others_ms = _sharing(requests), _sent_together_ms(requests)
    alone_ms, over_ms = alone_ms + others_ms, ttft_over - others_ms
    slow = _above(over_ms, alone_ms, SLOW_FACTOR * shared, SLOW_MS) & later
    hint = _above(over_ms, alone_ms, HINT_FACTOR * shared, HINT_MS) & later
    nobody = np.zeros(n, dtype=bool)
    excused: set[str] = set()
    for metric, factor, column in (
        ("ttft", "total", "ttft_ms"), ("e2e", "total", "e2e_ms"), ("decode", "rate", "tpot_ms"),
    ):  # fmt: skip
        if (metric, factor) not in moved or baseline is None or len(baseline) == 0:
            continue
        now, before = requests.floats(column), baseline.floats(column)
        if not (np.isfinite(now).any() and np.isfinite(before).any()):
            continue
        rise = float(np.nanmean(now) / np.nanmean(before)) - 1.0
        by_load = _load_factor(requests, baseline) - 1.0
        if rise - by_load < MOVED_FRAC or not _rose_surely(now, before):
            effect, low, base = moved[metric, factor]
            # Of time per token the rise is judged by the token, and a request's mean is near it.
            if _has_moved((effect, low, base)) and rise >= MOVED_FRAC:
                excused.add("itl" if metric == "decode" else metric)
            moved[metric, factor] = (effect, None, base)
    e2e_over = requests.floats("e2e_ms") - requests.floats("alone_e2e_ms")
    if is_closed_loop:
        e2e_over = e2e_over - np.nan_to_num(requests.floats("queue_ms"), nan=0.0)
    found = {
        "ttft": _one("ttft", ttft_over, (slow, hint), moved.get(("ttft", "total")), shared),
        "itl": _itl(itl_excess_ms, moved.get(("decode", "rate")), requests),
        "e2e": _one("e2e", e2e_over, (nobody, nobody), moved.get(("e2e", "total"))),
        "client": _client(requests, baseline),
    }  # fmt: skip
    return found | {name: replace(found[name], is_excused=True) for name in excused}


def _n_engines(requests: Requests) -> int:
    return max(len({e for e in requests.objects("engine_id").tolist() if e is not None}), 1)


def _sent_together_ms(requests: Requests) -> Floats:
    """What the prompts take alone that were sent together with each request's own (ms).

    A client that sends six at once has its sixth wait for five: that is its own doing.
    """
    arrival_ms = requests.floats("arrival_ns") / 1e6  # in order
    own = np.nan_to_num(requests.floats("alone_prefill_ms"), nan=0.0)
    if len(own) < 2:
        return np.zeros(len(own))
    spacing = np.diff(arrival_ms)
    is_apart = spacing > min(TOGETHER_MS, TOGETHER_FRAC * float(spacing.mean()))
    group = np.concatenate([[0], np.cumsum(is_apart)])
    others = np.bincount(group, weights=own)[group] - own
    return np.asarray(np.maximum(others, 0.0) / _n_engines(requests), dtype=np.float64)


def _sharing(requests: Requests) -> float:
    """By what factor the requests' own load lengthens what they take on a shared engine.

    `1 ÷ (1 − load)`, as of any server that is shared; the load is what their prompts would take
    alone over the time of the engines. Alone costs know nothing of queues, limits and other
    faults, so that none of these excuses itself; nor is more excused than engines can take.
    """
    alone, arrival = requests.floats("alone_prefill_ms"), requests.floats("arrival_ns")
    time_ms = _n_engines(requests) * float(np.ptp(arrival)) / 1e6 if len(arrival) else 0.0
    asked_ms = float(np.nansum(alone * requests.floats("weight")))
    if not 0.0 < asked_ms < time_ms:
        return 1.0
    return 1.0 / (1.0 - min(asked_ms / time_ms, MAX_EXCUSED_LOAD))


def _above(
    over_ms: Floats, alone_ms: Floats, factor: float, floor_ms: float
) -> npt.NDArray[np.bool_]:
    floor = np.maximum((factor - 1.0) * alone_ms, floor_ms)
    return np.asarray(np.isfinite(over_ms) & (over_ms > floor), dtype=bool)


def _load_factor(requests: Requests, baseline: Requests) -> float:
    """By what factor a few more arrivals lengthen what a busy engine takes, nothing being wrong.

    An engine that is shared takes `1 ÷ (1 − load)` times the alone cost, so that its load shows
    in the baseline; arrivals by chance a tenth above it cost far more than a tenth near the end.
    """
    alone, e2e = baseline.floats("alone_e2e_ms"), baseline.floats("e2e_ms")
    known = np.isfinite(alone) & np.isfinite(e2e)
    more = _per_s(requests) / max(_per_s(baseline), 1e-9)
    if not known.any() or not more > 1.0:
        return 1.0
    load = min(max(1.0 - float(alone[known].mean() / e2e[known].mean()), 0.0), MAX_LOAD)
    return (1.0 - load) / (1.0 - min(load * more, MAX_LOAD))


def _per_s(requests: Requests) -> float:
    arrival = requests.floats("arrival_ns")
    span_s = float(arrival.max() - arrival.min()) / 1e9 if len(arrival) else 0.0
    return len(arrival) / span_s if span_s > 0 else 0.0


def _rose_surely(now: Floats, before: Floats) -> bool:
    """Whether a mean rose beyond what busy minutes do to it by themselves.

    Stretches are few and long, so that each holds whole ups and downs of a busy engine: those
    last far longer than a request. Rules ask for less, since each also asks for its own sign.
    """
    parts = []
    for values in (now, before):
        known = values[np.isfinite(values)]
        if len(known) < 2 * N_STRETCHES:
            return True
        means = [float(part.mean()) for part in np.array_split(known, N_STRETCHES)]
        parts.append((float(known.mean()), float(np.std(means, ddof=1)) / N_STRETCHES**0.5))
    rise = parts[0][0] - parts[1][0]
    return rise >= T_STRETCHES * float(np.hypot(parts[0][1], parts[1][1]))


def _has_moved(change: tuple[float, float | None, float | None] | None) -> bool:
    if change is None:
        return False
    effect, low, base = change
    if low is None or base is None or base <= 0:
        return False
    return low >= MOVED_LO_FRAC * base and effect >= MOVED_FRAC * base and effect >= MOVED_MS


def _one(
    symptom: str,
    over_ms: Floats,
    above: tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]],
    change: tuple[float, float | None, float | None] | None,
    shared: float = 1.0,
) -> Excess:
    n, known = len(over_ms), np.isfinite(over_ms)
    alone = float(np.maximum(over_ms[known], 0.0).sum()) if known.any() else float("nan")
    rise = change[0] * n if change is not None else float("nan")
    slow, hint = above
    at_least = SLOW_SHARE * max(int(known.sum()), 1)
    # With a baseline what counts is whether it moved: a busy engine always costs more than alone.
    many = change is None and n >= MIN_REQUESTS and slow.sum() >= max(at_least, MIN_SLOW)
    hinted = n >= MIN_REQUESTS and hint.sum() >= max(at_least, MIN_SLOW_HINT)
    moved = n >= MIN_REQUESTS and _has_moved(change)
    reason = ""
    if many or hinted:
        n_slow, factor = (slow.sum(), SLOW_FACTOR) if many else (hint.sum(), HINT_FACTOR)
        reason = (
            f"{n_slow} of {int(known.sum())} requests take over {factor * shared:.0f} times "
            "their alone cost"
        )
    if moved and change is not None:
        reason = f"the mean rose by {change[0]:.0f} ms over the baseline"
    return Excess(
        symptom, alone, rise, bool(many or moved), bool(hinted), slow if many else hint, reason,
        SLOW_FACTOR * shared,
    )  # fmt: skip


def _itl(
    excess_ms: float, change: tuple[float, float | None, float | None] | None, requests: Requests
) -> Excess:
    later = np.maximum(requests.floats("n_output") - 1.0, 0.0)
    rise = float("nan")
    moved = False
    if change is not None and change[2]:
        rise = change[0] * len(requests)
        tokens = float(np.nansum(later)) or 1.0
        per_token = rise / tokens
        low = change[1]
        # The change is per request; a person sees it per token.
        moved = (
            low is not None and low > 0 and change[2] > 0 and per_token >= MOVED_FRAC * change[2]
        )
    return Excess(
        "itl", excess_ms, rise, moved and len(requests) >= MIN_REQUESTS, False,
        np.zeros(len(requests), dtype=bool),
        "the time per token rose over the baseline" if moved else "",
    )  # fmt: skip


def _late(requests: Requests) -> tuple[Floats, Floats]:
    """How much later than the server the client saw it, and what the client saw (ms)."""
    first, end = requests.floats("late_first_ms"), requests.floats("late_end_ms")
    is_first = np.isfinite(first)
    seen = np.where(is_first, requests.floats("client_ttft_ms"), requests.floats("client_e2e_ms"))
    return np.where(is_first, first, end), seen


def _client(requests: Requests, baseline: Requests | None) -> Excess:
    """What lies between server and client, by durations that know no skew of clocks."""
    late, _ = _late(requests)
    usual = requests.floats("alone_ttft_ms")
    usual = np.where(np.isfinite(usual), usual, requests.floats("ttft_ms"))
    slow = _above(late, np.nan_to_num(usual, nan=0.0), SLOW_FACTOR, SLOW_MS)
    change = None if baseline is None or len(baseline) == 0 else _late_change(requests, baseline)
    found = _one("client", late, (slow, slow), change)
    reason = found.reason.replace("over the baseline", "over the baseline outside the server")
    if found.is_visible and change is None:
        n_known = int(np.isfinite(late).sum())
        reason = f"{int(slow.sum())} of {n_known} reach the client over a second after the server"
    # Without a client's span nothing is hinted either.
    return Excess(
        "client", found.alone_ms, found.rise_ms, found.is_visible, False, found.slow, reason
    )


def _late_change(
    requests: Requests, baseline: Requests
) -> tuple[float, float | None, float | None] | None:
    """Rise of the mean lateness, its lower bound over blocks of time, and what was seen before."""
    (now, _), (before, seen) = _late(requests), _late(baseline)
    seen = seen[np.isfinite(seen)]
    if not np.isfinite(now).any() or not np.isfinite(before).any() or len(seen) == 0:
        return None
    parts = []
    for values in (now, before):
        known = values[np.isfinite(values)]
        blocks = [b.mean() for b in np.array_split(known, min(N_BLOCKS, len(known)))]
        error = float(np.std(blocks, ddof=1)) / len(blocks) ** 0.5 if len(blocks) > 1 else np.inf
        parts.append((float(known.mean()), error))
    rise = parts[0][0] - parts[1][0]
    return rise, rise - Z_90 * float(np.hypot(parts[0][1], parts[1][1])), float(seen.mean())
