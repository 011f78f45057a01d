"""A rule as a Markdown page, and the index of all rules. Pure functions from rules to text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tokenlag.judge.rule import CAPABILITIES, ENGINES, RemedyTemplate, Rule
from tokenlag.judge.template import plain_number

_INDEX_HEAD = """# Rules

One file for each cause; the file's name is the cause's name, for good. `problem` rules can be
the verdict's cause, `note` rules cannot. What a file may hold is in
[docs/writing-a-rule.md](../docs/writing-a-rule.md); `diagnose explain RULE` prints a rule's
page. This index is made from the files; a test keeps it so.
"""


def rule_page(rule: Rule) -> str:
    """The page of a rule as Markdown, ending in a newline."""
    blocks = [
        f"# {rule.title}",
        _facts_line(rule),
        "## What it means",
        rule.text.means.strip(),
        "## Why it happens",
        rule.text.why.strip(),
        "## How it is tested",
        *_tested(rule),
        "## When it is wrong",
        rule.text.wrong_when.strip(),
        *_without_steps(rule),
        *_remedies(rule),
        *_fixtures(rule),
        *_sources(rule),
    ]
    return "\n\n".join(blocks) + "\n"


def rules_table(rules: Iterable[Rule]) -> str:
    """One table row for each rule: id, title, kind, symptom, needs, status."""
    rows = [
        [
            f"`{rule.id}`",
            rule.title,
            rule.kind,
            ", ".join(rule.symptom) or "–",
            needs_text(rule) or "–",
            rule.status,
        ]
        for rule in rules
    ]
    return _table(["rule", "title", "kind", "symptom", "needs", "status"], rows)


def rules_index(rules: Iterable[Rule]) -> str:
    """The text of `rules/README.md`."""
    return f"{_INDEX_HEAD}\n{rules_table(rules)}\n"


def needs_text(rule: Rule) -> str:
    """What a rule needs in words of the trace: "queue, steps or preemptions"."""
    return ", ".join(" or ".join(group) for group in rule.needs)


def _facts_line(rule: Rule) -> str:
    parts = [f"`{rule.id}`", rule.kind]
    if rule.symptom:
        parts.append(f"seen in {', '.join(rule.symptom)}")
    parts.append(rule.status)
    line = " · ".join(parts)
    if rule.explains:
        names = ", ".join(f"`{name}`" for name in rule.explains)
        line += f"\n\nWhere it holds it explains, as its consequences: {names}."
    return line


def _tested(rule: Rule) -> Iterator[str]:
    if rule.needs:
        lines = [
            f"- {' or '.join(f'**{word}** ({CAPABILITIES.get(word, word)})' for word in group)}"
            for group in rule.needs
        ]
        yield "It needs in the trace, and is otherwise not evaluated:\n\n" + "\n".join(lines)
    else:
        yield "It needs nothing in particular in the trace."
    if rule.params:
        rows = [
            [
                f"`{name}`",
                plain_number(param.value),
                param.unit,
                f"{plain_number(param.range[0])} to {plain_number(param.range[1])}",
                param.why,
            ]
            for name, param in rule.params.items()
        ]
        yield _table(["parameter", "value", "unit", "range", "why this value"], rows)
    if rule.evidence:
        names = ", ".join(f"{query.name} ({query.unit})" for query in rule.evidence)
        yield f"Evidence it shows: {names}."
    if rule.ruled_out:
        names = ", ".join(f"`{query.rule}`" for query in rule.ruled_out)
        yield f"Look-alikes that it rules out where the numbers do: {names}."
    yield f"The query:\n\n```sql\n{rule.detect_sql.strip()}\n```"


def _without_steps(rule: Rule) -> Iterator[str]:
    if text := rule.text.without_steps.strip():
        yield "## Without engine steps"
        yield text


def _remedies(rule: Rule) -> Iterator[str]:
    if not rule.remedies:
        return
    yield "## What to do"
    for remedy in rule.remedies:
        where = f", {remedy.where}" if remedy.where else ""
        lines = [f"**{remedy.do}{where}**"]
        if remedy.when:
            lines[0] += f" (when {_conditions(remedy)})"
        known = [name for name in ENGINES if name in remedy.setting]
        other = [name for name in remedy.setting if name not in ENGINES]
        lines += [f"- {name}: `{remedy.setting[name]}`" for name in [*known, *other]]
        if remedy.cost:
            lines.append(f"- cost: {remedy.cost}")
        yield lines[0] + "\n\n" + "\n".join(lines[1:]) if len(lines) > 1 else lines[0]


def _conditions(remedy: RemedyTemplate) -> str:
    texts = []
    for name, wanted in remedy.when.items():
        choices = wanted if isinstance(wanted, tuple) else (wanted,)
        texts.append(f"{name} is {' or '.join(str(choice) for choice in choices)}")
    return " and ".join(texts)


def _fixtures(rule: Rule) -> Iterator[str]:
    if not rule.cases:
        return
    yield "## Fixtures"
    for expect, verb in (("fires", "It fires on"), ("silent", "It stays silent on")):
        names = [
            f"{case.fixture} ({case.variant})" if case.variant else case.fixture
            for case in rule.cases
            if case.expect == expect
        ]
        if names:
            yield f"{verb}: {', '.join(names)}."


def _sources(rule: Rule) -> Iterator[str]:
    if rule.text.sources:
        yield "## Sources"
        yield "\n".join(f"- {source}" for source in rule.text.sources)


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
