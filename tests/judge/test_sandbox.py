"""Running rules: hits and their wording, what is not evaluated, and what is contained."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import duckdb
import pytest
from tokenlag.errors import InputError, RuleError, UsageError
from tokenlag.judge.diagnosis import Evidence, NotEvaluated, Remedy, RuledOut
from tokenlag.judge.rulebook import Rulebook, load_rules
from tokenlag.judge.run import RunResult, run_rules
from tokenlag.judge.sandbox import Job, plain, run_in_child
from tokenlag.store.box import BoxLimits, open_box, open_empty_box

from tests.judge.rules import GOOD, GOOD_ID, GOOD_SQL, book, changed, make_store, with_sql

ALL = {"queue", "steps"}
QUICK = BoxLimits(time_s=2.0, memory_mb=256, spill_mb=64)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("store"))


def run(store: Path, *texts: str, is_bundled: bool = True, engine: str | None = None) -> RunResult:
    rules = book(*texts, is_bundled=is_bundled)
    return run_rules(rules, store, ALL, engine_name=engine, limits=QUICK)


def said(result: RunResult) -> list[str]:
    return [str(problem) for problem in result.problems]


def detect(old: str, new: str) -> str:
    return with_sql(changed(old, new, GOOD_SQL))


# --- hits ----------------------------------------------------------------------------


@pytest.mark.parametrize("is_bundled", [True, False])
def test_a_rule_gives_worded_hits_in_this_process_and_in_a_child(
    store: Path, is_bundled: bool
) -> None:
    text = with_sql(GOOD_SQL + " order by subject")
    result = run(store, text, is_bundled=is_bundled, engine="vLLM")
    assert said(result) == []
    assert [hit.row.subject for hit in result.hits] == ["b", "c"]
    hit = result.hits[0]
    assert hit.rule.id == GOOD_ID
    assert (hit.row.from_ns, hit.row.to_ns, hit.row.n_support) == (1000, 1500, 1)
    assert hit.row.effect_ms == 250.5
    assert hit.row.facts == {"limit": "slots", "worst_ms": 250.5, "suggested": 2}
    assert hit.summary == "1 waited, the worst 250.5 ms (slots)."
    assert hit.evidence == [Evidence("mean time", 250.5, "ms", 10.0)]
    assert hit.ruled_out == [RuledOut("prefill-runs-slow", "prefill is flat at 2")]
    remedy = Remedy("Raise the slot cap", "vllm", "--max-num-seqs 2", None, hit.remedies[0].cost)
    assert hit.remedies == [remedy]
    assert result.checked == []


def test_optional_columns_are_passed_on(store: Path) -> None:
    columns = """ as facts, 0.25 as confidence, 'itl' as symptom, 0.5::decimal(3, 2) as share,
        list(r.request_key) as request_keys, ['e0'] as engines, null as exemplar_keys,
        [{'culprit': 'x', 'victims': count(*), 'ms': 1.5}] as blame"""
    result = run(store, detect(" as facts", columns))
    assert said(result) == []
    row = next(hit.row for hit in result.hits if hit.row.subject == "c")
    assert (row.confidence, row.symptom, row.share) == (0.25, "itl", 0.5)
    assert (row.request_keys, row.engines, row.exemplar_keys) == ((2,), ("e0",), ())
    assert [(b.culprit, b.victims, b.ms) for b in row.blame] == [("x", 1, 1.5)]


@pytest.mark.parametrize(
    "facts", ["json_object('limit', 'slots', 'worst_ms', 1.5)", "map {'worst_ms': 1.5}", "null"]
)
def test_facts_may_be_a_struct_a_map_or_json(store: Path, facts: str) -> None:
    head, _, rest = GOOD_SQL.partition("{")
    text = with_sql(head + facts + rest.partition("}")[2])
    result = run(store, changed("({limit})", "({limit|?})", changed(":.1f}", ":.1f|-}", text)))
    problems = [p for p in said(result) if "remedy" not in p]
    assert problems == []
    assert result.hits[0].summary.startswith("1 waited, the worst ")


def test_no_row_means_checked(store: Path) -> None:
    result = run_rules(book(GOOD), store, ALL, {GOOD_ID: {"min_ms": 1000}}, limits=QUICK)
    assert (result.checked, result.hits, said(result)) == ([GOOD_ID], [], [])


def test_parameters_given_on_the_command_line_are_checked(store: Path) -> None:
    rules = book(GOOD, is_bundled=True)
    for params, message in (
        ({"waits-pile": {"min_ms": 5}}, "no rule 'waits-pile' .hint: did you mean waits-pile-up"),
        ({GOOD_ID: {"min": 5}}, "no parameter 'min' .hint: did you mean min_ms"),
        ({GOOD_ID: {"min_ms": 1001}}, "waits-pile-up.min_ms = 1001 is outside 1 to 1000 ms"),
        ({GOOD_ID: {"min_ms": float("nan")}}, "outside"),
    ):
        with pytest.raises(UsageError, match=message):
            run_rules(rules, store, ALL, params, limits=QUICK)
    lower = run_rules(rules, store, ALL, {GOOD_ID: {"min_ms": 60.0}}, limits=QUICK)
    assert {hit.row.subject for hit in lower.hits} == {"b", "c", "d"}


def test_an_unmet_need_is_named(store: Path) -> None:
    rules = book(GOOD)
    result = run_rules(rules, store, set())
    assert result.not_evaluated == [NotEvaluated(GOOD_ID, "queue, steps or preemptions")]
    assert (result.hits, result.checked) == ([], [])
    result = run_rules(rules, store, {"queue"}, absent_hints={"steps": "12 of 200"})
    assert result.not_evaluated == [NotEvaluated(GOOD_ID, "steps (12 of 200) or preemptions")]


def test_a_deprecated_rule_is_not_run(store: Path) -> None:
    assert run(store, changed('"stable"', '"deprecated"')) == RunResult([], [], [], [])


# --- remedies --------------------------------------------------------------------------


def test_an_unknown_engine_gets_the_two_commonest(store: Path) -> None:
    remedies = run(store, GOOD).hits[0].remedies
    assert [(r.engine, r.setting) for r in remedies] == [
        ("vllm", "--max-num-seqs 2"),
        ("sglang", "--max-running-requests 2"),
    ]


def test_the_facts_tell_the_engine_before_the_argument(store: Path) -> None:
    text = detect("{'limit'", "{'engine_name': 'SGLang', 'limit'")
    (remedy,) = run(store, text, engine="vllm").hits[0].remedies
    assert (remedy.engine, remedy.setting) == ("sglang", "--max-running-requests 2")


def test_an_engine_without_a_setting_is_told_what_to_do(store: Path) -> None:
    (remedy,) = run(store, GOOD, engine="tgi").hits[0].remedies
    assert (remedy.do, remedy.engine, remedy.setting) == ("Raise the slot cap", "tgi", None)


def test_a_remedy_must_match_the_facts(store: Path) -> None:
    assert run(store, changed('limit = "slots"', 'limit = "kv"')).hits[0].remedies == []
    either = changed('limit = "slots"', 'limit = ["kv", "slots"]')
    assert len(run(store, either, engine="vllm").hits[0].remedies) == 1


def test_where_follows_what_to_do(store: Path) -> None:
    start, end = GOOD.index("setting.vllm"), GOOD.index("\ncost =")
    text = changed(GOOD[start:end], 'where = "in the router"')
    (remedy,) = run(store, text).hits[0].remedies
    assert (remedy.do, remedy.engine, remedy.setting) == (
        "Raise the slot cap, in the router",
        None,
        None,
    )


def test_where_may_hold_facts(store: Path) -> None:
    start, end = GOOD.index("setting.vllm"), GOOD.index("\ncost =")
    text = changed(GOOD[start:end], 'where = "in the {limit} of the router"')
    (remedy,) = run(store, text).hits[0].remedies
    assert remedy.do == "Raise the slot cap, in the slots of the router"


def test_a_number_that_is_not_measured_leaves_a_blank(store: Path) -> None:
    text = detect("2 * count(*)}", "null::int}")
    (remedy,) = run(store, text, engine="vllm").hits[0].remedies
    assert remedy.setting == "--max-num-seqs …"


# --- broken rules ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        (detect("count(*) as n_support,", ""), "detect.sql", "returns no column n_support"),
        (detect(" as facts", " as facts, 1 as more"), "detect.sql", "returns more, which"),
        (detect("sum(r.e2e_ms)", "'x'"), "detect.sql", "row 1: expected `float | null`"),
        (detect("count(*) as", "null as"), "detect.sql", "expected `int`, got `null`"),
        (detect("max(r.end_ns)", "0"), "detect.sql", "ends before it begins"),
        (detect("{'limit'", "{'l': [1], 'limit'"), "detect.sql", "at `$.facts[...]`"),
        (detect(" as facts", " as facts, 2 as confidence"), "detect.sql", "<= 1.0"),
        (
            detect(
                "{'limit': 'slots', 'worst_ms': max(r.e2e_ms), 'suggested': 2 * count(*)}",
                "(repeat('[', 9999) || repeat(']', 9999))::json",
            ),
            "detect.sql",
            "row 1: ",
        ),
        (changed("avg(e2e_ms), 10.0", "'x'"), "evidence[0].sql", "one or two numbers"),
        (changed(" where request_id = $subject", " group by all"), "evidence[0].sql", "4 rows"),
        (changed("avg(e2e_ms)", "avg(gone)"), "evidence[0].sql", '"gone"'),
        (changed("{worst_ms", "{worst"), "text.summary", "neither a column nor a fact"),
        (changed("seqs {suggested", "seqs {cap"), "remedy[0]", "{cap} is neither"),
        (changed("'prefill is flat at ' || ", ""), "ruled_out[0].sql", "one text"),
    ],
)
def test_a_broken_rule_is_one_problem_with_its_place(
    store: Path, text: str, key: str, message: str
) -> None:
    sound = changed(GOOD_ID, "another-one")
    if "group by all" in text.partition("[text]")[0].partition("[[evidence]]")[2]:
        text = changed("avg(e2e_ms), 10.0", "e2e_ms", text)
    result = run(store, text, sound)
    mine = [p for p in said(result) if f": {key}: " in p and message in p]
    assert mine, said(result)
    assert all(p.startswith(f"rules/{GOOD_ID}.toml:") for p in said(result))
    assert [hit.row.subject for hit in result.hits if hit.rule.id == "another-one"] == ["b", "c"]


def test_a_hit_with_a_broken_text_stays_a_hit(store: Path) -> None:
    result = run(store, changed("{worst_ms", "{worst", changed("avg(e2e_ms)", "avg(gone)")))
    assert [(hit.summary, hit.evidence) for hit in result.hits] == [("Waits pile up", [])] * 2
    assert len(result.problems) == 2


def test_too_many_rows_are_cut_and_told(store: Path) -> None:
    many = detect("from requests r where", "from requests r, range(300) n where")
    many = changed("r.request_id as subject", "r.request_id || n.range as subject", many)
    result = run(store, many)
    assert len(result.hits) == QUICK.max_rows
    assert any("more than 200 rows" in problem for problem in said(result))


def test_what_was_wrong_with_files_is_passed_on(store: Path) -> None:
    problem = RuleError("no TOML", place="x.toml:1")
    assert run_rules(Rulebook([], [problem]), store, ALL).problems == [problem]


# --- hostile rules -----------------------------------------------------------------------

HOSTILE = [
    ("select repeat('x', 2000000000) as subject", "more memory"),
    ("select a from range(cast(length(repeat('x', 2000000000)) as bigint)) t(a)", "more memory"),
    ("select list(repeat('x', 1000000)) from range(100000)", "more memory"),
    ("with recursive r as (select 1::bigint a union all select a + 1 from r) "
     "select count(*) from r", "was stopped"),
    ("select count(*) from range(3000000) a, range(3000000) b "
     "where a.range + b.range < -1", "was stopped"),
    ("attach '/tmp/elsewhere.duckdb' as e", "ATTACH, not SELECT"),
    ("copy (select 1) to 'out.csv'", "COPY, not SELECT"),
    ("pragma database_list", "PRAGMA, not SELECT"),
    ("set enable_external_access = true", "SET, not SELECT"),
    ("install httpfs", "LOAD, not SELECT"),
    ("create table t (a int)", "CREATE, not SELECT"),
    ("explain analyze select 1", "EXPLAIN, not SELECT"),
    ("delete from requests", "DELETE, not SELECT"),
    ("select 1; delete from requests", "2 statements"),
    ("with gone as (delete from requests returning *) select * from gone", "exactly one SELECT"),
    ("select content from read_text('/etc/passwd')", "table function read_text"),
    ("select * from read_csv('/etc/passwd')", "table function read_csv"),
    ("select * from '/etc/passwd'", "no documented table"),
    ("select * from glob('/*')", "table function glob"),
    ("select * from query('select 1')", "table function query"),
    ("select " + "(" * 5000 + "1" + ")" * 5000, ""),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "message"), HOSTILE)
def test_a_hostile_rule_is_contained_and_the_others_run(
    store: Path, sql: str, message: str
) -> None:
    before = store.read_bytes()
    result = run_rules(
        Rulebook(
            [*book(with_sql(sql), is_bundled=False), *book(changed(GOOD_ID, "the-sound-one"))]
        ),
        store,
        ALL,
        limits=QUICK,
    )
    (problem,) = said(result)
    assert f"{GOOD_ID}.toml" in problem
    assert ": detect.sql: " in problem
    assert message in problem
    assert "\n" not in problem
    assert [hit.rule.id for hit in result.hits] == ["the-sound-one"] * 2
    assert store.read_bytes() == before


def test_a_hostile_evidence_query_is_contained_too(store: Path) -> None:
    text = changed("avg(e2e_ms), 10.0", "length(repeat('x', 2000000000))")
    result = run(store, text, is_bundled=False)
    assert any("evidence[0].sql" in p and "more memory" in p for p in said(result))
    assert len(result.hits) == 2


def test_bundled_rules_are_interrupted_in_this_process(store: Path) -> None:
    endless = "select count(*) from range(3000000) a, range(3000000) b where a.range + b.range < -1"
    result = run(store, with_sql(endless), changed(GOOD_ID, "the-sound-one"))
    (problem,) = said(result)
    assert problem.endswith("detect.sql: took longer than 2 s and was stopped")
    assert [hit.rule.id for hit in result.hits] == ["the-sound-one"] * 2


def test_a_child_that_cannot_be_interrupted_is_killed(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB folds constants without looking at its interrupt; only the kill helps."""
    killed: list[int] = []
    kill = subprocess.Popen.kill

    def note(child: subprocess.Popen[bytes]) -> None:
        killed.append(child.pid)
        kill(child)

    monkeypatch.setattr(subprocess.Popen, "kill", note)
    monkeypatch.setattr("tokenlag.judge.sandbox.GRACE_S", 1.0)
    folded = " + ".join(f"length(repeat('{n}', 200000000))" for n in range(200))
    limits = BoxLimits(time_s=1.0, memory_mb=1024)
    result = run_rules(book(with_sql(f"select {folded}")), store, ALL, limits=limits)
    (problem,) = said(result)
    assert problem.endswith("detect.sql: took longer than 1 s and was stopped")
    assert len(killed) == 1


def test_a_child_that_dies_is_one_error(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false" if os.name == "posix" else "where.exe")
    with pytest.raises(RuleError, match="its process failed: status 1"):
        run_in_child(Job({"time_s": 1.0}), QUICK)


# --- the box -----------------------------------------------------------------------------


def test_the_box_keeps_its_settings(store: Path, tmp_path: Path) -> None:
    with open_box(store, tmp_path, QUICK) as box:
        sql = "select name, value from duckdb_settings() where name = $name"
        with pytest.raises(RuleError, match="duckdb_settings"):
            box.query(sql, {"name": "enable_external_access"})
        assert box.query("select current_setting('access_mode')", {}).rows == [("read_only",)]
        for name, value in (("enable_external_access", False), ("lock_configuration", True)):
            (row,) = box.query(f"select current_setting('{name}')", {}).rows
            assert row == (value,)


def test_even_past_the_checks_nothing_outside_is_reached(store: Path, tmp_path: Path) -> None:
    """The checks on the syntax tree are the first wall; the instance itself is the second."""
    with open_box(store, tmp_path, QUICK) as box:
        connection = box._connection
        for sql in (
            "select * from read_text('/etc/passwd')",
            "select * from glob('/*')",
            "attach '/tmp/elsewhere.duckdb'",
            "copy (select 1) to '/tmp/elsewhere.csv'",
            "install httpfs",
            "set memory_limit = '100GB'",
            "create table t (a int)",
        ):
            with pytest.raises(duckdb.Error):
                connection.execute(sql)


def test_a_box_needs_a_closed_store(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        open_box(tmp_path / "nowhere.duckdb", tmp_path)
    text = tmp_path / "text.duckdb"
    text.write_text("no database", encoding="utf-8")
    with pytest.raises(InputError, match=r"text\.duckdb: "):
        open_box(text, tmp_path)
    store = make_store(tmp_path)
    with (
        duckdb.connect(store),
        pytest.raises(InputError, match="close the store's own connection"),
    ):
        open_box(store, tmp_path)


def test_the_box_sorts_more_than_its_memory(store: Path, tmp_path: Path) -> None:
    limits = BoxLimits(memory_mb=64, threads=1, spill_mb=1024)
    sql = "select n from (select hash(range) as n from range(10000000)) order by n limit 9000000"
    with open_box(store, tmp_path, limits) as box:
        assert box.query(f"select count(*) from ({sql})", {}).rows == [(9000000,)]


def test_the_stores_own_macros_may_be_called(tmp_path: Path) -> None:
    with open_empty_box(tmp_path) as box:
        assert "read_csv" not in box.table_functions()
        assert box.query("select * from gap_quantiles('current', 0.5)", {}).rows == [(None,)]


def test_only_named_parameters_are_bound(tmp_path: Path) -> None:
    with open_empty_box(tmp_path) as box:
        assert box.query("select $a + 1", {"a": 1, "b": 2}).rows == [(2,)]
        with pytest.raises(RuleError, match=r"uses \$c, which nothing defines"):
            box.query("select $c", {"a": 1})


def test_values_become_plain() -> None:
    (row,) = (
        duckdb.connect()
        .execute(
            "select 1.5::decimal(9, 2), 'nan'::double, '-inf'::double, {'a': [1, null]},"
            " map {'k': 2.5}, date '2026-01-02', true, 3::hugeint,"
            " 170141183460469231731687303715884105727::hugeint"
        )
        .fetchall()
    )
    expected = [1.5, None, None, {"a": [1, None]}, {"k": 2.5}, "2026-01-02", True, 3, 2.0**127]
    assert [plain(value) for value in row] == expected


def test_bundled_rules_run_on_an_empty_store(store: Path) -> None:
    from tokenlag.judge.rule import CAPABILITIES

    result = run_rules(load_rules(), store, set(CAPABILITIES))
    assert said(result) == []
