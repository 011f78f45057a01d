"""Steps told by parts, device events that are never waited for, runners that fail."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from tokenlag_tracer import conventions as names
from tokenlag_tracer import engines
from tokenlag_tracer.device import EventTimer, device_timer
from tokenlag_tracer.engines.torch_runner import Part, StepTracer, TracedRunner
from tokenlag_tracer.recorder import EngineRecorder
from tokenlag_tracer.spans import Row

from tests.tracer.support import Bench, named


def _steps(rows: list[Row]) -> list[dict[str, Any]]:
    return [row.attributes for row in named(rows, names.SPAN_ENGINE_STEP)]


class Timed:
    """A tracer on a device that the test drives."""

    def __init__(self, lag: int = 8) -> None:
        self.bench = Bench()
        self.device = Device()
        FakeEvent.clock_ms = 0.0
        recorder = EngineRecorder("e", device_lag=lag)
        self._connection = self.bench.connect(recorder)
        self.timer = EventTimer(self.device.new, lag=lag)
        self.tracer = StepTracer(recorder, timer=self.timer)

    def steps(self) -> list[dict[str, Any]]:
        """All steps, once nothing more is waited for."""
        self.bench.collector.disconnected(self._connection, self.bench.now_ns)
        return _steps(self.bench.settle())


class FakeEvent:
    """A device event: reached once the test says so."""

    clock_ms = 0.0
    made = 0

    def __init__(self) -> None:
        FakeEvent.made += 1
        self.at_ms = -1.0
        self.is_reached = False

    def record(self) -> None:
        FakeEvent.clock_ms += 1.5
        self.at_ms = FakeEvent.clock_ms
        self.is_reached = False

    def query(self) -> bool:
        return self.is_reached

    def elapsed_time(self, end: FakeEvent) -> float:
        assert self.is_reached
        assert end.is_reached, "an event that was not reached would be waited for"
        return end.at_ms - self.at_ms

    def synchronize(self) -> None:
        raise AssertionError("never a synchronisation")


class Device:
    """Hands out events and reaches them up to a number of pairs."""

    def __init__(self) -> None:
        self.events: list[FakeEvent] = []

    def new(self) -> FakeEvent:
        self.events.append(FakeEvent())
        return self.events[-1]

    def reach(self) -> None:
        for event in self.events:
            event.is_reached = True


def test_steps_and_phases_follow_from_parts() -> None:
    bench = Bench()
    tracer = StepTracer(bench.engine())
    tracer.queued("a", prompt_tokens=10)
    tracer.queued("b", prompt_tokens=4)
    with tracer.step([Part("a", 8, 0, True)], waiting=1, admit_bound="tokens"):
        pass
    with tracer.step([Part("a", 2, 8, True), Part("b", 4, 0, True)]):
        pass
    for at in range(3):
        with tracer.step([Part("a", 1, 10 + at, False), Part("b", 1, 4 + at, False)], running=2):
            pass
    tracer.finished("a", "length", output_tokens=4)
    with tracer.step([Part("b", 1, 7, False)]):
        pass
    tracer.finished("b", "stop", output_tokens=5)
    rows = bench.settle()
    steps = _steps(rows)
    assert tracer.n_failed == 0
    assert [step[names.STEP_DECODE_COUNT] for step in steps] == [0, 0, 2, 2, 2, 1]
    assert steps[0][names.STEP_ADMIT_BOUND] == "tokens"
    assert steps[1][names.STEP_PREFILL_TOKENS] == [2, 4]
    assert steps[1][names.STEP_PREFILL_CONTEXT] == [8, 0]
    assert steps[2][names.STEP_DECODE_JOINED] == "0-1"
    assert names.STEP_DECODE_JOINED not in steps[3]
    assert steps[3][names.STEP_CONTEXT_TOKENS] == 12 + 6  # with the tokens computed in it
    assert steps[5][names.STEP_DECODE_LEFT] == "0"
    requests = {
        row.attributes[names.REQUEST_ID]: row for row in named(rows, names.SPAN_ENGINE_REQUEST)
    }
    assert requests["a"].attributes[names.USAGE_OUTPUT_TOKENS] == 4
    chunks = named(rows, names.SPAN_PREFILL_CHUNK)
    assert [c.attributes[names.CHUNK_TOKENS] for c in chunks] == [8, 2, 4]
    decodes = named(rows, names.SPAN_DECODE)
    assert sorted(int(str(d.attributes[names.DECODE_TOKENS])) for d in decodes) == [3, 4]


def test_membership_that_stays_is_told_by_a_header_alone() -> None:
    bench = Bench()
    recorder = bench.engine()
    sizes: list[int] = []
    send = recorder.channel.send

    def measuring(data: Any) -> int:
        sizes.append(len(data))
        return send(data)

    recorder.channel._use(measuring)
    tracer = StepTracer(recorder)
    parts = [Part(name, 1, 5, False) for name in "abc"]
    for name in "abc":
        tracer.queued(name)
    sizes.clear()
    for _ in range(4):
        with tracer.step(parts, running=3, waiting=0):
            pass
    assert len(set(sizes[1:])) == 1
    assert sizes[1] < sizes[0]


def test_preemption_and_speculation() -> None:
    bench = Bench()
    tracer = StepTracer(bench.engine())
    for name in "ab":
        tracer.queued(name, prompt_tokens=4)
    with tracer.step([("a", 4, 0, True), ("b", 4, 0, True)]):
        pass
    with tracer.step([("b", 3, 4, False), ("a", 3, 4, False)]) as step:
        step.new_tokens = {"a": 2, "b": 3}
        step.told.update(drafted=4, accepted=3)
    with tracer.step([("a", 1, 6, False)], preempted=["b"]):
        pass
    with tracer.step([("a", 1, 7, False), ("b", 7, 0, True)]):
        pass
    tracer.finished("a", "stop")
    tracer.finished("b", "stop")
    rows = bench.settle()
    steps = _steps(rows)
    assert steps[1][names.STEP_DECODE_NEW_TOKENS] == [2, 3]  # by index, not as given
    assert (steps[1][names.STEP_DRAFTED], steps[1][names.STEP_ACCEPTED]) == (4, 3)
    assert steps[2][names.STEP_PREEMPTED] == [1]
    requests = {
        row.attributes[names.REQUEST_ID]: row for row in named(rows, names.SPAN_ENGINE_REQUEST)
    }
    assert requests["b"].attributes[names.PREEMPTIONS] == 1
    reasons = [row.attributes[names.QUEUE_REASON] for row in named(rows, names.SPAN_QUEUE)]
    assert reasons.count("preempted") == 1
    assert any(row.attributes[names.PREFILL_RECOMPUTE] for row in named(rows, names.SPAN_PREFILL))


def test_a_failing_step_raises_as_before_and_is_not_told() -> None:
    timed = Timed()
    tracer, device = timed.tracer, timed.device
    tracer.queued("a")
    with pytest.raises(ZeroDivisionError), tracer.step([("a", 1, 0, True)]):
        raise ZeroDivisionError
    with tracer.step([("a", 1, 0, True)]):
        pass
    device.reach()
    with tracer.step([("a", 1, 1, False)]):
        pass
    steps = timed.steps()
    assert [step[names.STEP_INDEX] for step in steps] == [0, 1]
    assert steps[0][names.STEP_DEVICE_NS] == 1_500_000


def test_device_times_come_later_and_belong_to_their_own_steps() -> None:
    timed = Timed()
    tracer, device = timed.tracer, timed.device
    tracer.queued("a")
    for at in range(3):  # the device runs behind
        with tracer.step([("a", 1, at, False)]):
            pass
    n_events = len(device.events)
    device.reach()
    for at in range(3, 9):
        with tracer.step([("a", 1, at, False)]):
            pass
        device.reach()
    steps = timed.steps()
    assert n_events == 6
    assert len(device.events) <= 10  # they are used again
    assert [step[names.STEP_DEVICE_NS] for step in steps[:5]] == [1_500_000] * 5


def test_a_device_time_that_never_comes_is_given_up() -> None:
    timed = Timed(lag=3)
    for at in range(12):
        with timed.tracer.step([("a", 1, at, False)]):
            pass
    assert timed.timer.n_given_up == 9
    steps = timed.steps()
    assert len(steps) == 12
    assert all(names.STEP_DEVICE_NS not in step for step in steps)


@pytest.mark.parametrize("broken", ["record", "query", "elapsed_time"])
def test_a_device_that_fails_is_not_asked_again(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(FakeEvent, broken, fail)
    timed = Timed()
    device = timed.device
    for at in range(4):
        with timed.tracer.step([("a", 1, at, False)]):
            device.reach()
        device.reach()
    steps = timed.steps()
    assert [step[names.STEP_INDEX] for step in steps] == [0, 1, 2, 3]
    assert all(names.STEP_DEVICE_NS not in step for step in steps)
    assert len(device.events) <= 4  # those of the first two steps


def test_events_stay_out_of_a_stream_that_is_captured() -> None:
    device = Device()
    tracer = StepTracer(
        Bench().engine(device_lag=8), timer=EventTimer(device.new, is_capturing=lambda: True)
    )
    with tracer.step([("a", 1, 0, True)]):
        pass
    assert device.events == []
    assert tracer.n_failed == 0


def test_launched_ends_the_device_time_before_the_step() -> None:
    timed = Timed()
    with timed.tracer.step([("a", 1, 0, True)]) as step:
        step.launched()
        FakeEvent.clock_ms += 100  # sampling on the host, say
        timed.device.reach()
    assert timed.steps()[0][names.STEP_DEVICE_NS] == 1_500_000


class Runner:
    """A runner that counts, keeps state of its own, and returns what it is given."""

    def __init__(self) -> None:
        self.n_calls = 0
        self.training = True

    def __call__(self, batch: list[str]) -> list[str]:
        self.n_calls += 1
        return batch

    def execute(self, batch: list[str]) -> int:
        return len(batch)


def _parts(batch: list[str]) -> list[Part]:
    return [Part(name, 1, 3, False) for name in batch]


def test_a_wrapped_runner_is_the_runner_and_its_calls_are_steps() -> None:
    bench = Bench()
    runner = Runner()
    traced = TracedRunner(
        runner, bench.engine(), parts=_parts, told=lambda batch: {"running": len(batch)}
    )
    assert traced(["a", "b"]) == ["a", "b"]
    assert traced.n_calls == 1
    assert traced.training
    traced.training = False
    assert runner.training is False
    traced.tracer.finished("a", "stop")
    traced.tracer.finished("b", "stop")
    rows = bench.settle()
    assert _steps(rows)[0][names.STEP_RUNNING] == 2
    assert {row.attributes[names.REQUEST_ID] for row in named(rows, names.SPAN_ENGINE_REQUEST)} == {
        "a", "b"
    }  # fmt: skip


def test_a_method_can_be_the_step() -> None:
    bench = Bench()
    traced = TracedRunner(Runner(), bench.engine(), parts=_parts, method="execute")
    assert traced.execute(["a"]) == 1
    assert len(_steps(bench.settle())) == 1


def test_a_mistake_in_what_is_told_costs_the_step_s_record_only() -> None:
    bench = Bench()

    def wrong(batch: list[str]) -> list[Part]:
        raise KeyError(batch[0])

    traced = TracedRunner(Runner(), bench.engine(), parts=wrong)
    assert traced(["a"]) == ["a"]
    assert traced.tracer.n_failed == 1
    odd = TracedRunner(Runner(), bench.engine(), parts=lambda batch: [("a", "many", None, False)])
    assert odd(["a"]) == ["a"]
    assert odd.tracer.n_failed == 1
    assert _steps(bench.settle()) == []


def test_after_uninstrument_calls_go_straight_through() -> None:
    class Model:
        def execute_model(self, batch: list[str]) -> int:
            return len(batch)

    bench = Bench()
    traced = engines.instrument(Model(), parts=_parts, recorder=bench.engine())
    assert traced.execute_model(["a"]) == 1
    engines.uninstrument(traced)
    assert traced.execute_model(["a", "b"]) == 2
    assert len(_steps(bench.settle())) == 1


def test_the_kill_switch_leaves_the_engine_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENLAG_DISABLED", "1")
    tracer = StepTracer()
    assert tracer.queued("a", prompt_tokens=3) == 0
    for at in range(3):
        with tracer.step([Part("a", 1, at, at == 0)], running=1):
            pass
    tracer.finished("a", "stop")
    assert tracer.n_failed == 0
    runner = Runner()
    assert engines.instrument(runner, parts=_parts) is runner


def test_torch_is_not_imported_by_the_tracer() -> None:
    code = (
        "import sys; from tokenlag_tracer.engines import torch_runner as t; t.model_resource(1);"
        "t.StepTracer(); print('torch' in sys.modules)"
    )
    out = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": ":".join(sys.path), "TOKENLAG_DISABLED": "1"},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert out.stdout.strip() == "False"


def test_no_device_no_timer() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    assert device_timer() is None


def test_a_module_of_torch_tells_its_size() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from tokenlag_tracer.engines.torch_runner import handles, model_resource

    model = torch.nn.Linear(8, 4, bias=False)
    assert handles(model)
    told = model_resource(model)
    assert told[names.MODEL_PARAMETERS] == 32
    assert told[names.MODEL_WEIGHT_BYTES] == 128
