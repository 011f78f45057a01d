"""Which sequence decodes in which steps: range lists in, intervals out.

A step tells who joined and who left since the step before, and now and then everybody
(trace contract, `llm.engine_step`). Between two full lists the set is carried forward;
`decode.count` is its checksum. After a hole in the step indexes, or a checksum that does
not fit, the set is unknown until the next full list (a count of zero is one).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_MAX_RANGE = 1_000_000  # longer ranges are damage, not a batch
_STEPS_AT_A_TIME = 65_536


@dataclass(frozen=True)
class Memberships:
    """Intervals of step indexes, both ends included.

    Attributes:
        request_index: whose interval it is; same length as the next two.
        first_step: the first step in which it decodes.
        last_step: the last one.
        unknown_first: first step of each stretch whose members are not known.
        unknown_last: last step of it.
        n_mismatches: steps whose count or lists contradict the set carried so far.
    """

    request_index: NDArray[np.int64]
    first_step: NDArray[np.int64]
    last_step: NDArray[np.int64]
    unknown_first: NDArray[np.int64]
    unknown_last: NDArray[np.int64]
    n_mismatches: int


class _Carrier:
    """The set of members, carried from one step that says something to the next."""

    def __init__(self) -> None:
        self.open: dict[int, int] = {}  # request index → first step
        self.intervals = array("q")  # three numbers each: request index, first and last step
        self.unknown: list[tuple[int, int]] = []
        self.unknown_since: int | None = None
        self.n_mismatches = 0

    @property
    def is_known(self) -> bool:
        return self.unknown_since is None

    def close(self, members: Sequence[int], last_step: int) -> None:
        for member in members:
            first_step = self.open.pop(member)
            if first_step <= last_step:
                self.intervals.extend((member, first_step, last_step))

    def lose(self, last_known_step: int, unknown_from: int) -> None:
        if self.unknown_since is None:
            self.close(list(self.open), last_known_step)
            self.unknown_since = unknown_from

    def replace(self, members: set[int], step: int, step_before: int) -> None:
        if self.unknown_since is not None:
            if self.unknown_since < step:
                self.unknown.append((self.unknown_since, step - 1))
            self.unknown_since = None
        self.close([member for member in self.open if member not in members], step_before)
        for member in members:
            self.open.setdefault(member, step)

    def change(self, joined: Sequence[int], left: Sequence[int], step: int, before: int) -> bool:
        """Apply a step's changes; False where they contradict the set."""
        for member in left:
            if member not in self.open:
                return False
        self.close(left, before)
        for member in joined:
            if member in self.open:
                return False
            self.open[member] = step
        return True


def decode_memberships(
    step_index: NDArray[np.int64],
    decode_count: NDArray[np.int64],
    list_position: NDArray[np.int64],
    joined: Sequence[str | None],
    left: Sequence[str | None],
    members: Sequence[str | None],
) -> Memberships:
    """Intervals in which each request decodes, for one run of one engine.

    Args:
        step_index: the recorded steps' indexes, rising, each once.
        decode_count: how many requests decode in each; −1 where the step does not say.
        list_position: positions (in `step_index`) of the steps that carry a list, rising.
        joined: range list of those that began, for each of `list_position`.
        left: range list of those that stopped.
        members: full range list.

    Returns:
        The intervals, and the stretches of steps in which membership is not known.
        A member that is there on both sides of an unknown stretch has two intervals.
    """
    carrier = _Carrier()
    n_steps = len(step_index)
    if n_steps == 0:
        return _result(carrier)
    first_step, last_step = int(step_index[0]), int(step_index[-1])
    carrier.lose(first_step - 1, first_step)
    for step, before, count, k in _telling_steps(step_index, decode_count, list_position):
        if step != before + 1:
            carrier.lose(before, before + 1)
        try:
            full = None if k < 0 or members[k] is None else set(_parse(members[k]))
            if full is None and count == 0:
                full = set()
            if full is not None:
                carrier.replace(full, step, before)
                is_consistent = True
            elif not carrier.is_known:
                continue
            elif k < 0:
                is_consistent = True  # the count is compared below
            else:
                is_consistent = carrier.change(_parse(joined[k]), _parse(left[k]), step, before)
        except ValueError:
            is_consistent = False
        if not is_consistent or (count >= 0 and len(carrier.open) != count):
            carrier.n_mismatches += 1
            carrier.lose(before, step)
    carrier.close(list(carrier.open), last_step)
    if carrier.unknown_since is not None:
        carrier.unknown.append((carrier.unknown_since, last_step))
    return _result(carrier)


def _telling_steps(
    step_index: NDArray[np.int64],
    decode_count: NDArray[np.int64],
    list_position: NDArray[np.int64],
) -> Iterator[tuple[int, int, int, int]]:
    """Yields the steps at which something can change, the first among them.

    Each with the index of the recorded step before it, its count, and the number of its list
    (−1: it has none). At all other steps the set just goes on. Python's numbers are made of
    some at a time, for an hour has millions of steps.
    """
    is_telling = np.zeros(len(step_index), dtype=bool)
    is_telling[0] = True
    is_telling[list_position] = True
    is_telling[1:] |= np.diff(step_index) != 1
    # A step that does not say its count is held to the count before it.
    said = np.where(decode_count >= 0, np.arange(len(decode_count)), -1)
    filled = decode_count[np.maximum(np.maximum.accumulate(said), 0)]
    is_telling[1:] |= np.diff(filled) != 0
    positions = np.flatnonzero(is_telling)
    for start in range(0, len(positions), _STEPS_AT_A_TIME):
        some = positions[start : start + _STEPS_AT_A_TIME]
        before = step_index[some - 1]
        if start == 0:
            before[0] = step_index[0] - 1
        numbers = np.searchsorted(list_position, some)
        has_list = numbers < len(list_position)
        has_list[has_list] = list_position[numbers[has_list]] == some[has_list]
        numbers[~has_list] = -1
        yield from zip(
            step_index[some].tolist(),
            before.tolist(),
            decode_count[some].tolist(),
            numbers.tolist(),
            strict=True,
        )


def _parse(text: str | None) -> list[int]:
    """A range list such as "101-140,143" as numbers.

    Raises:
        ValueError: it is no range list.
    """
    numbers: list[int] = []
    if not text:
        return numbers
    if text.isdecimal():  # most lists
        return [int(text)]
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not dash:
            numbers.append(int(first))
            continue
        low, high = int(first), int(last)
        if not 0 <= high - low < _MAX_RANGE:
            raise ValueError(f"not a range: {part}")
        numbers.extend(range(low, high + 1))
    return numbers


def _result(carrier: _Carrier) -> Memberships:
    intervals = np.array(carrier.intervals, dtype=np.int64).reshape(-1, 3)
    unknown = np.array(carrier.unknown, dtype=np.int64).reshape(-1, 2)
    return Memberships(
        request_index=intervals[:, 0],
        first_step=intervals[:, 1],
        last_step=intervals[:, 2],
        unknown_first=unknown[:, 0],
        unknown_last=unknown[:, 1],
        n_mismatches=carrier.n_mismatches,
    )
