"""Finding and parsing rule files, their pages, and the index of the bundled ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tokenlag.errors import UsageError
from tokenlag.judge.page import rule_page, rules_index, rules_table
from tokenlag.judge.rule import CAUSES, canonical_engine
from tokenlag.judge.rulebook import Rulebook, bundled_folder, key_lines, load_rules, parse_rule
from tokenlag.judge.template import TemplateError, placeholders, render

from tests.judge.rules import GOOD, GOOD_ID, changed, parsed


def messages(text: str, path: str = "my/rule.toml") -> list[str]:
    rule, problems = parse_rule(text, path)
    assert rule is None
    return [str(problem) for problem in problems]


def line_of(needle: str, text: str = GOOD) -> int:
    return next(n for n, line in enumerate(text.splitlines(), 1) if line.startswith(needle))


def test_a_good_file_becomes_a_rule_with_every_part() -> None:
    rule = parsed(GOOD)
    assert rule.id == GOOD_ID
    assert rule.needs == (("queue",), ("steps", "preemptions"))
    assert rule.params["min_ms"].range == (1, 1000)
    assert rule.param_values() == {"min_ms": 100}
    assert rule.evidence[0].name == "mean time"
    assert rule.ruled_out[0].rule == "prefill-runs-slow"
    assert rule.remedies[0].when == {"limit": "slots"}
    assert [case.expect for case in rule.cases] == ["fires", "silent"]
    assert rule.place("detect.sql") == f"rules/{GOOD_ID}.toml:{line_of('sql')}: detect.sql"


def test_broken_toml_says_file_and_line() -> None:
    text = changed('kind = "problem"', "kind = problem")
    (message,) = messages(text)
    assert message.startswith(f"my/rule.toml:{line_of('kind')}: no TOML: ")


@pytest.mark.parametrize("value", ["[" * 50_000, "9" * 5_000])
def test_absurd_toml_is_one_problem(value: str) -> None:
    (message,) = messages(f"id = {value}")
    assert message.startswith("my/rule.toml")
    assert "no TOML: " in message


@pytest.mark.parametrize(
    ("old", "new", "key", "said"),
    [
        ('title = "Waits', 'titel = "Waits', "titel", "unknown key (hint: did you mean title?)"),
        ('title = "Waits pile up"', "", "title", "missing"),
        ('kind = "problem"', 'kind = "bug"', "kind", "invalid enum value 'bug'"),
        ('["ttft"]', '["latency"]', "symptom[0]", "invalid enum value 'latency'"),
        ('"helpful"', '"handy"', "steps", "invalid enum value 'handy'"),
        ('"stable"', '"final"', "status", "invalid enum value 'final'"),
        ("value = 100", 'value = "100"', "params.min_ms.value", "got `str`"),
        ("range = [1, 1000]", "range = [1]", "params.min_ms.range", "of length 2"),
        (', why = "less is noise"', "", "params.min_ms.why", "missing"),
        ('[[evidence]]\nname = "mean time"', "[[evidence]]", "evidence[0].name", "missing"),
        ("[[evidence]]", "[evidence]", "evidence", "expected tables [[evidence]]"),
        ("means =", "meaning =", "text.meaning", "did you mean means?"),
        ('cost = "more', 'costs = "more', "remedy[0].costs", "did you mean cost?"),
        ('expect = "silent"', 'expect = "quiet"', "case[1].expect", "invalid enum value"),
        ('"preemptions"]]', '"preemptions"], []]', "needs[2]", "an empty list of alternatives"),
    ],
)
def test_a_mistake_is_named_with_file_line_and_key(old: str, new: str, key: str, said: str) -> None:
    assert any(
        message.startswith("my/rule.toml") and f": {key}: " in message and said in message
        for message in messages(changed(old, new))
    ), messages(changed(old, new))


def test_the_line_is_that_of_the_key() -> None:
    text = changed('expect = "silent"', 'expect = "quiet"')
    (message,) = messages(text)
    last = max(n for n, line in enumerate(text.splitlines(), 1) if line.startswith("expect"))
    assert message.startswith(f"my/rule.toml:{last}: case[1].expect: ")


def test_all_mistakes_of_a_file_are_told_at_once() -> None:
    text = changed('kind = "problem"', 'kind = "bug"', changed("why =", "wy =", GOOD))
    found = messages(text)
    keys = {message.split(": ")[1] for message in found}
    assert {"kind", "params.min_ms.wy", "text.wy"} <= keys


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ('steps = "helpful"\n', "steps"),
        ('without_steps = "The same, more roughly."\n', "text.without_steps"),
    ],
)
def test_what_is_left_without_steps_must_be_said_by_bundled_rules_alone(
    line: str, key: str
) -> None:
    text = changed(line, "")
    assert parse_rule(text, "mine/rule.toml")[1] == []
    rule, (problem,) = parse_rule(text, "rules/rule.toml", is_bundled=True)
    assert rule is None
    assert str(problem).startswith("rules/rule.toml")
    assert f"{key}: missing" in str(problem)


def test_the_page_says_what_is_left_without_steps() -> None:
    page = rule_page(parsed(GOOD))
    assert "## Without engine steps\n\nThe same, more roughly.\n" in page
    silent = rule_page(parsed(changed('without_steps = "The same, more roughly."\n', "")))
    assert "Without engine steps" not in silent


def test_lines_inside_a_literal_string_are_no_keys() -> None:
    text = "id = 'x'\n[detect]\nsql = '''\nfrom_ns = 1\n[text]\n'''\n[text]\nwhy = 'y'\n"
    assert key_lines(text) == {"id": 1, "detect": 2, "detect.sql": 3, "text": 7, "text.why": 8}


def write(folder: Path, rule_id: str, text: str | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / f"{rule_id}.toml"
    file.write_text(text if text is not None else changed(GOOD_ID, rule_id), encoding="utf-8")
    return file


def test_a_folder_adds_rules(tmp_path: Path) -> None:
    write(tmp_path / "mine", GOOD_ID)
    rules = load_rules([tmp_path / "mine"])
    rule = rules.get(GOOD_ID)
    assert rule is not None
    assert not rule.is_bundled
    assert len(rules) == len(load_rules()) + 1


def test_a_later_folder_overrides_by_id(tmp_path: Path) -> None:
    write(tmp_path / "one", GOOD_ID)
    write(tmp_path / "two", GOOD_ID, changed("Waits pile up", "Ours"))
    rules = load_rules([tmp_path / "one", tmp_path / "two"])
    rule = rules.get(GOOD_ID)
    assert rule is not None
    assert rule.title == "Ours"
    assert not rules.problems


def test_a_folder_overrides_a_bundled_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "bundled", GOOD_ID)
    write(tmp_path / "mine", GOOD_ID, changed("value = 100", "value = 5"))
    monkeypatch.setattr("tokenlag.judge.rulebook.bundled_folder", lambda: tmp_path / "bundled")
    bundled = load_rules().get(GOOD_ID)
    assert bundled is not None
    assert (bundled.is_bundled, bundled.path) == (True, f"rules/{GOOD_ID}.toml")
    ours = load_rules([tmp_path / "mine"]).get(GOOD_ID)
    assert ours is not None
    assert (ours.is_bundled, ours.param_values()) == (False, {"min_ms": 5})


def test_a_broken_override_is_a_problem_and_the_rule_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "bundled", GOOD_ID)
    broken = write(tmp_path / "mine", GOOD_ID, changed('kind = "problem"', 'kind = "bug"'))
    other = write(tmp_path / "mine", "not-a-rule", "id = [")
    monkeypatch.setattr("tokenlag.judge.rulebook.bundled_folder", lambda: tmp_path / "bundled")
    rules = load_rules([tmp_path / "mine"])
    rule = rules.get(GOOD_ID)
    assert rule is not None
    assert rule.is_bundled
    places = [problem.place or "" for problem in rules.problems]
    assert [place.split(":")[0] for place in places] == [str(other), str(broken)]


def test_one_id_in_two_files_of_a_folder_is_a_problem(tmp_path: Path) -> None:
    write(tmp_path / "mine", "a-first", GOOD)
    second = write(tmp_path / "mine", "b-second", GOOD)
    (problem,) = load_rules([tmp_path / "mine"]).problems
    assert str(problem).startswith(f"{second}:2: id: '{GOOD_ID}' is also the id of")


def test_a_file_that_is_no_text_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe\x00")
    (problem,) = load_rules([tmp_path]).problems
    assert "bad.toml: cannot be read" in str(problem)


def test_a_missing_or_empty_folder_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such folder"):
        load_rules([tmp_path / "nowhere"])
    with pytest.raises(UsageError, match="no rules in this folder"):
        load_rules([tmp_path])


def test_rules_come_in_the_order_of_the_closed_list() -> None:
    ids = ["waits-pile-up", "prompts-grew", "another-one", "queueing-not-prefill"]
    rules = Rulebook([parsed(changed(GOOD_ID, rule_id)) for rule_id in ids])
    assert [rule.id for rule in rules] == [
        "queueing-not-prefill",
        "prompts-grew",
        "another-one",
        "waits-pile-up",
    ]
    assert rules.suggest("prompt-grew") == "prompts-grew"
    assert rules.suggest("zzz") is None
    assert rules.get("prompt-grew") is None


# --- templates ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{n} of {ms:.1f} ms", "3 of 12.3 ms"),
        ("{{{n}}}", "{3}"),
        ("{ms} {big} {tiny} {whole}", "12.3 12346 0.0123 5"),
        ("{gone|none} {null|none} {null}", "none none not measured"),
        ("{gone:.1f|-} {n:>4,d|-}", "-    3"),
        ("{flag} {s}", "yes x{y}"),
    ],
)
def test_a_template_is_filled_in(template: str, text: str) -> None:
    values = {
        "n": 3,
        "ms": 12.345,
        "big": 12345.6,
        "tiny": 0.012345,
        "whole": 5.0,
        "null": None,
        "flag": True,
        "s": "x{y}",
    }
    assert render(template, values) == text


@pytest.mark.parametrize(
    "template",
    ["{", "a } b", "{a.b}", "{a[0]}", "{a!r}", "{}", "{a:zz}", "{a|x:.1f}", "{a:{b}}"],
)
def test_a_template_of_another_form_is_refused(template: str) -> None:
    with pytest.raises(TemplateError):
        placeholders(template)


def test_a_name_that_is_missing_is_told_with_those_there_are() -> None:
    with pytest.raises(TemplateError, match=r"\{x\} is neither a column nor a fact \(has: y\)"):
        render("{x}", {"y": 1})
    with pytest.raises(TemplateError, match="cannot show 'text'"):
        render("{y:.1f}", {"y": "text"})


def test_a_duration_is_said_as_people_do() -> None:
    shown = render("{a:duration}, {b:duration}, {c:duration|-}", {"a": 12.5, "b": 2400, "c": None})
    assert shown == "12.5 ms, 2.4 s, -"
    with pytest.raises(TemplateError, match="cannot show 'text'"):
        render("{y:duration}", {"y": "text"})


def test_engines_are_known_by_any_spelling() -> None:
    assert canonical_engine("TensorRT_LLM") == "tensorrt-llm"
    assert canonical_engine("text-generation-inference") == "tgi"
    assert canonical_engine("vLLM") == "vllm"
    assert canonical_engine("mine") == "mine"
    assert canonical_engine(" ") is None
    assert canonical_engine("Dynamo") is None  # an engine runs behind it, and which is not said


# --- pages ----------------------------------------------------------------------------


def test_a_page_tells_what_the_file_tells() -> None:
    page = rule_page(parsed(GOOD))
    assert page.startswith("# Waits pile up\n\n`waits-pile-up` · problem · seen in ttft · stable")
    headings = [line for line in page.splitlines() if line.startswith("## ")]
    assert headings == [
        "## What it means",
        "## Why it happens",
        "## How it is tested",
        "## When it is wrong",
        "## Without engine steps",
        "## What to do",
        "## Fixtures",
        "## Sources",
    ]
    for part in (
        "They wait.",
        "There is no room.",
        "There is room.",
        "| `min_ms` | 100 | ms | 1 to 1000 | less is noise |",
        "**steps** (engine steps with what each of them computed) or **preemptions**",
        "mean time (ms)",
        "**Raise the slot cap** (when limit is slots)",
        "- vllm: `--max-num-seqs {suggested}`",
        "- cost: more streams share a step",
        "It fires on: S01 (fault).",
        "It stays silent on: S01 (control).",
        "- docs/metrics.md",
        "group by all",
    ):
        assert part in page


def test_the_table_has_a_row_for_each_rule() -> None:
    table = rules_table([parsed(GOOD), parsed(changed("Waits pile", "a | b"))])
    head, _, first, second = table.splitlines()
    assert head == "| rule | title | kind | symptom | needs | status |"
    assert first.startswith("| `waits-pile-up` | Waits pile up | problem | ttft | queue, steps or")
    assert "a \\| b" in second


# --- the bundled rules ----------------------------------------------------------------


def test_every_bundled_file_is_a_rule_named_after_its_cause() -> None:
    rules = load_rules()
    assert not [str(problem) for problem in rules.problems]
    assert {rule.id for rule in rules} <= set(CAUSES)
    assert len(rules) == len(list(bundled_folder().glob("*.toml")))


def test_the_index_is_up_to_date() -> None:
    """Set TOKENLAG_UPDATE=1 to write it anew."""
    file = bundled_folder() / "README.md"
    text = rules_index(load_rules())
    if os.environ.get("TOKENLAG_UPDATE"):
        file.write_text(text, encoding="utf-8")
    assert file.read_text(encoding="utf-8") == text, "run: TOKENLAG_UPDATE=1 pytest tests/judge"
