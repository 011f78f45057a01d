"""Accelerator time of a step by device events, read when they are ready, never waited for.

Two events are put into the stream around a step's work. A later step asks whether the device
has passed them; if it has, the time between them is that step's. Asking does not synchronise,
so the engine runs as many steps ahead as it did. What is not ready within `lag` steps is given
up and stays unmeasured. Without an accelerator there is no timer: a step's own start and end
are the host's clock then, and say the same.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

LAG_STEPS: Final = 8


class DeviceEvent(Protocol):
    """What torch's events can do."""

    def record(self) -> Any:
        """Puts it into the current stream."""

    def query(self) -> bool:
        """Returns whether the device has passed it; does not wait."""

    def elapsed_time(self, end: Any) -> float:
        """Returns ms from this event to another; both were passed."""


class Timed(Protocol):
    """A step, of which the timer asks whether it was recorded, and as which one."""

    index: int


class EventTimer:
    """Times steps on one device stream.

    Args:
        new_event: makes an event that can be timed.
        is_capturing: the stream is being captured into a graph, which no event may disturb.
        lag: give up on times that are not ready after so many steps.

    Attributes:
        lag: the same.
        n_given_up: steps whose time was not ready in time.
    """

    def __init__(
        self,
        new_event: Callable[[], DeviceEvent],
        is_capturing: Callable[[], bool] = bool,
        lag: int = LAG_STEPS,
    ) -> None:
        self.lag = lag
        self.n_given_up = 0
        self._new_event = new_event
        self._is_capturing = is_capturing
        self._free: list[tuple[DeviceEvent, DeviceEvent]] = []
        self._under_way: deque[tuple[Timed, DeviceEvent, DeviceEvent]] = deque()
        self._is_broken = False

    def start(self, step: Timed) -> None:
        """Marks in the stream that a step's work begins here."""
        if self._is_broken:
            return
        try:
            if self._is_capturing():
                return
            pair = self._free.pop() if self._free else (self._new_event(), self._new_event())
            pair[0].record()
            self._under_way.append((step, *pair))
        except Exception:
            self._give_up()

    def stop(self, step: Timed) -> None:
        """Marks that it ends here; it may not have been started."""
        if self._is_broken:
            return
        try:
            for timed, _, end in reversed(self._under_way):
                if timed is step:
                    end.record()
                    return
        except Exception:
            self._give_up()

    def drop(self, step: Timed) -> None:
        """Forgets a step that failed."""
        kept = [entry for entry in self._under_way if entry[0] is not step]
        self._under_way = deque(kept)

    def take(self) -> tuple[int, int]:
        """Returns a recorded step's index and its device time in ns; (-1, -1) if none is ready.

        Steps come out in order, one a call.
        """
        try:
            while self._under_way and not self._is_broken:
                step, begin, end = self._under_way[0]
                if step.index < 0:
                    break
                if end.query():
                    self._under_way.popleft()
                    self._free.append((begin, end))
                    return step.index, max(0, round(begin.elapsed_time(end) * 1e6))
                if len(self._under_way) <= self.lag:
                    break
                # Its events are still in the stream and cannot be used again.
                self._under_way.popleft()
                self.n_given_up += 1
        except Exception:
            self._give_up()
        return -1, -1

    def _give_up(self) -> None:
        """Stops timing for good: a device that fails once is not asked again."""
        self._is_broken = True
        self._free.clear()
        self._under_way.clear()


def device_timer(lag: int = LAG_STEPS) -> EventTimer | None:
    """Returns a timer for this process's CUDA (or ROCm) device; None where there is none.

    Torch is not imported for it: a server that has not imported it has no such device.
    """
    torch: Any = sys.modules.get("torch")
    try:
        if torch is None or not torch.cuda.is_available():
            return None
        return EventTimer(
            lambda: torch.cuda.Event(enable_timing=True),
            torch.cuda.is_current_stream_capturing,
            lag,
        )
    except Exception:
        return None
