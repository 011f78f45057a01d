"""Runs a rulebook over a store: what each rule found, and which could not look.

A rule whose needs are not met is not evaluated; one that breaks is a problem with its
place; neither stops the others.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tokenlag.errors import RuleError, UsageError
from tokenlag.judge.diagnosis import Evidence, NotEvaluated, Remedy, RuledOut, Scalar
from tokenlag.judge.rule import (
    CONTRACT_COLUMNS,
    OPTIONAL_COLUMNS,
    Number,
    RemedyTemplate,
    Rule,
    RuleRow,
    canonical_engine,
)
from tokenlag.judge.rulebook import Rulebook, closest
from tokenlag.judge.sandbox import (
    Fault,
    Job,
    Outcome,
    Table,
    evaluate,
    queries_of,
    run_in_child,
)
from tokenlag.judge.template import TemplateError, render

if TYPE_CHECKING:
    from tokenlag.store.box import Box, BoxLimits

# Whose settings to show when nobody said which engine it is.
DEFAULT_ENGINES: Final = ("vllm", "sglang")
# What stands in a setting for a number that was not measured.
_BLANK: Final = "…"


class RuleHit(msgspec.Struct, frozen=True):
    """One row that a rule returned, worded and with its evidence."""

    rule: Rule
    row: RuleRow
    summary: str
    evidence: list[Evidence]
    ruled_out: list[RuledOut]
    remedies: list[Remedy]


class RunResult(msgspec.Struct):
    """What running a rulebook gave. Each rule that was tried is in exactly one of the lists.

    (A rule can have hits *and* problems: a hit with a broken evidence query stays a hit.)
    """

    hits: list[RuleHit]
    not_evaluated: list[NotEvaluated]
    checked: list[str]
    problems: list[RuleError]


def run_rules(
    rulebook: Rulebook,
    db_path: Path,
    capabilities: set[str],
    params: Mapping[str, Mapping[str, float]] | None = None,
    absent_hints: Mapping[str, str] | None = None,
    engine_name: str | None = None,
    limits: BoxLimits | None = None,
) -> RunResult:
    """Run every rule that is not deprecated and whose needs are met.

    Args:
        rulebook: the rules; the problems of its files are passed on.
        db_path: the store's file, closed by whoever wrote it.
        capabilities: what the traces hold, in the words of `rule.CAPABILITIES`.
        params: thresholds to use instead of a rule's own, by rule id and name.
        absent_hints: for a capability, why it is absent; appended in brackets to `needs`.
        engine_name: whose settings remedies name, where a hit's facts do not say.
        limits: what one rule may use of time and memory.

    Raises:
        UsageError: for `params` that name no rule or parameter or are out of range.
        InputError: if the store's file cannot be opened.
    """
    from tokenlag.store.box import BoxLimits, open_box

    limits = limits or BoxLimits()
    chosen = {rule.id: _param_values(rule, {}) for rule in rulebook}
    for rule_id, values in (params or {}).items():
        rule = _known_rule(rulebook, rule_id)
        chosen[rule_id] = _param_values(rule, values)
    result = RunResult([], [], [], list(rulebook.problems))
    with (
        tempfile.TemporaryDirectory(prefix="tokenlag-") as folder,
        open_box(db_path, Path(folder), limits) as box,
    ):
        for rule in rulebook:
            if rule.status == "deprecated":
                continue
            needs = unmet_needs(rule, capabilities, absent_hints or {})
            if needs:
                result.not_evaluated.append(NotEvaluated(rule.id, needs))
                continue
            outcome = _outcome(rule, chosen[rule.id], box, db_path, limits)
            _take(rule, outcome, engine_name, result)
    return result


def unmet_needs(
    rule: Rule, capabilities: set[str], absent_hints: Mapping[str, str] | None = None
) -> str:
    """The needs of `rule` that are not among `capabilities`: "steps, kv"; "" if none.

    Alternatives of which none is there are joined by " or ".
    """
    hints = absent_hints or {}
    absent = []
    for group in rule.needs:
        if not capabilities.intersection(group):
            words = [f"{word} ({hints[word]})" if word in hints else word for word in group]
            absent.append(" or ".join(words))
    return ", ".join(absent)


def _known_rule(rulebook: Rulebook, rule_id: str) -> Rule:
    rule = rulebook.get(rule_id)
    if rule is None:
        guess = rulebook.suggest(rule_id)
        hint = f"did you mean {guess}?" if guess else "`diagnose rules` lists them"
        raise UsageError(f"there is no rule {rule_id!r}", hint=hint)
    return rule


def _param_values(rule: Rule, given: Mapping[str, float]) -> dict[str, Number]:
    """The rule's parameters with `given` in place of its own. Raises UsageError."""
    values = rule.param_values()
    for name, value in given.items():
        param = rule.params.get(name)
        if param is None:
            guess = closest(name, rule.params)
            hint = f"did you mean {guess}?" if guess else f"it has {', '.join(rule.params)}"
            raise UsageError(f"rule {rule.id} has no parameter {name!r}", hint=hint)
        low, high = param.range
        if not low <= value <= high:
            raise UsageError(
                f"{rule.id}.{name} = {value:g} is outside {low:g} to {high:g} {param.unit}"
            )
        is_count = isinstance(param.value, int) and float(value).is_integer()
        values[name] = int(value) if is_count else value
    return values


def _outcome(
    rule: Rule, params: dict[str, Number], box: Box, db_path: Path, limits: BoxLimits
) -> Outcome:
    queries = queries_of(rule, params)
    if rule.is_bundled:
        return evaluate(box, queries, limits.time_s)
    job = Job(msgspec.to_builtins(limits), str(db_path.resolve()), queries)
    try:
        return run_in_child(job, limits)
    except RuleError as error:
        return Outcome(faults=[Fault("detect.sql", error.message, error.hint)])


def _take(rule: Rule, outcome: Outcome, engine_name: str | None, result: RunResult) -> None:
    """Turn a rule's outcome into hits, "checked" or problems."""
    for fault in outcome.faults:
        result.problems.append(rule.error(fault.key, fault.message, hint=fault.hint))
    if outcome.detect is None:
        return
    problems: list[RuleError] = []
    rows = _rows(rule, outcome.detect, problems)
    for number, row in rows:
        result.hits.append(
            RuleHit(
                rule=rule,
                row=row,
                summary=_summary(rule, row, problems),
                evidence=_evidence(rule, outcome.evidence[number], problems),
                ruled_out=_ruled_out(rule, outcome.ruled_out[number], problems),
                remedies=_remedies(rule, row, engine_name, problems),
            )
        )
    if not outcome.detect.rows:
        result.checked.append(rule.id)
    result.problems.extend({str(problem): problem for problem in problems}.values())


def _rows(rule: Rule, table: Table, problems: list[RuleError]) -> list[tuple[int, RuleRow]]:
    names = [name.lower() for name, _ in table.columns]
    known = CONTRACT_COLUMNS.keys() | OPTIONAL_COLUMNS.keys()
    absent = [name for name in CONTRACT_COLUMNS if name not in names]
    strange = [name for name in names if name not in known]
    if absent:
        problems.append(rule.error("detect.sql", f"returns no column {', '.join(absent)}"))
    if strange:
        problems.append(
            rule.error("detect.sql", f"returns {', '.join(strange)}, which means nothing")
        )
    if absent or strange:
        return []
    if table.is_cut:
        message = f"returns more than {len(table.rows)} rows; the rest is left off"
        problems.append(rule.error("detect.sql", message))
    rows = []
    for number, values in enumerate(table.rows):
        try:
            rows.append((number, _row(dict(zip(names, values, strict=True)))))
        except (ValueError, RecursionError) as error:  # msgspec's and json's are ValueErrors
            problems.append(rule.error("detect.sql", f"row {number + 1}: {_lower(str(error))}"))
    return rows


def _row(columns: dict[str, Any]) -> RuleRow:
    """Check and type one row. Raises ValueError (or RecursionError for absurd JSON)."""
    facts = columns["facts"]
    if isinstance(facts, str):  # a JSON column
        facts = json.loads(facts)
    columns["facts"] = {} if facts is None else facts
    if columns["subject"] is not None:
        columns["subject"] = str(columns["subject"])
    given = {name: value for name, value in columns.items() if _is_given(name, value)}
    row = msgspec.convert(given, RuleRow)
    if row.to_ns < row.from_ns:
        raise ValueError(f"ends before it begins ({row.from_ns} to {row.to_ns})")
    return row


def _is_given(name: str, value: object) -> bool:
    return value is not None or name in CONTRACT_COLUMNS


def _summary(rule: Rule, row: RuleRow, problems: list[RuleError]) -> str:
    try:
        return render(rule.text.summary, row.scalars())
    except TemplateError as error:
        problems.append(rule.error("text.summary", str(error)))
        return rule.title


def _evidence(
    rule: Rule, tables: Sequence[Table | None], problems: list[RuleError]
) -> list[Evidence]:
    found = []
    for key, query, row in _single_rows(rule, "evidence", rule.evidence, tables, problems):
        numbers = [value for value in row if value is None or _is_number(value)]
        if len(row) > 2 or len(numbers) != len(row):
            problems.append(rule.error(key, "must return one or two numbers: value, baseline"))
            continue
        found.append(Evidence(query.name, numbers[0], query.unit, *numbers[1:]))
    return found


def _ruled_out(
    rule: Rule, tables: Sequence[Table | None], problems: list[RuleError]
) -> list[RuledOut]:
    found = []
    for key, query, row in _single_rows(rule, "ruled_out", rule.ruled_out, tables, problems):
        if len(row) != 1 or not (row[0] is None or isinstance(row[0], str)):
            problems.append(rule.error(key, "must return one text: the reason"))
        elif row[0]:
            found.append(RuledOut(query.rule, row[0]))
    return found


def _single_rows(
    rule: Rule,
    section: str,
    queries: Sequence[Any],
    tables: Sequence[Table | None],
    problems: list[RuleError],
) -> Iterator[tuple[str, Any, list[Any]]]:
    """(key, query, row) for each query that returned its row; none is no claim."""
    for number, (query, table) in enumerate(zip(queries, tables, strict=True)):
        key = f"{section}[{number}].sql"
        if table is None or not table.rows:
            continue
        if len(table.rows) > 1:
            problems.append(rule.error(key, f"returns {len(table.rows)} rows; expected one"))
            continue
        yield key, query, table.rows[0]


def _remedies(
    rule: Rule, row: RuleRow, engine_name: str | None, problems: list[RuleError]
) -> list[Remedy]:
    values = row.scalars()
    told = row.facts.get("engine_name")
    engine = canonical_engine(told if isinstance(told, str) else engine_name)
    remedies = []
    for number, template in enumerate(rule.remedies):
        if not _applies(template, row.facts):
            continue
        try:
            remedies.extend(_worded(template, engine, values))
        except TemplateError as error:
            problems.append(rule.error(f"remedy[{number}]", str(error)))
    return remedies


def _applies(template: RemedyTemplate, facts: Mapping[str, Scalar]) -> bool:
    for name, wanted in template.when.items():
        choices = wanted if isinstance(wanted, tuple) else (wanted,)
        if name not in facts or facts[name] not in choices:
            return False
    return True


def _worded(
    template: RemedyTemplate, engine: str | None, values: Mapping[str, Scalar]
) -> list[Remedy]:
    """One remedy for a known engine; for an unknown one, one for each default engine."""
    do = render(template.do, values)
    if template.where:
        do = f"{do}, {render(template.where, values)}"
    cost = render(template.cost, values) or None
    if engine is not None:
        names: Sequence[str] = (engine,)
    else:
        names = [name for name in DEFAULT_ENGINES if name in template.setting]
    remedies = [
        Remedy(do, name, render(template.setting[name], values, when_null=_BLANK), None, cost)
        for name in names
        if name in template.setting
    ]
    return remedies or [Remedy(do, engine, None, None, cost)]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
