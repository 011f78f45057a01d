"""Which request traces are kept: all slow ones, failures and culprits, and a weighted rest.

Engine steps are never sampled: a share of steps explains nothing. Each kept request says how
many it stands for (`tokenlag.sample.weight`), so that counts and percentiles stay right.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from tokenlag_tracer.config import Config
from tokenlag_tracer.inflight import OpenRequest

_SLOW_SHARE: Final = 0.95
_N_RECENT: Final = 512
_TRACE_MASK: Final = (1 << 64) - 1


class Sampler:
    """Decides on requests as they end.

    Args:
        config: `TOKENLAG_SAMPLE`, and the standard sampler's variables where they are set.
    """

    def __init__(self, config: Config) -> None:
        self._frac = config.sample_frac
        self._name = config.sampler
        self._arg = config.sampler_arg
        self._recent: dict[str, deque[int]] = {
            "ttft": deque(maxlen=_N_RECENT),
            "e2e": deque(maxlen=_N_RECENT),
        }
        self._slow_ns: dict[str, int] = {}
        self._n = 0

    def decide(self, request: OpenRequest) -> float | None:
        """Returns how many requests this one stands for; None: it is not kept."""
        weight = self._standard(request)
        if weight is None or self._frac >= 1:
            return weight
        if self._is_slow(request) or _is_telling(request):
            return weight
        if self._frac <= 0 or not _is_in(request.trace_id, self._frac):
            return None
        return weight / self._frac

    def _standard(self, request: OpenRequest) -> float | None:
        """The standard sampler's word. Not set, all are kept whatever the caller's flag says."""
        name = self._name
        if not name or name == "always_on":
            return 1.0
        if name == "always_off":
            return None
        if name.startswith("parentbased_"):
            if request.front is not None and request.front.parent_id:
                return 1.0 if request.is_sampled else None
            name = name.removeprefix("parentbased_")
            if name == "always_off":
                return None
        if name == "traceidratio":
            if self._arg <= 0 or not _is_in(request.trace_id, self._arg):
                return None
            return 1 / self._arg
        return 1.0

    def _is_slow(self, request: OpenRequest) -> bool:
        self._n += 1
        is_slow = False
        for name, value in _durations(request).items():
            recent = self._recent[name]
            recent.append(value)
            if self._n % 32 == 0 or name not in self._slow_ns:
                ordered = sorted(recent)
                self._slow_ns[name] = ordered[int(_SLOW_SHARE * (len(ordered) - 1))]
            is_slow = is_slow or value > self._slow_ns[name]
        return is_slow


def _durations(request: OpenRequest) -> dict[str, int]:
    starts = [sequence.queued_ns for sequence in request.sequences]
    ends = [s.ended_ns for s in request.sequences if s.ended_ns is not None]
    if request.front is not None:
        starts.append(request.front.arrived_ns)
        ends += [request.front.done_ns] if request.front.done_ns is not None else []
    found: dict[str, int] = {}
    if starts and ends:
        found["e2e"] = max(ends) - min(starts)
    tokens = [ns for s in request.sequences if (ns := s.first_token_ns) is not None]
    if starts and tokens:
        found["ttft"] = min(tokens) - min(starts)
    return found


def _is_telling(request: OpenRequest) -> bool:
    """Whether it failed, was put back, or had a part in an unusually long step."""
    if request.front is not None and request.front.fields.get("error_type"):
        return True
    return any(
        s.is_culprit or s.n_preemptions or s.fields.get("error_type") for s in request.sequences
    )


def _is_in(trace_id: int, frac: float) -> bool:
    """The standard ratio sampler's test, so that two tracers agree on a trace."""
    return (trace_id & _TRACE_MASK) < round(frac * (_TRACE_MASK + 1))
