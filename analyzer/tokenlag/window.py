"""The `--since` grammar: windows, baselines and objectives.

Everything is unix nanoseconds, windows are half-open. Standard library only. Whatever
string comes in, the answer is a value or a `UsageError`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import Final

from tokenlag.errors import UsageError
from tokenlag.times import (
    NS_PER_S,
    TIME_HINT,
    LocalZone,
    format_duration,
    format_offset,
    format_time,
    is_duration,
    parse_duration_ns,
    parse_time,
    quote,
)

__all__ = [
    "METRICS",
    "NS_PER_S",
    "EmptyWindowError",
    "LocalZone",
    "Objective",
    "Window",
    "format_duration",
    "format_offset",
    "format_time",
    "no_data",
    "parse_duration_ns",
    "parse_goodput",
    "parse_slo",
    "parse_time",
    "resolve_baseline",
    "resolve_window",
]

METRICS: Final = ("ttft", "tpot", "itl", "e2e")
DEFAULT_PERCENTILE: Final = 90.0


@dataclass(frozen=True)
class Window:
    """A half-open span of time, clipped to the traces, and where it came from.

    `asked_start_ns` and `asked_end_ns` are the bounds before clipping: rates must be taken
    over what was recorded, not over time that nobody traced.
    """

    start_ns: int
    end_ns: int
    origin: str
    asked_start_ns: int
    asked_end_ns: int


_LEAST_MARGIN_NS: Final = 600 * NS_PER_S
_END_OF_TIME_NS: Final = 2**63 - 1


@dataclass(frozen=True)
class Objective:
    """A limit on a percentile over requests, in milliseconds."""

    metric: str
    percentile: float
    limit_ms: float

    @property
    def label(self) -> str:
        """As people write it: `e2e_p90`."""
        return f"{self.metric}_p{self.percentile:g}"


class EmptyWindowError(UsageError):
    """A window that holds no request.

    Args:
        what: `window` or `baseline`.
        data_span: where the data lie, readable.
        flags: options that would find the data, ready to be put in a command.
    """

    def __init__(self, what: str, data_span: str, flags: Sequence[str]) -> None:
        super().__init__(
            f"no request in the {what}: the traces span {data_span}",
            hint=f"use {' '.join(flags)}",
        )
        self.what = what
        self.flags = tuple(flags)


def resolve_window(
    since: str | None,
    until: str | None,
    since_end: str | None,
    *,
    now_ns: int,
    tz: tzinfo,
    data_start_ns: int,
    data_end_ns: int,
) -> Window:
    """The window that the options name, clipped to the data.

    `data_start_ns` is the first request's arrival, `data_end_ns` the latest time in the data.
    Without options all that is there is the window; without `--until` it is open to the end
    of the data, so that a producer's clock ahead of ours loses nothing.

    Raises:
        UsageError: options that contradict each other or cannot be read.
        EmptyWindowError: the window does not meet the data.
    """
    end_ns = data_end_ns + 1
    if since_end is not None:
        if since is not None or until is not None:
            raise UsageError(
                "--since-end cannot be combined with --since or --until",
                hint="--since-end counts back from the last span, --since from now",
            )
        length_ns = parse_duration_ns(since_end)
        return _clipped(
            end_ns - length_ns, end_ns, f"the last {since_end} of the data", data_start_ns, end_ns
        )
    start = data_start_ns if since is None else _option("--since", since, now_ns, tz)
    end = max(now_ns, end_ns) if until is None else _option("--until", until, now_ns, tz)
    if until is None and since is not None and start > max(now_ns, end_ns):
        raise UsageError(f"--since {since} is in the future", hint=TIME_HINT)
    if start >= end and since is not None:
        raise UsageError(
            f"the window is empty: --since is {format_time(start, tz)}, "
            f"--until {format_time(end, tz)}",
            hint="--since must be before --until",
        )
    if since is None and until is None:
        return Window(data_start_ns, end_ns, "all of the traces", data_start_ns, end_ns)
    if start >= end_ns or end <= data_start_ns:
        raise no_data("window", since, data_start_ns, data_end_ns, tz)
    given = [f"--since {since}" if since else "", f"--until {until}" if until else ""]
    return _clipped(start, end, " ".join(filter(None, given)), data_start_ns, end_ns)


def resolve_baseline(
    text: str | None,
    window: Window,
    *,
    now_ns: int,
    tz: tzinfo,
    data_start_ns: int,
    data_end_ns: int,
) -> Window | None:
    """The baseline: `A/B` (two times), a duration before the window, or what lies before it.

    Without a text: the traces before the window, or None where there are none; whether they
    are enough of a baseline is for the caller to judge.

    Raises:
        UsageError: it cannot be read, or overlaps the window.
        EmptyWindowError: there are no data in it.
    """
    end_ns = data_end_ns + 1
    if text is None:
        if window.start_ns <= data_start_ns:
            return None
        return _clipped(
            data_start_ns, window.start_ns, "the traces before the window", data_start_ns, end_ns
        )
    if "/" in text:
        first, _, second = text.partition("/")
        start = _option("--baseline", first, now_ns, tz)
        end = _option("--baseline", second, now_ns, tz)
        origin = f"--baseline {text}"
        if start >= end:
            raise UsageError(
                f"the baseline {quote(text)} ends before it starts", hint="A/B: A before B"
            )
    else:
        end = window.start_ns
        start = end - _baseline_duration_ns(text)
        origin = f"the {text} before the window"
    if start < window.end_ns and end > window.start_ns:
        raise UsageError(
            f"the baseline overlaps the window, which is {_span(window, tz)}",
            hint=f"add --since {format_time(end, tz)}",
        )
    if start >= end_ns or end <= data_start_ns:
        raise no_data("baseline", None, data_start_ns, data_end_ns, tz)
    return _clipped(start, end, origin, data_start_ns, end_ns)


def needed_time(
    since: str | None,
    until: str | None,
    baseline: str | None,
    *,
    has_baseline_traces: bool,
    now_ns: int,
    tz: tzinfo,
) -> tuple[int, int] | None:
    """The time of which anything is asked, known before the data are; None if all may be.

    It is known where both the window's start and the baseline are given. A margin of a tenth of
    it, ten minutes at least, is for requests and queues that began before.

    Raises:
        UsageError: an option cannot be read.
    """
    if since is None or (baseline is None and not has_baseline_traces):
        return None
    start = _option("--since", since, now_ns, tz)
    end = None if until is None else _option("--until", until, now_ns, tz)
    if baseline is not None and "/" in baseline:
        first, _, second = baseline.partition("/")
        start = min(start, _option("--baseline", first, now_ns, tz))
        if end is not None:
            end = max(end, _option("--baseline", second, now_ns, tz))
    elif baseline is not None:
        start -= _baseline_duration_ns(baseline)
    margin = max(_LEAST_MARGIN_NS, ((now_ns if end is None else end) - start) // 10)
    return start - margin, _END_OF_TIME_NS if end is None else end + margin


def no_data(
    what: str, since: str | None, data_start_ns: int, data_end_ns: int, tz: tzinfo
) -> EmptyWindowError:
    """The error for a window (or baseline) without a request: what the data span, what to type.

    `since` is what the user asked for; a duration is offered again as `--since-end`.
    """
    if data_end_ns - data_start_ns > 60 * NS_PER_S:  # nobody copies nanoseconds
        data_start_ns -= data_start_ns % NS_PER_S
        data_end_ns += -data_end_ns % NS_PER_S
    if what == "window":
        is_ago = since is not None and is_duration(since)
        flags = ["--since-end", since.strip() if is_ago and since is not None else "1h"]
    else:
        middle_ns = (data_start_ns + data_end_ns) // 2
        middle_ns -= middle_ns % NS_PER_S if data_end_ns % NS_PER_S == 0 else 0
        flags = [
            "--since",
            format_time(middle_ns, tz),
            "--baseline",
            f"{format_time(data_start_ns, tz)}/{format_time(middle_ns, tz)}",
        ]
    span = f"{format_time(data_start_ns, tz)} to {format_time(data_end_ns, tz)}"
    return EmptyWindowError(what, span, flags)


def parse_slo(text: str) -> list[Objective]:
    """Objectives of `e2e_p90=300ms,ttft=500ms,itl_p99=50ms`; without a percentile p90.

    Raises:
        UsageError: an unknown metric, a percentile outside 0 to 100, a limit without a unit,
            or the same objective twice.
    """
    objectives: list[Objective] = []
    for item in text.split(","):
        name, separator, value = item.partition("=")
        if not separator:
            raise UsageError(
                f"--slo: {quote(item)} is not an objective", hint="e2e_p90=300ms,ttft_p90=500ms"
            )
        name = name.strip().rstrip("<").strip().lower()
        metric, percentile = _metric_and_percentile(name)
        objective = Objective(metric, percentile, _limit_ms("--slo", value, needs_unit=True))
        if any(objective.label == other.label for other in objectives):
            raise UsageError(f"--slo: {objective.label} is given twice")
        objectives.append(objective)
    return objectives


def parse_goodput(items: Sequence[str]) -> dict[str, float]:
    """Limits in ms on each single request, of `ttft:500` (ms without a unit) and the like.

    Raises:
        UsageError: an unknown metric, no limit, or the same metric twice.
    """
    limits: dict[str, float] = {}
    for item in (part for text in items for part in re.split(r"[,\s]+", text) if part):
        name, separator, value = item.partition(":")
        if not separator:
            raise UsageError(f"--goodput: {quote(item)} is not a limit", hint="ttft:500 itl:50")
        metric = _known_metric("--goodput", name.strip().lower())
        if metric in limits:
            raise UsageError(f"--goodput: {metric} is given twice")
        limits[metric] = _limit_ms("--goodput", value, needs_unit=False)
    return limits


def _option(name: str, text: str, now_ns: int, tz: tzinfo) -> int:
    try:
        return parse_time(text, now_ns, tz)
    except UsageError as error:
        raise UsageError(f"{name}: {error.message}", hint=error.hint) from None


def _baseline_duration_ns(text: str) -> int:
    try:
        return parse_duration_ns(text)
    except UsageError:
        raise UsageError(
            f"--baseline: {quote(text)} is neither A/B nor a duration",
            hint="2h/1h, 2026-07-26T13:00:00Z/2026-07-26T14:00:00Z, or 30m before the window",
        ) from None


def _clipped(start: int, end: int, origin: str, data_start: int, data_end: int) -> Window:
    return Window(max(start, data_start), min(end, data_end), origin, start, end)


def _span(window: Window, tz: tzinfo) -> str:
    return f"{format_time(window.start_ns, tz)} to {format_time(window.end_ns, tz)}"


def _metric_and_percentile(name: str) -> tuple[str, float]:
    metric, separator, tail = name.partition("_")
    metric = _known_metric("--slo", metric)
    if not separator:
        return metric, DEFAULT_PERCENTILE
    match = re.fullmatch(r"p([0-9]{1,2}(?:\.[0-9]+)?|999|9999)", tail)
    percentile = float(match[1]) if match else 0.0
    if percentile >= 100:  # p999 is how people write p99.9
        percentile = float(f"99.{'9' * (len(tail) - 3)}")
    if not 0 < percentile < 100:
        raise UsageError(
            f"--slo: {quote(tail)} is not a percentile", hint=f"{metric}_p90=300ms, or p50, p99.9"
        )
    return metric, percentile


def _known_metric(option: str, name: str) -> str:
    if name in METRICS:
        return name
    close = difflib.get_close_matches(name, METRICS, 1, 0.5)
    hint = f"did you mean {close[0]}?" if close else f"one of {', '.join(METRICS)}"
    raise UsageError(f"{option}: unknown metric {quote(name)}", hint=hint)


def _limit_ms(option: str, value: str, *, needs_unit: bool) -> float:
    stripped = value.strip()
    if not needs_unit and re.fullmatch(r"[0-9]+(\.[0-9]+)?", stripped) and float(stripped) > 0:
        stripped += "ms"
    try:
        return parse_duration_ns(stripped) / 1e6
    except UsageError as error:
        hint = f"{stripped}ms?" if stripped.isdecimal() else "300ms, 1.5s, 800us"
        raise UsageError(f"{option}: {error.message}", hint=hint) from None
