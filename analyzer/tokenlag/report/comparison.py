"""A comparison of two loads as text, Markdown or JSON. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tokenlag.explain.comparison import Change, Comparison, Part
from tokenlag.report import format as fmt
from tokenlag.report.pages import grid

_METRICS = {
    "ttft": "time to first token",
    "e2e": "end to end",
    "tpot": "time per token",
    "input_tokens": "input tokens",
    "output_tokens": "output tokens",
}
_MOVED = {"same": "not moved", "higher": "higher", "lower": "lower", "unknown": "unknown"}


def comparison_lines(comparison: Comparison | None) -> list[str]:
    """The answer's sentences, for a section of a report."""
    if comparison is None:
        return []
    return [fmt.clean(line) for line in [*comparison.verdict, *comparison.notes]]


def render_comparisons(comparisons: Sequence[Comparison], form: str, *, ascii_only: bool) -> str:
    """Some comparisons in one form, ending in a newline.

    Args:
        comparisons: one, or one for each level that two sweeps have in common.
        form: "text", "md" or "json".
        ascii_only: whether the reader knows ASCII only.
    """
    if form == "json":
        told = comparisons[0] if len(comparisons) == 1 else list(comparisons)
        return msgspec.json.format(msgspec.json.encode(told), indent=2).decode() + "\n"
    text = "\n".join(_one(comparison, is_markdown=form == "md") for comparison in comparisons)
    return fmt.to_ascii(text) if ascii_only else text


def _one(comparison: Comparison, *, is_markdown: bool) -> str:
    first, *rest = (fmt.clean(line) for line in comparison.verdict)
    sides = [_side("A", comparison), _side("B", comparison)]
    changes = grid(
        ["metric", "", "A", "B", "B − A", "95 %", ""], [_change(c) for c in comparison.changes]
    )
    parts = grid(["metric", "part", "B − A", "±", "from"], [_part(p) for p in comparison.parts])
    if is_markdown:
        blocks = [f"**{first}**", *(f"- {line}" for line in sides + rest), f"```\n{changes}```"]
        blocks += [f"```\n{parts}```"] if comparison.parts else []
        blocks += [f"- {fmt.clean(note)}" for note in comparison.notes]
        return "\n\n".join(blocks) + "\n"
    lines = [first, "", *sides, "", changes.rstrip("\n"), ""]
    lines += [parts.rstrip("\n"), ""] if comparison.parts else []
    lines += [f"  {line}" for line in rest]
    lines += [f"  {fmt.clean(note)}" for note in comparison.notes]
    return "\n".join(lines) + "\n"


def _side(letter: str, comparison: Comparison) -> str:
    side = comparison.a if letter == "A" else comparison.b
    told = [fmt.clean(side.tool)]
    told += [fmt.clean(side.model)] if side.model else []
    told += [fmt.clean(side.level)] if side.level and side.level != side.load else []
    told += [f"{side.requests:,} requests"] if side.requests is not None else []
    told += [f"{side.failed:,} failed"] if side.failed else []
    told.append(f"load {fmt.clean(side.load)}")
    if side.in_flight is not None and "in flight" not in side.load:
        told.append(f"{side.in_flight:.3g} in flight on average")
    return f"{letter}: {fmt.clean(side.name)} ({', '.join(told)})"


def _change(change: Change) -> list[object]:
    shown = fmt.count if change.metric.endswith("tokens") else fmt.milliseconds
    interval = None
    if change.low is not None and change.high is not None:
        interval = f"{shown(change.low)} to {shown(change.high)}"
    return [
        _METRICS[change.metric], change.figure, shown(change.a), shown(change.b),
        shown(change.ms), interval, _MOVED[change.moved],
    ]  # fmt: skip


def _part(part: Part) -> list[object]:
    half = None if part.half_ms is None else fmt.milliseconds(part.half_ms)
    return [_METRICS[part.metric], part.cause, fmt.milliseconds(part.ms), half, part.text]
