"""The command line: what it asks for, what it prints where, and its exit status."""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from tokenlag import cli, options
from tokenlag.errors import InputError, TokenlagError, UsageError
from tokenlag.judge.diagnosis import Diagnosis
from tokenlag.report.console import Progress, terminal_of, write_out
from tokenlag.store.cache import Cache, KeptInput, input_key
from tokenlag.window import no_data

from tests.report import diagnoses


@dataclass
class FakePipeline:
    """Stands in for `tokenlag.pipeline`: keeps the request and answers what it is told to."""

    diagnosis: Diagnosis = field(default_factory=diagnoses.problem)
    problems: list[TokenlagError] = field(default_factory=list)
    error: BaseException | None = None
    request: Any = None

    def diagnose(self, request: Any, **_: Any) -> Any:
        self.request = request
        if self.error is not None:
            raise self.error
        return types.SimpleNamespace(diagnosis=self.diagnosis, problems=self.problems)


@pytest.fixture
def pipeline(monkeypatch: pytest.MonkeyPatch) -> FakePipeline:
    fake = FakePipeline()
    module = types.ModuleType("tokenlag.pipeline")
    module.diagnose = fake.diagnose  # type: ignore[attr-defined]
    module.Request = types.SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tokenlag.pipeline", module)
    monkeypatch.setattr("tokenlag.pipeline", module, raising=False)
    return fake


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[[str], tuple[int, str, str]]:
    def _run(line: str) -> tuple[int, str, str]:
        status = cli.main(shlex.split(line))
        out, err = capsys.readouterr()
        return status, out, err

    return _run


Run = Callable[[str], tuple[int, str, str]]


def test_every_option_reaches_the_request(pipeline: FakePipeline, run: Run, tmp_path: Path) -> None:
    status, _, _ = run(
        f"{tmp_path} more.jsonl --since 1h --until now --baseline 30m --baseline-traces old/ "
        "--baseline-traces older/ --slo e2e_p90=300ms --goodput ttft:500 itl:50 --by tenant "
        "--rules mine --workers 3 --memory-limit 2GB --no-cache"
    )
    assert status == 0
    assert vars(pipeline.request) == {
        "paths": [str(tmp_path), "more.jsonl"],
        "since": "1h",
        "until": "now",
        "since_end": None,
        "baseline": "30m",
        "baseline_traces": ["old/", "older/"],
        "slo": "e2e_p90=300ms",
        "goodput": ["ttft:500", "itl:50"],
        "by": "tenant",
        "rules_dirs": [Path("mine")],
        "n_workers": 3,
        "memory_limit": "2GB",
        "cache_folder": None,
    }


def test_where_what_is_read_is_kept(
    pipeline: FakePipeline, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run(f"{tmp_path}")
    assert pipeline.request.cache_folder == tmp_path / "cache" / "tokenlag"
    run(f"{tmp_path} --cache-beside")
    assert pipeline.request.cache_folder == tmp_path / ".tokenlag-cache"
    status, _, err = run(f"{tmp_path} --cache-beside --no-cache")
    assert status == 2
    assert "exclude each other" in err


def test_the_cache_is_listed_and_cleared(run: Run, tmp_path: Path) -> None:
    made = tmp_path / "rows.parquet"
    made.write_bytes(b"x" * 10)
    trace = tmp_path / "trace.jsonl"
    trace.write_text("{}")
    key = input_key(trace)
    assert key is not None
    folder = tmp_path / "cache"
    status, out, _ = run(f"cache --dir {folder}")
    assert status == 0
    assert "0 segments" in out
    with Cache(folder, "s", 1000) as cache:
        cache.keep([KeptInput(key, "trace.jsonl", 7, [])], [made], [], 1)
    status, out, _ = run(f"cache --dir {folder}")
    assert status == 0
    assert "1 segments" in out
    assert str(trace) in out
    assert run(f"cache --dir {folder} --clear")[1].endswith("1 segments removed\n")
    assert list(folder.iterdir()) == []


def test_options_may_stand_before_the_path(pipeline: FakePipeline, run: Run) -> None:
    assert run("--since-end 1h ./traces")[0] == 0
    assert (pipeline.request.since_end, pipeline.request.paths) == ("1h", ["./traces"])


def test_a_path_named_like_a_command(pipeline: FakePipeline, run: Run) -> None:
    assert run("./collect")[0] == 0
    assert pipeline.request.paths == ["./collect"]


def test_compare_is_a_diagnosis_with_a_baseline(pipeline: FakePipeline, run: Run) -> None:
    assert run("compare good.jsonl bad.jsonl --slo ttft=1s")[0] == 0
    assert pipeline.request.paths == ["bad.jsonl"]
    assert pipeline.request.baseline_traces == ["good.jsonl"]
    assert pipeline.request.slo == "ttft=1s"


def test_the_report_goes_to_standard_output_and_the_verdict_first(
    pipeline: FakePipeline, run: Run
) -> None:
    status, out, err = run("./traces")
    assert (status, err) == (0, "")
    assert out.startswith("PROBLEM: TTFT p90 is 2.29 s")
    assert "\x1b" not in out


def test_json(pipeline: FakePipeline, run: Run) -> None:
    _, out, _ = run("./traces --format json")
    assert json.loads(out)["schema"] == "tokenlag.diagnosis/1"


def test_quiet_and_verbose(pipeline: FakePipeline, run: Run) -> None:
    assert len(run("./traces -q")[1].splitlines()) == 1
    assert "look at" in run("./traces -v")[1]
    assert run("./traces -v -q")[0] == 2


def test_output_file(pipeline: FakePipeline, run: Run, tmp_path: Path) -> None:
    target = tmp_path / "report.md"
    status, out, _ = run(f"./traces --format md -o {target}")
    assert (status, out) == (0, "")
    assert target.read_text(encoding="utf-8").startswith("**PROBLEM**")
    assert [file.name for file in tmp_path.iterdir()] == ["report.md"]


def test_output_that_cannot_be_written(pipeline: FakePipeline, run: Run, tmp_path: Path) -> None:
    status, _, err = run(f"./traces -o {tmp_path / 'no' / 'report'}")
    assert status == 2
    assert err.count("\n") == 1
    assert "cannot write the report" in err


@pytest.mark.parametrize(
    ("diagnosis", "fail_on", "status"),
    [
        (diagnoses.problem(), "", 0),
        (diagnoses.problem(), "--fail-on problem", 1),
        (diagnoses.problem(), "--fail-on inconclusive", 0),
        (diagnoses.inconclusive(), "", 0),
        (diagnoses.inconclusive(), "--fail-on problem", 0),
        (diagnoses.inconclusive(), "--fail-on inconclusive", 3),
        (diagnoses.inconclusive(), "--fail-on problem,inconclusive", 3),
        (diagnoses.problem(), "--fail-on inconclusive --fail-on problem", 1),
        (diagnoses.healthy(), "--fail-on problem,inconclusive", 0),
    ],
)
def test_exit_status(
    pipeline: FakePipeline, run: Run, diagnosis: Diagnosis, fail_on: str, status: int
) -> None:
    pipeline.diagnosis = diagnosis
    assert run(f"./traces {fail_on}")[0] == status


def test_skipped_files_are_told_beside_the_diagnosis(pipeline: FakePipeline, run: Run) -> None:
    pipeline.problems = [InputError("not JSON", place="a.json:3", hint="OTLP JSON is read")]
    status, out, err = run("./traces --fail-on problem")
    assert status == 2
    assert out.startswith("PROBLEM")
    assert err == "diagnose: a.json:3: not JSON (hint: OTLP JSON is read)\n"


def test_an_error_is_one_line(pipeline: FakePipeline, run: Run) -> None:
    pipeline.error = InputError("no\nspans\x1b[2J", place="x")
    assert run("./traces") == (2, "", "diagnose: x: no spans?[2J\n")


def test_old_traces_get_the_command_to_copy(pipeline: FakePipeline, run: Run) -> None:
    hour = 3_600_000_000_000
    pipeline.error = no_data("window", "1h", 480_000 * hour, 480_003 * hour, UTC)
    status, _, err = run("'my traces/' --since=1h --slo ttft=1s --until now --format json")
    assert status == 2
    assert err.count("\n") == 1
    assert "span 2024-10-04T00:00:00Z to 2024-10-04T03:00:00Z" in err
    assert "diagnose 'my traces/' --slo ttft=1s --format json --since-end 1h" in err


def test_an_unexpected_error_asks_for_a_report(
    pipeline: FakePipeline, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TOKENLAG_DEBUG", raising=False)
    pipeline.error = KeyError("x")
    status, _, err = run("./traces")
    assert status == 2
    assert err.startswith("diagnose: unexpected KeyError")
    assert "TOKENLAG_DEBUG=1" in err
    monkeypatch.setenv("TOKENLAG_DEBUG", "1")
    assert "Traceback" in run("./traces")[2]


def test_interrupted(pipeline: FakePipeline, run: Run) -> None:
    pipeline.error = KeyboardInterrupt()
    assert run("./traces") == (130, "", "")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "nothing to diagnose"),
        ("exlpain x", "did you mean 'explain'"),
        ("rule", "did you mean 'rules'"),
        ("nowhere", "neither a path nor a command"),
        ("export", "not in this version"),
        ("what-if", "not in this version"),
        ("./traces --snce 1h", "--since"),
        ("./traces --since", "--since"),
        ("./traces --by colour", "colour"),
        ("./traces --format pdf", "pdf"),
        ("./traces --fail-on problems", "did you mean problem"),
        ("./traces --memory-limit lots", "not a size"),
        ("./traces --workers 0", "--workers"),
        ("explain", "RULE"),
        ("compare one", "B"),
    ],
)
def test_wrong_words(pipeline: FakePipeline, run: Run, line: str, words: str) -> None:
    status, out, err = run(line)
    assert (status, out) == (2, "")
    assert err.startswith("diagnose: ")
    assert err.count("\n") == 1
    assert words in err
    assert "hint" in err


def test_an_existing_folder_is_a_path_whatever_it_is_called(
    pipeline: FakePipeline, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "explan").mkdir()
    monkeypatch.chdir(tmp_path)
    assert run("explan")[0] == 0


@pytest.mark.parametrize("line", ["--help", "-h", "demo --help", "sql -h"])
def test_help(run: Run, line: str) -> None:
    status, out, err = run(line)
    assert (status, err) == (0, "")
    assert out.startswith("Usage: diagnose")


def test_help_names_what_there_is_and_nothing_else(run: Run) -> None:
    out = run("--help")[1]
    assert all(f"\n    {word} " in out for word in options.COMMANDS)
    assert not any(f"\n    {word} " in out for word in options.NOT_YET)


def test_version(run: Run) -> None:
    assert run("--version")[1].startswith("tokenlag 0.")


def test_schema_prints_the_tables(run: Run) -> None:
    status, out, _ = run("schema")
    assert status == 0
    assert "create table requests" in out
    assert "create table steps" in out


def test_goodput_takes_several_words() -> None:
    assert options.joined_goodput(["a", "--goodput", "ttft:5", "itl:5ms", "b", "--by", "x"]) == (
        ["a", "--goodput", "ttft:5", "--goodput", "itl:5ms", "b", "--by", "x"]
    )
    assert options.joined_goodput(["--goodput=ttft:5", "itl:5", "--", "e2e:1"]) == (
        ["--goodput=ttft:5", "--goodput", "itl:5", "--", "e2e:1"]
    )


def test_the_first_word_may_be_a_glob_or_a_file_that_is_missing() -> None:
    for word in ("*.json", "missing.json", "a/b", "-v"):
        options.check_first_word(word)
    with pytest.raises(UsageError):
        options.check_first_word("missing")


class Stream(io.StringIO):
    """A stream that says it is a terminal, or is not."""

    def __init__(self, *, is_terminal: bool, encoding: str = "utf-8") -> None:
        super().__init__()
        self._is_terminal = is_terminal
        self._encoding = encoding

    def isatty(self) -> bool:
        return self._is_terminal

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding


@pytest.mark.parametrize(
    ("is_terminal", "environ", "color"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (True, {"TERM": "dumb"}, False),
        (False, {"FORCE_COLOR": "1"}, True),
        (True, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_colour(is_terminal: bool, environ: dict[str, str], color: bool) -> None:
    assert terminal_of(Stream(is_terminal=is_terminal), environ).color is color


def test_an_ascii_terminal_is_known() -> None:
    assert terminal_of(Stream(is_terminal=True, encoding="ascii"), {}).ascii_only
    assert not terminal_of(Stream(is_terminal=True), {}).ascii_only


def test_json_stays_json_whatever_the_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(is_terminal=False, encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    write_out('{"a": "é 😀"}', is_json=True)
    assert stream.getvalue().isascii()
    assert json.loads(stream.getvalue()) == {"a": "é 😀"}


def test_progress_is_for_terminals_and_for_what_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    now = [0.0]
    monkeypatch.setattr("tokenlag.report.console.time.monotonic", lambda: now[0])
    terminal, pipe = Stream(is_terminal=True), Stream(is_terminal=False)
    with Progress(terminal) as shown, Progress(pipe) as hidden:
        shown("reading", 0.1)
        assert terminal.getvalue() == ""
        now[0] = 1.5
        shown("reading", 0.5)
        hidden("reading", 0.5)
    assert "reading 50%" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")
    assert pipe.getvalue() == ""


def test_a_reader_that_leaves_is_no_error() -> None:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-m", "tokenlag", "schema"]
    with subprocess.Popen(
        command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        err = process.stderr.read()
    assert process.returncode == 141
    assert err == b""


class TestDemo:
    @pytest.fixture(autouse=True)
    def _fake_writer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def write_demo(folder: Path, *, healthy: bool, end_ns: int) -> Any:
            path = folder / ("healthy.jsonl" if healthy else "fault.jsonl")
            path.write_text(str(end_ns))
            change_ns = None if healthy else end_ns - 600_000_000_000
            return types.SimpleNamespace(
                path=path, n_requests=1234, n_spans=5678, change_ns=change_ns
            )

        module = types.ModuleType("tokenlag.simulate.demo")
        module.write_demo = write_demo  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "tokenlag.simulate.demo", module)

    def test_says_what_to_type_next(
        self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        status, out, _ = run("demo")
        assert status == 0
        assert "1,234 requests, 5,678 spans, the fault begins at 2" in out
        assert out.endswith("\n  diagnose traces/ --since 1h\n")
        assert (tmp_path / "traces" / "fault.jsonl").is_file()

    def test_replaces_what_it_wrote_and_nothing_else(self, run: Run, tmp_path: Path) -> None:
        assert run(f"demo {tmp_path}/t")[0] == 0
        (tmp_path / "t" / "mine.jsonl").write_text("")
        assert run(f"demo --healthy {tmp_path}/t")[0] == 0
        assert run(f"demo {tmp_path}/t")[0] == 0
        names = {file.name for file in (tmp_path / "t").glob("*.jsonl")}
        assert names == {"fault.jsonl", "mine.jsonl"}

    def test_leaves_a_folder_alone_that_it_did_not_make(self, run: Run, tmp_path: Path) -> None:
        (tmp_path / "precious.jsonl").write_text("")
        status, _, err = run(f"demo {tmp_path}")
        assert status == 2
        assert "no demo" in err
        assert [file.name for file in tmp_path.iterdir()] == ["precious.jsonl"]

    def test_a_file_in_the_way(self, run: Run, tmp_path: Path) -> None:
        (tmp_path / "t").write_text("")
        status, _, err = run(f"demo {tmp_path}/t")
        assert status == 2
        assert err.count("\n") == 1


def _result(folder: Path, name: str, **figures: float) -> Path:
    told = {
        "request_rate": "inf", "max_concurrency": 4, "num_prompts": 100, "duration": 60.0,
        "completed": 100, "total_input_tokens": 51200, "total_output_tokens": 12800,
        "request_throughput": 1.7, "mean_ttft_ms": 90.0, "std_ttft_ms": 9.0,
        "mean_tpot_ms": 18.0, "std_tpot_ms": 1.0, "mean_e2el_ms": 2376.0, "std_e2el_ms": 90.0,
    } | figures  # fmt: skip
    path = folder / name
    path.write_text(json.dumps(told))
    return path


def test_two_load_tests_are_compared_without_traces(run: Run, tmp_path: Path) -> None:
    a = _result(tmp_path, "a.json")
    b = _result(tmp_path, "b.json", mean_tpot_ms=25.0, mean_e2el_ms=3265.0)
    status, out, err = run(f"compare {a} {b}")
    assert (status, err) == (0, "")
    assert out.startswith("B is slower: the same work takes another time.")
    assert "Time per token is higher (mean 18 ms → 25 ms, × 1.39)." in out
    assert "Time to first token did not move" in out
    told = json.loads(run(f"compare {a} {b} --format json")[1])
    assert told["schema"] == "tokenlag.comparison/1"
    assert told["why"] == {"e2e": "speed", "tpot": "speed"}
    assert run(f"compare {a} {b} --format md -o {tmp_path / 'c.md'}")[0] == 0
    assert (tmp_path / "c.md").read_text().startswith("**B is slower")


def test_a_load_test_is_not_compared_with_traces(run: Run, tmp_path: Path) -> None:
    a, traces = _result(tmp_path, "a.json"), tmp_path / "t.jsonl"
    traces.write_text('{"resourceSpans": []}\n')
    status, _, err = run(f"compare {a} {traces}")
    assert status == 2
    assert f"diagnose {a} --with {traces} joins them" in err
