"""One writer for all processes of a pod, and servers that never notice what becomes of it."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from tokenlag.read.load import load_traces
from tokenlag.store.connection import Store
from tokenlag_tracer import conventions as names

from tests.simulate.reading import Read, named
from tests.tracer.support import finish, is_alive, spans_in, start, until

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs local sockets")

# A call that waited for the writer would wait for it to come back, or for ever; a busy machine
# alone does not hold one up for so long.
BLOCKED_MS = 2_500


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    return tmp_path / "traces"


def steps_of(spans: list[Read]) -> dict[tuple[str, int], list[Read]]:
    """Steps by engine and epoch, in order, heartbeats left out."""
    found: dict[tuple[str, int], list[Read]] = {}
    for span in sorted(named(spans, names.SPAN_ENGINE_STEP), key=lambda span: span.end):
        if span.start < span.end:
            key = (span.attributes[names.ENGINE_ID], span.attributes[names.ENGINE_EPOCH])
            found.setdefault(key, []).append(span)
    return found


def read_quietly(traces: Path, tmp_path: Path, expected: tuple[str, ...] = ()) -> Store:
    """The product's own reader takes the files without a problem or a note of damage.

    Notes of the `expected` kinds may be there.
    """
    (tmp_path / "work").mkdir(exist_ok=True)
    store = Store()
    result = load_traces(store, [traces], work_dir=tmp_path / "work", n_workers=1)
    assert not result.problems
    quiet = {"lost_steps", "open_requests", *expected}
    notes = store.fetchall("select kind, text from read_notes")
    assert [note for note in notes if note[0] not in quiet] == []
    return store


def check_whole(spans: list[Read], said: dict[str, int]) -> None:
    [steps] = steps_of(spans).values()
    assert [s.attributes[names.STEP_INDEX] for s in steps] == list(range(said["steps"]))
    assert said["dropped"] == 0
    for name in (names.SPAN_REQUEST, names.SPAN_ENGINE_REQUEST, names.SPAN_DECODE):
        assert len(named(spans, name)) == said["requests"], name


@pytest.mark.parametrize("socket_type", ["seqpacket", "stream"])
def test_all_that_is_said_is_written(traces: Path, tmp_path: Path, socket_type: str) -> None:
    process = start("serve", traces, "0.6", TOKENLAG_SOCKET_TYPE=socket_type)
    lines = finish(process).splitlines()
    said = json.loads(lines[-1])
    until(lambda: not is_alive(int(lines[0])))
    spans = spans_in(traces)
    check_whole(spans, said)
    parents = {span.id for span in named(spans, names.SPAN_REQUEST)}
    assert {span.parent for span in named(spans, names.SPAN_ENGINE_REQUEST)} == parents
    assert all(
        span.attributes[names.USAGE_OUTPUT_TOKENS] == 20
        and span.attributes[names.FIRST_TOKEN_NS] <= span.attributes[names.LAST_TOKEN_NS]
        for span in named(spans, names.SPAN_REQUEST)
    )
    with read_quietly(traces, tmp_path) as store:
        assert store.scalar("select count(*) from requests where not is_open") == said["requests"]
        assert store.scalar("select count(*) from memberships where seq_key is null") == 0


@pytest.mark.parametrize("mode", ["fork", "spawn", "forkserver"])
def test_children_join_the_writer_of_their_parent(traces: Path, mode: str) -> None:
    lines = finish(start(mode, traces, "0.5")).splitlines()
    until(lambda: not is_alive(int(lines[0])))
    engines = steps_of(spans_in(traces))
    assert {engine for engine, _ in engines} == {"e0", "c0", "c1"}
    for steps in engines.values():
        assert [s.attributes[names.STEP_INDEX] for s in steps] == list(range(len(steps)))
    assert len({path.name.split("-")[2] for path in traces.glob("*.gz")}) == 1, "one writer"


def test_a_forked_recorder_is_another_engine(traces: Path) -> None:
    lines = finish(start("fork-used", traces, "1.5")).splitlines()
    until(lambda: not is_alive(int(lines[0])))
    engines = steps_of(spans_in(traces))
    assert [engine for engine, _ in engines] == ["e0", "e0"], "by its epoch"
    for steps in engines.values():
        indexes = [s.attributes[names.STEP_INDEX] for s in steps]
        # The child's first steps fall into the moment in which it finds the writer anew.
        assert indexes == list(range(indexes[0], indexes[0] + len(indexes)))
        assert steps[0].attributes[names.STEP_DROPPED] == indexes[0]


def test_several_engines_in_one_process(traces: Path) -> None:
    lines = finish(start("engines", traces, "0.3")).splitlines()
    said = json.loads(lines[-1])
    until(lambda: not is_alive(int(lines[0])))
    found = {engine for engine, _ in steps_of(spans_in(traces))}
    assert found == {"e0", *said["ids"]}
    assert len(found) == 3


def test_a_child_outlives_the_process_that_started_the_writer(traces: Path) -> None:
    lines = finish(start("outlive", traces, "4")).splitlines()
    writer, child = int(lines[0]), int(lines[1])
    assert is_alive(child)
    until(lambda: not is_alive(child))
    until(lambda: not is_alive(writer))
    engines = steps_of(spans_in(traces))
    longest = max(engines.values(), key=len)
    assert longest[-1].end - longest[0].start > 1.5e9


def test_a_killed_writer_is_started_anew(traces: Path, tmp_path: Path) -> None:
    process = start("serve", traces, "4")
    assert process.stdout is not None
    writer = int(process.stdout.readline())
    until(lambda: list(traces.glob("*.gz")))
    os.kill(writer, signal.SIGKILL)
    said = json.loads(finish(process).splitlines()[-1])
    assert said["dropped"] > 0
    assert said["worst_ms"] < BLOCKED_MS
    spans = spans_in(traces)
    [steps] = steps_of(spans).values()
    indexes = [s.attributes[names.STEP_INDEX] for s in steps]
    assert indexes == sorted(set(indexes))
    assert indexes[-1] == said["steps"] - 1, "the new writer took over"
    after = next(b for a, b in itertools.pairwise(steps) if b.attributes[names.STEP_INDEX]
                 > a.attributes[names.STEP_INDEX] + 1)  # fmt: skip
    assert after.attributes[names.STEP_DROPPED] > 0
    if after.attributes[names.STEP_DECODE_COUNT]:
        assert names.STEP_DECODE_REQUESTS in after.attributes
    assert len({path.name.split("-")[2] for path in traces.glob("*.gz")}) == 2
    with read_quietly(traces, tmp_path) as store:
        assert store.scalar("select count(*) from steps where is_after_hole") == 1


def test_a_writer_that_stands_still_costs_records_and_is_replaced(traces: Path) -> None:
    # The server goes on until both have been seen: how long a writer takes to start, and to be
    # given up, is for the machine to say.
    # Longer than a busy machine makes a writer wait: one that was given up before would not matter.
    process = start("serve", traces, "told", TOKENLAG_HANG="3s")
    assert process.stdout is not None
    writer = int(process.stdout.readline())

    def last_step():
        [steps] = steps_of(spans_in(traces)).values()
        return steps[-1].attributes

    try:
        until(lambda: list(traces.glob("*.gz")), timeout_s=120)
        os.kill(writer, signal.SIGSTOP)
        until(lambda: not is_alive(writer), timeout_s=120)
        n_before = last_step()[names.STEP_INDEX]
        until(lambda: last_step()[names.STEP_INDEX] > n_before, timeout_s=120)
        said = json.loads(finish(process, timeout_s=120).splitlines()[-1])
    finally:
        process.kill()
    assert said["worst_ms"] < BLOCKED_MS

    # The writer that replaced it may still write when the server has left.
    until(lambda: last_step()[names.STEP_INDEX] == said["steps"] - 1)
    assert last_step()[names.STEP_DROPPED] == said["dropped"]


def test_a_writer_that_never_starts_is_not_missed(traces: Path) -> None:
    process = start("serve", traces, "1", TOKENLAG_PYTHON="/nonexistent/python")
    said = json.loads(finish(process).splitlines()[-1])
    assert said["steps"] > 50
    assert said["worst_ms"] < BLOCKED_MS
    assert not traces.exists()


def test_a_killed_server_leaves_what_it_said(traces: Path, tmp_path: Path) -> None:
    process = start("serve", traces, "60")
    assert process.stdout is not None
    writer = int(process.stdout.readline())
    until(lambda: list(traces.glob("*.gz")))
    process.kill()
    process.communicate()
    until(lambda: not is_alive(writer))
    spans = spans_in(traces)
    [steps] = steps_of(spans).values()
    indexes = [s.attributes[names.STEP_INDEX] for s in steps]
    assert indexes == sorted(set(indexes))
    # A busy machine can fill the socket: then records are missing, and counted.
    n_missing = indexes[-1] + 1 - len(indexes)
    assert n_missing <= max(s.attributes.get(names.STEP_DROPPED, 0) for s in steps)
    # Killed within a prefill, its chunks are written and the prefill that they are part of is not.
    with read_quietly(traces, tmp_path, expected=("unowned_phases",)) as store:
        # Killed between two requests, one fewer than the batch is open; killed while it writes, a
        # start may be unsaid.
        assert 1 <= store.scalar("select count(*) from requests where is_open") <= 4


def test_the_writer_leaves_last(traces: Path) -> None:
    """Signals that a pod gets at its end reach it too, and it waits for the server."""
    process = start("serve", traces, "1.5")
    assert process.stdout is not None
    writer = int(process.stdout.readline())
    until(lambda: list(traces.glob("*.gz")))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(writer, number)
    said = json.loads(finish(process).splitlines()[-1])
    until(lambda: not is_alive(writer))
    check_whole(spans_in(traces), said)


def test_an_endpoint_that_never_answers(traces: Path) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        port = deaf.getsockname()[1]
        process = start(
            "serve", traces, "3", TOKENLAG_TRACES_DIR="", TOKENLAG_QUEUE_SPANS="100",
            OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{port}", TOKENLAG_FLUSH_WAIT="100ms",
        )  # fmt: skip
        lines = finish(process).splitlines()
        said = json.loads(lines[-1])
        assert said["dropped"] == 0, "the writer goes on reading"
        assert said["worst_ms"] < BLOCKED_MS
        until(lambda: not is_alive(int(lines[0])))


def test_a_disk_without_room(tmp_path: Path) -> None:
    """A small tmpfs fills up; the server goes on, and every file is whole."""
    traces = tmp_path / "small"
    traces.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(traces)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("may not mount a tmpfs here")
    try:
        process = start("serve", traces, "4")
        said = json.loads(finish(process).splitlines()[-1])
        assert said["dropped"] == 0
        assert said["worst_ms"] < BLOCKED_MS
        spans = spans_in(traces)
        assert 0 < len(named(spans, names.SPAN_ENGINE_STEP)) < said["steps"]
        dropped = [s.attributes[names.STEP_DROPPED] for s in named(spans, names.SPAN_ENGINE_STEP)]
        assert dropped == sorted(dropped)
        # A request may have lost some of its spans and kept others; the reader says so.
        lost = ("lost_roots", "unowned_phases")
        with read_quietly(traces, tmp_path, expected=lost) as store:
            assert store.scalar("select count(*) from steps") > 0
    finally:
        subprocess.run(["umount", str(traces)], check=True)


@pytest.mark.parametrize(
    "switch",
    [{"TOKENLAG_DISABLED": "1"}, {"OTEL_SDK_DISABLED": "true"}],
    ids=lambda s: next(iter(s)),
)
def test_the_kill_switch(traces: Path, switch: dict[str, str]) -> None:
    process = start("serve", traces, "0.3", **switch)
    lines = finish(process).splitlines()
    assert lines[0] == "0"
    assert json.loads(lines[-1])["steps"] == 0
    assert not traces.exists()
