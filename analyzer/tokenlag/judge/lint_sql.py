"""The lint checks that need a rule's SQL bound: on the empty canonical and derived tables.

Bundled rules are bound in this process, others in a child, as when they run: binding
already folds constants, so a hostile query can eat memory without being executed.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from tokenlag.errors import RuleError
from tokenlag.judge.rule import CONTRACT_COLUMNS, OPTIONAL_COLUMNS, TEXT_COLUMNS, Rule, templates
from tokenlag.judge.rulebook import Rulebook
from tokenlag.judge.sandbox import BindQuery, Bound, Fault, Job, Outcome, bind, run_in_child
from tokenlag.judge.template import TemplateError, placeholders

# A diagnosis of the same traces must be the same tomorrow.
UNREPEATABLE: Final = frozenset(
    [
        "random",
        "setseed",
        "uuid",
        "gen_random_uuid",
        "uuidv4",
        "uuidv7",
        "now",
        "today",
        "current_date",
        "current_time",
        "current_timestamp",
        "localtime",
        "localtimestamp",
        "get_current_time",
        "get_current_timestamp",
        "transaction_timestamp",
        "current_setting",
        "getvariable",
        "nextval",
        "currval",
        "txid_current",
    ]
)
_INTEGERS: Final = frozenset(
    [
        "TINYINT",
        "SMALLINT",
        "INTEGER",
        "BIGINT",
        "HUGEINT",
        "UTINYINT",
        "USMALLINT",
        "UINTEGER",
        "UBIGINT",
        "UHUGEINT",
    ]
)
_NULL: Final = '"NULL"'
_SUBJECT: Final[dict[str, str | int | float]] = {"subject": "", "from_ns": 0, "to_ns": 0}
_NULLABLE: Final = frozenset({"effect_ms", "facts", *OPTIONAL_COLUMNS})


class BoundRule(NamedTuple):
    """A rule's queries by key (`detect.sql`, `evidence[0].sql`): bound, or why not."""

    queries: dict[str, Bound]
    faults: dict[str, Fault]


def bind_rules(rulebook: Rulebook) -> dict[str, BoundRule]:
    """Bind every query of every rule, by rule id."""
    from tokenlag.store.box import BoxLimits, open_empty_box

    limits = BoxLimits()
    bound = {}
    with (
        tempfile.TemporaryDirectory(prefix="tokenlag-") as folder,
        open_empty_box(Path(folder), limits) as box,
    ):
        for rule in rulebook:
            queries = _queries(rule)
            if rule.is_bundled:
                outcome = bind(box, list(queries.values()))
            else:
                job = Job(msgspec.to_builtins(limits), bind=list(queries.values()))
                try:
                    outcome = run_in_child(job, limits)
                except RuleError as error:
                    fault = Fault("0", error.message, error.hint)
                    outcome = Outcome(bound=[None] * len(queries), faults=[fault])
            bound[rule.id] = _by_key(list(queries), outcome)
    return bound


def lint_sql(rule: Rule, bound: BoundRule) -> Iterator[tuple[str, str, str]]:
    """(check, key, message) for what binding a rule's SQL shows."""
    for key, fault in bound.faults.items():
        yield "sql", key, fault.message if not fault.hint else f"{fault.message} ({fault.hint})"
    for key, query in bound.queries.items():
        unsteady = UNREPEATABLE.intersection(query.functions)
        if unsteady:
            names = ", ".join(sorted(unsteady))
            yield "repeatable", key, f"calls {names}, which is different at every run"
        if key.startswith("evidence"):
            yield from _lint_evidence(key, query)
        elif key.startswith("ruled_out"):
            yield from _lint_reason(key, query)
    if not bound.faults:
        yield from _lint_unused(rule, bound)
    detect = bound.queries.get("detect.sql")
    if detect is not None:
        yield from _lint_columns(detect)
        yield from _lint_facts(rule, detect)


def _queries(rule: Rule) -> dict[str, BindQuery]:
    params: dict[str, str | int | float] = dict(rule.param_values())
    queries = {"detect.sql": BindQuery(rule.detect_sql, params)}
    for number, query in enumerate(rule.evidence):
        queries[f"evidence[{number}].sql"] = BindQuery(query.sql, params | _SUBJECT)
    for number, reason in enumerate(rule.ruled_out):
        queries[f"ruled_out[{number}].sql"] = BindQuery(reason.sql, params | _SUBJECT)
    return queries


def _by_key(keys: list[str], outcome: Outcome) -> BoundRule:
    queries = {
        key: query for key, query in zip(keys, outcome.bound, strict=True) if query is not None
    }
    return BoundRule(queries, {keys[int(fault.key)]: fault for fault in outcome.faults})


def _lint_columns(detect: Bound) -> Iterator[tuple[str, str, str]]:
    types = {name.lower(): kind for name, kind in detect.columns}
    key = "detect.sql"
    if len(types) < len(detect.columns):
        yield "columns", key, "returns two columns of one name"
    absent = [name for name in CONTRACT_COLUMNS if name not in types]
    if absent:
        yield "columns", key, f"returns no column {', '.join(absent)}"
    families = CONTRACT_COLUMNS | OPTIONAL_COLUMNS
    for name, kind in types.items():
        if name not in families:
            yield "columns", key, f"returns {name}, which is no column of the contract"
        elif kind == _NULL:
            if name not in _NULLABLE:
                yield "columns", key, f"{name} is always NULL"
        elif not is_of(kind, families[name]):
            yield "columns", key, f"{name} is {kind}; expected {_EXPECTED[families[name]]}"


def _lint_facts(rule: Rule, detect: Bound) -> Iterator[tuple[str, str, str]]:
    types = {name.lower(): kind for name, kind in detect.columns}
    fields = struct_fields(types.get("facts", ""))
    if types.get("facts") == _NULL:
        fields = {}
    if fields is None:  # MAP or JSON: the keys are known only when it runs
        return
    for name, kind in fields.items():
        if kind.endswith("]") or kind.startswith(("STRUCT", "MAP", "UNION")):
            yield "facts", "detect.sql", f"fact {name} is {kind}; facts are single values"
        if name in CONTRACT_COLUMNS | OPTIONAL_COLUMNS:
            yield "facts", "detect.sql", f"fact {name} has the name of a column"
    known = set(fields) | set(TEXT_COLUMNS)
    for key, template in templates(rule):
        try:
            unknown = [p.name for p in placeholders(template) if p.name not in known]
        except TemplateError:
            continue  # the check "templates" says so
        if unknown:
            names = ", ".join(f"{{{name}}}" for name in unknown)
            yield "placeholders", key, f"{names} is neither a column nor a fact"
    for number, remedy in enumerate(rule.remedies):
        for name in remedy.when:
            if name not in fields:
                yield "placeholders", f"remedy[{number}].when", f"{name} is no fact of this rule"


def _lint_evidence(key: str, query: Bound) -> Iterator[tuple[str, str, str]]:
    kinds = [kind for _, kind in query.columns]
    if len(kinds) > 2 or any(kind != _NULL and not is_of(kind, "number") for kind in kinds):
        shown = ", ".join(kinds)
        yield "evidence", key, f"returns {shown}; expected one or two numbers (value, baseline)"


def _lint_reason(key: str, query: Bound) -> Iterator[tuple[str, str, str]]:
    kinds = [kind for _, kind in query.columns]
    if len(kinds) != 1 or not is_of(kinds[0], "text"):
        yield "ruled-out", key, f"returns {', '.join(kinds)}; expected one text, the reason"


def _lint_unused(rule: Rule, bound: BoundRule) -> Iterator[tuple[str, str, str]]:
    used = {name for query in bound.queries.values() for name in query.parameters}
    for name in rule.params:
        if name not in used:
            yield "params", f"params.{name}", "is used by no query"


_EXPECTED: Final[Mapping[str, str]] = {
    "text": "VARCHAR",
    "integer": "an integer type",
    "number": "a number",
    "facts": "STRUCT, MAP or JSON",
    "texts": "VARCHAR[]",
    "integers": "a list of integers",
    "blame": "a list of STRUCT(culprit text, victims integer, ms number)",
}


def is_of(kind: str, family: str) -> bool:
    """Whether the DuckDB type `kind` belongs to a family of `rule.CONTRACT_COLUMNS`."""
    if family == "text":
        return kind == "VARCHAR" or kind.startswith("ENUM(")
    if family == "integer":
        return kind in _INTEGERS
    if family == "number":
        return kind in _INTEGERS | {"DOUBLE", "FLOAT"} or kind.startswith("DECIMAL(")
    if family == "facts":
        return kind == "JSON" or kind.startswith(("STRUCT(", "MAP("))
    if not kind.endswith("[]"):
        return False
    item = kind.removesuffix("[]")
    if family == "texts":
        return is_of(item, "text") or item == _NULL
    if family == "integers":
        return is_of(item, "integer") or item == _NULL
    fields = struct_fields(item) or {}
    wanted = {"culprit": "text", "victims": "integer", "ms": "number"}
    return fields.keys() == wanted.keys() and all(is_of(fields[n], f) for n, f in wanted.items())


def struct_fields(kind: str) -> dict[str, str] | None:
    """Names and types of `STRUCT(a INTEGER, "b c" VARCHAR)`; None for another type."""
    if not (kind.startswith("STRUCT(") and kind.endswith(")")):
        return None
    fields = {}
    for part in _split(kind[len("STRUCT(") : -1]):
        match = re.match(r'\s*(?:"((?:[^"]|"")*)"|(\w+))\s+(.+)$', part, re.DOTALL)
        if match:
            fields[(match[1] or "").replace('""', '"') or match[2]] = match[3]
    return fields


def _split(text: str) -> list[str]:
    """The parts between the commas that are in no bracket and no quotes."""
    parts, depth, is_quoted, start = [], 0, False, 0
    for index, character in enumerate(text):
        if character in "\"'":
            is_quoted = not is_quoted
        elif not is_quoted and character in "([":
            depth += 1
        elif not is_quoted and character in ")]":
            depth -= 1
        elif character == "," and depth == 0 and not is_quoted:
            parts.append(text[start:index])
            start = index + 1
    return [*parts, text[start:]]
