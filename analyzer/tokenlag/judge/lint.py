"""Small checks that a rule keeps its contract, each with a name; across rules too.

A check yields issues; `lint_rules` runs all of them. What needs SQL to be bound is in
`lint_sql.py`. Files that do not even parse are `Rulebook.problems`, not issues.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Literal

import msgspec

from tokenlag.judge.rule import CAPABILITIES, CAUSES, ENGINES, KINDS, SYMPTOMS, Rule, templates
from tokenlag.judge.rulebook import Rulebook, closest
from tokenlag.judge.template import TemplateError, placeholders

Level = Literal["error", "warning"]

# A name says what happens, never what to do: these words give orders. Words that are also
# plain nouns (start, limit, scale, check) are left out.
IMPERATIVES: Final = frozenset(
    [
        "add",
        "allow",
        "avoid",
        "decrease",
        "disable",
        "enable",
        "enlarge",
        "fix",
        "increase",
        "keep",
        "lower",
        "make",
        "prevent",
        "raise",
        "reduce",
        "remove",
        "replace",
        "restart",
        "shrink",
        "tune",
        "turn",
        "upgrade",
        "use",
        "set",
    ]
)
_SLUG = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)+")


class Issue(msgspec.Struct, frozen=True):
    """Something that a rule file should not ship with."""

    check: str  # the check's name
    rule: str  # the rule's id
    place: str  # file:line: key
    message: str
    level: Level = "error"

    def __str__(self) -> str:
        return f"{self.place}: {self.message} [{self.check}]"


Check = Callable[[Rule], Iterator[tuple[str, str]]]
CHECKS: dict[str, Check] = {}


def _check(name: str) -> Callable[[Check], Check]:
    """Register a per-rule check that yields (key, message)."""

    def register(check: Check) -> Check:
        CHECKS[name] = check
        return check

    return register


def lint_rules(rulebook: Rulebook) -> list[Issue]:
    """Every issue of every rule, in the rulebook's order."""
    from tokenlag.judge.lint_sql import bind_rules, lint_sql

    issues: list[Issue] = []
    bound = bind_rules(rulebook)
    for rule in rulebook:
        for name, check in CHECKS.items():
            issues.extend(_issue(name, rule, *found) for found in check(rule))
        issues.extend(_issue(*found) for found in _references(rule, rulebook))
        issues.extend(_issue(name, rule, *found) for name, *found in lint_sql(rule, bound[rule.id]))
    return issues


def _issue(name: str, rule: Rule, key: str, message: str) -> Issue:
    return Issue(name, rule.id, rule.place(key), message)


@_check("id-is-file-name")
def _id_is_file_name(rule: Rule) -> Iterator[tuple[str, str]]:
    if rule.id != rule.file_stem:
        yield "id", f"the id is {rule.id!r} but the file is named {rule.file_stem!r}"


@_check("id-is-slug")
def _id_is_slug(rule: Rule) -> Iterator[tuple[str, str]]:
    if not _SLUG.fullmatch(rule.id):
        yield "id", f"{rule.id!r} is not words in lower case joined by hyphens"


@_check("id-is-cause")
def _id_is_cause(rule: Rule) -> Iterator[tuple[str, str]]:
    if rule.is_bundled and rule.id not in CAUSES:
        yield "id", f"{rule.id!r} is not in the closed list of causes{_or_else(rule.id, CAUSES)}"


@_check("id-gives-no-order")
def _id_gives_no_order(rule: Rule) -> Iterator[tuple[str, str]]:
    orders = IMPERATIVES.intersection(rule.id.split("-"))
    if orders:
        yield "id", f"names a remedy ({', '.join(sorted(orders))}); name what happens"


@_check("kind")
def _kind(rule: Rule) -> Iterator[tuple[str, str]]:
    if rule.kind not in KINDS:
        yield "kind", f"{rule.kind!r} is none of {', '.join(KINDS)}"
    elif rule.id in CAUSES and rule.kind != CAUSES[rule.id]:
        yield "kind", f"is {rule.kind!r}; in the closed list this cause is a {CAUSES[rule.id]}"


@_check("symptom")
def _symptom(rule: Rule) -> Iterator[tuple[str, str]]:
    if rule.kind == "problem" and not rule.symptom:
        yield "symptom", "is empty; a problem is something a person complains of"
    for number, symptom in enumerate(rule.symptom):
        if symptom not in SYMPTOMS:
            yield f"symptom[{number}]", f"{symptom!r} is none of {', '.join(SYMPTOMS)}"


@_check("needs")
def _needs(rule: Rule) -> Iterator[tuple[str, str]]:
    for number, group in enumerate(rule.needs):
        for word in group:
            if word not in CAPABILITIES:
                message = f"{word!r} is nothing a trace can hold{_or_else(word, CAPABILITIES)}"
                yield f"needs[{number}]", message


@_check("steps")
def _steps(rule: Rule) -> Iterator[tuple[str, str]]:
    """What a rule says of engine steps must be what its needs say."""
    if rule.steps is not None and (rule.steps == "required") != rule.needs_steps:
        needs = "need" if rule.needs_steps else "do not need"
        yield "steps", f"is {rule.steps!r}, but its `needs` {needs} what steps alone tell"


@_check("params")
def _params(rule: Rule) -> Iterator[tuple[str, str]]:
    for name, param in rule.params.items():
        key = f"params.{name}"
        low, high = param.range
        if low >= high:
            yield f"{key}.range", f"is empty: {low:g} to {high:g}"
        elif not low <= param.value <= high:
            yield f"{key}.value", f"{param.value:g} is outside its range {low:g} to {high:g}"
        if not param.unit.strip():
            yield f"{key}.unit", "is empty; say what the number counts"
        if not param.why.strip():
            yield f"{key}.why", "is empty; say why this value"


@_check("prose")
def _prose(rule: Rule) -> Iterator[tuple[str, str]]:
    if not rule.title.strip():
        yield "title", "is empty"
    for name in ("summary", "means", "why", "wrong_when"):
        if not getattr(rule.text, name).strip():
            yield f"text.{name}", "is empty"


@_check("evidence")
def _evidence(rule: Rule) -> Iterator[tuple[str, str]]:
    for number, query in enumerate(rule.evidence):
        for name in ("name", "unit"):
            if not getattr(query, name).strip():
                yield f"evidence[{number}].{name}", "is empty"
    if rule.kind == "problem" and not rule.evidence:
        yield "evidence", "is missing; a problem shows the numbers that it rests on"


@_check("templates")
def _templates(rule: Rule) -> Iterator[tuple[str, str]]:
    for key, template in templates(rule):
        try:
            placeholders(template)
        except TemplateError as error:
            yield key, str(error)


@_check("remedy")
def _remedy(rule: Rule) -> Iterator[tuple[str, str]]:
    if rule.kind == "problem" and not rule.remedies:
        yield "remedy", "is missing; say what to do, or where the cause must be looked for"
    for number, remedy in enumerate(rule.remedies):
        key = f"remedy[{number}]"
        if not remedy.do.strip():
            yield f"{key}.do", "is empty"
        if not remedy.setting and not (remedy.where or "").strip():
            yield key, "has neither an engine's `setting` nor `where` it is done"
        if not remedy.cost.strip():
            yield f"{key}.cost", "is empty; every remedy costs something, say what"
        for engine, setting in remedy.setting.items():
            if engine not in ENGINES:
                yield f"{key}.setting", f"knows no engine {engine!r}{_or_else(engine, ENGINES)}"
            if not setting.strip():
                yield f"{key}.setting", f"of {engine} is empty"


@_check("cases")
def _cases(rule: Rule) -> Iterator[tuple[str, str]]:
    seen: dict[tuple[str, str | None], str] = {}
    for number, case in enumerate(rule.cases):
        known = seen.setdefault((case.fixture, case.variant), case.expect)
        if known != case.expect:
            yield f"case[{number}]", f"{case.fixture} must both fire and be silent"
    if rule.status == "stable":
        for expect in ("fires", "silent"):
            if expect not in seen.values():
                yield "status", f"is stable without a case that expects {expect!r}"


def _references(rule: Rule, rulebook: Rulebook) -> Iterator[tuple[str, Rule, str, str]]:
    """Names of other rules must be causes or rules. Ids are unique since loading refuses others."""
    known = [*CAUSES, *(other.id for other in rulebook if other.id not in CAUSES)]
    for number, other in enumerate(rule.explains):
        key = f"explains[{number}]"
        if other == rule.id:
            yield "explains", rule, key, "a rule does not explain itself"
        elif other not in known:
            yield "explains", rule, key, f"there is no cause {other!r}{_or_else(other, known)}"
    for number, query in enumerate(rule.ruled_out):
        key = f"ruled_out[{number}].rule"
        if query.rule == rule.id:
            yield "ruled-out", rule, key, "a rule does not rule itself out"
        elif query.rule not in known:
            message = f"there is no cause {query.rule!r}{_or_else(query.rule, known)}"
            yield "ruled-out", rule, key, message


def _or_else(name: str, known: Iterable[str]) -> str:
    guess = closest(name, list(known))
    return f"; did you mean {guess}?" if guess else ""
