"""Streams' gaps by intervals against the same told one token at a time."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenlag.explain.streams import Chunks, Runs, Steps, Streams, find_streams

from tests.explain.schedule import Schedule, schedules


def tokens_of(events: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """The steps that gave a stream a token, one by one.

    That a chunk was a prompt's last shows only by decoding that follows; a stream that was cut
    off before that is not known to have got a token.
    """
    got = [(position, kind) for position, kind in events if kind != "chunk"]
    while got and got[-1][1] != "decode":
        got.pop()
    return got


def naive_tokens(schedule: Schedule) -> dict[int, list[int]]:
    told = {handle: tokens_of(events) for handle, events in schedule.events.items()}
    return {handle: [position for position, _ in got] for handle, got in told.items() if got}


def naive_gaps(schedule: Schedule) -> Counter[tuple[int, int]]:
    return Counter(
        (a, b) for at in naive_tokens(schedule).values() for a, b in itertools.pairwise(at)
    )


def found_gaps(found: Streams) -> Counter[tuple[int, int]]:
    out: Counter[tuple[int, int]] = Counter()
    for position, n in enumerate(found.n_continuing.tolist()):
        if n:
            out[position - 1, position] += n
    for a, b in zip(found.gap_from.tolist(), found.gap_to.tolist(), strict=True):
        out[a, b] += 1
    return out


def find(schedule: Schedule) -> Streams:
    return find_streams(schedule.steps(), schedule.chunks(), schedule.runs())


@settings(max_examples=200, deadline=None)
@given(schedules())
def test_the_gaps_are_those_of_each_stream_by_itself(schedule: Schedule) -> None:
    assert found_gaps(find(schedule)) == naive_gaps(schedule)


@settings(max_examples=200, deadline=None)
@given(schedules())
def test_as_many_streams_wait_on_each_step(schedule: Schedule) -> None:
    waiting = np.zeros(schedule.n_steps, dtype=int)
    longest = np.zeros(schedule.n_steps)
    ends = schedule.steps().end_ns
    for (a, b), n in naive_gaps(schedule).items():
        waiting[a + 1 : b + 1] += n
        longest[a + 1 : b + 1] = np.maximum(longest[a + 1 : b + 1], (ends[b] - ends[a]) / 1e6)
    found = find(schedule)
    assert found.n_waiting_on.tolist() == waiting.tolist()
    seen = np.maximum(
        found.gap_cover_ms, np.where(found.n_continuing > 0, schedule.steps().wall_ms, 0.0)
    )
    assert seen == pytest.approx(longest)


@settings(max_examples=200, deadline=None)
@given(schedules())
def test_a_stream_lives_from_its_first_token_to_its_last(schedule: Schedule) -> None:
    found = find(schedule)
    got = {
        int(h): (int(a), int(b))
        for h, a, b in zip(found.alive_handle, found.alive_first, found.alive_last, strict=True)
    }
    assert got == {h: (at[0], at[-1]) for h, at in naive_tokens(schedule).items()}


@settings(max_examples=200, deadline=None)
@given(schedules())
def test_preempted_gaps_are_those_that_end_in_a_recomputation(schedule: Schedule) -> None:
    found = find(schedule)
    got = {
        (int(h), int(b))
        for h, b, is_preempted in zip(
            found.gap_handle, found.gap_to, found.gap_is_preempted, strict=True
        )
        if is_preempted
    }
    told = {
        (handle, position)
        for handle, events in schedule.events.items()
        for position, kind in tokens_of(events)
        if kind == "again"
    }
    assert got == told


@dataclass
class Hand:
    """A schedule by hand."""

    chunks: list[tuple[int, int]] = field(default_factory=list)
    runs: list[tuple[int, int, int]] = field(default_factory=list)

    def find(self, n_steps: int = 6) -> Streams:
        ends = np.arange(1, n_steps + 1, dtype=np.int64) * 10_000_000
        steps = Steps(
            np.arange(n_steps), ends - 10_000_000, ends, np.full(n_steps, 10.0),
            np.zeros(n_steps, dtype=np.int64), np.zeros(n_steps, dtype=np.int64),
        )  # fmt: skip
        c = np.array(self.chunks, dtype=np.int64).reshape(-1, 2)
        r = np.array(self.runs, dtype=np.int64).reshape(-1, 3)
        ones = np.ones(len(c), dtype=np.int64)
        return find_streams(
            steps, Chunks(c[:, 0], c[:, 1], 100 * ones, 0 * ones), Runs(r[:, 0], r[:, 1], r[:, 2])
        )


def test_a_stream_frozen_by_a_prefill_first_step_waits_on_it() -> None:
    # Stream 1 decodes in 1 and 3; step 2 is another's prompt alone.
    found = Hand(chunks=[(1, 0), (2, 2)], runs=[(1, 1, 1), (1, 3, 3), (2, 3, 3)]).find()
    assert found_gaps(found) == Counter({(0, 1): 1, (1, 3): 1, (2, 3): 1})
    assert found.n_waiting_on.tolist() == [0, 1, 1, 2, 0, 0]
    assert found.gap_cover_ms.tolist() == [0, 10, 20, 20, 0, 0]


def test_nothing_at_all_and_prompts_alone_have_no_streams() -> None:
    for hand in (Hand(), Hand(chunks=[(1, 0), (1, 1)])):
        found = hand.find()
        assert len(found.alive_handle) == 0
        assert found.n_waiting_on.sum() == 0
    assert len(Hand().find(0).n_continuing) == 0


@given(st.integers(0, 5))
def test_without_its_prompt_a_stream_begins_with_its_first_known_step(first: int) -> None:
    found = Hand(runs=[(7, first, 5)]).find()
    assert (found.alive_first.tolist(), found.alive_last.tolist()) == ([first], [5])
    assert found.n_continuing.sum() == 5 - first
