"""The vLLM adapter on a stand-in scheduler with vLLM's own fields: what it records is what was."""

from __future__ import annotations

import logging
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
from tokenlag_tracer import conventions as names
from tokenlag_tracer.engines import vllm_scheduler
from tokenlag_tracer.engines.patching import _warned
from tokenlag_tracer.engines.vllm_requests import Layout, external_id
from tokenlag_tracer.engines.vllm_steps import SchedulerTracker
from tokenlag_tracer.spans import Row

from tests.tracer.engines.vllm_standin import Request, RequestStatus, Scheduler, results_of
from tests.tracer.support import Bench, named

LAYOUT = Layout(blocked="deferred_waiting", slots="max_num_active_reqs")


class Engine:
    """A traced stand-in that runs `depth` steps deep, on a bench."""

    def __init__(self, depth: int = 1, **settings: int) -> None:
        self.bench = Bench()
        self.recorder = self.bench.engine()
        self.made: list[SchedulerTracker] = []

        def make(scheduler: Any) -> SchedulerTracker:
            self.made.append(SchedulerTracker(scheduler, self.recorder, LAYOUT, model="m"))
            return self.made[-1]

        self.kind = vllm_scheduler.compose(Scheduler, make)
        self.scheduler = self.kind(**settings)
        self.depth = depth
        self.flying: deque[Any] = deque()
        self.n_accepted = 0
        self.truth: list[dict[str, int]] = []  # tokens scheduled for whom, step by step

    def add(self, name: str, n_prompt: int, n_output: int, **more: Any) -> Request:
        request = Request(f"{name}-0123abcd", n_prompt, n_output, **more)
        self.scheduler.add_request(request)
        return request

    def turn(self) -> None:
        """Schedules as deep as may be, and then processes one step."""
        while len(self.flying) < self.depth:
            output = self.scheduler.schedule()
            if not output.num_scheduled_tokens:
                self.scheduler.update_from_output(output, None)
                break
            self.truth.append(dict(output.num_scheduled_tokens))
            self.flying.append(output)
        if self.flying:
            output = self.flying.popleft()
            self.scheduler.update_from_output(output, results_of(output, self.n_accepted))

    def run(self, n_most: int = 500) -> list[Row]:
        """Runs until nothing is left and returns all spans."""
        for _ in range(n_most):
            if not self.scheduler.requests and not self.flying:
                break
            self.turn()
        assert not self.scheduler.requests, "the stand-in does not end"
        return self.rows()

    def rows(self) -> list[Row]:
        self.bench.now_ns = max(
            self.bench.now_ns, 10**15
        )  # later than any stamp of this machine's clock
        return self.bench.settle()


@pytest.fixture(autouse=True)
def _released() -> Any:
    yield
    vllm_scheduler.release_all()
    _warned.clear()


def steps(rows: list[Row]) -> list[dict[str, Any]]:
    found = [row.attributes for row in named(rows, names.SPAN_ENGINE_STEP)]
    return [dict(step) for step in found if not step.get("beat")]


def members_of(found: list[dict[str, Any]]) -> list[set[int]]:
    """Who decodes in each step, from joined and left; checked against every full list."""
    now: set[int] = set()
    sets = []
    for step in found:
        now = now - indexes(step.get(names.STEP_DECODE_LEFT)) | indexes(
            step.get(names.STEP_DECODE_JOINED)
        )
        if names.STEP_DECODE_REQUESTS in step:
            assert indexes(step[names.STEP_DECODE_REQUESTS]) == now
        assert len(now) == step[names.STEP_DECODE_COUNT]
        sets.append(set(now))
    return sets


def indexes(text: str | None) -> set[int]:
    found: set[int] = set()
    for part in (text or "").split(","):
        if part:
            first, _, last = part.partition("-")
            found.update(range(int(first), int(last or first) + 1))
    return found


def engine_requests(rows: list[Row]) -> dict[str, dict[str, Any]]:
    return {
        f"{row.attributes[names.REQUEST_ID]}/{row.attributes[names.SEQUENCE]}": row.attributes
        for row in named(rows, names.SPAN_ENGINE_REQUEST)
    }


@pytest.mark.parametrize("depth", [1, 2])
def test_chunks_and_members_are_what_was_scheduled(depth: int) -> None:
    engine = Engine(depth)
    for number in range(6):
        engine.add(f"r{number}", 40 + 60 * number, 5 + number)
    rows = engine.run()
    found = steps(rows)
    assert len(found) == len(engine.truth)
    for step, members, truth in zip(found, members_of(found), engine.truth, strict=True):
        n_prompt = sum(step.get(names.STEP_PREFILL_TOKENS, ()))
        assert n_prompt + len(members) == sum(truth.values())
    for number in range(6):
        request = engine_requests(rows)[f"r{number}/0"]
        assert request[names.USAGE_INPUT_TOKENS] == 40 + 60 * number
        assert request[names.USAGE_OUTPUT_TOKENS] == 5 + number
        assert request[names.FINISH_REASONS] == ["length"]
    prefills = [row.attributes[names.PREFILL_TOKENS] for row in named(rows, names.SPAN_PREFILL)]
    assert sorted(prefills) == [40 + 60 * number for number in range(6)]
    decoded = [row.attributes[names.DECODE_TOKENS] for row in named(rows, names.SPAN_DECODE)]
    assert sorted(decoded) == [4 + number for number in range(6)]


def test_context_is_what_decoding_requests_attend_to() -> None:
    engine = Engine()
    engine.add("a", 10, 6)
    engine.add("b", 20, 6)
    found = steps(engine.run())
    told = [step[names.STEP_CONTEXT_TOKENS] for step in found]
    # The token that is decoded is attended to as well: 11 + 21 in the first decode step.
    assert told == [0, 32, 34, 36, 38, 40]


def test_unchanged_steps_gather_nothing() -> None:
    engine = Engine()
    engine.add("a", 10, 30)
    tracker = engine.made[0]
    composed = []
    original = tracker._compose
    tracker._compose = lambda *a: composed.append(1) or original(*a)  # type: ignore
    engine.run()
    assert len(engine.truth) == 30
    assert len(composed) == 2  # the prompt, and the first step without one


def test_prefix_cache_hit_is_told_as_context() -> None:
    engine = Engine()
    engine.scheduler.cached["a-0123abcd"] = 32
    engine.add("a", 100, 3)
    rows = engine.run()
    request = engine_requests(rows)["a/0"]
    assert request[names.USAGE_CACHED_TOKENS] == 32
    [prefill] = named(rows, names.SPAN_PREFILL)
    assert prefill.attributes[names.PREFILL_TOKENS] == 68


@pytest.mark.parametrize("depth", [1, 2])
def test_preemption_is_a_second_wait_and_a_recompute(depth: int) -> None:
    engine = Engine(depth, n_blocks=150)
    for number in range(3):
        engine.add(f"r{number}", 40, 30)
    rows = engine.run()
    told = engine_requests(rows)
    n_preempted = sum(len(step.get(names.STEP_PREEMPTED, ())) for step in steps(rows))
    assert n_preempted > 0
    assert sum(request[names.PREEMPTIONS] for request in told.values()) == n_preempted
    reasons = [row.attributes[names.QUEUE_REASON] for row in named(rows, names.SPAN_QUEUE)]
    assert reasons.count("preempted") == n_preempted
    again = [
        row for row in named(rows, names.SPAN_PREFILL) if row.attributes[names.PREFILL_RECOMPUTE]
    ]
    assert len(again) == n_preempted
    # What it had generated is computed again with the prompt.
    assert all(row.attributes[names.PREFILL_TOKENS] > 40 for row in again)
    assert all(request[names.USAGE_OUTPUT_TOKENS] == 30 for request in told.values())
    assert "kv" in {step.get(names.STEP_ADMIT_BOUND) for step in steps(rows)}


@pytest.mark.parametrize("depth", [1, 2])
def test_a_stop_is_seen_and_what_was_computed_beyond_it_is_not_a_token(depth: int) -> None:
    engine = Engine(depth)
    engine.scheduler.stops["a-0123abcd"] = 4
    engine.add("a", 10, 30)
    engine.add("b", 10, 30)
    rows = engine.run()
    told = engine_requests(rows)
    assert told["a/0"][names.FINISH_REASONS] == ["stop"]
    assert told["a/0"][names.USAGE_OUTPUT_TOKENS] == 4
    thrown = [
        step[names.STEP_DECODE_NEW_TOKENS]
        for step in steps(rows)
        if names.STEP_DECODE_NEW_TOKENS in step
    ]
    # Two deep, the step after its last token was under way already.
    assert thrown == ([[0, 1]] if depth == 2 else [])


def test_aborts_end_where_they_are_noticed() -> None:
    engine = Engine(depth=2)
    engine.add("a", 10, 100)
    engine.add("b", 200, 100)
    for _ in range(4):
        engine.turn()
    engine.scheduler.finish_requests(iter(["a-0123abcd"]), RequestStatus.FINISHED_ABORTED)
    engine.turn()
    engine.scheduler.finish_requests(None, RequestStatus.FINISHED_ABORTED)
    while engine.flying:
        engine.turn()
    told = engine_requests(engine.rows())
    assert {key: request[names.FINISH_REASONS] for key, request in told.items()} == {
        "a/0": ["abort"],
        "b/0": ["abort"],
    }


def test_a_request_aborted_while_it_waits_has_a_queue_and_nothing_else() -> None:
    engine = Engine(slots=1)
    engine.add("a", 10, 20)
    engine.add("b", 10, 20)
    engine.turn()
    engine.scheduler.finish_requests("b-0123abcd", RequestStatus.FINISHED_ABORTED)
    rows = engine.run()
    [own] = [
        row
        for row in named(rows, names.SPAN_ENGINE_REQUEST)
        if row.attributes[names.REQUEST_ID] == "b"
    ]
    below = [row.name for row in rows if row.parent_id == own.span_id]
    assert below == [names.SPAN_QUEUE]
    assert engine.made[0]._waiting_tokens == 0


def test_speculation_counts_drafts_and_what_was_accepted() -> None:
    engine = Engine(n_spec=3)
    engine.n_accepted = 2
    engine.add("a", 10, 13)
    engine.add("b", 10, 13)
    rows = engine.run()
    decoding = [step for step in steps(rows) if step[names.STEP_DECODE_COUNT]]
    assert all(step[names.STEP_DRAFTED] == 6 for step in decoding)
    assert all(step[names.STEP_ACCEPTED] == 4 for step in decoding)
    assert all(step[names.STEP_DECODE_NEW_TOKENS] == [3, 3] for step in decoding)
    assert [row.attributes[names.DECODE_TOKENS] for row in named(rows, names.SPAN_DECODE)] == [
        12,
        12,
    ]


def test_what_keeps_the_head_out() -> None:
    slots = Engine(slots=2)
    for number in range(3):
        slots.add(f"r{number}", 10, 5)
    assert steps(slots.run())[1][names.STEP_ADMIT_BOUND] == "slots"
    tokens = Engine(budget=16)
    tokens.add("a", 16, 2)
    tokens.add("b", 16, 2)
    first = steps(tokens.run())[0]
    assert first[names.STEP_ADMIT_BOUND] == "tokens"
    assert (first[names.STEP_WAITING], first[names.STEP_WAITING_TOKENS]) == (1, 16)
    kv = Engine(n_blocks=60)
    kv.add("a", 40, 5)
    kv.add("b", 40, 5)
    told = [step[names.STEP_ADMIT_BOUND] for step in steps(kv.run())]
    assert told[0] == "kv"
    assert told[-1] == "none"
    grammar = Engine()
    held = grammar.add(
        "a", 10, 2, status=RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    )  # fmt: skip
    grammar.add("b", 10, 4)
    grammar.turn()
    held.status = RequestStatus.WAITING
    grammar.scheduler.deferred_waiting.clear()
    rows = grammar.run()
    assert steps(rows)[0][names.STEP_ADMIT_BOUND] == "grammar"
    [own] = [
        row
        for row in named(rows, names.SPAN_ENGINE_REQUEST)
        if row.attributes[names.REQUEST_ID] == "a"
    ]
    waits = [row for row in named(rows, names.SPAN_QUEUE) if row.parent_id == own.span_id]
    assert waits[0].attributes[names.QUEUE_REASON] == "grammar"


def test_throttled_or_paused_is_not_told() -> None:
    engine = Engine(slots=1)
    engine.add("a", 10, 9)
    engine.add("b", 10, 2)
    engine.turn()
    output = engine.scheduler.schedule(True)
    engine.scheduler.update_from_output(output, results_of(output))
    engine.scheduler.pause_state = SimpleNamespace(name="PAUSED_NEW")
    engine.turn()
    engine.scheduler.pause_state = SimpleNamespace(name="UNPAUSED")
    told = [step.get(names.STEP_ADMIT_BOUND) for step in steps(engine.run())]
    assert told[:4] == ["slots", None, None, "slots"]


def test_labels_of_dear_requests() -> None:
    params = SimpleNamespace(
        logprobs=1, prompt_logprobs=None, presence_penalty=0.0, frequency_penalty=0.5,
        repetition_penalty=1.0,
    )  # fmt: skip
    engine = Engine()
    front = engine.bench.front().arrived("a", at_ns=1)
    engine.add(
        "a", 5, 2, sampling_params=params, priority=3,
        lora_request=SimpleNamespace(lora_name="fr"), use_structured_output=True,
    )  # fmt: skip
    engine.run()
    front.finished()
    [request] = named(engine.rows(), names.SPAN_REQUEST)
    assert request.attributes[names.REQUEST_FEATURES] == "logprobs,penalties,grammar"
    assert request.attributes[names.ADAPTER] == "fr"
    assert request.attributes[names.PRIORITY] == 3
    assert request.attributes[names.REQUEST_MODEL] == "m"


def test_ids() -> None:
    assert external_id("cmpl-x-0-9f18c29a") == ("cmpl-x-0", 0)
    assert external_id("2_chatcmpl-x-9f18c29a") == ("chatcmpl-x", 2)
    assert external_id("given-by-hand") == ("given-by-hand", 0)


def test_a_hook_that_fails_turns_itself_off_once(caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine()
    engine.add("a", 10, 8)
    engine.turn()
    engine.scheduler.kv_cache_manager = None  # what a future release might do
    with caplog.at_level(logging.WARNING):
        while engine.scheduler.requests:
            engine.turn()
    assert engine.scheduler._tokenlag is None
    assert len(caplog.records) == 1
    assert "AttributeError" in caplog.text


def test_a_scheduler_that_cannot_be_traced_runs(caplog: pytest.LogCaptureFixture) -> None:
    def make(_: Any) -> SchedulerTracker:
        raise AttributeError("a name")

    kind = vllm_scheduler.compose(type("Own", (Scheduler,), {}), make)
    with caplog.at_level(logging.WARNING):
        scheduler = kind(budget=8)
    scheduler.add_request(Request("a-0123abcd", 4, 1))
    assert scheduler.schedule().num_scheduled_tokens == {"a-0123abcd": 4}
    assert len(caplog.records) == 1


def test_a_lost_result_makes_the_next_step_say_all() -> None:
    engine = Engine(depth=2)
    engine.add("a", 10, 9)
    for _ in range(3):
        engine.turn()
    engine.flying.clear()  # as if the engine dropped what was in flight
    for request in engine.scheduler.requests.values():
        request.num_computed_tokens = request.num_tokens
    engine.scheduler.placeholders.clear()
    engine.turn()
    engine.add("b", 10, 3)
    rows = engine.run()
    assert members_of(steps(rows))[3] == {0}
    assert engine_requests(rows)["b/0"][names.USAGE_OUTPUT_TOKENS] == 3


def test_composes_over_any_class_and_gives_it_back() -> None:
    class Own(Scheduler):
        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            self.n_calls = getattr(self, "n_calls", 0) + 1
            return super().schedule(*args, **kwargs)

    bench = Bench()

    def make(scheduler: Any) -> SchedulerTracker:
        return SchedulerTracker(scheduler, bench.engine(), LAYOUT)

    kind = vllm_scheduler.compose(Own, make)
    assert issubclass(kind, Own)
    assert vllm_scheduler.compose(Own, make) is kind
    assert vllm_scheduler.compose(kind, make) is kind
    scheduler = kind()
    scheduler.add_request(Request("a-0123abcd", 4, 1))
    scheduler.schedule()
    assert scheduler.n_calls == 1
    vllm_scheduler.release_all()
    assert type(scheduler) is Own
    plain = Own()
    plain.add_request(Request("b-0123abcd", 4, 3))
    vllm_scheduler.attach(plain, make)
    output = plain.schedule()  # of a request that was there before
    plain.update_from_output(output, results_of(output))
    assert isinstance(plain, Own)
    assert plain._tokenlag is not None  # type: ignore
