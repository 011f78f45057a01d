"""Blame: who held up whom, for how long.

A prompt chunk in a step makes the step longer by its marginal time, fitted(with) −
fitted(without), split among the step's chunks in proportion to their cost (Aumann–Shapley of
the step model: attention terms are separable, the token term is proportional to tokens). A
step without any decoding would not have been there at all: its whole time is the prompts'.
Each stream whose next token waited on the step is held for that long. Blame is scaled by
the model and capped by what was measured; what the model does not explain is the engine's, not
the neighbour's. See docs/blame.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tokenlag.explain.streams import Chunks, Steps, Streams

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

LONGER_THAN_VICTIM = 4.0
"""How many times a victim's own prompt a prompt ahead must be to be a *long* prompt ahead."""


@dataclass(frozen=True)
class Culprits:
    """Per prompt (handle): what its prefill cost the streams beside it."""

    handle: Ints
    n_tokens: Ints
    n_victims: Ints
    effect_ms: Floats
    hold_ms: Floats
    worst_gap_ms: Floats
    first: Ints
    last: Ints
    n_steps: Ints
    n_mixed_steps: Ints


def hold_ms(steps: Steps, prefill_ms: Floats) -> Floats:
    """For each step, how long its prompt chunks keep a waiting stream."""
    pure = (steps.n_decode == 0) & (steps.n_prefill_tokens > 0)
    return np.where(pure, steps.cadence_ms, np.maximum(prefill_ms, 0.0))


def chunk_shares(
    chunks: Chunks, per_token_ms: float, per_attention_ms: float, n_steps: int
) -> Floats:
    """Each chunk's share of its step's prompt time; shares of a step sum to 1."""
    tokens = chunks.n_tokens.astype(np.float64)
    attention = tokens * (chunks.n_context + tokens / 2.0)
    cost = per_token_ms * tokens + per_attention_ms * attention
    if not (per_token_ms > 0 or per_attention_ms > 0):
        cost = tokens
    total = np.bincount(chunks.position, weights=cost, minlength=n_steps)
    return np.asarray(cost / np.maximum(total[chunks.position], 1e-300), dtype=np.float64)


def blame_streams(
    steps: Steps, chunks: Chunks, streams: Streams, held: Floats, share: Floats
) -> Culprits:
    """Sums what each prompt cost the streams. `held` by step, `share` by chunk."""
    harm = held[chunks.position] * share
    order = np.argsort(chunks.handle, kind="stable")
    handle = chunks.handle[order]
    begins = np.flatnonzero(np.append(True, handle[1:] != handle[:-1])) if len(handle) else order
    position = chunks.position[order]
    waiting = streams.n_waiting_on[position]
    worst = np.maximum(
        np.where(streams.n_continuing[position] > 0, steps.wall_ms[position], 0.0),
        streams.gap_cover_ms[position],
    )

    def total(values: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        return np.add.reduceat(values, begins) if len(begins) else values[:0]

    first = np.minimum.reduceat(position, begins) if len(begins) else position[:0]
    last = np.maximum.reduceat(position, begins) if len(begins) else position[:0]
    return Culprits(
        handle=handle[begins],
        n_tokens=np.asarray(total(chunks.n_tokens[order]), dtype=np.int64),
        n_victims=_overlapping(streams.alive_first, streams.alive_last, first, last),
        effect_ms=np.asarray(total(harm[order] * waiting), dtype=np.float64),
        hold_ms=np.asarray(total(harm[order]), dtype=np.float64),
        worst_gap_ms=np.maximum.reduceat(worst, begins) if len(begins) else worst[:0],
        first=first,
        last=last,
        n_steps=np.asarray(total(np.ones(len(order), dtype=np.int64)), dtype=np.int64),
        n_mixed_steps=np.asarray(
            total((steps.n_decode[position] > 0).astype(np.int64)), dtype=np.int64
        ),
    )


def _overlapping(alive_first: Ints, alive_last: Ints, first: Ints, last: Ints) -> Ints:
    """How many streams had a token before `last` and still waited for one at `first`."""
    begun = np.searchsorted(np.sort(alive_first), last, side="left")
    over = np.searchsorted(np.sort(alive_last), first, side="left")
    return np.asarray(np.maximum(begun - over, 0), dtype=np.int64)


def victims_of(
    culprit: int, chunks: Chunks, streams: Streams, held: Floats, share: Floats
) -> tuple[Ints, Floats]:
    """Handles of the streams that one prompt held up, and each one's milliseconds."""
    own = chunks.handle == culprit
    harm = np.bincount(
        chunks.position[own], weights=held[chunks.position[own]] * share[own], minlength=len(held)
    )
    until = np.concatenate([[0.0], np.cumsum(harm)])
    ms = until[streams.alive_last + 1] - until[streams.alive_first + 1]
    hit = (ms > 0) & (streams.alive_handle != culprit)
    return streams.alive_handle[hit], ms[hit]


@dataclass(frozen=True)
class Waits:
    """Waits to be scheduled, of one epoch: whose, from when to when, how long its own prompt is."""

    handle: Ints
    from_ns: Ints
    to_ns: Ints
    n_tokens: Floats


@dataclass(frozen=True)
class QueueBlame:
    """Of each wait, the part behind much longer prompts, and of each such prompt, its victims."""

    behind_ms: Floats
    behind_handle: Ints
    culprit: Ints
    effect_ms: Floats
    n_victims: Ints
    worst_ms: Floats
    median_victim_tokens: Floats


def blame_queue(
    steps: Steps,
    chunks: Chunks,
    share: Floats,
    held: Floats,
    may_charge: npt.NDArray[np.bool_],
    waits: Waits,
) -> QueueBlame:
    """Charges the time that requests wait to much longer prompts whose chunks fill the steps.

    A wait overlaps steps; the part of a step that a prompt's chunk takes is charged to the
    prompt if it is at least `LONGER_THAN_VICTIM` times the waiting prompt and `may_charge`
    (no slot or KV limit kept the queue's head out of that step: then the prompt is not why).
    """
    n = len(waits.handle)
    behind, who, best = np.zeros(n), np.full(n, -1, dtype=np.int64), np.zeros(n)
    rows: list[tuple[int, float, int, float, float]] = []
    if n and len(chunks.handle):
        tokens = prompt_lengths(chunks)
        floor = LONGER_THAN_VICTIM * max(float(np.min(waits.n_tokens)), 1.0)
        pieces = _Pieces(steps, chunks, share, held, may_charge)
        line = _Line(waits)
        long_ones = np.array([h for h, t in tokens.items() if t >= floor], dtype=np.int64)
        near = long_ones[line.has_any(*pieces.extent(long_ones))]
        for culprit in sorted(near.tolist(), key=lambda h: -tokens[h]):
            hit, ms = line.behind(pieces.of(culprit), float(tokens[culprit]))
            if not len(hit):
                continue
            behind[hit] += ms
            is_worst = ms > best[hit]
            who[hit[is_worst]], best[hit[is_worst]] = culprit, ms[is_worst]
            rows.append((
                culprit, float(ms.sum()), len(hit), float(ms.max()),
                float(np.median(waits.n_tokens[hit])),
            ))  # fmt: skip
    return QueueBlame(
        behind_ms=behind,
        behind_handle=who,
        culprit=np.array([r[0] for r in rows], dtype=np.int64),
        effect_ms=np.array([r[1] for r in rows]),
        n_victims=np.array([r[2] for r in rows], dtype=np.int64),
        worst_ms=np.array([r[3] for r in rows]),
        median_victim_tokens=np.array([r[4] for r in rows]),
    )


def prompt_lengths(chunks: Chunks) -> dict[int, int]:
    """How long each prompt is: the stretch of positions that its chunks cover.

    Not what was computed of it: a prompt that is thrown out and prefilled again is no longer.
    """
    handles, inverse = np.unique(chunks.handle, return_inverse=True)
    until = np.zeros(len(handles), dtype=np.int64)
    since = np.full(len(handles), np.iinfo(np.int64).max)
    np.maximum.at(until, inverse, chunks.n_context + chunks.n_tokens)
    np.minimum.at(since, inverse, chunks.n_context)
    return {int(h): int(t) for h, t in zip(handles, until - since, strict=True)}


class _Pieces:
    """When each prompt's chunks ran, and which part of their steps they took."""

    def __init__(
        self,
        steps: Steps,
        chunks: Chunks,
        share: Floats,
        held: Floats,
        may_charge: npt.NDArray[np.bool_],
    ) -> None:
        own = np.flatnonzero(may_charge[chunks.position])
        at = chunks.position[own]
        end = steps.end_ns[at].astype(np.float64)
        begin = end - steps.cadence_ms[at] * 1e6
        part = np.minimum(held[at] * share[own] / np.maximum(steps.cadence_ms[at], 1e-9), 1.0)
        order = np.lexsort((begin, chunks.handle[own]))
        self._handle = chunks.handle[own][order]
        self._begin, self._end, self._part = begin[order], end[order], part[order]

    def extent(self, handles: Ints) -> tuple[Floats, Floats]:
        """Begin of the first and end of the last of these prompts' steps; NaN without any."""
        first, last = (self._handle.searchsorted(handles, side=s) for s in ("left", "right"))
        has_any = last > first
        begin = np.full(len(handles), np.nan)
        end = np.full(len(handles), np.nan)
        begin[has_any] = self._begin[first[has_any]]
        end[has_any] = self._end[last[has_any] - 1]
        return begin, end

    def of(self, handle: int) -> tuple[Floats, Floats, Floats]:
        """Begins, ends (unix ns) and parts of the steps with this prompt's chunks, in order."""
        first, last = self._handle.searchsorted((handle, handle + 1))
        some = slice(first, last)
        return self._begin[some], self._end[some], self._part[some]


class _Line:
    """Waits by when they began, so that those near a prompt are found without a look at all."""

    def __init__(self, waits: Waits) -> None:
        self._order = np.argsort(waits.from_ns, kind="stable")
        # As floats: a search for a float in an array of integers would convert all of it.
        self._from = waits.from_ns[self._order].astype(np.float64)
        self._to = waits.to_ns[self._order].astype(np.float64)
        self._n_tokens = waits.n_tokens[self._order]
        # No wait before this position lasts beyond that moment.
        self._reach = np.maximum.accumulate(self._to)

    def has_any(self, begin: Floats, end: Floats) -> npt.NDArray[np.bool_]:
        """Whether some wait may meet each of these stretches of time; NaN: none does."""
        first = self._reach.searchsorted(begin, side="right")
        return np.asarray(first < self._from.searchsorted(end, side="left")) & ~np.isnan(begin)

    def behind(self, pieces: tuple[Floats, Floats, Floats], n_tokens: float) -> tuple[Ints, Floats]:
        """Which waits a prompt of `n_tokens` had a part in, and how many milliseconds of each."""
        begin, end, part = pieces
        if not len(begin):
            return np.zeros(0, dtype=np.int64), np.zeros(0)
        first = int(self._reach.searchsorted(begin[0], side="right"))
        last = int(self._from.searchsorted(end.max(), side="left"))
        near = slice(first, max(first, last))
        where = first + np.flatnonzero(
            (self._n_tokens[near] * LONGER_THAN_VICTIM <= n_tokens) & (self._to[near] > begin[0])
        )
        # Charged time up to an instant, as a piecewise linear function of it.
        knots = np.column_stack([begin, end]).ravel()
        amounts = (
            np.column_stack([np.zeros(len(part)), (end - begin) * part]).ravel().cumsum() / 1e6
        )
        charged = np.interp(self._to[where], knots, amounts) - np.interp(
            self._from[where], knots, amounts
        )
        is_hit = charged > 1e-6
        return self._order[where[is_hit]], charged[is_hit]
