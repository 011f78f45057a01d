"""The hot path: what a step puts on the wire, and that nothing reaches the engine."""

from __future__ import annotations

import errno
import math

import pytest
import tokenlag_tracer
from hypothesis import given
from hypothesis import strategies as st
from tokenlag_tracer import wire
from tokenlag_tracer.recorder import DisabledEngine, EngineRecorder

from tests.tracer.support import REPO


class Wire:
    """Stands for a socket: keeps what is sent, or fails as it is told."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.error: OSError | None = None

    def send(self, data: bytes | memoryview) -> int:
        if self.error is not None:
            raise self.error
        self.sent.append(bytes(data))
        return len(data)

    def steps(self) -> list[wire.StepRecord]:
        return [
            wire.unpack_step(memoryview(data)) for data in self.sent if data[0] == wire.KIND_STEP
        ]


@pytest.fixture
def pair() -> tuple[EngineRecorder, Wire]:
    engine, line = EngineRecorder("e"), Wire()
    engine.channel.is_broken = False
    engine.channel._use(line.send)
    return engine, line


def test_a_step_that_changes_nothing_is_a_header(pair: tuple[EngineRecorder, Wire]) -> None:
    engine, line = pair
    engine.record_step(1, 2, decode=[3, 1, 2])
    engine.record_same(2, 3, 10, 3, 0, 0, 0, 0.25, "slots", "full")
    engine.record_step(3, 4, context_tokens=11, running=3)
    engine.record_step(4, 5, decode={1, 2, 3})
    assert [len(data) for data in line.sent[1:]] == [wire.STEP_HEAD.size] * 3
    first, second, third, _ = line.steps()
    assert first.members == [1, 2, 3]
    assert (second.index, second.start_ns, second.end_ns, second.decode_count) == (1, 2, 3, 3)
    assert (second.context_tokens, second.running, second.waiting) == (10, 3, 0)
    assert (second.kv_usage, second.admit_bound, second.graph) == (0.25, "slots", "full")
    assert (third.waiting, third.waiting_tokens, third.kv_usage) == (-1, -1, -1)
    assert third.admit_bound == ""


def test_changes_are_told_three_ways(pair: tuple[EngineRecorder, Wire]) -> None:
    engine, line = pair
    engine.record_step(1, 2, joined=[1, 2])
    engine.record_step(2, 3, joined=[5], left=[1])
    engine.record_step(3, 4, decode=[2, 7])
    engine.record_step(4, 5, decode=[])
    changes = [(set(s.joined), set(s.left), s.decode_count) for s in line.steps()]
    assert changes == [({1, 2}, set(), 2), ({5}, {1}, 2), ({7}, {5}, 2), (set(), {2, 7}, 0)]


def test_a_full_list_now_and_then(pair: tuple[EngineRecorder, Wire]) -> None:
    engine, line = pair
    engine.record_step(0, 1, decode=range(40))
    for number in range(1, 600):
        engine.record_same(number, number + 1)
    full = [s.index for s in line.steps() if s.members is not None]
    assert full == [0, 256, 512]
    assert all(len(s.members or ()) == 40 for s in line.steps() if s.members is not None)


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.EMSGSIZE, errno.EPIPE, errno.ECONNRESET])
def test_a_drop_is_counted_and_followed_by_a_full_list(
    pair: tuple[EngineRecorder, Wire], number: int
) -> None:
    engine, line = pair
    engine.record_step(0, 1, decode=[1])
    line.error = OSError(number, "no")
    engine.record_step(1, 2, decode=[1, 2])
    engine.record_same(2, 3)
    assert engine.n_dropped == 2
    is_lost = number in (errno.EPIPE, errno.ECONNRESET)
    assert engine.channel.is_broken == is_lost
    line.error = None
    if is_lost:
        engine.channel.is_broken = False
        engine.channel._use(line.send)
    engine.record_same(3, 4)
    last = line.steps()[-1]
    assert (last.index, last.dropped, last.members) == (3, 2, [1, 2])


@pytest.mark.parametrize(
    "wrong",
    [
        {"decode": [-1]}, {"decode": ["a"]}, {"joined": [1 << 40]}, {"prefill": [(1, 2)]},
        {"prefill": [(1, "x", 0)]}, {"preempted": [None]}, {"context_tokens": "many"},
        {"kv_usage": "full"}, {"oldest_wait_ns": 1 << 80}, {"running": None}, {"decode": 5},
        {"admit_bound": ["slots"]}, {"new_tokens": [-1]}, {"decode": range(400_000)},
    ],
    ids=str,
)  # fmt: skip
def test_nothing_is_raised_into_the_engine(
    pair: tuple[EngineRecorder, Wire], wrong: dict[str, object]
) -> None:
    engine, line = pair
    engine.record_step(0, 1, **wrong)  # type: ignore[arg-type]
    assert engine.n_dropped == 1
    assert not line.sent
    engine.record_step(1, 2, decode=[4])
    assert line.steps()[-1].members == [4]


def test_odd_values_do_not_stop_events(pair: tuple[EngineRecorder, Wire]) -> None:
    engine, line = pair
    index = engine.queued("a", tenant=object())  # type: ignore[arg-type]
    engine.finished(index, "stop", output_tokens=math.inf)  # type: ignore[arg-type]
    assert engine.queued("b") == index + 1
    assert len(line.sent) == 1


def test_a_batch_larger_than_the_buffer(pair: tuple[EngineRecorder, Wire]) -> None:
    engine, line = pair
    engine.record_step(0, 1, decode=range(20_000), drafted=5, accepted=3)
    engine.record_same(1, 2, 7)
    large, small = line.steps()
    assert large.members == list(range(20_000))
    assert (large.drafted, large.accepted) == (5, 3)
    assert (small.decode_count, small.context_tokens) == (20_000, 7)


def test_an_idle_engine_gives_a_sign_of_life(pair: tuple[EngineRecorder, Wire]) -> None:
    engine, line = pair
    second = 1_000_000_000
    engine.beat(engine._last_end_ns + 20 * second)
    assert not line.sent, "before its first step it is not up"
    index = engine.queued("a")
    end_ns = engine._beat_at_ns + second
    engine.record_step(end_ns - 1, end_ns, decode=[index])
    del line.sent[:]
    engine.beat(end_ns + 11 * second)
    assert not line.sent, "a request is in it: silence is a stall, not idleness"
    engine.finished(index, "stop")
    del line.sent[:]
    for after_s in range(35):
        engine.beat(end_ns + after_s * second)
    beats = [wire.unpack_beat(memoryview(data)) for data in line.sent]
    assert [(b.index, (b.at_ns - end_ns) // second) for b in beats] == [(0, 10), (0, 20), (0, 30)]


numbers = st.integers(0, (1 << 32) - 1)


@given(
    decode=st.sets(numbers, max_size=50),
    prefill=st.lists(st.tuples(numbers, numbers, numbers), max_size=5),
    preempted=st.lists(numbers, max_size=5),
    new_tokens=st.none() | st.lists(numbers, max_size=50),
    counts=st.tuples(*[st.integers(-1, (1 << 31) - 2)] * 6),
    device=st.tuples(st.integers(-1, 1 << 40), st.integers(-1, 1 << 40)),
    share=st.floats(0, 1) | st.just(-1.0),
    bound=st.sampled_from(wire.ADMIT_BOUNDS),
    graph=st.sampled_from(wire.GRAPHS),
)  # fmt: skip
def test_what_is_told_arrives(
    decode: set[int],
    prefill: list[tuple[int, int, int]],
    preempted: list[int],
    new_tokens: list[int] | None,
    counts: tuple[int, ...],
    device: tuple[int, int],
    share: float,
    bound: str,
    graph: str,
) -> None:
    engine, line = EngineRecorder("e"), Wire()
    engine.channel._use(line.send)
    context, running, waiting, waiting_tokens, drafted, accepted = counts
    for _ in range(2):
        engine.record_step(
            5, 7, decode=decode, prefill=prefill, preempted=preempted, new_tokens=new_tokens,
            context_tokens=context, running=running, waiting=waiting,
            waiting_tokens=waiting_tokens, drafted=drafted, accepted=accepted, kv_usage=share,
            kv_reserved=share, admit_bound=bound, graph=graph, device_step=device[0],
            device_ns=device[1],
        )  # fmt: skip
    first, second = line.steps()
    assert first.members == sorted(decode)
    assert (second.members, second.joined, second.left) == (None, (), ()) or second.joined == []
    for step in (first, second):
        assert step.decode_count == len(decode)
        chunks = zip(step.prefill_requests, step.prefill_tokens, step.prefill_context, strict=True)
        assert list(chunks) == prefill
        assert list(step.preempted) == preempted
        assert step.new_tokens == new_tokens
        assert (step.context_tokens, step.running, step.waiting) == (context, running, waiting)
        assert (step.waiting_tokens, step.admit_bound, step.graph) == (waiting_tokens, bound, graph)
        assert step.kv_usage == share
        if drafted >= 0 or device[0] >= 0 or share >= 0:
            assert (step.drafted, step.accepted, step.kv_reserved) == (drafted, accepted, share)
            assert (step.device_step, step.device_ns) == device


@given(st.binary(max_size=300))
def test_other_bytes_are_refused_in_one_way(data: bytes) -> None:
    for unpack in (wire.unpack_step, wire.unpack_beat, wire.unpack_json):
        try:
            unpack(memoryview(data))
        except wire.WireError:
            continue


def test_the_kill_switch_leaves_the_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENLAG_DISABLED", "1")
    engine, front = tokenlag_tracer.engine(), tokenlag_tracer.front()
    assert isinstance(engine, DisabledEngine)
    assert not engine.is_enabled
    assert not front.is_enabled
    assert [engine.queued("a", prompt_tokens=3), engine.queued("b")] == [0, 1]
    engine.record_step(1, 2, decode=[1], prefill=[(1, 2, 3)])
    engine.record_same(1, 2, 3)
    engine.waiting(0, "grammar")
    engine.finished(0, "stop", output_tokens=3)
    engine.aborted(1)
    engine.close()
    request = front.arrived("a", model="m")
    assert request.context.traceparent.startswith("00-")
    request.stage("parse", 1)
    request.update(request_id="b")
    request.finished(finish_reasons=["stop"])
    front.close()


def test_importing_the_tracer_imports_nothing_heavy() -> None:
    import subprocess
    import sys

    code = (
        "import sys, tokenlag_tracer, tokenlag_tracer.conventions, tokenlag_tracer.recorder;"
        "print(sorted(m for m in sys.modules if m.startswith(('opentelemetry', 'google', 'grpc'))))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                         env={"PYTHONPATH": str(REPO / "tracer")})  # fmt: skip
    assert out.stdout.strip() == "[]"
