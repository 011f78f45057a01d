"""One clock for a pod: monotonic time, placed on unix time by one anchor.

`time.monotonic_ns()` is the same clock in every process of a machine (CLOCK_MONOTONIC), so
that front end and engines are told apart by one offset, which the writer keeps. Senders say
both times in their hello, which shows a process whose monotonic clock is another one (a time
namespace).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

# A wall clock that is set by hand or by NTP jumps; smaller differences are slewed away.
STEP_NS = 100_000_000


def measure_offset_ns(
    monotonic_ns: Callable[[], int] = time.monotonic_ns, wall_ns: Callable[[], int] = time.time_ns
) -> int:
    """Returns unix time minus monotonic time in ns, from the quickest of five readings."""
    best_width, best = 1 << 62, 0
    for _ in range(5):
        before = monotonic_ns()
        wall = wall_ns()
        after = monotonic_ns()
        if after - before < best_width:
            best_width, best = after - before, wall - (before + after) // 2
    return best


@dataclass(slots=True)
class Clock:
    """Monotonic time with a wall anchor; tests put in their own two clocks.

    Attributes:
        monotonic_ns: reads the monotonic clock.
        wall_ns: reads unix time.
        offset_ns: unix time minus monotonic time, as it was anchored.
    """

    monotonic_ns: Callable[[], int] = time.monotonic_ns
    wall_ns: Callable[[], int] = time.time_ns
    offset_ns: int = 0

    def __post_init__(self) -> None:
        self.offset_ns = measure_offset_ns(self.monotonic_ns, self.wall_ns)

    def unix_ns(self, monotonic_ns: int) -> int:
        """Returns the unix time of a monotonic time."""
        return monotonic_ns + self.offset_ns

    def follow_steps(self) -> bool:
        """Anchors anew if the wall clock was stepped; returns whether it was.

        A step shows as a jump between spans; without it they would stay away from every other
        host's for the life of the process.
        """
        offset_ns = measure_offset_ns(self.monotonic_ns, self.wall_ns)
        if abs(offset_ns - self.offset_ns) < STEP_NS:
            return False
        self.offset_ns = offset_ns
        return True
