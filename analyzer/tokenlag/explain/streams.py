"""Streams and their gaps: when each stream got its tokens, and which steps lay in between.

A stream's tokens come at the ends of steps: one at the end of the step with its last prompt
chunk, then one at the end of each step in which it decodes. Most gaps are those between two
neighbouring steps, and all streams that decode in both see the same gap: those are kept as
one row a step with a count. The others (a stream joins, was skipped, or was preempted and
prefilled again) are rows of their own. Unrolling streams × steps is never needed.

Positions here are indexes into the epoch's steps in time order, not step indexes: records
may be missing. See docs/blame.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Steps:
    """Steps of one epoch in time order."""

    index: Ints
    start_ns: Ints
    end_ns: Ints
    cadence_ms: Floats
    n_prefill_tokens: Ints
    n_decode: Ints

    @property
    def wall_ms(self) -> Floats:
        """End to end of neighbouring steps; the first step's own cadence."""
        wall = np.empty(len(self.end_ns))
        wall[1:] = np.diff(self.end_ns) / 1e6
        if len(wall):
            wall[0] = self.cadence_ms[0]
        return wall

    def position(self, index: Ints) -> Ints:
        """Positions of the first steps whose index is not below these."""
        return np.searchsorted(self.index, index).astype(np.int64)


@dataclass(frozen=True)
class Chunks:
    """Prompt chunks: whose, in which step (by position), how many tokens on how many."""

    handle: Ints
    position: Ints
    n_tokens: Ints
    n_context: Ints


@dataclass(frozen=True)
class Runs:
    """Uninterrupted runs of decode steps, first to last position inclusive."""

    handle: Ints
    first: Ints
    last: Ints


@dataclass(frozen=True)
class Streams:
    """Who waited on which step.

    `n_continuing[s]`: streams that decode in step s and in the one before. The `gap_*` arrays
    are the other gaps: from the step that gave the token before to the step that gave this one.
    `alive_*`: for each stream, the positions of its first and its last token.
    """

    n_continuing: Ints
    gap_handle: Ints
    gap_from: Ints
    gap_to: Ints
    gap_is_preempted: Bools
    alive_handle: Ints
    alive_first: Ints
    alive_last: Ints
    n_waiting_on: Ints
    """Streams whose next token waited on this step: continuing ones and those in a longer gap."""
    gap_cover_ms: Floats
    """The longest of the other gaps that covers this step; 0 where none does."""


def find_streams(steps: Steps, chunks: Chunks, runs: Runs) -> Streams:
    """Builds the streams of one epoch. All arrays may be empty."""
    n_steps = len(steps.index)
    handle, first, last, is_prefill = _events(chunks, runs)
    same = np.zeros(len(handle), dtype=bool)
    same[1:] = handle[1:] == handle[:-1]
    n_continuing = _cover(runs.first + 1, runs.last, n_steps)
    to = np.flatnonzero(same)
    before = to - 1
    gap_from, gap_to = last[before], first[to]
    # A prefill after the first token is a recomputation: the stream was preempted.
    preempted = is_prefill[to] & ~is_prefill[before]
    keep = gap_to > gap_from
    gap_handle, gap_from, gap_to, preempted = (
        handle[to][keep],
        gap_from[keep],
        gap_to[keep],
        preempted[keep],
    )
    starts = np.flatnonzero(~same)
    ends = np.append(starts[1:], len(handle)) - 1 if len(handle) else starts
    gap_ms = (steps.end_ns[gap_to] - steps.end_ns[gap_from]) / 1e6
    return Streams(
        n_continuing=n_continuing,
        gap_handle=gap_handle,
        gap_from=gap_from,
        gap_to=gap_to,
        gap_is_preempted=preempted,
        alive_handle=handle[starts],
        alive_first=first[starts],
        alive_last=last[ends],
        n_waiting_on=n_continuing + _cover(gap_from + 1, gap_to, n_steps),
        gap_cover_ms=_cover_max(gap_from + 1, gap_to, gap_ms, n_steps),
    )


def _events(chunks: Chunks, runs: Runs) -> tuple[Ints, Ints, Ints, Bools]:
    """Emissions by handle in time: a completed prefill (one step), or a run of decode steps."""
    done_handle, done_at = _completed_prefills(chunks, runs)
    handle = np.concatenate([done_handle, runs.handle])
    first = np.concatenate([done_at, runs.first])
    last = np.concatenate([done_at, runs.last])
    is_prefill = np.concatenate([
        np.ones(len(done_at), dtype=bool),
        np.zeros(len(runs.first), dtype=bool),
    ])  # fmt: skip
    order = np.lexsort((first, handle))
    return handle[order], first[order], last[order], is_prefill[order]


def _completed_prefills(chunks: Chunks, runs: Runs) -> tuple[Ints, Ints]:
    """Where a prompt's last chunk ran and its stream went on to decode.

    The chunk before each run of decoding (by handle) is such a completion; prompts that were
    preempted in the middle, or are prefill only, have no stream to wait for them.
    """
    order = np.lexsort((chunks.position, chunks.handle))
    handle, position = chunks.handle[order], chunks.position[order]
    if len(handle) == 0 or len(runs.first) == 0:
        empty = np.zeros(0, dtype=np.int64)
        return empty, empty
    width = int(max(position.max(), runs.first.max())) + 2
    keys = handle * width + position
    before = np.searchsorted(keys, runs.handle * width + runs.first, side="right") - 1
    found = (before >= 0) & (handle[np.maximum(before, 0)] == runs.handle)
    pairs = np.unique(np.column_stack([runs.handle[found], position[before[found]]]), axis=0)
    return pairs[:, 0].astype(np.int64), pairs[:, 1].astype(np.int64)


def _cover(first: Ints, last: Ints, n: int) -> Ints:
    """How many of the closed ranges [first, last] hold each position; empty ones count nowhere."""
    real = last >= first
    change = np.zeros(n + 1, dtype=np.int64)
    np.add.at(change, first[real], 1)
    np.add.at(change, last[real] + 1, -1)
    return np.cumsum(change[:-1])


def _cover_max(first: Ints, last: Ints, value: Floats, n: int) -> Floats:
    """The largest value of the closed ranges that hold each position."""
    out = np.zeros(n)
    for a, b, v in zip(first.tolist(), last.tolist(), value.tolist(), strict=True):
        np.maximum(out[a : b + 1], v, out=out[a : b + 1])
    return out
