from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenlag.read.memberships import Memberships, decode_memberships


def ranges(members: set[int]) -> str:
    parts: list[list[int]] = []
    for member in sorted(members):
        if parts and member == parts[-1][1] + 1:
            parts[-1][1] = member
        else:
            parts.append([member, member])
    return ",".join(f"{a}-{b}" if b > a else f"{a}" for a, b in parts)


class Log:
    """Step records as a writer makes them, and what is true."""

    def __init__(self) -> None:
        self.index: list[int] = []
        self.count: list[int] = []
        self.position: list[int] = []
        self.lists: list[tuple[str | None, str | None, str | None]] = []

    def add(
        self,
        index: int,
        count: int,
        joined: str | None = None,
        left: str | None = None,
        full: str | None = None,
    ) -> None:
        if joined is not None or left is not None or full is not None:
            self.position.append(len(self.index))
            self.lists.append((joined, left, full))
        self.index.append(index)
        self.count.append(count)

    def carry(self) -> Memberships:
        joined, left, full = ([row[k] for row in self.lists] for k in range(3))
        return decode_memberships(
            np.array(self.index, dtype=np.int64),
            np.array(self.count, dtype=np.int64),
            np.array(self.position, dtype=np.int64),
            joined,
            left,
            full,
        )


def at_step(found: Memberships, step: int) -> list[int]:
    is_in = (found.first_step <= step) & (step <= found.last_step)
    return sorted(found.request_index[is_in].tolist())


def is_unknown(found: Memberships, step: int) -> bool:
    return bool(((found.unknown_first <= step) & (step <= found.unknown_last)).any())


@settings(deadline=None)
@given(
    batches=st.lists(st.sets(st.integers(0, 9), max_size=6), min_size=1, max_size=60),
    full_every=st.integers(1, 12),
    lost=st.sets(st.integers(0, 59)),
    first_index=st.integers(0, 1000),
)
def test_members_are_those_of_a_naive_simulation(
    batches: list[set[int]], full_every: int, lost: set[int], first_index: int
) -> None:
    log = Log()
    known = False
    expected: dict[int, set[int] | None] = {}
    before: set[int] = set()
    recorded: int | None = None
    for i, batch in enumerate(batches):
        is_full = i % full_every == 0
        index = first_index + i
        if i not in lost:
            known = bool(is_full or not batch or (known and recorded == index - 1))
            expected[index] = batch if known else None
            log.add(
                index,
                len(batch),
                ranges(batch - before) or None,
                ranges(before - batch) or None,
                ranges(batch) if is_full and batch else None,
            )
            recorded = index
        before = batch
    found = log.carry()
    assert found.n_mismatches == 0
    for index, members in expected.items():
        assert is_unknown(found, index) == (members is None)
        assert at_step(found, index) == sorted(members or set())
    # Nobody is said to decode in two intervals at once, or in none.
    assert (found.first_step <= found.last_step).all()


def test_a_run_is_one_interval_across_full_lists() -> None:
    log = Log()
    for i in range(20):
        log.add(i, 2, full="4-5" if i % 5 == 0 else None)
    found = log.carry()
    assert found.request_index.tolist() == [4, 5]
    assert found.first_step.tolist() == [0, 0]
    assert found.last_step.tolist() == [19, 19]
    assert len(found.unknown_first) == 0


def test_prefill_first_engine_leaves_holes() -> None:
    log = Log()
    log.add(0, 1, full="7")
    log.add(1, 0, left="7")  # a step that only prefills
    log.add(2, 1, joined="7")
    log.add(3, 1)
    found = log.carry()
    assert sorted(zip(found.first_step.tolist(), found.last_step.tolist(), strict=True)) == [
        (0, 0),
        (2, 3),
    ]


def test_after_a_wrong_count_nothing_is_known_until_a_full_list() -> None:
    log = Log()
    log.add(0, 2, full="1-2")
    log.add(1, 2)
    log.add(2, 3)  # one joined, and nobody says who
    log.add(3, 2, left="1")
    log.add(4, 2, full="2-3")
    found = log.carry()
    assert found.n_mismatches == 1
    assert (found.unknown_first.tolist(), found.unknown_last.tolist()) == ([2], [3])
    assert at_step(found, 1) == [1, 2]
    assert at_step(found, 3) == []
    assert at_step(found, 4) == [2, 3]


@pytest.mark.parametrize("text", ["x", "5-", "9-3", "0-99999999999", "1,,2"])
def test_a_damaged_list_is_a_mismatch_not_a_crash(text: str) -> None:
    log = Log()
    log.add(0, 1, full="1")
    log.add(1, 2, joined=text)
    found = log.carry()
    assert found.n_mismatches == 1
    assert at_step(found, 0) == [1]
    assert is_unknown(found, 1)


def test_someone_leaves_who_never_came() -> None:
    log = Log()
    log.add(0, 1, full="1")
    log.add(1, 1, joined="2", left="3")
    assert log.carry().n_mismatches == 1


def test_no_lists_and_no_steps() -> None:
    log = Log()
    assert len(log.carry().request_index) == 0
    log.add(5, 3)
    log.add(6, 3)
    found = log.carry()
    assert (found.unknown_first.tolist(), found.unknown_last.tolist()) == ([5], [6])


def test_a_step_that_does_not_say_its_count_goes_on() -> None:
    log = Log()
    log.add(0, 1, full="1")
    log.add(1, -1)
    log.add(2, -1, joined="2")
    log.add(3, 2)
    found = log.carry()
    assert found.n_mismatches == 0
    assert at_step(found, 3) == [1, 2]


@pytest.mark.slow
def test_cost_grows_with_changes_not_with_batch_times_steps() -> None:
    """64 streams of which a quarter of steps swaps one, against one that swaps none."""

    def seconds(n_steps: int, batch: int) -> float:
        log = Log()
        members = list(range(batch))
        for i in range(n_steps):
            full = ranges(set(members)) if i % 256 == 0 else None
            if i % 4 == 1:
                gone, new = members.pop(0), members[-1] + 1
                members.append(new)
                log.add(i, batch, str(new), str(gone), full)
            else:
                log.add(i, batch, full=full)
        start = time.process_time()
        found = log.carry()
        spent = time.process_time() - start
        assert len(found.request_index) == batch + (n_steps + 2) // 4
        return spent

    small = min(seconds(60_000, 8) for _ in range(3))
    large = min(seconds(60_000, 64) for _ in range(3))
    assert large < 4 * small
