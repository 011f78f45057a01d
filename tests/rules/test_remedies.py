"""The settings that remedies name, and docs/remedies.md, which says where each comes from."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest
from tokenlag.judge.rule import ENGINES, Rule
from tokenlag.judge.rulebook import load_rules

PAGE = Path(__file__).parents[2] / "docs" / "remedies.md"
HEADINGS = {
    "vLLM": "vllm",
    "SGLang": "sglang",
    "TensorRT-LLM": "tensorrt-llm",
    "TGI": "tgi",
    "transformers": "transformers",
    "Others": "others",
}
# Engines of which every remedy with settings says something, if only that there is none.
ALWAYS = ("vllm", "sglang", "tensorrt-llm", "tgi")
COLUMNS = 6
RULES_COLUMN = 4
# An option, an environment variable or a value in capitals, a key with `_` or `.` in it.
NAME = re.compile(
    r"--[a-z][a-z0-9_-]*"
    r"|\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b"
    r"|\b[a-z][a-z0-9]*(?:_[a-z0-9]+)+(?:\.[a-z0-9_]+)*"
    r"|\b[a-z]+\.[a-z][a-z0-9_]+\b"
)
PLACEHOLDER = re.compile(r"\{[^{}]*\}")

Uses = dict[str, dict[str, set[str]]]  # engine → name → rules


@dataclass(frozen=True)
class Row:
    """One line of a table: its engine, the names in its first cell, the rules it states."""

    engine: str
    names: tuple[str, ...]
    cells: tuple[str, ...]
    line: int

    @property
    def rules(self) -> str:
        return self.cells[RULES_COLUMN]


def names_in(text: str) -> list[str]:
    """The names of settings in a remedy's text, in order."""
    return NAME.findall(PLACEHOLDER.sub("", text))


def named_by(rules: list[Rule]) -> Uses:
    """Which rules name what, by engine; what `do` and `where` name is under `others`."""
    uses: Uses = defaultdict(lambda: defaultdict(set))
    for rule in rules:
        for remedy in rule.remedies:
            for engine, setting in remedy.setting.items():
                for name in names_in(setting):
                    uses[engine][name].add(rule.id)
            for name in names_in(f"{remedy.do} {remedy.where or ''}"):
                uses["others"][name].add(rule.id)
    return uses


def rows_of(text: str) -> list[Row]:
    """The rows of the page's tables, heads and rules under them left out."""
    rows, engine = [], None
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("## "):
            engine = HEADINGS[line.removeprefix("## ")]
        elif line.startswith("|") and engine and not re.match(r"\| *(setting|-)|\|-", line):
            cells = tuple(cell.strip() for cell in line.strip("|").split("|"))
            rows.append(Row(engine, tuple(names_in(cells[0])), cells, number))
    return rows


def stated(uses: Uses, row: Row) -> str:
    """What the rules column of a row must say."""
    return ", ".join(f"`{rule}`" for rule in sorted(uses[row.engine][row.names[0]]))


@pytest.fixture(scope="module")
def rules() -> list[Rule]:
    return list(load_rules())


@pytest.fixture(scope="module")
def uses(rules: list[Rule]) -> Uses:
    return named_by(rules)


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return rows_of(PAGE.read_text("utf-8"))


def test_what_counts_as_a_name() -> None:
    text = 'a_b.c_d: {suggested}, POST /freeze_gc, X_Y=1, --a-b fp8_e4m3, "priority", 0.95 of 9.5'
    assert names_in(text) == ["a_b.c_d", "freeze_gc", "X_Y", "--a-b", "fp8_e4m3"]


def test_the_page_is_read() -> None:
    page = "## TGI\n\n| setting | x |\n|---|---|\n| `--a-b` `C_D` | – | 1 | does | `r` | file |\n"
    (row,) = rows_of(page)
    assert (row.engine, row.names, row.rules, row.line) == ("tgi", ("--a-b", "C_D"), "`r`", 5)


def test_every_row_is_whole(rows: list[Row]) -> None:
    for row in rows:
        where = f"docs/remedies.md:{row.line}"
        assert len(row.cells) == COLUMNS, where
        assert row.names, f"{where}: names nothing"
        assert row.cells[3], f"{where}: does not say what it does"
        assert row.cells[5], f"{where}: names no source"


def test_every_name_stands_once(rows: list[Row]) -> None:
    seen: dict[tuple[str, str], int] = {}
    for row in rows:
        for name in row.names:
            before = seen.setdefault((row.engine, name), row.line)
            assert before == row.line, f"{name} of {row.engine} in lines {before} and {row.line}"


def test_every_setting_of_a_remedy_has_a_source(uses: Uses, rows: list[Row]) -> None:
    known = {(row.engine, name) for row in rows for name in row.names}
    missing = [
        f"{engine}: {name} ({', '.join(sorted(of))})"
        for engine, names in uses.items()
        for name, of in names.items()
        if (engine, name) not in known
    ]
    assert not missing, "look these up and add them to docs/remedies.md: " + "; ".join(missing)


def test_every_source_is_of_a_setting_that_some_remedy_names(uses: Uses, rows: list[Row]) -> None:
    unused = [
        f"{row.engine}: {name} (line {row.line})"
        for row in rows
        for name in row.names
        if name not in uses[row.engine]
    ]
    assert not unused, "no remedy names these of docs/remedies.md any more: " + "; ".join(unused)


def test_rows_name_their_rules(uses: Uses, rows: list[Row]) -> None:
    lines = PAGE.read_text("utf-8").splitlines()
    wrong = [row for row in rows if row.rules != stated(uses, row)]
    if wrong and os.environ.get("TOKENLAG_UPDATE") == "1":
        for row in wrong:
            cells = [*row.cells[:RULES_COLUMN], stated(uses, row), *row.cells[RULES_COLUMN + 1 :]]
            lines[row.line - 1] = f"| {' | '.join(cells)} |"
        PAGE.write_text("\n".join(lines) + "\n", "utf-8")
        return
    assert not wrong, "TOKENLAG_UPDATE=1 writes the rules of lines " + ", ".join(
        str(row.line) for row in wrong
    )


def test_every_remedy_with_settings_speaks_of_the_four_engines(rules: list[Rule]) -> None:
    silent = [
        f"{rule.id}, remedy {number}: {engine}"
        for rule in rules
        for number, remedy in enumerate(rule.remedies)
        for engine in ALWAYS
        if remedy.setting and engine not in remedy.setting
    ]
    assert not silent, "give the setting, or say none: " + "; ".join(silent)


def test_a_setting_names_something_or_says_that_there_is_none(rules: list[Rule]) -> None:
    for rule in rules:
        for remedy in rule.remedies:
            for engine, setting in remedy.setting.items():
                assert engine in ENGINES
                assert names_in(setting) or re.match(r"none\b|a checkpoint\b", setting), (
                    rule.id,
                    engine,
                )
