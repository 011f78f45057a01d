"""The last minutes in memory, exported when something goes wrong or somebody asks.

Spans are kept as compressed batches: about a tenth of what they take as objects. What gets
too old, or too much, is left out and counted as skipped by choice.
"""

from __future__ import annotations

import pickle
import zlib
from collections import Counter, deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from tokenlag_tracer import conventions as names
from tokenlag_tracer.spans import Row

BATCH_SPANS: Final = 256


class _Batch(NamedTuple):
    last_ns: int  # monotonic, when it was put in
    n_steps: dict[int, int]
    n_spans: int
    data: bytes


class Ring:
    """A bounded memory of spans.

    Args:
        keep_s: how long spans are kept.
        max_bytes: how much memory they may take.
    """

    def __init__(self, keep_s: float, max_bytes: int) -> None:
        self._keep_ns = int(keep_s * 1e9)
        self._max_bytes = max_bytes
        self._batches: deque[_Batch] = deque()
        self._leaving: deque[_Batch] = deque()
        self._fresh: list[Row] = []
        self.n_bytes = 0

    def put(self, rows: Sequence[Row], now_ns: int) -> dict[int, int]:
        """Keeps spans; returns how many steps left the ring instead, by resource."""
        self._fresh += rows
        if len(self._fresh) >= BATCH_SPANS:
            self._pack(now_ns)
        return self.expire(now_ns)

    def expire(self, now_ns: int) -> dict[int, int]:
        """Lets go of what is too old or too much; returns the steps among it, by resource."""
        gone: Counter[int] = Counter()
        batches = self._batches
        while batches and (
            self.n_bytes > self._max_bytes or batches[0].last_ns < now_ns - self._keep_ns
        ):
            batch = batches.popleft()
            self.n_bytes -= len(batch.data)
            gone.update(batch.n_steps)
        return dict(gone)

    def release(self, now_ns: int) -> int:
        """Has all that is kept go out by `take`; returns how many spans that are."""
        self._pack(now_ns)
        n_spans = sum(batch.n_spans for batch in self._batches)
        self._leaving += self._batches
        self._batches.clear()
        return n_spans

    @property
    def is_leaving(self) -> bool:
        """Whether there is something to `take`."""
        return bool(self._leaving)

    def take(self) -> list[Row]:
        """Returns the oldest of what goes out, at most `BATCH_SPANS`; empty if there is none."""
        if not self._leaving:
            return []
        batch = self._leaving.popleft()
        self.n_bytes -= len(batch.data)
        return [Row(*values) for values in pickle.loads(zlib.decompress(batch.data))]

    def _pack(self, now_ns: int) -> None:
        rows, self._fresh = self._fresh, []
        for at in range(0, len(rows), BATCH_SPANS):
            part = rows[at : at + BATCH_SPANS]
            n_steps = Counter(row.resource for row in part if row.name == names.SPAN_ENGINE_STEP)
            data = zlib.compress(pickle.dumps([tuple(row) for row in part], protocol=5), 1)
            self._batches.append(_Batch(now_ns, dict(n_steps), len(part), data))
            self.n_bytes += len(data)
