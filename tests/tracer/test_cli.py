"""`tokenlag-tracer`: run, status, dump."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from tempfile import mkdtemp

import pytest
from tokenlag_tracer import cli

from tests.simulate.reading import named
from tests.tracer.support import REPO, environment, spans_in, start, until


def tracer(*arguments: str, traces: Path, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tokenlag_tracer.cli", *arguments],
        env=environment(traces, **more), cwd=REPO, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip


def test_run_traces_a_program_and_returns_its_status(tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    driver = [sys.executable, "-m", "tests.tracer.driver", "serve", "0.4"]
    done = tracer("run", "--traces-dir", str(traces), "--", *driver, traces=tmp_path / "not-here")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert len(named(spans_in(traces), "llm.engine_step")) == said["steps"]
    assert not (tmp_path / "not-here").exists()
    code = "import sys; sys.exit(7)"
    assert tracer("run", "--", sys.executable, "-c", code, traces=traces).returncode == 7
    killed = "import os; os.kill(os.getpid(), 9)"
    assert tracer("run", "--", sys.executable, "-c", killed, traces=traces).returncode == 137
    assert tracer("run", "--", "/nonexistent", traces=traces).returncode == 127
    assert tracer("run", traces=traces).returncode == 2


def test_run_passes_signals_on(tmp_path: Path) -> None:
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n"
        "print('up', flush=True)\n"
        "time.sleep(60)"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "tokenlag_tracer.cli", "run", "--", sys.executable, "-c", code],
        env=environment(tmp_path / "t"), cwd=REPO, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 5


def test_run_gives_way_to_another_sitecustomize(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text("print('the other')")
    done = tracer(
        "run", "--", sys.executable, "-c", "print('program')", traces=tmp_path / "t",
        PYTHONPATH=os.pathsep.join([str(other), str(REPO / "tracer")]),
    )  # fmt: skip
    # The first is of `tokenlag-tracer`'s own process, the second of the program's.
    assert done.stdout.split() == ["the", "other", "the", "other", "program"], done.stderr


def test_plugins_that_vllm_may_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    assert "VLLM_PLUGINS" not in cli.child_environment(None)
    monkeypatch.setenv("VLLM_PLUGINS", "lora,other")
    assert cli.child_environment(None)["VLLM_PLUGINS"] == "lora,other,tokenlag"
    monkeypatch.setenv("VLLM_PLUGINS", "tokenlag")
    assert cli.child_environment(None)["VLLM_PLUGINS"] == "tokenlag"


def test_status_and_dump(tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    # A folder of its own for sockets, so that the writer is found among no others; not below
    # `tmp_path`, which pytest makes too long for one when it runs in several processes.
    run_dir = Path(mkdtemp(prefix="tl", dir="/tmp"))
    # A busy machine may stall the engine for real, which would export the ring.
    process = start(
        "serve", traces, "60", TOKENLAG_RING="5m", TOKENLAG_STALL="1h", XDG_RUNTIME_DIR=str(run_dir)
    )
    assert process.stdout is not None
    try:
        writer = int(process.stdout.readline())
        [socket] = until(lambda: list(run_dir.glob("tokenlag-tracer-*/writer.sock")))

        def status() -> dict:
            done = tracer("status", "--socket", str(socket), traces=traces)
            assert done.returncode == 0, done.stderr
            return json.loads(done.stdout)

        told = until(lambda: s if (s := status())["records"] > 400 else None, timeout_s=120)
        assert told["pid"] == writer
        assert [engine["id"] for engine in told["engines"]] == ["e0"]
        assert told["senders"] == 3, "the engine, its front end, and what holds the writer"
        assert told["memory_bytes"] > 1 << 20
        assert told["bad_records"] == told["spans_exported"] == 0
        assert not traces.exists(), "the ring keeps it"
        done = tracer("dump", "--socket", f"seqpacket:{socket}", traces=traces)
        assert json.loads(done.stdout)["spans"] > 100
        until(lambda: spans_in(traces), timeout_s=120)
        time.sleep(0.1)
    finally:
        process.kill()
        process.communicate()
        shutil.rmtree(run_dir, ignore_errors=True)


def test_sigusr1_dumps_too(tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    process = start("serve", traces, "60", TOKENLAG_RING="5m", TOKENLAG_STALL="1h")
    assert process.stdout is not None
    try:
        writer = int(process.stdout.readline())
        time.sleep(1.5)
        assert not traces.exists()
        os.kill(writer, signal.SIGUSR1)
        assert len(until(lambda: spans_in(traces))) > 50
    finally:
        process.kill()
        process.communicate()


def test_no_writer_is_one_clear_line(tmp_path: Path) -> None:
    for arguments in (["status", "--socket", str(tmp_path / "none")], ["dump", "--socket", "x:y"]):
        done = tracer(*arguments, traces=tmp_path / "t")
        assert done.returncode == 2
        assert done.stderr.startswith("tokenlag-tracer: ")
        assert done.stderr.count("\n") == 1


def entry_points() -> dict[str, dict[str, str]]:
    told = tomllib.loads((REPO / "tracer" / "pyproject.toml").read_text())["project"]
    return {**told["entry-points"], "scripts": told["scripts"]}


def test_entry_points_exist() -> None:
    for group in entry_points().values():
        for place in group.values():
            module, _, name = place.partition(":")
            assert callable(getattr(importlib.import_module(module), name))


def test_opentelemetry_instrument_starts_the_tracer(monkeypatch: pytest.MonkeyPatch) -> None:
    """As its loader does: load the entry point, call it, call `instrument`."""
    from tokenlag_tracer import engines

    calls: list[str] = []
    monkeypatch.setattr(engines, "autoload", lambda: calls.append("autoload"))
    place = entry_points()["opentelemetry_instrumentor"]["tokenlag"]
    module, _, name = place.partition(":")
    made = getattr(importlib.import_module(module), name)()
    made.instrument(skip_dep_check=True)
    assert calls == ["autoload"]
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    made.instrument()
    assert calls == ["autoload"]
