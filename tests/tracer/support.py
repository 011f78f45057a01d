"""What the tracer's tests share: a collector on its own clock, processes, spans."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenlag_tracer import config, link
from tokenlag_tracer.clock import Clock
from tokenlag_tracer.collector import Collector, Connection
from tokenlag_tracer.config import Config
from tokenlag_tracer.front_recorder import FrontRecorder
from tokenlag_tracer.recorder import EngineRecorder
from tokenlag_tracer.spans import Attributes, Row

from tests.simulate.reading import Read, spans_of

REPO = Path(__file__).resolve().parent.parent.parent
WALL_NS = 1_800_000_000_000_000_000


@dataclass
class MemoryOut:
    """Takes spans into a list, up to a limit."""

    rows: list[Row] = field(default_factory=list)
    n_most: int = 1 << 30
    lost: dict[int, int] = field(default_factory=dict)

    def has_room(self, n_rows: int = 1) -> bool:
        return len(self.rows) + n_rows <= self.n_most

    def put(self, rows: list[Row]) -> bool:
        if not self.has_room(len(rows)):
            return False
        self.rows += rows
        return True

    def take_lost_steps(self) -> dict[int, int]:
        lost, self.lost = self.lost, {}
        return lost


class Bench:
    """A collector with a clock that stands still unless told, and recorders wired to it.

    Monotonic time is what the test says; unix time is `WALL_NS` later.
    """

    def __init__(self, **settings: Any) -> None:
        self.now_ns = 0
        self.out = MemoryOut()
        self.resources: dict[int, Attributes] = {}
        ids = itertools.count(1)
        clock = Clock(lambda: self.now_ns, lambda: self.now_ns + WALL_NS)
        self.collector = Collector(
            Config(**settings), self.out, clock, self.resources, {"host.name": "h"},
            lambda: next(ids), lambda: next(ids) << 64,
        )  # fmt: skip

    def connect(self, recorder: EngineRecorder | FrontRecorder) -> Connection:
        """Wires a recorder's channel to the collector, without a socket."""
        connection = self.collector.connected()

        def send(data: Any) -> int:
            self.collector.take(connection, memoryview(bytes(data)), self.now_ns)
            return len(data)

        hello = json.loads(recorder.channel.hello()[1:])
        hello |= {"monotonic_ns": 0, "wall_ns": WALL_NS}
        if "epoch_ns" in hello:
            recorder.epoch_ns = hello["epoch_ns"] = WALL_NS - 1_000_000_000
        self.collector.take(connection, memoryview(b"\x01" + json.dumps(hello).encode()), 0)
        recorder.channel.is_broken = False
        recorder.channel._use(send)
        return connection

    def engine(self, engine_id: str = "e", **arguments: Any) -> EngineRecorder:
        recorder = EngineRecorder(engine_id, **arguments)
        self.connect(recorder)
        return recorder

    def front(self) -> FrontRecorder:
        recorder = FrontRecorder()
        self.connect(recorder)
        return recorder

    def settle(self, seconds: float = 2.0) -> list[Row]:
        """Lets time pass and returns all spans so far."""
        self.now_ns += round(seconds * 1e9)
        self.collector.tick(self.now_ns)
        return self.out.rows


def named(rows: list[Row], name: str) -> list[Row]:
    return [row for row in rows if row.name == name]


def environment(traces_dir: Path, **more: str) -> dict[str, str]:
    """The environment of a traced process that writes files, and of nothing else's settings."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("TOKENLAG_", "OTEL_")) or key == "TOKENLAG_SHARED"
    }
    paths = [str(REPO / "tracer"), str(REPO / "analyzer"), str(REPO)]
    return kept | {
        "PYTHONPATH": os.pathsep.join(paths),
        config.TRACES_DIR: str(traces_dir),
        config.LOG: str(traces_dir.parent / "writer.log"),
        **more,
    }


def start(mode: str, traces_dir: Path, *arguments: str, **more: str) -> subprocess.Popen[str]:
    """Starts a fake server: `driver.py` in a mode."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "tests.tracer.driver", mode, *arguments],
        env=environment(traces_dir, **more),
        cwd=REPO,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str], timeout_s: float = 60) -> str:
    """Waits for a fake server, which must have ended well and quietly; returns what it said."""
    out, err = process.communicate(timeout=timeout_s)
    assert process.returncode == 0, err
    assert err == ""
    return out


def until(condition: Callable[[], Any], timeout_s: float = 30.0) -> Any:
    """Waits for something to become true, and returns it."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline_s, "waited too long"
        time.sleep(0.02)


def spans_in(folder: Path) -> list[Read]:
    """All spans of a folder's files, each of which must be whole."""
    found: list[Read] = []
    for path in sorted(folder.glob("*.jsonl.gz")):
        gzip.decompress(path.read_bytes())
        found += spans_of(path)
    return found


def is_alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def writer_pid() -> int:
    """The writer of this process."""
    writer = link.shared_link().writer
    return writer.pid if writer is not None else 0
