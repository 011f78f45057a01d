"""The groups of `--by` as one table: a line a group, where most time is lost first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from tokenlag.judge.diagnosis import Group, Status, Verdict
from tokenlag.report import format as fmt
from tokenlag.report.tables import Rows

MAX_GROUPS: Final = 12
MAX_NAME: Final = 16
_ORDER: Final = {"problem": 0, "inconclusive": 1, "healthy": 2}
_WORDS: Final[dict[Status, str]] = {
    "problem": "with a problem",
    "inconclusive": "unclear",
    "healthy": "healthy",
}
_METRICS: Final = ("ttft", "tpot", "e2e")


def group_rows(groups: Sequence[Group], *, every: bool) -> Rows | None:
    """The groups with their figures, verdict and cause; None if `--by` was not asked for.

    Problems come first, then what cannot be told; among them the largest excess. Beyond
    `MAX_GROUPS` the rest is one line, unless `every`. Rows fit a terminal of 80 columns.
    """
    if not groups:
        return None
    ordered = sorted(groups, key=_rank)
    shown = ordered if every or len(ordered) <= MAX_GROUPS else ordered[: MAX_GROUPS - 1]
    rows = Rows(
        f"By {fmt.clean(groups[0].by)}, most time lost first (p90)",
        ["", "n", "TTFT", "TPOT", "E2E", ""],
        [_row(group, every=every) for group in shown],
        marked={at for at, group in enumerate(shown) if group.verdict.status == "problem"},
        gap=2,
    )
    if rest := ordered[len(shown) :]:
        n = sum(group.requests for group in rest)
        rows.faint.add(len(rows.body))
        rows.body.append([f"and {len(rest):,} more", f"{n:,}", "", "", "", _count(rest)])
    return rows


def _rank(group: Group) -> tuple[int, float, str]:
    return _ORDER[group.verdict.status], -(group.excess_ms or 0.0), group.value


def _row(group: Group, *, every: bool) -> list[str]:
    name = fmt.clean(group.value)
    if not every and len(name) > MAX_NAME:
        name = name[: MAX_NAME - 2] + ".."
    stats = [group.latency.get(metric) for metric in _METRICS]
    figures = [fmt.milliseconds(stat.p90 if stat is not None else None) for stat in stats]
    return [name, f"{group.requests:,}", *figures, verdict_words(group.verdict)]


def verdict_words(verdict: Verdict) -> str:
    """The verdict in a few words: the cause, or which of the other endings."""
    if verdict.status == "healthy":
        return "healthy"
    if verdict.status == "inconclusive":
        missing = f": no {', '.join(map(fmt.clean, verdict.missing))}" if verdict.missing else ""
        return f"cannot tell{missing}"
    return fmt.clean(verdict.cause) if verdict.cause else "problem, no known cause"


def _count(groups: Sequence[Group]) -> str:
    """`1 with a problem, 4 healthy`."""
    n = Counter(group.verdict.status for group in groups)
    return ", ".join(f"{n[status]:,} {word}" for status, word in _WORDS.items() if n[status])
