"""`diagnose watch`: what changed is told, and nothing else."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenlag import cli
from tokenlag.errors import InputError
from tokenlag.simulate.demo import write_demo
from tokenlag.watching import Watch


def diagnosis(status: str, cause: str | None = None, **shares: float) -> Any:
    verdict = SimpleNamespace(status=status, cause=cause, symptom=None, summary="so it is")
    findings = [
        SimpleNamespace(rule=rule, share=share, summary=f"{rule} it is", consequence_of=None)
        for rule, share in shares.items()
    ]
    return SimpleNamespace(verdict=verdict, findings=findings)


def told(watch: Watch, found: Any, *troubles: Any) -> list[str]:
    return [f"{change.sign} {change.text}" for change in watch.changes(found, troubles)]


def test_the_same_twice_is_told_once() -> None:
    watch = Watch()
    assert told(watch, diagnosis("healthy")) == ["= HEALTHY: so it is"]
    assert told(watch, diagnosis("healthy")) == []
    first = told(watch, diagnosis("problem", "a", a=0.8))
    assert first == ["= PROBLEM: so it is", "+ a: a it is"]
    assert told(watch, diagnosis("problem", "a", a=0.7)) == []
    assert told(watch, diagnosis("healthy")) == ["= HEALTHY: so it is", "- a"]


def test_a_share_is_told_when_it_has_moved_by_half_however_slowly() -> None:
    watch = Watch()
    told(watch, diagnosis("problem", "a", a=0.2))
    assert told(watch, diagnosis("problem", "a", a=0.28)) == []
    assert told(watch, diagnosis("problem", "a", a=0.32)) == ["~ a: 32% of the time (was 20%)"]
    assert told(watch, diagnosis("problem", "a", a=0.45)) == []
    assert told(watch, diagnosis("problem", "a", a=0.5)) == ["~ a: 50% of the time (was 32%)"]


def test_trouble_is_told_when_it_is_new_and_the_verdict_is_remembered_over_it() -> None:
    watch = Watch()
    told(watch, diagnosis("healthy"))
    broken = InputError("is broken", place="a")
    assert told(watch, None, broken) == ["! a: is broken"]
    assert told(watch, None, broken) == []
    assert told(watch, diagnosis("healthy")) == []
    assert told(watch, diagnosis("healthy"), broken) == ["! a: is broken"]


def test_the_command_finds_the_fault_of_the_last_while(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_demo(tmp_path / "t", healthy=False, end_ns=time.time_ns())
    line = f"watch {tmp_path / 't'} --window 10m --every 0.1s --count 2"
    assert cli.main(shlex.split(line)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert " = PROBLEM: " in lines[0]
    assert " + queueing-not-prefill: " in lines[1]
    assert len(lines) == len({line.split(" ", 1)[1] for line in lines}), "nothing is told twice"


def test_traces_that_are_too_old_or_none_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_demo(tmp_path / "t", healthy=True, end_ns=time.time_ns() - 10**13)
    assert cli.main(["watch", str(tmp_path / "t"), "--window", "10m", "--count", "1"]) == 0
    assert "! no request in the window" in capsys.readouterr().out
    assert cli.main(["watch", str(tmp_path / "none"), "--count", "1"]) == 0
    assert "! " in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--window soon", "--every x"])
def test_durations_are_checked(option: str, tmp_path: Path) -> None:
    assert cli.main(shlex.split(f"watch {tmp_path} {option} --count 1")) == 2
