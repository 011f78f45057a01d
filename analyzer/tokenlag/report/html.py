"""A diagnosis as one HTML file that needs nothing else: no script, no font, no request."""

from __future__ import annotations

from html import escape
from typing import Final

from tokenlag.judge.diagnosis import Diagnosis, Finding
from tokenlag.report import format as fmt
from tokenlag.report import tables
from tokenlag.report.comparison import comparison_lines
from tokenlag.report.fleet import fleet_lines
from tokenlag.report.groups import group_rows

_STYLE: Final = """
:root { color-scheme: light dark; --bad: #c0262d; --good: #1a7f37; --open: #9a6700; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.2rem; } h2 { font-size: 1.05rem; margin-top: 2rem; }
.problem b { color: var(--bad); } .healthy b { color: var(--good); }
.inconclusive b { color: var(--open); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { padding: .1rem .9rem .1rem 0; text-align: right; vertical-align: top;
  white-space: nowrap; }
td:first-child, th:first-child, td.text { text-align: left; }
th { font-weight: normal; opacity: .7; } caption { text-align: left; font-weight: bold; }
tr.marked { color: var(--bad); font-weight: bold; } tr.strong { font-weight: bold; }
tr.faint { opacity: .65; } dl { display: grid; grid-template-columns: 6rem 1fr; }
dt { opacity: .7; } dd { margin: 0; overflow-wrap: anywhere; } .then { margin-left: 2rem; }
code { font-size: .9em; }
"""


def render_html(diagnosis: Diagnosis, *, verbosity: int = 0) -> str:
    """The report as a page. Whatever comes from a trace is escaped."""
    is_verbose = verbosity > 0
    word, sentence = tables.status_word(diagnosis), tables.verdict_sentence(diagnosis)
    status = diagnosis.verdict.status
    blocks = [f'<h1 class="{status}"><b>{word}</b>: {escape(sentence)}</h1>']
    if verbosity >= 0:
        blocks += _body(diagnosis, is_verbose=is_verbose)
    body = "\n".join(blocks)
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>{escape(word)}: {escape(sentence)}</title>\n<style>{_STYLE}</style>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def _body(diagnosis: Diagnosis, *, is_verbose: bool) -> list[str]:
    about = tables.about_window(diagnosis)
    if (bound := tables.bound(diagnosis)) is not None:
        about.insert(0, ("bound", bound))
    blocks = [_definitions([(label, escape(text)) for label, text in about])]
    if diagnosis.latency:
        blocks.append(_table(tables.latency_rows(diagnosis, every=is_verbose)))
    if diagnosis.budget is not None:
        blocks.append(_table(tables.budget_rows(diagnosis.budget)))
    if (groups := group_rows(diagnosis.groups, every=is_verbose)) is not None:
        blocks.append(_table(groups))
    findings, n_more = tables.split_findings(
        diagnosis.findings, None if is_verbose else tables.MAX_FINDINGS
    )
    for number, (finding, consequences) in enumerate(findings, 1):
        blocks.append(_finding(number, finding, diagnosis.utc_offset, is_verbose=is_verbose))
        shown = consequences if is_verbose else consequences[: tables.MAX_CONSEQUENCES]
        blocks += [
            f'<p class="then">as a consequence: <b>{escape(tables.title(child))}</b> '
            f"<code>{escape(child.rule)}</code><br>{escape(fmt.clean(child.summary))}</p>"
            for child in shown
        ]
    if n_more:
        blocks.append(f"<p>{fmt.plural(n_more, 'more finding')} with -v.</p>")
    sections = [
        ("Compared", comparison_lines(diagnosis.comparison)),
        ("The fleet", fleet_lines(diagnosis.fleet)),
        ("Checked and not found", [", ".join(map(fmt.clean, diagnosis.checked))]),
        ("Could not check", tables.not_evaluated_lines(diagnosis.not_evaluated)),
        ("The data", tables.coverage_lines(diagnosis)),
        ("Step model", tables.model_lines(diagnosis.models, every=is_verbose)),
    ]
    for head, lines in sections:
        items = "".join(f"<li>{escape(line)}</li>" for line in lines if line)
        blocks += [f"<h2>{head}</h2>\n<ul>{items}</ul>"] if items else []
    return blocks


def _finding(number: int, finding: Finding, utc_offset: str | None, *, is_verbose: bool) -> str:
    kind = " (note)" if finding.severity == "note" else ""
    rows = [("sure", escape(tables.sureness(finding)))]
    if is_verbose:
        rows.append(("when", escape(fmt.interval(finding.window, utc_offset))))
    if finding.evidence:
        numbers = tables.Rows("", [], tables.evidence_rows(finding))
        rows.append(("numbers", _table(numbers)))
    if facts := tables.facts(finding, every=is_verbose):
        rows.append(("facts", escape(facts)))
    rows += [("who", escape(line)) for line in tables.blame_lines(finding, every=is_verbose)]
    if finding.means:
        means = finding.means if is_verbose else fmt.first_sentence(finding.means)
        rows.append(("means", escape(fmt.clean(" ".join(means.split())))))
    for remedy in finding.remedies:
        do, *rest = tables.remedy_lines(remedy)
        rows.append(("do", "<br>".join([f"<b>{escape(do)}</b>", *map(escape, rest)])))
    rows += [("not", escape(line)) for line in tables.ruled_out_lines(finding)]
    if is_verbose:
        rows += [("look at", escape(line)) for line in tables.exemplar_lines(finding)]
    return (
        f"<h2>{number}. {escape(tables.title(finding))}{kind} "
        f"<code>{escape(finding.rule)}</code></h2>\n"
        f"<p>{escape(fmt.clean(finding.summary))}</p>\n{_definitions(rows)}"
    )


def _definitions(rows: list[tuple[str, str]]) -> str:
    pairs = "\n".join(f"<dt>{label}</dt><dd>{content}</dd>" for label, content in rows)
    return f"<dl>\n{pairs}\n</dl>"


def _table(rows: tables.Rows) -> str:
    last = len(rows.head) - 1
    lines = [f"<caption>{escape(rows.title)}</caption>"] if rows.title else []
    if rows.head:
        lines.append("<tr>" + "".join(f"<th>{escape(name)}</th>" for name in rows.head) + "</tr>")
    kinds = (("marked", rows.marked), ("strong", rows.strong), ("faint", rows.faint))
    for at, row in enumerate(rows.body):
        names = " ".join(name for name, members in kinds if at in members)
        cells = "".join(
            f'<td class="text">{escape(cell)}</td>'
            if column == last and rows.head[last] == ""
            else f"<td>{escape(cell)}</td>"
            for column, cell in enumerate(row)
        )
        lines.append(f'<tr class="{names}">{cells}</tr>' if names else f"<tr>{cells}</tr>")
    return "<table>\n" + "\n".join(lines) + "\n</table>"
