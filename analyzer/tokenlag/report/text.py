"""A diagnosis as text for a terminal, a pipe or a log: the verdict on the first line."""

from __future__ import annotations

import io
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tokenlag.judge.diagnosis import Diagnosis, Finding
from tokenlag.report import format as fmt
from tokenlag.report import tables
from tokenlag.report.comparison import comparison_lines
from tokenlag.report.fleet import fleet_lines
from tokenlag.report.groups import group_rows

_STATUS_STYLE: Final = {
    "problem": "bold red",
    "healthy": "bold green",
    "inconclusive": "bold yellow",
}
_MIN_WIDTH: Final = 40
_TABLE_WIDTH: Final = 80
_INDENT: Final = 3


def render_text(
    diagnosis: Diagnosis,
    *,
    width: int = 100,
    color: bool = False,
    ascii_only: bool = False,
    verbosity: int = 0,
) -> str:
    """The whole report, ending in a newline.

    Args:
        diagnosis: what to show.
        width: columns to wrap at. The verdict is never wrapped, so that it can be pasted.
        color: whether to write ANSI styles; without it there is not one escape sequence.
        ascii_only: whether the reader knows ASCII only.
        verbosity: below 0 the verdict line alone, above 0 everything that is known.
    """
    out = io.StringIO()
    console = _console(out, max(width, _MIN_WIDTH), color=color)
    # a narrow terminal wraps a table's lines; cutting its cells would lose numbers
    wide = _console(out, max(width, _TABLE_WIDTH), color=color)
    style = _STATUS_STYLE[diagnosis.verdict.status]
    verdict = Text.assemble(
        (tables.status_word(diagnosis), style), ": ", tables.verdict_sentence(diagnosis)
    )
    console.print(verdict, soft_wrap=True)
    if verbosity >= 0:
        for part in _body(diagnosis, is_verbose=verbosity > 0):
            console.print()
            (wide if isinstance(part, Table) else console).print(part)
    text = "\n".join(line.rstrip() for line in out.getvalue().split("\n"))
    return fmt.to_ascii(text) if ascii_only else text


def _console(out: io.StringIO, width: int, *, color: bool) -> Console:
    return Console(
        file=out,
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        no_color=not color,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )


def _body(diagnosis: Diagnosis, *, is_verbose: bool) -> list[RenderableType]:
    about = tables.about_window(diagnosis)
    if (bound := tables.bound(diagnosis)) is not None:
        about.insert(0, ("bound", bound))
    parts: list[RenderableType] = [Group(_labelled(about))]
    if diagnosis.latency:
        parts.append(_table(tables.latency_rows(diagnosis, every=is_verbose)))
    if diagnosis.budget is not None:
        parts.append(_table(tables.budget_rows(diagnosis.budget)))
    if (groups := group_rows(diagnosis.groups, every=is_verbose)) is not None:
        parts.append(_table(groups))
    findings, n_more = tables.split_findings(
        diagnosis.findings, None if is_verbose else tables.MAX_FINDINGS
    )
    for number, (finding, consequences) in enumerate(findings, 1):
        parts.append(
            _finding(number, finding, consequences, diagnosis.utc_offset, is_verbose=is_verbose)
        )
    if n_more:
        parts.append(Text(f"{fmt.plural(n_more, 'more finding')}: see -v"))
    sections = [
        ("Compared", comparison_lines(diagnosis.comparison)),
        ("The fleet", fleet_lines(diagnosis.fleet)),
        ("Checked and not found", [", ".join(map(fmt.clean, diagnosis.checked))]),
        ("Could not check", tables.not_evaluated_lines(diagnosis.not_evaluated)),
        ("The data", tables.coverage_lines(diagnosis)),
        ("Step model", tables.model_lines(diagnosis.models, every=is_verbose)),
    ]
    parts += [_section(head, lines) for head, lines in sections if any(lines)]
    return parts


def _finding(
    number: int,
    finding: Finding,
    consequences: list[Finding],
    utc_offset: str | None,
    *,
    is_verbose: bool,
) -> RenderableType:
    kind = " (note)" if finding.severity == "note" else ""
    head = Text.assemble(
        (f"{number}. {tables.title(finding)}", "bold"), kind, (tables.tag(finding), "dim")
    )
    rows: list[tuple[str, RenderableType]] = [
        ("", Text(fmt.clean(finding.summary))),
        ("sure", Text(tables.sureness(finding))),
    ]
    if is_verbose:
        rows.append(("when", Text(fmt.interval(finding.window, utc_offset))))
    if finding.evidence:
        rows.append(("numbers", _evidence(finding)))
    if facts := tables.facts(finding, every=is_verbose):
        rows.append(("facts", Text(facts)))
    rows += _lines("who", tables.blame_lines(finding, every=is_verbose))
    if finding.means:
        means = finding.means if is_verbose else fmt.first_sentence(finding.means)
        rows.append(("means", Text(fmt.clean(means) if not is_verbose else _paragraphs(means))))
    for remedy in finding.remedies:
        first, *rest = tables.remedy_lines(remedy)
        rows.append(("do", Text(first, style="bold")))
        rows += [("", Text(line)) for line in rest]
    rows += _lines("not", tables.ruled_out_lines(finding))
    if is_verbose:
        rows += _lines("look at", tables.exemplar_lines(finding))
    grid = _grid(rows)
    below = [
        Padding(
            Group(
                Text(f"as a consequence: {tables.title(child)}{tables.tag(child)}", style="bold"),
                Text(fmt.clean(child.summary)),
                Text(tables.sureness(child), style="dim"),
            ),
            (0, 0, 0, 2 * _INDENT),
        )
        for child in (consequences if is_verbose else consequences[: tables.MAX_CONSEQUENCES])
    ]
    return Group(head, Padding(grid, (0, 0, 0, _INDENT)), *below)


def _lines(label: str, lines: list[str]) -> list[tuple[str, RenderableType]]:
    return [(label if at == 0 else "", Text(line)) for at, line in enumerate(lines)]


def _paragraphs(text: str) -> str:
    paragraphs = [" ".join(part.split()) for part in text.split("\n\n")]
    return "\n".join(fmt.clean(part) for part in paragraphs if part)


def _evidence(finding: Finding) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(min_width=10)
    grid.add_column(justify="right")
    grid.add_column()
    grid.add_column()
    for row in tables.evidence_rows(finding):
        grid.add_row(*map(Text, row))
    return grid


def _section(head: str, lines: list[str]) -> RenderableType:
    texts = [Padding(Text(line), (0, 0, 0, _INDENT)) for line in lines if line]
    return Group(Text(head, style="bold"), *texts)


def _labelled(rows: list[tuple[str, str]]) -> Table:
    return _grid([(label, Text(text)) for label, text in rows])


def _grid(rows: list[tuple[str, RenderableType]]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True, min_width=8)
    grid.add_column(overflow="fold")
    for label, content in rows:
        grid.add_row(Text(label), content)
    return grid


def _table(rows: tables.Rows) -> Table:
    table = Table(
        box=None,
        pad_edge=False,
        padding=(0, rows.gap, 0, 0),
        title=rows.title,
        title_justify="left",
        title_style="bold",
        header_style="dim",
    )
    last = len(rows.head) - 1
    for at, name in enumerate(rows.head):
        is_text = at == 0 or (at == last and name == "")
        table.add_column(
            name, justify="left" if is_text else "right", no_wrap=at < last or name != ""
        )
    for at, row in enumerate(rows.body):
        style = "bold red" if at in rows.marked else ""
        style = "dim" if at in rows.faint else style or ("bold" if at in rows.strong else "")
        table.add_row(*map(Text, row), style=style)
    return table
