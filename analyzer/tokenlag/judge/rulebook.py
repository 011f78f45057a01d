"""Finds rule files and parses them; every problem of every file is collected, with its place.

Bundled rules lie in `tokenlag/rules` (an installed wheel) or in the checkout's `rules/` (an
editable install). A folder given by the user adds rules, or replaces those of the same id.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar, get_args

import msgspec

from tokenlag.errors import RuleError, UsageError
from tokenlag.judge.diagnosis import Severity, Symptom
from tokenlag.judge.rule import (
    CAUSES,
    Case,
    EvidenceQuery,
    Lifecycle,
    Param,
    RemedyTemplate,
    Rule,
    RuledOutQuery,
    RuleText,
    StepsUse,
    place_of,
)

_T = TypeVar("_T")
KEYS: Final = (
    "id",
    "title",
    "kind",
    "symptom",
    "needs",
    "steps",
    "explains",
    "status",
    "params",
    "detect",
    "evidence",
    "text",
    "ruled_out",
    "remedy",
    "case",
)
_HEADER = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")
_ASSIGNMENT = re.compile(r"\s*([A-Za-z0-9_\-.]+)\s*=")
_AT_LINE = re.compile(r"\s*\(at line (\d+), column \d+\)")


class _Detect(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sql: str


class Rulebook:
    """The rules in force, in order, and what was wrong with the files that are not among them."""

    def __init__(self, rules: Sequence[Rule], problems: Sequence[RuleError] = ()) -> None:
        order = {cause: number for number, cause in enumerate(CAUSES)}
        ranked = sorted(rules, key=lambda rule: (order.get(rule.id, len(order)), rule.id))
        self.rules: tuple[Rule, ...] = tuple(ranked)
        self.problems: tuple[RuleError, ...] = tuple(problems)
        self._by_id = {rule.id: rule for rule in ranked}

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)

    def __len__(self) -> int:
        return len(self.rules)

    def get(self, rule_id: str) -> Rule | None:
        """The rule of that id, or None."""
        return self._by_id.get(rule_id)

    def suggest(self, rule_id: str) -> str | None:
        """The id most like `rule_id`, for "did you mean"; None if none is close."""
        return closest(rule_id, self._by_id)


def load_rules(extra_dirs: Sequence[Path] = ()) -> Rulebook:
    """The bundled rules, with those of `extra_dirs` added or put in their place.

    Files that are no rules are in `problems`; where such a file would have replaced a
    rule, that rule stays.

    Raises:
        UsageError: for a folder that does not exist or holds no `.toml` file.
    """
    rules: dict[str, Rule] = {}
    problems: list[RuleError] = []
    for file in sorted(bundled_folder().glob("*.toml")):
        _take(file, f"rules/{file.name}", rules, problems, is_bundled=True)
    for folder in extra_dirs:
        if not folder.is_dir():
            raise UsageError("no such folder of rules", place=str(folder))
        files = sorted(folder.glob("*.toml"))
        if not files:
            hint = "a rule is one .toml file; see docs/writing-a-rule.md"
            raise UsageError("no rules in this folder", place=str(folder), hint=hint)
        own: dict[str, Rule] = {}
        for file in files:
            _take(file, str(file), own, problems, is_bundled=False)
        rules.update(own)
    return Rulebook(list(rules.values()), problems)


def bundled_folder() -> Path:
    """Where the bundled rules are: beside the package, or in the checkout."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "rules"
    return installed if installed.is_dir() else package.parent.parent / "rules"


def closest(name: str, known: Mapping[str, object] | Sequence[str]) -> str | None:
    """The known name most like `name`, or None."""
    found = difflib.get_close_matches(name, list(known), n=1)
    return found[0] if found else None


def _take(
    file: Path,
    shown: str,
    rules: dict[str, Rule],
    problems: list[RuleError],
    *,
    is_bundled: bool,
) -> None:
    try:
        source = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problems.append(RuleError(f"cannot be read: {error}", place=shown))
        return
    rule, found = parse_rule(source, shown, is_bundled=is_bundled)
    problems.extend(found)
    if rule is None:
        return
    if rule.id in rules:
        problems.append(rule.error("id", f"{rule.id!r} is also the id of {rules[rule.id].path}"))
        return
    rules[rule.id] = rule


def parse_rule(
    source: str, path: str, *, is_bundled: bool = False
) -> tuple[Rule | None, list[RuleError]]:
    """One rule from its TOML text, or None with everything that is wrong with it.

    Args:
        source: the file's text.
        path: the name that errors carry.
        is_bundled: whether it came with tokenlag and is trusted.
    """
    try:
        document = tomllib.loads(source)
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, and numbers no int holds
        where = _AT_LINE.search(str(error))
        place = f"{path}:{where[1]}" if where else path
        return None, [RuleError(f"no TOML: {_AT_LINE.sub('', str(error))}", place=place)]
    reader = _Reader(document, path, key_lines(source))
    rule = reader.rule(is_bundled=is_bundled)
    return (None, reader.problems) if reader.problems else (rule, [])


class _Reader:
    """Converts one document piece by piece, so that one mistake does not hide the others."""

    def __init__(self, document: dict[str, Any], path: str, lines: dict[str, int]) -> None:
        self._document = document
        self._path = path
        self._lines = lines
        self.problems: list[RuleError] = []

    def rule(self, *, is_bundled: bool) -> Rule | None:
        for key in self._document.keys() - set(KEYS):
            guess = closest(key, KEYS)
            hint = f"did you mean {guess}?" if guess else f"keys are {', '.join(KEYS)}"
            self._wrong(key, "unknown key", hint)
        symptoms: type[tuple[Symptom, ...]] = tuple[Symptom, ...]
        needs = self._needs()
        detect = self._one("detect", _Detect)
        fields = {
            "id": self._one("id", str),
            "title": self._one("title", str),
            "kind": self._one("kind", Severity),
            "symptom": self._one("symptom", symptoms),
            "needs": needs,
            "explains": self._one("explains", tuple[str, ...], default=()),
            "status": self._one("status", Lifecycle),
            "params": self._table("params", Param),
            "detect_sql": detect.sql if isinstance(detect, _Detect) else "",
            "evidence": self._array("evidence", EvidenceQuery),
            "text": self._one("text", RuleText),
            "ruled_out": self._array("ruled_out", RuledOutQuery),
            "remedies": self._array("remedy", RemedyTemplate),
            "cases": self._array("case", Case),
        }
        steps = self._one("steps", StepsUse, default=None)
        if is_bundled:
            self._without_steps(steps, fields["text"])
        if self.problems:
            return None
        return Rule(
            **fields, steps=steps, path=self._path, is_bundled=is_bundled, lines=self._lines
        )

    def _without_steps(self, steps: object, text: object) -> None:
        """A bundled rule says what it can still say where no engine steps were recorded."""
        if steps is None and "steps" not in self._document:
            self._wrong("steps", "missing", f"one of {', '.join(get_args(StepsUse))}")
        if isinstance(text, RuleText) and not text.without_steps.strip():
            hint = "say what the rule can tell from request spans alone"
            self._wrong("text.without_steps", "missing", hint)

    def _one(self, key: str, kind: Any, *, default: object = msgspec.UNSET) -> Any:
        if key not in self._document:
            if default is msgspec.UNSET:
                self._wrong(key, "missing", None)
            return default
        return self._convert(key, self._document[key], kind)

    def _table(self, key: str, kind: type[_T]) -> dict[str, _T]:
        value = self._document.get(key, {})
        if not isinstance(value, dict):
            self._wrong(key, f"is a {_kind(value)}; expected a table [{key}]", None)
            return {}
        parsed = {name: self._convert(f"{key}.{name}", item, kind) for name, item in value.items()}
        return {name: item for name, item in parsed.items() if item is not None}

    def _array(self, key: str, kind: type[_T]) -> tuple[_T, ...]:
        value = self._document.get(key, [])
        if not isinstance(value, list):
            self._wrong(key, f"is a {_kind(value)}; expected tables [[{key}]]", None)
            return ()
        parsed = [self._convert(f"{key}[{n}]", item, kind) for n, item in enumerate(value)]
        return tuple(item for item in parsed if item is not None)

    def _needs(self) -> tuple[tuple[str, ...], ...]:
        """`["queue", ["steps", "preemptions"]]` as groups of alternatives."""
        raw = self._one("needs", list[str | list[str]], default=[]) or []
        groups = [(item,) if isinstance(item, str) else tuple(item) for item in raw]
        for number, group in enumerate(groups):
            if not group:
                self._wrong(f"needs[{number}]", "an empty list of alternatives", None)
        return tuple(groups)

    def _convert(self, key: str, value: object, kind: Any) -> Any:
        try:
            return msgspec.convert(value, kind, strict=True)
        except msgspec.ValidationError as error:
            message, _, inner = str(error).partition(" - at `$")
            path = key + inner.removesuffix("`")
            hint = None
            unknown = re.search(r"unknown field `(.+?)`", message)
            if unknown:
                path, message = f"{path}.{unknown[1]}", "unknown key"
                names = getattr(kind, "__struct_fields__", ())
                guess = closest(unknown[1], names)
                hint = f"did you mean {guess}?" if guess else f"keys are {', '.join(names)}"
            absent = re.search(r"missing required field `(.+?)`", message)
            if absent:
                path, message = f"{path}.{absent[1]}", "missing"
            self._wrong(path, message[:1].lower() + message[1:], hint)
            return None

    def _wrong(self, key: str, message: str, hint: str | None) -> None:
        place = place_of(self._path, key, self._lines)
        self.problems.append(RuleError(message, place=place, hint=hint))


def _kind(value: object) -> str:
    names = {"dict": "table", "str": "string"}
    return names.get(type(value).__name__, type(value).__name__)


def key_lines(source: str) -> dict[str, int]:
    """The line of each key of a TOML text, by its path (`evidence[0].sql`).

    Good for headers and for keys that begin a line, which is how rules are written; a key
    inside an inline table is on its table's line.
    """
    lines: dict[str, int] = {}
    counts: dict[str, int] = {}
    prefix, fence = "", ""
    for number, line in enumerate(source.splitlines(), start=1):
        if fence:
            if fence in line:
                fence = ""
            continue
        if header := _HEADER.match(line):
            prefix = header[2]
            if header[1] == "[[":
                counts[prefix] = counts.get(prefix, -1) + 1
                prefix = f"{prefix}[{counts[prefix]}]"
            lines.setdefault(prefix, number)
        elif key := _ASSIGNMENT.match(line):
            lines.setdefault(f"{prefix}.{key[1]}" if prefix else key[1], number)
        for quotes in ("'''", '"""'):
            if line.count(quotes) == 1:
                fence = quotes
    return lines
