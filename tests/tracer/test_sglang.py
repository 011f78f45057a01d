"""SGLang's hooks on stand-ins with its own field names (0.5.23). Not the real engine."""

from __future__ import annotations

import enum
import itertools
import sys
import types
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from tokenlag_tracer import conventions as names
from tokenlag_tracer import engines
from tokenlag_tracer.engines import patching, sglang, sglang_steps
from tokenlag_tracer.spans import Row

from tests.tracer.support import Bench, named


class Mode(enum.Enum):
    """`ForwardMode`, as far as the hooks ask it."""

    EXTEND = 1
    DECODE = 2
    MIXED = 3
    IDLE = 4

    def is_extend(self) -> bool:
        return self in (Mode.EXTEND, Mode.MIXED)

    def is_idle(self) -> bool:
        return self is Mode.IDLE


class Reason:
    def __init__(self, kind: str) -> None:
        self.kind = kind

    def to_json(self) -> dict[str, Any]:
        return {"type": self.kind, "message": "MARKED"}


class Req:
    """`Req`: its fields that the hooks read, and its text, which they must not."""

    def __init__(self, rid: str, n_prompt: int, n_most: int) -> None:
        self.rid = rid
        self.origin_input_text = "MARKED"
        self.origin_input_ids = [1] * n_prompt
        self.output_ids: list[int] = []
        self.sampling_params = SimpleNamespace(max_new_tokens=n_most)
        self.priority: int | None = None
        self.lora_id = None
        self.cached_tokens = 0
        self.retraction_count = 0
        self.finished_reason: Reason | None = None
        self.n_prefilled = 0

    def finished(self) -> bool:
        return self.finished_reason is not None


class Batch:
    """`ScheduleBatch`; what is handled is a copy that has only these."""

    KEPT = ("reqs", "extend_lens", "prefix_lens", "decoding_reqs", "forward_mode", "forward_iter")

    def __init__(self, mode: Mode, reqs: list[Req], **more: Any) -> None:
        self.forward_mode = mode
        self.reqs = reqs
        self.extend_lens = more.get("extend_lens")
        self.prefix_lens = more.get("prefix_lens")
        self.decoding_reqs = more.get("decoding_reqs")
        self.forward_iter: int | None = None

    def copy(self) -> Batch:
        copied = Batch.__new__(Batch)
        for name in self.KEPT:
            setattr(copied, name, getattr(self, name))
        return copied


class Scheduler:
    """`Scheduler`: prefill first, chunks of 8, optional overlap; three batches at a time."""

    __module__ = "sglang.srt.managers.scheduler"

    def __init__(self, tp_rank: int = 0, numbers_batches: bool = True) -> None:
        self.tp_rank, self.pp_rank, self.dp_rank = tp_rank, 0, None
        self.max_running_requests = 2
        self.max_prefill_tokens = 64
        self.max_total_num_tokens = 100
        self.server_args = SimpleNamespace(
            chunked_prefill_size=8, disable_radix_cache=False, tp_size=2, pp_size=1,
            served_model_name="m",
        )  # fmt: skip
        self.token_to_kv_pool_allocator = SimpleNamespace(available_size=lambda: 40)
        self.tree_cache = SimpleNamespace(evictable_size=lambda: 10)
        self.waiting_queue: list[Req] = []
        self.running_batch = Batch(Mode.DECODE, [])
        self.numbers_batches = numbers_batches
        self.n_batches = 0
        self.tokens_each = 1

    def get_next_batch_to_run(self, running_batch: Any = None, last_batch: Any = None) -> Any:
        running = self.running_batch.reqs
        running[:] = [req for req in running if not req.finished()]
        if self.waiting_queue and len(running) < self.max_running_requests:
            req = self.waiting_queue[0]
            total = len(req.origin_input_ids) + len(req.output_ids)
            n = min(8, total - req.n_prefilled)
            batch = Batch(Mode.EXTEND, [req], extend_lens=[n], prefix_lens=[req.n_prefilled])
            req.n_prefilled += n
            if req.n_prefilled == total:
                self.waiting_queue.pop(0)
                running.append(req)
            return batch
        return Batch(Mode.DECODE, list(running)) if running else None

    def run_batch(self, batch: Any, pp_proxy_tensors: Any = None) -> Any:
        self.n_batches += 1
        if self.numbers_batches:
            batch.forward_iter = self.n_batches
        return SimpleNamespace(num_correct_drafts=None, can_run_cuda_graph=batch.reqs == [])

    def process_batch_result(self, batch: Any, result: Any) -> None:
        for req in batch.reqs:
            total = len(req.origin_input_ids) + len(req.output_ids)
            if req.finished() or req.n_prefilled < total - len(req.output_ids):
                continue
            if batch.forward_mode is Mode.DECODE:
                req.output_ids += [9] * self.tokens_each
            else:
                req.output_ids.append(9)
            if len(req.output_ids) >= req.sampling_params.max_new_tokens:
                req.finished_reason = Reason("length")

    def abort_request(self, recv_req: Any) -> None:
        self.waiting_queue[:] = [
            req for req in self.waiting_queue if not req.rid.startswith(recv_req.rid)
        ]

    # --- the loops, as the engine has them --------------------------------------------------

    def loop(self, n_most: int = 100) -> None:
        for _ in range(n_most):
            batch = self.get_next_batch_to_run(self.running_batch, None)
            if batch is None:
                return
            result = self.run_batch(batch)
            self.process_batch_result(batch, result)

    def loop_overlapped(self) -> None:
        before: tuple[Batch, Any] | None = None
        for _ in range(100):
            batch = self.get_next_batch_to_run(self.running_batch, None)
            launched = (batch.copy(), self.run_batch(batch)) if batch is not None else None
            if launched is not None:
                launched[0].forward_iter = batch.forward_iter
            if before is not None:
                self.process_batch_result(*before)
            if launched is None and before is None:
                return
            before = launched


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    made = Bench()
    monkeypatch.setattr(sglang_steps, "engine", lambda **told: made.engine(resource={}))
    monkeypatch.setattr(sglang_steps, "import_module", lambda _: SimpleNamespace(__version__="x"))
    monkeypatch.setattr(patching, "_warned", set())
    yield made
    sglang.uninstrument()


@pytest.fixture
def kind(bench: Bench) -> type[Scheduler]:
    """A class of its own for each test, with the hooks in it."""
    own = type("Scheduler", (Scheduler,), {"__module__": Scheduler.__module__})
    assert sglang.handles(own)
    sglang.instrument(own)
    return own


def _steps(rows: list[Row]) -> list[dict[str, Any]]:
    return [row.attributes for row in named(rows, names.SPAN_ENGINE_STEP)]


def _requests(rows: list[Row]) -> dict[str, dict[str, Any]]:
    return {
        str(row.attributes[names.REQUEST_ID]): row.attributes
        for row in named(rows, names.SPAN_ENGINE_REQUEST)
    }


def test_chunks_decode_and_end(bench: Bench, kind: type[Scheduler]) -> None:
    scheduler = kind()
    scheduler.waiting_queue += [Req("a", 20, 4), Req("b", 5, 3), Req("c", 5, 2)]
    scheduler.loop()
    rows = bench.settle()
    steps = _steps(rows)
    assert [step.get(names.STEP_PREFILL_TOKENS) for step in steps[:4]] == [[8], [8], [4], [5]]
    assert [step.get(names.STEP_PREFILL_CONTEXT) for step in steps[:3]] == [[0], [8], [16]]
    assert steps[4][names.STEP_DECODE_COUNT] == 2
    assert steps[4][names.STEP_ADMIT_BOUND] == "slots"
    assert steps[4][names.STEP_WAITING] == 1
    assert steps[-1][names.STEP_ADMIT_BOUND] == "none"
    assert steps[0][names.STEP_KV_USAGE] == pytest.approx(0.5)
    assert steps[4][names.STEP_GRAPH] == "eager"
    told = _requests(rows)
    assert {rid: told[rid][names.USAGE_OUTPUT_TOKENS] for rid in told} == {"a": 4, "b": 3, "c": 2}
    assert told["a"][names.FINISH_REASONS] == ["length"]
    assert sum(int(str(row.attributes[names.DECODE_TOKENS]))
               for row in named(rows, names.SPAN_DECODE)) == 3 + 2 + 1  # fmt: skip
    assert "MARKED" not in repr(rows)


@pytest.mark.parametrize("numbers_batches", [True, False])
def test_overlap_matches_results_with_their_launches(
    bench: Bench, kind: type[Scheduler], numbers_batches: bool
) -> None:
    scheduler = kind(numbers_batches=numbers_batches)
    scheduler.waiting_queue += [Req("a", 20, 4), Req("b", 5, 3)]
    scheduler.loop_overlapped()
    rows = bench.settle()
    steps = _steps(rows)
    assert [step[names.STEP_INDEX] for step in steps] == list(range(len(steps)))
    assert [s[names.STEP_PREFILL_TOKENS] for s in steps if names.STEP_PREFILL_TOKENS in s] == [
        [8], [8], [4], [5]
    ]  # fmt: skip
    spans = named(rows, names.SPAN_ENGINE_STEP)
    assert any(a.end_ns > b.start_ns for a, b in itertools.pairwise(spans))
    told = _requests(rows)
    assert {rid: told[rid][names.USAGE_OUTPUT_TOKENS] for rid in told} == {"a": 4, "b": 3}


def test_a_mixed_batch(bench: Bench, kind: type[Scheduler]) -> None:
    scheduler = kind()
    old, new = Req("old", 4, 9), Req("new", 6, 9)
    old.n_prefilled = 4
    scheduler.process_batch_result(
        batch := Batch(Mode.EXTEND, [old], extend_lens=[4], prefix_lens=[0]),
        scheduler.run_batch(batch),
    )
    bench.out.rows.clear()
    new.n_prefilled = 6
    batch = Batch(
        Mode.MIXED, [new, old], extend_lens=[6, 1], prefix_lens=[0, 5], decoding_reqs=[old]
    )
    scheduler.run_batch(batch)
    scheduler.process_batch_result(batch, SimpleNamespace())
    (step,) = _steps(bench.settle())
    assert step[names.STEP_PREFILL_REQUESTS] == [1]
    assert step[names.STEP_PREFILL_TOKENS] == [6]
    assert step[names.STEP_DECODE_COUNT] == 1
    assert step[names.STEP_DECODE_JOINED] == "0"
    assert step[names.STEP_CONTEXT_TOKENS] == 5


def test_speculation_is_told_by_the_tokens_that_came(bench: Bench, kind: type[Scheduler]) -> None:
    scheduler = kind()
    scheduler.tokens_each = 3
    scheduler.waiting_queue += [Req("a", 4, 7)]
    scheduler.loop()
    rows = bench.settle()
    assert [s.get(names.STEP_DECODE_NEW_TOKENS) for s in _steps(rows)] == [None, [3], [3]]
    assert named(rows, names.SPAN_DECODE)[0].attributes[names.DECODE_TOKENS] == 6


def test_a_retraction_is_a_preemption(bench: Bench, kind: type[Scheduler]) -> None:
    scheduler = kind()
    first, second = Req("a", 4, 8), Req("b", 4, 8)
    scheduler.waiting_queue += [first, second]
    scheduler.loop(4)
    scheduler.running_batch.reqs.remove(second)  # as `retract_decode` does it
    second.retraction_count += 1
    second.n_prefilled = 0
    scheduler.waiting_queue.insert(0, second)
    scheduler.max_running_requests = 1
    scheduler.loop(2)
    scheduler.max_running_requests = 2
    scheduler.loop()
    rows = bench.settle()
    assert [s[names.STEP_PREEMPTED] for s in _steps(rows) if names.STEP_PREEMPTED in s] == [[1]]
    assert _requests(rows)["b"][names.PREEMPTIONS] == 1
    assert _requests(rows)["a"][names.PREEMPTIONS] == 0
    recomputed = [row for row in named(rows, names.SPAN_PREFILL)
                  if row.attributes[names.PREFILL_RECOMPUTE]]  # fmt: skip
    assert len(recomputed) == 1


def test_an_abort_in_the_queue(bench: Bench, kind: type[Scheduler]) -> None:
    scheduler = kind()
    scheduler.waiting_queue += [Req("a", 4, 9), Req("b", 4, 9), Req("gone", 4, 9)]
    scheduler.loop(3)
    scheduler.abort_request(SimpleNamespace(rid="gone", abort_all=False))
    scheduler.loop()
    told = _requests(bench.settle())
    assert told["gone"][names.FINISH_REASONS] == ["abort"]
    assert told["a"][names.FINISH_REASONS] == ["length"]


def test_health_checks_and_idle_batches_are_nothing(bench: Bench, kind: type[Scheduler]) -> None:
    scheduler = kind()
    scheduler.waiting_queue += [Req("HEALTH_CHECK_1", 4, 1)]
    scheduler.loop()
    idle = Batch(Mode.IDLE, [])
    scheduler.process_batch_result(idle, scheduler.run_batch(idle))
    rows = bench.settle()
    assert _requests(rows) == {}
    assert all(names.STEP_PREFILL_REQUESTS not in step for step in _steps(rows))


def test_only_the_first_rank_tells(bench: Bench, kind: type[Scheduler]) -> None:
    scheduler = kind(tp_rank=1)
    scheduler.waiting_queue += [Req("a", 4, 2)]
    scheduler.loop()
    assert bench.settle() == []
    assert scheduler.n_batches == 2


def test_what_the_engine_is(kind: type[Scheduler]) -> None:
    told = sglang_steps.resource_of(kind())
    assert told[names.ENGINE_MAX_SEQS] == 2
    assert told[names.ENGINE_MAX_BATCH_TOKENS] == 8
    assert told[names.ENGINE_CHUNKED_PREFILL] is True
    assert told[names.ENGINE_PREFIX_CACHING] is True
    assert told[names.ENGINE_TENSOR_PARALLEL] == 2
    scheduler = kind()
    scheduler.server_args.chunked_prefill_size = -1
    told = sglang_steps.resource_of(scheduler)
    assert told[names.ENGINE_CHUNKED_PREFILL] is False
    assert told[names.ENGINE_MAX_BATCH_TOKENS] == 64


@pytest.mark.parametrize("gone", ["extend_lens", "forward_mode", "reqs"])
def test_a_field_that_is_gone_ends_the_tracing_and_not_the_engine(
    bench: Bench, kind: type[Scheduler], gone: str, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = kind()
    fields = {"reqs": [Req("a", 4, 2)], "forward_mode": Mode.EXTEND, "prefix_lens": [0]}
    batch = SimpleNamespace(**{name: value for name, value in fields.items() if name != gone})
    if gone == "reqs":
        with pytest.raises(AttributeError):  # the engine's own, as without the tracer
            scheduler.run_batch(batch)
    else:
        assert scheduler.run_batch(batch).can_run_cuda_graph is False
    assert scheduler.n_batches == 1
    assert caplog.text.count("SGLang is no longer traced") == 1
    assert "MARKED" not in caplog.text
    scheduler.waiting_queue += [Req("b", 4, 2)]
    scheduler.loop()
    assert _steps(bench.settle()) == []


def test_uninstrument_restores_the_class(kind: type[Scheduler]) -> None:
    assert kind.run_batch is not Scheduler.run_batch
    sglang.uninstrument()
    for name in sglang.HOOKS:
        assert getattr(kind, name) is getattr(Scheduler, name)
        assert name not in vars(kind)


def test_its_own_registry(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    registered: dict[str, tuple[Callable[..., Any], Any]] = {}
    own = type("Scheduler", (Scheduler,), {"__module__": Scheduler.__module__})

    class HookType(enum.Enum):
        AROUND = "around"

    class HookRegistry:
        @classmethod
        def register(cls, target: str, hook: Callable[..., Any], hook_type: HookType) -> None:
            registered[target] = (hook, hook_type)

    module = types.ModuleType(sglang.REGISTRY)
    module.HookRegistry, module.HookType = HookRegistry, HookType  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, sglang.REGISTRY, module)
    monkeypatch.setattr(sglang, "import_module", lambda name: sys.modules[name])
    monkeypatch.setattr(sglang, "_is_registered", False)
    sglang.plugin()
    sglang.plugin()  # each process loads plugins once, but asking twice must not hook twice
    assert set(registered) == {f"{sglang.SCHEDULER}.Scheduler.{name}" for name in sglang.HOOKS}
    for target, (hook, hook_type) in registered.items():
        assert hook_type is HookType.AROUND
        name = target.rpartition(".")[2]

        def wrapper(*args: Any, _hook: Any = hook, _name: str = name, **named_: Any) -> Any:
            return _hook(getattr(Scheduler, _name), *args, **named_)

        setattr(own, name, wrapper)
    scheduler = own()
    scheduler.waiting_queue += [Req("a", 4, 3)]
    scheduler.loop()
    assert len(_steps(bench.settle())) == 3
    sglang.uninstrument()
    scheduler.waiting_queue += [Req("b", 4, 3)]
    scheduler.loop()
    assert len(_steps(bench.settle())) == 3


def test_the_kill_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENLAG_DISABLED", "1")
    monkeypatch.setattr(sglang, "import_module", lambda name: pytest.fail("nothing is imported"))
    sglang.plugin()
    own = type("Scheduler", (Scheduler,), {"__module__": Scheduler.__module__})
    assert engines.instrument(own) is own
    assert own.run_batch is Scheduler.run_batch
