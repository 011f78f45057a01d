"""Small random schedules: streams that join, are skipped, preempted and prefilled again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from tokenlag.explain.streams import Chunks, Runs, Steps


@dataclass(frozen=True)
class Schedule:
    """What each handle did, step by step.

    `events[handle]` is a list of (position, kind), kind being 'chunk' (part of a prompt that
    is not its last), 'first' (the last chunk of its first prefill: a token comes out),
    'again' (the last chunk of a recomputation) or 'decode'.
    """

    wall_ms: tuple[int, ...]
    events: dict[int, list[tuple[int, str]]]
    sizes: dict[tuple[int, int], tuple[int, int]]
    """Of each chunk (handle, position): tokens and context."""

    @property
    def n_steps(self) -> int:
        return len(self.wall_ms)

    def steps(self) -> Steps:
        end = np.cumsum(np.array(self.wall_ms, dtype=np.int64)) * 1_000_000
        cadence = np.array(self.wall_ms, dtype=np.float64)
        prefill, decode = np.zeros((2, self.n_steps), dtype=np.int64)
        for (_, position), (tokens, _) in self.sizes.items():
            prefill[position] += tokens
        for events in self.events.values():
            for position, kind in events:
                decode[position] += kind == "decode"
        start = end - (cadence * 1e6).astype(np.int64)
        return Steps(np.arange(self.n_steps), start, end, cadence, prefill, decode)

    def chunks(self) -> Chunks:
        rows = [
            (handle, position, *size)
            for (handle, position), size in sorted(self.sizes.items(), key=lambda i: i[0][::-1])
        ]
        table = np.array(rows, dtype=np.int64).reshape(-1, 4)
        return Chunks(table[:, 0], table[:, 1], table[:, 2], table[:, 3])

    def runs(self) -> Runs:
        """Maximal runs of neighbouring decode steps, as readers store them."""
        rows: list[list[int]] = []
        for handle, events in sorted(self.events.items()):
            last = None
            for position, kind in events:
                if kind != "decode":
                    last = None
                    continue
                if last == position - 1:
                    rows[-1][2] = position
                else:
                    rows.append([handle, position, position])
                last = position
        table = np.array(rows, dtype=np.int64).reshape(-1, 3)
        return Runs(table[:, 0], table[:, 1], table[:, 2])


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    n_steps = draw(st.integers(1, 14))
    events: dict[int, list[tuple[int, str]]] = {}
    sizes: dict[tuple[int, int], tuple[int, int]] = {}
    for handle in draw(st.lists(st.integers(0, 40), max_size=5, unique=True)):
        _one(draw, handle, n_steps, events, sizes)
    walls = st.lists(st.integers(1, 50), min_size=n_steps, max_size=n_steps)
    return Schedule(tuple(draw(walls)), events, sizes)


def _one(
    draw: st.DrawFn,
    handle: int,
    n_steps: int,
    events: dict[int, list[tuple[int, str]]],
    sizes: dict[tuple[int, int], tuple[int, int]],
) -> None:
    """A life: wait, prefill in some steps, decode in some, perhaps all of it again."""
    position = draw(st.integers(0, n_steps - 1))
    done: list[tuple[int, str]] = []
    final = "first"
    while position < n_steps:
        n_chunks, context = draw(st.integers(1, 3)), 0
        for i in range(n_chunks):
            if position >= n_steps:
                break
            tokens = draw(st.integers(1, 3000))
            sizes[handle, position] = (tokens, context)
            context += tokens
            done.append((position, final if i == n_chunks - 1 else "chunk"))
            position += draw(st.integers(1, 2))
        else:
            n_decodes = draw(st.integers(1, 6))
            for _ in range(n_decodes):
                if position >= n_steps:
                    break
                done.append((position, "decode"))
                position += draw(st.sampled_from([1, 1, 1, 2, 4]))
        if not draw(st.booleans()):
            break
        final = "again"
        position += draw(st.integers(0, 3))
    events[handle] = done
