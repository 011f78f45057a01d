"""A diagnosis as Markdown to paste into a ticket."""

from __future__ import annotations

from tokenlag.judge.diagnosis import Diagnosis, Finding
from tokenlag.report import format as fmt
from tokenlag.report import tables
from tokenlag.report.comparison import comparison_lines
from tokenlag.report.fleet import fleet_lines
from tokenlag.report.groups import group_rows

_SPECIAL = str.maketrans({c: f"\\{c}" for c in "\\`*_[]<>|#~"})


def render_markdown(diagnosis: Diagnosis, *, verbosity: int = 0) -> str:
    """The report as CommonMark with pipe tables, ending in a newline.

    Whatever comes from a trace is escaped, so that no name can format or link anything.
    """
    is_verbose = verbosity > 0
    word = tables.status_word(diagnosis)
    blocks = [f"**{word}**: {_escape(tables.verdict_sentence(diagnosis))}"]
    if verbosity >= 0:
        about = tables.about_window(diagnosis)
        if (bound := tables.bound(diagnosis)) is not None:
            about.insert(0, ("bound", bound))
        blocks.append("\n".join(f"- {label}: {_escape(text)}" for label, text in about))
        if diagnosis.latency:
            blocks.append(_table(tables.latency_rows(diagnosis, every=is_verbose)))
        if diagnosis.budget is not None:
            blocks.append(_table(tables.budget_rows(diagnosis.budget)))
        if (groups := group_rows(diagnosis.groups, every=is_verbose)) is not None:
            blocks.append(_table(groups))
        blocks += _findings(diagnosis, is_verbose=is_verbose)
        sections = [
            ("Compared", comparison_lines(diagnosis.comparison)),
            ("The fleet", fleet_lines(diagnosis.fleet)),
            ("Checked and not found", [", ".join(map(fmt.clean, diagnosis.checked))]),
            ("Could not check", tables.not_evaluated_lines(diagnosis.not_evaluated)),
            ("The data", tables.coverage_lines(diagnosis)),
            ("Step model", tables.model_lines(diagnosis.models, every=is_verbose)),
        ]
        blocks += [_section(head, lines) for head, lines in sections if any(lines)]
    return "\n\n".join(blocks) + "\n"


def _findings(diagnosis: Diagnosis, *, is_verbose: bool) -> list[str]:
    findings, n_more = tables.split_findings(
        diagnosis.findings, None if is_verbose else tables.MAX_FINDINGS
    )
    blocks = []
    for number, (finding, consequences) in enumerate(findings, 1):
        blocks += _finding(number, finding, is_verbose=is_verbose)
        children = consequences if is_verbose else consequences[: tables.MAX_CONSEQUENCES]
        if children:
            blocks.append(
                "\n".join(
                    f"- as a consequence: {_escape(tables.title(child))} "
                    f"({_code(child.rule)}): {_escape(fmt.clean(child.summary))}"
                    for child in children
                )
            )
    if n_more:
        blocks.append(f"{fmt.plural(n_more, 'more finding')} with `-v`.")
    return blocks


def _finding(number: int, finding: Finding, *, is_verbose: bool) -> list[str]:
    kind = " (note)" if finding.severity == "note" else ""
    blocks = [
        f"### {number}. {_escape(tables.title(finding))}{kind}",
        f"{_escape(fmt.clean(finding.summary))} ({_code(finding.rule)}; "
        f"{_escape(tables.sureness(finding))})",
    ]
    if finding.evidence:
        rows = tables.Rows("", ["number", "value", "baseline", "ratio"], [])
        for row in tables.evidence_rows(finding):
            rows.body.append([row[0], row[1], row[2].removeprefix("was "), row[3]])
        blocks.append(_table(rows))
    lines = []
    if facts := tables.facts(finding, every=is_verbose):
        lines.append(f"- facts: {_escape(facts)}")
    lines += [f"- who: {_escape(line)}" for line in tables.blame_lines(finding, every=is_verbose)]
    if finding.means:
        means = finding.means if is_verbose else fmt.first_sentence(finding.means)
        lines.append(f"- means: {_escape(fmt.clean(' '.join(means.split())))}")
    for remedy in finding.remedies:
        do, *rest = tables.remedy_lines(remedy)
        lines.append(f"- **do**: {_escape('; '.join([do, *rest]))}")
    lines += [f"- not {_escape(line)}" for line in tables.ruled_out_lines(finding)]
    if is_verbose:
        lines += [f"- look at: {_escape(line)}" for line in tables.exemplar_lines(finding)]
    if lines:
        blocks.append("\n".join(lines))
    return blocks


def _section(head: str, lines: list[str]) -> str:
    return f"**{head}**\n\n" + "\n".join(f"- {_escape(line)}" for line in lines if line)


def _table(rows: tables.Rows) -> str:
    def line(cells: list[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    last = len(rows.head) - 1
    rule = [":--" if at in (0, last) and not name else "--:" for at, name in enumerate(rows.head)]
    body = []
    for at, row in enumerate(rows.body):
        cells = [_escape(cell.strip()) for cell in row]
        if at in rows.marked or at in rows.strong:
            cells = [f"**{cell}**" if cell else "" for cell in cells]
        body.append(line(cells))
    text = "\n".join([line(rows.head), line(rule), *body])
    return f"**{rows.title}**\n\n{text}" if rows.title else text


def _escape(text: str) -> str:
    return text.translate(_SPECIAL)


def _code(text: str) -> str:
    return "`" + fmt.clean(text).replace("`", "'") + "`"
