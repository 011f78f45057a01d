"""A server whose writer is gone for good, or hangs, holds no more than before, however long."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
import tracemalloc
from pathlib import Path

import pytest
from tokenlag_tracer.channel import refuse
from tokenlag_tracer.front_recorder import FrontRecorder, FrontRequest
from tokenlag_tracer.recorder import EngineRecorder

from tests.tracer.support import finish, is_alive, start, until

N_STEPS = 6_000
BATCH = 8
PARENT = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"


def full(_: object) -> int:
    raise BlockingIOError(errno.EAGAIN, "no room")


def lost(_: object) -> int:
    raise BrokenPipeError(errno.EPIPE, "gone")


def serve(engine: EngineRecorder, front: FrontRecorder, n_steps: int) -> None:
    """As many requests as steps, and nobody who hears of them."""
    live: list[tuple[int, FrontRequest]] = []
    for number in range(n_steps):
        request = front.arrived(f"r{number}", model="m", operation="chat")
        request.stage("tokenize", 0, 1)
        index = engine.queued(f"r{number}", prompt_tokens=64, traceparent=PARENT)
        live.append((index, request))
        members = [index for index, _ in live]
        engine.record_step(0, 1, decode=members[:-1], prefill=[(index, 64, 0)], waiting=1)
        engine.record_same(1, 2, 64, len(live), 0)
        if len(live) == BATCH:
            done, handle = live.pop(0)
            engine.finished(done, "length", output_tokens=BATCH)
            handle.finished(finish_reasons=["length"])


@pytest.mark.parametrize("send", [refuse, full, lost])
def test_recorders_that_nobody_hears_hold_nothing(send: object) -> None:
    engine, front = EngineRecorder("e"), FrontRecorder()
    for recorder in (engine, front):
        recorder.channel.is_broken = False
        recorder.channel._use(send)  # type: ignore[arg-type]
    serve(engine, front, 500)  # what is made once
    tracemalloc.start()
    try:
        serve(engine, front, 500)
        n_before, _ = tracemalloc.get_traced_memory()
        serve(engine, front, N_STEPS)
        n_after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert engine.n_dropped > N_STEPS
    assert front.n_dropped > N_STEPS
    assert n_after - n_before < 64 * 1024


def resident_bytes(pid: int) -> int:
    n_pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return n_pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
@pytest.mark.parametrize("how", ["gone", "hanging"])
@pytest.mark.parametrize("socket_type", ["seqpacket", "stream"])
def test_a_server_without_a_writer_does_not_grow(
    how: str, socket_type: str, tmp_path: Path
) -> None:
    # A Python that can be taken away, so that no writer comes back.
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    process = start(
        "serve", tmp_path / "traces", "told", TOKENLAG_PYTHON=str(python), TOKENLAG_HANG="1h",
        TOKENLAG_SOCKET_TYPE=socket_type,
    )  # fmt: skip
    assert process.stdout is not None
    writer = int(process.stdout.readline())
    try:
        until(lambda: list((tmp_path / "traces").glob("*.gz")), timeout_s=120)
        python.unlink()
        os.kill(writer, signal.SIGKILL if how == "gone" else signal.SIGSTOP)
        time.sleep(2)
        n_before = resident_bytes(process.pid)
        time.sleep(3)  # more than a thousand steps
        n_after = resident_bytes(process.pid)
        if how == "hanging":
            os.kill(writer, signal.SIGKILL)
        finish(process)
    finally:
        process.kill()
        if is_alive(writer):
            os.kill(writer, signal.SIGKILL)
    assert n_after - n_before < 4 << 20
