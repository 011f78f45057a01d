"""Each lint check fires on a rule that breaks it and is silent on one that does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenlag.judge.lint import IMPERATIVES, Issue, lint_rules
from tokenlag.judge.lint_sql import is_of, struct_fields
from tokenlag.judge.rule import CAPABILITIES, CAUSES, CONTRACT_COLUMNS, OPTIONAL_COLUMNS
from tokenlag.judge.rulebook import KEYS, Rulebook, load_rules

from tests.judge.rules import GOOD, GOOD_ID, GOOD_SQL, book, changed, parsed, with_sql

FACTS = "{'limit': 'slots', 'worst_ms': max(r.e2e_ms), 'suggested': 2 * count(*)}"


def lint(text: str, *, path: str | None = None, is_bundled: bool = False) -> list[Issue]:
    """Issues of one file; bound in this process or, as for a user's rule, in a child."""
    rule = parsed(text, path, is_bundled=is_bundled)
    issues = lint_rules(Rulebook([rule]))
    if is_bundled:  # a throw-away rule is in no closed list
        issues = [issue for issue in issues if issue.check != "id-is-cause"]
    return issues


def test_a_good_rule_has_no_issue() -> None:
    assert [str(issue) for issue in lint(GOOD, is_bundled=True)] == []
    assert [str(issue) for issue in lint(GOOD)] == []


def detect(old: str, new: str) -> str:
    return with_sql(changed(old, new, GOOD_SQL))


WITHOUT_CASES = GOOD[: GOOD.index("[[case]]")]
SETTINGS = GOOD[GOOD.index("setting.vllm") : GOOD.index("\ncost = ")]
WITHOUT_REMEDY = GOOD[: GOOD.index("[[remedy]]")] + GOOD[GOOD.index("[[case]]") :]

FIRES = [
    # (check, key, what is said, the file)
    ("needs", "needs[1]", "did you mean steps?", changed('"steps"', '"step"')),
    ("steps", "steps", "do not need", changed('steps = "helpful"', 'steps = "required"')),
    ("steps", "steps", "`needs` need", changed('["steps", "preemptions"]', '"steps"')),
    ("symptom", "symptom", "is empty", changed('["ttft"]', "[]")),
    ("params", "params.min_ms.value", "outside its range", changed("= 100", "= 1001")),
    ("params", "params.min_ms.range", "is empty", changed("[1, 1000]", "[1000, 1]")),
    (
        "params",
        "params.min_ms.unit",
        "is empty",
        changed('unit = "ms", range', 'unit = " ", range'),
    ),
    ("params", "params.min_ms.why", "is empty", changed("less is noise", "")),
    ("params", "params.min_ms", "used by no query", detect("$min_ms", "100")),
    ("prose", "title", "is empty", changed("Waits pile up", "")),
    ("prose", "text.means", "is empty", changed("They wait.", " ")),
    ("prose", "text.why", "is empty", changed("There is no room.", "")),
    ("prose", "text.wrong_when", "is empty", changed("There is room.", "")),
    ("evidence", "evidence[0].unit", "is empty", changed('unit = "ms"\nsql', 'unit = ""\nsql')),
    (
        "evidence",
        "evidence[0].sql",
        "VARCHAR",
        changed("avg(e2e_ms), 10.0", "any_value(request_id)"),
    ),
    ("evidence", "evidence[0].sql", "one or two", changed("avg(e2e_ms), 10.0", "1, 2, 3")),
    ("templates", "text.summary", "format", changed("{worst_ms:.1f}", "{worst_ms:zz}")),
    ("templates", "remedy[0].setting.vllm", "single", changed("num-seqs {sug", "num-seqs } {sug")),
    ("placeholders", "text.summary", "{worst}", changed("{worst_ms:.1f}", "{worst}")),
    (
        "placeholders",
        "remedy[0].setting.vllm",
        "{cap}",
        changed("num-seqs {suggested}", "num-seqs {cap}"),
    ),
    ("placeholders", "remedy[0].when", "bound", changed("when = { limit", "when = { bound")),
    ("remedy", "remedy", "is missing", WITHOUT_REMEDY),
    ("remedy", "remedy[0].do", "is empty", changed("Raise the slot cap", "")),
    ("remedy", "remedy[0].cost", "is empty", changed("more streams share a step", "")),
    ("remedy", "remedy[0].setting", "mean vllm?", changed("setting.vllm", "setting.vlm")),
    ("cases", "status", "expects 'fires'", WITHOUT_CASES),
    ("cases", "status", "expects 'silent'", changed('expect = "silent"', 'expect = "fires"')),
    ("cases", "case[1]", "both fire and be silent", changed('"control"', '"fault"')),
    ("explains", "explains[0]", "mean slow-delivery?", changed('["slow-deli', '["slow-dely')),
    ("explains", "explains[0]", "itself", changed('["slow-delivery"]', f'["{GOOD_ID}"]')),
    (
        "ruled-out",
        "ruled_out[0].rule",
        "there is no cause",
        changed('"prefill-runs-slow"', '"xyz"'),
    ),
    ("ruled-out", "ruled_out[0].rule", "itself", changed('"prefill-runs-slow"', f'"{GOOD_ID}"')),
    (
        "ruled-out",
        "ruled_out[0].sql",
        "one text",
        changed("'prefill is flat at ' || count(*)", "1"),
    ),
    ("sql", "detect.sql", "SET, not SELECT", with_sql("set threads = 4")),
    ("sql", "detect.sql", "2 statements", with_sql("select 1; select 2")),
    ("sql", "detect.sql", "0 statements", with_sql("-- nothing")),
    ("sql", "detect.sql", "syntax error", with_sql("selec 1")),
    ("sql", "detect.sql", 'named "gone" (line 4 of the query)', detect("r.e2e_ms >=", "r.gone >=")),
    ("sql", "detect.sql", "uses $min, which", detect("$min_ms", "$min")),
    (
        "sql",
        "detect.sql",
        "uses $subject",
        detect("$min_ms", "$min_ms and r.request_id = $subject"),
    ),
    ("sql", "detect.sql", "no documented table", detect("from requests", "from sqlite_master")),
    (
        "sql",
        "detect.sql",
        "information_schema.tables",
        detect("requests r", "requests r, information_schema.tables"),
    ),
    (
        "sql",
        "detect.sql",
        "function read_csv",
        detect("requests r", "requests r, read_csv('a.csv')"),
    ),
    (
        "sql",
        "detect.sql",
        "function duckdb_settings",
        detect("requests r", "requests r, duckdb_settings()"),
    ),
    ("sql", "detect.sql", "/etc/passwd", detect("requests r", "requests r, '/etc/passwd'")),
    ("sql", "detect.sql", "DESCRIBE", with_sql("describe requests")),
    ("repeatable", "detect.sql", "random", detect("$min_ms", "$min_ms * random()")),
    (
        "repeatable",
        "detect.sql",
        "current_date",
        detect("group by", "and current_date is not null group by"),
    ),
    (
        "columns",
        "detect.sql",
        "returns no column n_support",
        detect("count(*) as n_support", "1 as share"),
    ),
    ("columns", "detect.sql", "returns extra,", detect(" as facts", " as facts, 1 as extra")),
    ("columns", "detect.sql", "subject is BIGINT", detect("r.request_id as", "1::bigint as")),
    (
        "columns",
        "detect.sql",
        "from_ns is DOUBLE",
        detect("min(r.arrival_ns)", "avg(r.arrival_ns)"),
    ),
    ("columns", "detect.sql", "effect_ms is VARCHAR", detect("sum(r.e2e_ms)", "'1'")),
    ("columns", "detect.sql", "subject is always NULL", detect("r.request_id as", "null as")),
    ("columns", "detect.sql", "facts is INTEGER[]", detect(FACTS, "[1]")),
    ("columns", "detect.sql", "blame is INTEGER", detect(" as facts", " as facts, 1 as blame")),
    (
        "columns",
        "detect.sql",
        "engines is VARCHAR;",
        detect(" as facts", " as facts, 'e' as engines"),
    ),
    ("columns", "detect.sql", "two columns", detect(" as facts", " as facts, 's' as subject")),
    ("facts", "detect.sql", "fact list is INTEGER[]", detect("{'limit'", "{'list': [1], 'limit'")),
    ("facts", "detect.sql", "fact share has the name", detect("{'limit'", "{'share': 1, 'limit'")),
]


@pytest.mark.parametrize(("check", "key", "said", "text"), FIRES)
def test_a_check_fires(check: str, key: str, said: str, text: str) -> None:
    issues = lint(text, is_bundled=True)
    assert any(
        issue.check == check and issue.place.endswith(f": {key}") and said in issue.message
        for issue in issues
    ), [str(issue) for issue in issues]


SILENT = [
    ("needs", changed('needs = ["queue", ["steps", "preemptions"]]', "needs = []")),
    ("symptom", changed('"problem"', '"note"', changed('["ttft"]', "[]"))),
    ("params", changed("value = 100", "value = 1000")),
    ("placeholders", changed("{worst_ms:.1f}", "{effect_ms:.0f} {worst_ms|unknown}")),
    ("placeholders", changed("{worst_ms", "{only_later", detect(FACTS, "json_object('a', 1)"))),
    ("placeholders", changed("{worst_ms", "{only_later", detect(FACTS, "map {'a': 1.0}"))),
    ("templates", changed("They wait.", "They wait {for what}.")),
    ("remedy", changed(SETTINGS, 'where = "in the router"')),
    ("cases", changed('"stable"', '"preview"', WITHOUT_CASES)),
    ("sql", with_sql("with own as (from requests) " + GOOD_SQL.replace("requests r", "own r"))),
    ("sql", detect("requests r", "main.requests r")),
    ("sql", detect("requests r", "requests r, generate_series(1, 1), (select unnest([1]))")),
    ("repeatable", detect("$min_ms", "$min_ms + 0 * epoch_ns(make_timestamp(0))")),
    ("columns", detect("sum(r.e2e_ms)", "null")),
    ("columns", detect("count(*) as n_support", "sum(1) as n_support")),
    (
        "columns",
        detect(
            " as facts",
            """ as facts,
        0.5 as confidence, 'itl' as symptom, null as share,
        list(r.request_key) as request_keys, [] as exemplar_keys, ['e'] as engines,
        [{'culprit': 'x', 'victims': count(*), 'ms': 1.5}] as blame""",
        ),
    ),
    ("evidence", changed("avg(e2e_ms), 10.0", "count(*), null")),
]


@pytest.mark.parametrize(("check", "text"), SILENT)
def test_a_check_is_silent(check: str, text: str) -> None:
    issues = [str(issue) for issue in lint(text, is_bundled=True) if issue.check == check]
    assert issues == []


def checks(text: str, path: str | None = None, *, is_bundled: bool = False) -> set[str]:
    rules = Rulebook([parsed(text, path, is_bundled=is_bundled)])
    return {issue.check for issue in lint_rules(rules)}


def test_the_id_must_be_the_files_name() -> None:
    assert checks(GOOD, "a/b/other-name.toml") == {"id-is-file-name"}
    assert checks(GOOD, f"a\\b\\{GOOD_ID}.toml") == set()


def test_a_bundled_id_must_be_a_cause() -> None:
    assert checks(GOOD, is_bundled=True) == {"id-is-cause"}
    cause = changed(GOOD_ID, "prompts-grew")
    assert checks(cause, "rules/prompts-grew.toml", is_bundled=True) == set()


def test_the_id_must_be_a_slug() -> None:
    for bad in ("Waits-pile", "waits_pile_up", "waits", "-a-b"):
        assert "id-is-slug" in checks(changed(GOOD_ID, bad), f"rules/{bad}.toml"), bad


def test_the_id_must_give_no_order() -> None:
    for bad in ("raise-the-cap", "please-do-not-use-this"):
        assert checks(changed(GOOD_ID, bad), f"rules/{bad}.toml") == {"id-gives-no-order"}
    assert not [cause for cause in CAUSES if IMPERATIVES & set(cause.split("-"))]


def test_the_kind_must_be_that_of_the_closed_list() -> None:
    note = changed(GOOD_ID, "trace-incomplete")
    assert checks(note, "rules/trace-incomplete.toml") == {"kind"}
    assert checks(changed('"problem"', '"note"', note), "rules/trace-incomplete.toml") == set()


def test_one_rules_own_id_is_known_to_another() -> None:
    other = changed(GOOD_ID, "things-break")
    first = changed('["slow-delivery"]', '["things-break"]')
    assert "explains" in {issue.check for issue in lint_rules(book(first))}
    assert "explains" not in {issue.check for issue in lint_rules(book(first, other))}


def test_a_users_hostile_sql_is_bound_in_a_child() -> None:
    text = with_sql("select a from range(cast(length(repeat('x', 2000000000)) as bigint)) t(a)")
    issues = lint(text)
    assert any(i.check == "sql" and "more memory" in i.message for i in issues), issues


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("INTEGER", None),
        ("STRUCT(a INTEGER)[]", None),
        ("STRUCT(a INTEGER, b DECIMAL(4,1))", {"a": "INTEGER", "b": "DECIMAL(4,1)"}),
        (
            'STRUCT("x, y" VARCHAR, c STRUCT(d MAP(INTEGER, VARCHAR)))',
            {"x, y": "VARCHAR", "c": "STRUCT(d MAP(INTEGER, VARCHAR))"},
        ),
        ("STRUCT(e ENUM('a,b', 'c)'), f DOUBLE)", {"e": "ENUM('a,b', 'c)')", "f": "DOUBLE"}),
    ],
)
def test_struct_types_are_read(kind: str, fields: dict[str, str] | None) -> None:
    assert struct_fields(kind) == fields


def test_families_of_types() -> None:
    assert is_of("HUGEINT", "integer")
    assert not is_of("DOUBLE", "integer")
    assert is_of("DECIMAL(3,1)", "number")
    assert is_of("STRUCT(culprit VARCHAR, victims BIGINT, ms DOUBLE)[]", "blame")
    assert not is_of("STRUCT(culprit VARCHAR, ms DOUBLE)[]", "blame")


GUIDE = Path(__file__).resolve().parents[2] / "docs" / "writing-a-rule.md"


def test_the_guides_example_has_no_issue() -> None:
    text = GUIDE.read_text(encoding="utf-8").partition("```toml\n")[2].partition("```")[0]
    assert [str(issue) for issue in lint(text, path="my-rules/adapter-requests-wait.toml")] == []


def test_the_guide_lists_every_word_column_and_key() -> None:
    guide = GUIDE.read_text(encoding="utf-8")
    for word, meaning in CAPABILITIES.items():
        assert f"| `{word}` | {meaning} |" in guide
    for name in CONTRACT_COLUMNS | OPTIONAL_COLUMNS:
        assert f"`{name}`" in guide
    for key in KEYS:
        assert any(form in guide for form in (f"`{key}`", f"`[{key}]", f"`[[{key}]]`")), key


def test_the_bundled_rules_have_no_issue() -> None:
    assert [str(issue) for issue in lint_rules(load_rules())] == []
