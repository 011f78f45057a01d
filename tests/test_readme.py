"""The README's commands do what it says.

Those that install are run here without their installing part, with the interpreter that runs
the tests; `.ci/run` runs them whole, in an environment of their own.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent
README = (REPO / "README.md").read_text(encoding="utf-8")
COMMANDS = [
    line
    for block in re.findall(r"^```sh\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
]
SET_UP = [line for line in COMMANDS if ".venv" in line]
ON_CALL = [line for line in COMMANDS if line.startswith("diagnose ")]
WRAP = [line for line in COMMANDS if "tracer" in line and ".venv" not in line]


def run(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command of the README with this interpreter."""
    program, *words = shlex.split(line)
    module = {"diagnose": "tokenlag", "pytest": "pytest"}[Path(program).name]
    paths = [str(REPO / p) if not Path(p).is_absolute() else p for p in sys.path if p]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "NO_COLOR": "1"}
    return subprocess.run(
        [sys.executable, "-m", module, *words],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_every_command_is_run_by_a_test() -> None:
    assert len(SET_UP) == 2
    assert len(WRAP) == 2
    assert sorted(COMMANDS) == sorted(SET_UP + ON_CALL + WRAP)


def test_the_first_command_diagnoses_the_bundled_trace() -> None:
    ran = run(SET_UP[0].split(" && ")[-1], REPO)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("PROBLEM: ")
    assert "long-prompt-stalled-streams" in ran.stdout


def test_the_second_command_finds_the_tests() -> None:
    line = SET_UP[1].split(" && ")[-1]
    ran = run(f"{line} -n 0 --collect-only -q -p no:cacheprovider tests/test_window.py", REPO)
    assert ran.returncode == 0, ran.stdout
    assert "tests/test_window.py" in ran.stdout


def test_the_on_call_commands_work_one_after_the_other(tmp_path: Path) -> None:
    for line in ON_CALL:
        ran = run(line, tmp_path)
        assert ran.returncode == 0, f"{line}\n{ran.stderr}"
        assert ran.stdout, line


def test_the_wrapped_server_leaves_traces_that_are_read(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.sdk")
    setting, _, command = WRAP[1].partition(" ")
    name, _, folder = setting.partition("=")
    words = command.replace("vllm serve MODEL", "PYTHON -m tests.tracer.driver serve 1.5")
    program, *rest = shlex.split(words)
    assert program == "tokenlag-tracer"
    rest = [sys.executable if word == "PYTHON" else word for word in rest]
    paths = [str(REPO), *(str(REPO / p) if not Path(p).is_absolute() else p for p in sys.path if p)]
    environ = {**os.environ, name: str(tmp_path / folder), "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [sys.executable, "-m", "tokenlag_tracer.cli", *rest],
        cwd=tmp_path, env=environ, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ran = run("diagnose traces/ --since 1h", tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "engine steps" in ran.stdout


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    for link in links:
        assert (REPO / link).exists(), link


@pytest.mark.parametrize("page", sorted((REPO / "docs").glob("*.md")), ids=lambda p: p.name)
def test_links_of_the_pages_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / link).exists(), link
