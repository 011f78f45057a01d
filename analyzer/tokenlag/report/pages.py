"""Rules, pages and query results as text: what the smaller commands print. Pure functions."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import Final

from rich.console import Console
from rich.markdown import Markdown

from tokenlag.judge.page import needs_text
from tokenlag.judge.rule import Rule
from tokenlag.report.format import clean, to_ascii

_NULL: Final = "–"


def rules_list(rules: Iterable[Rule], *, ascii_only: bool = False) -> str:
    """One line for each rule: id, kind, symptom, what it needs, title."""
    rows = [
        [rule.id, rule.kind, ", ".join(rule.symptom), needs_text(rule), rule.title]
        for rule in rules
    ]
    text = grid(["rule", "kind", "symptom", "needs", "title"], rows)
    return to_ascii(text) if ascii_only else text


def page(markdown: str, *, width: int, color: bool, is_terminal: bool, ascii_only: bool) -> str:
    """A Markdown page, set for a terminal; as it is for a pipe or a file."""
    if not is_terminal:
        return to_ascii(markdown) if ascii_only else markdown
    out = io.StringIO()
    console = Console(
        file=out,
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        no_color=not color,
        legacy_windows=False,
    )
    console.print(Markdown(markdown, hyperlinks=False))
    text = "\n".join(line.rstrip() for line in out.getvalue().split("\n"))
    return to_ascii(text) if ascii_only else text


def grid(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Rows under their headings, columns aligned, numbers to the right; nothing is cut.

    NULL is a dash, so that "not measured" is never read as an empty text or zero.
    """
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max([len(name), *(len(row[at]) for row in cells)]) for at, name in enumerate(head)]
    is_number = [
        bool(rows) and all(row[at] is None or _is_number(row[at]) for row in rows)
        for at in range(len(head))
    ]

    def line(row: Sequence[str]) -> str:
        parts = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(row, widths, is_number, strict=True)
        ]
        return "  ".join(parts).rstrip()

    return "\n".join(map(line, [list(map(clean, head)), *cells])) + "\n"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cell(value: object) -> str:
    if value is None:
        return _NULL
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < 1e6 else f"{value:.1f}"
    return clean(str(value))
