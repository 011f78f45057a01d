"""What must hold in any run, whatever its limits and load."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenlag.errors import InputError
from tokenlag.simulate.config import EngineConfig, StepChange, StepModel
from tokenlag.simulate.decoding import blocks_for
from tokenlag.simulate.engine import Engine
from tokenlag.simulate.log import Request

MODEL = StepModel(a_ms=5, b_ms=0.05, c_ms=0.1, d_ms=1e-4)


def request(number: int, at_s: float, n_prompt: int, n_output: int, n_cached: int = 0) -> Request:
    return Request(
        number=number,
        sent_s=at_s,
        arrival_s=at_s,
        engine_s=at_s,
        n_prompt=n_prompt,
        n_output=n_output,
        n_cached=n_cached,
        n_max_output=n_output + 50,
    )


def drain(
    config: EngineConfig,
    requests: list[Request],
    model: StepModel = MODEL,
    until_s: float = float("inf"),
) -> Engine:
    engine = Engine(config, model, noise=random.Random(1), on_done=lambda _r, _t: [])
    engine.add(requests)
    engine.run(until_s)
    engine.close()
    return engine


configs = st.builds(
    EngineConfig,
    max_seqs=st.integers(1, 12),
    max_batch_tokens=st.integers(12, 400),
    kv_tokens=st.integers(700, 3000),
    policy=st.sampled_from(["mixed", "prefill-first"]),
    kv_test=st.sampled_from(["first-chunk", "full-prompt", "reserve-max"]),
    prompt_threshold=st.sampled_from([0, 7, 64]),
    pipeline_depth=st.sampled_from([1, 2]),
)
loads = st.lists(
    st.tuples(st.floats(0, 3), st.integers(2, 400), st.integers(0, 200), st.integers(0, 399)),
    min_size=1,
    max_size=25,
)


def check_request(engine: Engine, sent: Request) -> None:
    assert sent.done_s is not None
    assert sent.n_generated == sent.n_output
    times = engine.log.token_times_s(sent)
    assert len(times) == sent.n_output
    assert times == sorted(set(times)), "a step yields one token of a sequence"
    if sent.n_output:
        assert times[0] == sent.first_token_s
        assert times[-1] == sent.done_s
    assert len(sent.queues) == sent.n_preemptions + 1
    assert all(start <= end for start, end, _ in sent.queues)
    assert len(sent.prefills) == len(sent.queues)
    for number, chunks in enumerate(sent.prefills):
        position = sent.n_cached if number == 0 else 0
        for chunk in chunks:
            assert chunk.n_context == position
            position += chunk.n_tokens
    total = sum(chunk.n_tokens for chunk in sent.prefills[-1])
    if not sent.n_preemptions:
        assert total + sent.n_cached == sent.n_prompt
    else:
        assert total >= sent.n_prompt, "the last prefill computes everything again"


def check_steps(engine: Engine) -> None:
    config, members = engine.config, set()
    busy_until_s = 0.0
    for number, step in enumerate(engine.log.steps):
        members -= set(step.left)
        assert not members & set(step.joined)
        members |= set(step.joined)
        assert step.n_decode == len(members)
        assert step.index == number
        assert step.n_prefill == sum(n for _, n, _ in step.chunks)
        assert step.n_prefill + step.n_decode <= config.max_batch_tokens
        assert step.n_prefill + step.n_decode > 0
        assert 0 <= step.kv_frac <= 1
        assert step.n_running <= config.max_seqs
        assert step.busy_s >= busy_until_s
        busy_until_s = step.end_s
        if config.policy == "prefill-first":
            assert not (step.n_prefill and step.n_decode)
        if step.n_waiting == 0:
            assert step.admit_bound == "none"
        if config.prompt_threshold:
            assert all(n <= config.prompt_threshold for _, n, _ in step.chunks)


@settings(max_examples=150, deadline=None)
@given(configs, loads)
def test_conservation(config: EngineConfig, load: list[tuple[float, int, int, int]]) -> None:
    requests = [
        request(n, at, prompt, output, min(cached, prompt - 1))
        for n, (at, prompt, output, cached) in enumerate(load)
    ]
    engine = drain(config, requests)
    for sent in requests:
        check_request(engine, sent)
    check_steps(engine)
    assert engine._n_free == config.kv_tokens // 16 or engine._held
    if config.kv_test == "reserve-max":
        assert all(not sent.n_preemptions for sent in requests)
    # First come, first served: nobody is scheduled before somebody who came earlier.
    came = sorted(requests, key=lambda r: (r.engine_s, r.number))
    scheduled = [r.scheduled_s for r in came]
    assert scheduled == sorted(scheduled)


@settings(max_examples=60, deadline=None)
@given(configs, loads)
def test_decode_steps_agree_with_membership(config: EngineConfig, load) -> None:
    requests = [request(n, at, prompt, output) for n, (at, prompt, output, _) in enumerate(load)]
    engine = drain(config, requests)
    told: dict[int, set[int]] = {}
    members: set[int] = set()
    for step in engine.log.steps:
        members = (members - set(step.left)) | set(step.joined)
        for index in members:
            told.setdefault(index, set()).add(step.index)
    for sent in requests:
        runs = engine.log.decode_runs(sent)
        steps = {s for first, last in runs for s in range(first, last + 1)}
        assert steps == told.get(sent.index, set())


def test_a_small_pool_preempts_the_last_and_computes_again() -> None:
    config = EngineConfig(max_seqs=4, max_batch_tokens=256, kv_tokens=640)
    requests = [request(n, 0.0, 200, 150) for n in range(3)]
    engine = drain(config, requests)
    assert requests[0].n_preemptions == 0
    assert requests[2].n_preemptions >= 1
    again = requests[2].prefills[1]
    assert again[0].n_context == 0
    assert sum(c.n_tokens for c in again) >= 200
    preempting = [s for s in engine.log.steps if s.preempted]
    assert preempting
    for step in preempting:
        assert step.admit_bound == "kv"
        assert step.n_waiting >= len(step.preempted)


def test_nothing_is_admitted_in_a_step_that_preempted() -> None:
    config = EngineConfig(max_seqs=8, max_batch_tokens=256, kv_tokens=800)
    requests = [request(n, n * 0.05, 150, 120) for n in range(8)]
    engine = drain(config, requests)
    first_steps = {c[0].step for r in requests for c in r.prefills}
    preempting = {s.index for s in engine.log.steps if s.preempted}
    assert preempting
    assert not first_steps & preempting


def test_slots_tokens_and_kv_are_told_apart() -> None:
    def bounds(**limits: int) -> set[str]:
        config = EngineConfig(
            **{"max_seqs": 64, "max_batch_tokens": 4096, "kv_tokens": 99999} | limits
        )
        engine = drain(config, [request(n, 0.0, 400, 20) for n in range(12)])
        return {s.admit_bound for s in engine.log.steps}

    assert bounds(max_seqs=4) == {"slots", "none"}
    assert bounds(max_batch_tokens=512) == {"tokens", "none"}
    assert bounds(kv_tokens=2000, max_seqs=64) >= {"kv"}
    assert bounds(max_batch_tokens=8192) == {"none"}


def test_two_deep_spans_overlap_and_cadence_is_the_cost() -> None:
    config = EngineConfig(max_seqs=8, max_batch_tokens=512, kv_tokens=9999, pipeline_depth=2)
    engine = drain(config, [request(n, 0.01 * n, 100, 50) for n in range(6)])
    steps = engine.log.steps
    overlaps = 0
    for before, step in itertools.pairwise(steps):
        overlaps += step.start_s < before.end_s
        assert step.start_s >= before.start_s
        cadence_ms = (step.end_s - max(step.start_s, before.end_s)) * 1e3
        context = step.n_context - step.n_decode + sum(c[2] for c in step.chunks)
        cost_ms = MODEL.cost_ms(step.n_prefill, step.n_decode, context)
        assert cadence_ms == pytest.approx(cost_ms, rel=1e-6)
    assert overlaps > len(steps) / 2


def test_prefill_only_requests_have_no_token() -> None:
    config = EngineConfig(max_seqs=8, max_batch_tokens=128, kv_tokens=9999)
    sent = [request(n, 0.0, 300, 0) for n in range(3)]
    engine = drain(config, sent)
    assert all(r.first_token_s is None and r.done_s is not None for r in sent)
    assert all(s.n_decode == 0 for s in engine.log.steps)


def test_a_run_that_is_cut_keeps_only_steps_that_ended() -> None:
    config = EngineConfig(max_seqs=4, max_batch_tokens=64, kv_tokens=9999)
    sent = [request(n, 0.0, 500, 40) for n in range(6)]
    engine = drain(config, sent, until_s=0.2)
    assert all(s.end_s <= 0.2 for s in engine.log.steps)
    steps = {s.index for s in engine.log.steps}
    assert {c.step for r in sent for p in r.prefills for c in p} <= steps
    assert all(engine.log.token_times_s(r) is not None for r in sent)


def test_changes_make_steps_longer_by_factor_or_constant() -> None:
    def total_s(*changes: StepChange) -> list[float]:
        model = StepModel(5, 0.05, 0.1, 1e-4, changes=changes)
        engine = drain(EngineConfig(4, 512, 9999), [request(0, 0.0, 100, 20)], model)
        return [s.end_s - s.busy_s for s in engine.log.steps]

    plain = total_s()
    factor = total_s(StepChange(0.0, factor=1.5))
    added = total_s(StepChange(0.0, add_ms=8.0))
    assert factor == pytest.approx([1.5 * t for t in plain])
    assert added == pytest.approx([t + 0.008 for t in plain])


def test_what_cannot_fit_is_refused() -> None:
    with pytest.raises(InputError, match="does not fit"):
        drain(EngineConfig(4, 512, 320), [request(0, 0.0, 300, 100)])
    with pytest.raises(InputError, match="max_seqs"):
        EngineConfig(max_seqs=600, max_batch_tokens=512, kv_tokens=9999)
    with pytest.raises(InputError, match="policy"):
        EngineConfig(4, 512, 9999, policy="random")


def test_blocks() -> None:
    assert [blocks_for(n) for n in (0, 1, 16, 17)] == [0, 1, 1, 2]
