"""Which times a command wants of a store, before anything is read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import tzinfo
from typing import Final, NamedTuple

from tokenlag.times import NS_PER_S, format_time
from tokenlag.window import EmptyWindowError, resolve_baseline, resolve_window

NEAR_NS: Final = 600 * NS_PER_S
RECENT_NS: Final = 3600 * NS_PER_S


class Span(NamedTuple):
    """A half-open span of time."""

    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class Asked:
    """The command line's times, as they were written.

    Args:
        since: and the next three: the options of that name.
        until: see above.
        since_end: see above.
        baseline: see above.
        now_ns: the present, unix nanoseconds.
        tz: the zone of dates.
        by_engine: requests are split by engine, of which there may be hundreds.
    """

    since: str | None
    until: str | None
    since_end: str | None
    baseline: str | None
    now_ns: int
    tz: tzinfo
    by_engine: bool = False


class NoWindowError(EmptyWindowError):
    """A store without a window: all of it may be weeks."""

    def __init__(self, place: str, data_span: str, flags: list[str]) -> None:
        super().__init__("window", data_span, flags)
        self.message = f"a store is read by time: its traces span {data_span}"
        self.place = place


def windows_of(asked: Asked, place: str, first_ns: int, last_ns: int) -> list[Span]:
    """Returns the window and, if one is asked for, the baseline; the window is the first.

    Args:
        asked: the options.
        place: the store, for messages.
        first_ns: when the store's spans begin.
        last_ns: and when they end.

    Raises:
        UsageError: an option cannot be read, no window is given, or nothing lies in it.
    """
    if asked.since is None and asked.since_end is None:
        is_recent = abs(asked.now_ns - last_ns) < RECENT_NS
        span = f"{_second(first_ns, asked.tz)} to {_second(last_ns + NS_PER_S, asked.tz)}"
        raise NoWindowError(place, span, ["--since" if is_recent else "--since-end", "1h"])
    window = resolve_window(
        asked.since, asked.until, asked.since_end,
        now_ns=asked.now_ns, tz=asked.tz, data_start_ns=first_ns, data_end_ns=last_ns,
    )  # fmt: skip
    found = [Span(window.start_ns, window.end_ns)]
    if asked.baseline:
        earlier = resolve_baseline(
            asked.baseline, window,
            now_ns=asked.now_ns, tz=asked.tz, data_start_ns=first_ns, data_end_ns=last_ns,
        )  # fmt: skip
        if earlier is not None:
            found.append(Span(earlier.start_ns, earlier.end_ns))
    return found


def merged(windows: list[Span]) -> list[Span]:
    """Returns the windows in order, those that are near each other as one."""
    done: list[Span] = []
    for window in sorted(windows):
        if done and window.start_ns - done[-1].end_ns <= NEAR_NS:
            last = done.pop()
            window = Span(last.start_ns, max(last.end_ns, window.end_ns))
        done.append(window)
    return done


def _second(ns: int, tz: tzinfo) -> str:
    return format_time(ns // NS_PER_S * NS_PER_S, tz)
