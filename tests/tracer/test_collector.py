"""Records in, spans out: the join, the phases, what is lost, sampled or kept in the ring."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion
from tokenlag_tracer import conventions as names
from tokenlag_tracer import inflight, wire
from tokenlag_tracer.recorder import EngineRecorder
from tokenlag_tracer.spans import Row, ranges

from tests.tracer.support import WALL_NS, Bench, named

MS = 1_000_000
PARENT = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"


def as_dict(row: Row) -> dict[str, Any]:
    return {
        "name": row.name, "trace": f"{row.trace_id:032x}"[:8], "id": row.span_id,
        "parent": row.parent_id, "kind": row.kind, "error": row.is_error,
        "ms": [(row.start_ns - WALL_NS) / MS, (row.end_ns - WALL_NS) / MS],
        "resource": row.resource, "attributes": row.attributes,
    }  # fmt: skip


def one_request(bench: Bench) -> None:
    """A request with two prompt chunks, a preemption, a recompute and a client."""
    engine = bench.engine("e", resource={names.ENGINE_NAME: "fake", "secret": "x"})
    front = bench.front()
    request = front.arrived(
        "r1", at_ns=10 * MS, traceparent=PARENT, sent_unix_ns=WALL_NS + 8 * MS, model="m",
        operation="chat", stream=True, max_tokens=9, tenant="t", features="logprobs",
    )  # fmt: skip
    # Ids are random in a front end; here they are the same in each run.
    [held] = bench.collector._requests._open.values()
    assert held.front is not None
    del bench.collector._requests._by_span[held.front.span_id]
    held.front.span_id = 0xF00
    bench.collector._requests._by_span[0xF00] = held
    request.context = request.context._replace(span_id=0xF00)
    request.stage("tokenize", 10 * MS, 11 * MS)
    index = engine.queued(
        "r1", at_ns=12 * MS, prompt_tokens=100, traceparent=request.context.traceparent
    )
    step = engine.record_step
    step(20 * MS, 30 * MS, prefill=[(index, 60, 10)], waiting=0, running=1, kv_usage=0.1)
    step(30 * MS, 40 * MS, prefill=[(index, 30, 70)], admit_bound="none")
    step(40 * MS, 50 * MS, joined=[index], context_tokens=101)
    engine.record_same(50 * MS, 60 * MS, 102)
    step(60 * MS, 70 * MS, left=[index], preempted=[index])
    step(70 * MS, 80 * MS, prefill=[(index, 103, 0)], device_step=5, device_ns=7 * MS)
    step(80 * MS, 90 * MS, joined=[index], drafted=4, accepted=2, new_tokens=[3])
    engine.finished(index, "length", at_ns=90 * MS, output_tokens=7)
    request.finished(
        at_ns=95 * MS, finish_reasons=["length"], delivery_wait_ns=5, delivery_max_ns=3
    )


def test_spans_of_one_request(snapshot: SnapshotAssertion) -> None:
    bench = Bench()
    one_request(bench)
    assert not named(bench.out.rows, names.SPAN_REQUEST), "held until both ends are done"
    rows = bench.settle()
    assert bench.collector.n_bad == 0
    assert [as_dict(row) for row in rows] == snapshot
    assert bench.resources == snapshot(name="resources")
    assert len(bench.collector._requests) == 0


def test_the_order_in_which_the_two_ends_are_heard_does_not_matter() -> None:
    """Two sockets have no common order: all orders that keep each one's own give the same."""
    shapes = set()
    for seed in range(40):
        bench = Bench()
        engine, front = bench.engine(), bench.front()
        said: list[list[Any]] = [[], []]
        for recorder, calls in zip((engine, front), said, strict=True):
            send = engine._send if recorder is engine else front.channel.send
            keep = lambda data, c=calls, s=send: c.append((s, bytes(data))) or len(data)  # noqa: E731
            recorder.channel._use(keep)
        request = front.arrived("r", at_ns=0)
        index = engine.queued("r", at_ns=MS, prompt_tokens=5)
        engine.record_step(MS, 2 * MS, prefill=[(index, 5, 0)])
        engine.record_step(2 * MS, 3 * MS, joined=[index])
        engine.finished(index, "stop", at_ns=3 * MS, output_tokens=2)
        request.finished(at_ns=4 * MS)
        chance = random.Random(seed)
        while any(said):
            send, data = chance.choice([calls for calls in said if calls]).pop(0)
            send(data)
        rows = bench.settle()
        [outer], [inner] = named(rows, names.SPAN_REQUEST), named(rows, names.SPAN_ENGINE_REQUEST)
        assert inner.parent_id == outer.span_id
        assert inner.trace_id == outer.trace_id
        shapes.add(tuple(sorted((row.name, row.start_ns, row.end_ns) for row in rows)))
    assert len(shapes) == 1


def test_an_engine_without_a_front_end_continues_the_callers_trace() -> None:
    bench = Bench()
    engine = bench.engine()
    for traceparent in (PARENT, None, "nonsense"):
        index = engine.queued("r", at_ns=0, traceparent=traceparent)
        engine.record_step(0, MS, prefill=[(index, 5, 0)])
        engine.finished(index, "stop", at_ns=MS, output_tokens=1)
        bench.settle()
    rows = named(bench.out.rows, names.SPAN_ENGINE_REQUEST)
    assert [f"{row.trace_id:032x}" == "ab" * 16 for row in rows] == [True, False, False]
    assert [row.parent_id for row in rows] == [0xCDCDCDCDCDCDCDCD, 0, 0]
    assert len({row.trace_id for row in rows}) == 3


def test_work_for_a_client_that_left_outlives_its_request() -> None:
    bench = Bench()
    engine, front = bench.engine(), bench.front()
    request = front.arrived("r", at_ns=0)
    index = engine.queued("r", at_ns=MS)
    engine.record_step(MS, 2 * MS, prefill=[(index, 5, 0)])
    request.finished(at_ns=3 * MS, error_type="cancelled", finish_reasons=["abort"])
    [row] = named(bench.settle(), names.SPAN_REQUEST)
    assert row.is_error
    assert row.attributes[names.ERROR_TYPE] == "cancelled"
    assert not named(bench.out.rows, names.SPAN_ENGINE_REQUEST)
    engine.record_step(bench.now_ns, bench.now_ns + MS, joined=[index])
    engine.aborted(index, at_ns=bench.now_ns + 2 * MS)
    [late] = named(bench.settle(), names.SPAN_ENGINE_REQUEST)
    assert late.parent_id == row.span_id
    assert late.end_ns > row.end_ns
    assert late.attributes[names.FINISH_REASONS] == ["abort"]


def test_several_sequences_of_one_request() -> None:
    bench = Bench()
    engine, front = bench.engine(), bench.front()
    request = front.arrived("r", at_ns=0, choice_count=2)
    indexes = [engine.queued("r", at_ns=MS, sequence=n, prompt_tokens=5) for n in range(2)]
    engine.record_step(MS, 2 * MS, prefill=[(index, 5, 0) for index in indexes])
    engine.record_step(2 * MS, 3 * MS, joined=indexes)
    for index in indexes:
        engine.finished(index, "stop", at_ns=3 * MS)
    request.finished(at_ns=4 * MS)
    rows = bench.settle()
    [outer] = named(rows, names.SPAN_REQUEST)
    inner = named(rows, names.SPAN_ENGINE_REQUEST)
    assert [row.attributes[names.SEQUENCE] for row in inner] == [0, 1]
    assert {row.parent_id for row in inner} == {outer.span_id}
    assert outer.attributes[names.USAGE_OUTPUT_TOKENS] == 4, "two from each, told by the steps"
    assert outer.attributes[names.FIRST_TOKEN_NS] == 2 * MS


def test_what_a_sequence_finds_of_its_sibling_s_is_no_reuse_of_the_request() -> None:
    bench = Bench()
    engine, front = bench.engine(), bench.front()
    request = front.arrived("r", at_ns=0, choice_count=2)
    indexes = [engine.queued("r", at_ns=MS, sequence=n, prompt_tokens=80) for n in range(2)]
    # The second of the two is the first to be scheduled.
    engine.record_step(MS, 2 * MS, prefill=[(indexes[1], 64, 16)])
    engine.record_step(2 * MS, 3 * MS, prefill=[(indexes[0], 16, 64)], joined=indexes[1:])
    for index in indexes:
        engine.finished(index, "stop", at_ns=3 * MS)
    request.finished(at_ns=4 * MS)
    [outer] = named(bench.settle(), names.SPAN_REQUEST)
    assert outer.attributes[names.USAGE_CACHED_TOKENS] == 16


def test_a_front_end_that_is_done_at_the_clock_s_zero_is_done() -> None:
    bench = Bench()
    front = bench.front()
    front.arrived("r", at_ns=-MS).finished(at_ns=0, finish_reasons=["stop"])
    assert len(named(bench.settle(), names.SPAN_REQUEST)) == 1
    assert len(bench.collector._requests) == 0


def test_an_id_that_is_learnt_late() -> None:
    bench = Bench()
    engine, front = bench.engine(), bench.front()
    request = front.arrived(None, at_ns=0)
    index = engine.queued("cmpl-1", at_ns=MS)
    engine.record_step(MS, 2 * MS, prefill=[(index, 5, 0)])
    request.update(request_id="cmpl-1", model="m")
    engine.finished(index, "stop", at_ns=2 * MS, output_tokens=1)
    request.finished(at_ns=3 * MS)
    rows = bench.settle()
    [outer], [inner] = named(rows, names.SPAN_REQUEST), named(rows, names.SPAN_ENGINE_REQUEST)
    assert inner.parent_id == outer.span_id
    assert outer.attributes[names.REQUEST_ID] == "cmpl-1"


def test_engine_steps_share_a_trace_for_ten_seconds() -> None:
    bench = Bench()
    engines = [bench.engine("a"), bench.engine("b")]
    for engine in engines:
        for number in range(25):
            engine.record_step(number * 1000 * MS, number * 1000 * MS + MS)
    traces: dict[int, set[tuple[str, int]]] = {}
    for row in bench.out.rows:
        key = (row.attributes[names.ENGINE_ID], row.start_ns // names.ENGINE_TRACE_NS)
        traces.setdefault(row.trace_id, set()).add(key)
    assert all(len(keys) == 1 for keys in traces.values())
    assert len(traces) == 6


# --- losses --------------------------------------------------------------------------------------


def lists_add_up(rows: list[Row]) -> int:
    """Follows the lists as a reader does; returns how many steps it could not follow."""
    members: set[int] | None = None
    last, n_unknown = -1, 0

    def indexes(text: str) -> set[int]:
        parts = [part.partition("-") for part in text.split(",") if part]
        return {n for a, _, b in parts for n in range(int(a), int(b or a) + 1)}

    for row in named(rows, names.SPAN_ENGINE_STEP):
        if row.start_ns == row.end_ns:
            continue
        get = row.attributes.get
        if row.attributes[names.STEP_INDEX] != last + 1:
            members = None
        last = row.attributes[names.STEP_INDEX]
        full = get(names.STEP_DECODE_REQUESTS)
        if full is not None or get(names.STEP_DECODE_COUNT) == 0:
            members = indexes(full or "")
        elif members is not None:
            members = members - indexes(get(names.STEP_DECODE_LEFT, ""))
            members |= indexes(get(names.STEP_DECODE_JOINED, ""))
        if members is None:
            n_unknown += 1
        else:
            assert len(members) == get(names.STEP_DECODE_COUNT)
    return n_unknown


@given(st.integers(0, 10_000), st.floats(0, 0.5), st.sampled_from([1 << 30, 40]))
def test_lists_stay_true_whatever_is_lost(seed: int, lost_frac: float, n_most: int) -> None:
    """Records lost on the way and spans lost for want of room leave holes, never wrong lists."""
    chance = random.Random(seed)
    bench = Bench()
    bench.out.n_most = n_most
    engine = bench.engine()
    send = engine._send

    def lossy(data: Any) -> int:
        if data[0] == wire.KIND_STEP and chance.random() < lost_frac:
            raise BlockingIOError(11, "full")
        return send(data)

    engine.channel._use(lossy)
    members: set[int] = set()
    taken: list[Row] = []
    for number in range(120):
        if chance.random() < 0.3:
            members ^= {chance.randrange(12)}
        engine.record_step(number * MS, number * MS + MS - 1, decode=members)
        if chance.random() < 0.1:
            taken += bench.out.rows
            del bench.out.rows[:]
    taken += bench.out.rows
    assert lists_add_up(taken) == 0
    kept = [row.attributes[names.STEP_INDEX] for row in taken]
    for row in taken:
        index, n_lost = row.attributes[names.STEP_INDEX], row.attributes[names.STEP_DROPPED]
        assert n_lost == index - sum(1 for other in kept if other < index)


def test_spans_that_failed_to_get_out_count_as_lost() -> None:
    bench = Bench()
    engine = bench.engine()
    engine.record_step(0, MS, decode=[1, 2])
    bench.out.lost = {bench.out.rows[0].resource: 1}
    bench.settle(0)
    engine.record_same(MS, 2 * MS)
    assert bench.out.rows[-1].attributes[names.STEP_DROPPED] == 1
    assert bench.out.rows[-1].attributes[names.STEP_DECODE_REQUESTS] == "1-2"


def test_decode_runs_across_lost_steps_do_not_pretend() -> None:
    bench = Bench()
    engine = bench.engine()
    a, b, c = (engine.queued(name, at_ns=0, prompt_tokens=3) for name in "abc")
    engine.record_step(0, MS, prefill=[(a, 3, 0), (b, 3, 0)])
    engine.record_step(MS, 2 * MS, joined=[a, b])
    send = engine._send
    engine.channel._use(lambda _: (_ for _ in ()).throw(BlockingIOError(11, "full")))
    engine.record_step(2 * MS, 3 * MS, left=[b], joined=[c])
    engine.channel._use(send)
    engine.record_same(3 * MS, 4 * MS)
    engine.record_step(4 * MS, 5 * MS, left=[a, c])
    for index in (a, b, c):
        engine.finished(index, "stop", at_ns=5 * MS)
    rows = bench.settle()
    runs = [row.attributes for row in named(rows, names.SPAN_DECODE)]
    assert [(r[names.DECODE_FIRST_STEP], r[names.DECODE_LAST_STEP]) for r in runs] == [
        (1, 3), (1, 1), (3, 3),
    ]  # fmt: skip
    assert not any(names.DECODE_TOKENS in r for r in runs), "not known, so not told"


def test_records_that_make_no_sense_are_counted() -> None:
    bench = Bench()
    engine = bench.engine()
    send = engine._send
    wrong: list[bytes] = [
        b"", b"\xff", b"\x02", b"\x02" + b"\0" * 200, b"\x03", b"\x03{}", b"\x03[1,2]", b"\x03null",
        b'\x03["queued",1,[]]', b'\x03["what",1,{}]', b'\x03["queued","x",{}]', b"\x04", b"\x01{}",
        b'\x01{"role":"engine"}', b'\x03["client",1,{"key":5}]' + b" ", b"\x03" + b"[" * 100_000,
    ]  # fmt: skip
    for data in wrong:
        send(data)
    assert bench.collector.n_bad >= len(wrong) - 1
    engine.record_step(0, MS, decode=[1])
    assert len(bench.out.rows) == 1


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
        st.sampled_from(["index", "key", "trace", "end_ns", "stage", "request_id", "model",
                         "traceparent", "reason", "output_tokens", "chunk_ms", "role"]),
        inner, max_size=6),
    max_leaves=12,
), st.sampled_from(["arrived", "updated", "stage", "delivered", "client", "queued", "waiting",
                    "ended"]))  # fmt: skip
def test_no_event_breaks_the_writer(fields: Any, name: str) -> None:
    bench = Bench()
    engine = bench.engine()
    index = engine.queued("r", at_ns=0)
    body = json.dumps([name, 5, fields]).encode()
    engine._send(b"\x03" + body)
    engine.finished(index, "stop", at_ns=MS)
    bench.settle()
    bench.collector.finish(bench.now_ns)
    for row in bench.out.rows:
        assert set(row.attributes) <= set(names.SPAN_ATTRIBUTE_TYPES)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflight, "MAX_OPEN", 100)
    bench = Bench()
    engine, front = bench.engine(), bench.front()
    for number in range(1000):
        front.arrived(f"f{number}", at_ns=0)
        engine.queued(f"e{number}", at_ns=0)
    table = bench.collector._requests
    assert len(table) == 100
    assert table.n_evicted == 1900
    assert len(table._by_span) + len(table._of) + len(table._by_request_id) <= 200
    [state] = bench.collector._engines.values()
    assert len(state.sequences) <= 100, "what is given up is forgotten by its engine, too"


# --- sampling -------------------------------------------------------------------------------------


def many_requests(bench: Bench, n: int, engine: EngineRecorder | None = None) -> None:
    engine = engine or bench.engine()
    chance = random.Random(5)
    for number in range(n):
        start_ns = number * 100 * MS
        bench.now_ns = start_ns
        index = engine.queued(f"r{number}", at_ns=start_ns, prompt_tokens=4)
        took_ns = round(chance.lognormvariate(0, 0.5) * 10 * MS)
        engine.record_step(start_ns, start_ns + took_ns, prefill=[(index, 4, 0)])
        engine.finished(index, "stop", at_ns=start_ns + took_ns, output_tokens=1)
        bench.settle(0)
    bench.settle()


def test_sampling_keeps_the_slow_and_weighs_the_rest() -> None:
    plain, sampled = Bench(), Bench(sample_frac=0.1)
    for bench in (plain, sampled):
        ids = random.Random(3)
        bench.collector._requests._new_trace_id = lambda r=ids: r.getrandbits(128)
        many_requests(bench, 2000)
    everyone = named(plain.out.rows, names.SPAN_ENGINE_REQUEST)
    kept = named(sampled.out.rows, names.SPAN_ENGINE_REQUEST)
    assert len(everyone) == 2000
    assert 150 < len(kept) < 600
    assert len(named(sampled.out.rows, names.SPAN_ENGINE_STEP)) == 2000, "steps always"
    weights = [row.attributes.get(names.SAMPLE_WEIGHT, 1.0) for row in kept]
    assert {1.0, 10.0} == set(weights)
    assert sum(weights) == pytest.approx(2000, rel=0.15)
    slowest = sorted(everyone, key=lambda row: row.start_ns - row.end_ns)[:20]
    kept_ids = {row.attributes[names.REQUEST_ID] for row in kept}
    assert {row.attributes[names.REQUEST_ID] for row in slowest} <= kept_ids

    def mean(rows: list[Row], weights: list[float]) -> float:
        spans = zip(rows, weights, strict=True)
        return sum((row.end_ns - row.start_ns) * w for row, w in spans) / sum(weights)

    assert mean(kept, weights) == pytest.approx(mean(everyone, [1.0] * 2000), rel=0.1)


def test_culprits_and_failures_are_kept() -> None:
    bench = Bench(sample_frac=0.0)
    engine = bench.engine()
    for number in range(60):
        engine.record_step(number * 10 * MS, number * 10 * MS + 5 * MS)
    quick, culprit, failed = (engine.queued(name, at_ns=0) for name in "qcf")
    at_ns = 600 * MS
    engine.record_step(at_ns, at_ns + 5 * MS, prefill=[(quick, 4, 0), (failed, 4, 0)])
    engine.record_step(at_ns + 5 * MS, at_ns + 500 * MS, prefill=[(culprit, 9000, 0)])
    for index, error in ((quick, None), (culprit, None), (failed, "oom")):
        engine.finished(index, "stop", at_ns=at_ns + 500 * MS, error_type=error)
    rows = named(bench.settle(), names.SPAN_ENGINE_REQUEST)
    assert [row.attributes[names.REQUEST_ID] for row in rows] == ["c", "f"]


@pytest.mark.parametrize(
    ("sampler", "arg", "share"),
    [("", 1.0, 1), ("always_on", 1.0, 1), ("always_off", 1.0, 0), ("traceidratio", 0.25, 0.25),
     ("parentbased_traceidratio", 0.25, 0.25), ("parentbased_always_off", 1.0, 0)],
)  # fmt: skip
def test_the_standard_sampler_is_for_requests_only(sampler: str, arg: float, share: float) -> None:
    bench = Bench(sampler=sampler, sampler_arg=arg)
    ids = random.Random(3)
    bench.collector._requests._new_trace_id = lambda: ids.getrandbits(128)
    many_requests(bench, 800)
    kept = named(bench.out.rows, names.SPAN_ENGINE_REQUEST)
    assert len(kept) == pytest.approx(800 * share, rel=0.2)
    assert len(named(bench.out.rows, names.SPAN_ENGINE_STEP)) == 800
    if share == 0.25:
        assert {row.attributes[names.SAMPLE_WEIGHT] for row in kept} == {4.0}


# --- the ring ------------------------------------------------------------------------------------


def test_the_ring_keeps_the_last_minutes_until_a_stall() -> None:
    bench = Bench(ring_s=60.0)
    engine = bench.engine()
    second = 1000 * MS
    index = engine.queued("r", at_ns=0, prompt_tokens=5)
    for number in range(1200):  # two minutes of steps of 5 ms, every 100 ms
        bench.now_ns = number * 100 * MS
        engine.record_step(bench.now_ns, bench.now_ns + 5 * MS, decode=[index])
        bench.settle(0)
    assert not bench.out.rows
    bench.now_ns = 120 * second
    engine.record_step(bench.now_ns, bench.now_ns + 2 * second, decode=[index])
    steps = named(bench.out.rows, names.SPAN_ENGINE_STEP)
    indexes = [row.attributes[names.STEP_INDEX] for row in steps]
    assert indexes == list(range(indexes[0], 1201))
    assert 600 <= len(indexes) <= 600 + 2 * 256
    assert steps[-1].attributes[names.STEP_SKIPPED] == indexes[0]
    assert steps[-1].attributes[names.STEP_DROPPED] == 0
    assert lists_add_up(steps) <= 64, "a list comes soon after the cut"
    engine.record_step(bench.now_ns + 2 * second, bench.now_ns + 2 * second + MS, decode=[index])
    assert len(named(bench.out.rows, names.SPAN_ENGINE_STEP)) == len(steps) + 1, "what follows too"


def test_the_ring_is_bounded_in_memory_and_dumped_on_demand() -> None:
    bench = Bench(ring_s=3600.0, ring_max_bytes=60_000)
    engine = bench.engine()
    for number in range(8000):
        engine.record_step(number * MS, number * MS + MS // 2, decode=[number % 7])
    assert bench.collector.status()["ring_bytes"] < 70_000
    n_out = bench.collector.dump(bench.now_ns)
    assert n_out == len(bench.out.rows)
    assert 100 < n_out < 8000
    assert bench.out.rows[-1].attributes[names.STEP_INDEX] == 7999
    assert bench.collector.dump(bench.now_ns) == 0


def test_what_the_ring_gives_up_waits_for_room() -> None:
    bench = Bench(ring_s=3600.0)
    bench.out.n_most = 1000
    engine = bench.engine()
    for number in range(5000):
        engine.record_step(number * MS, number * MS + MS // 2, decode=[number % 7])
    assert bench.collector.dump(bench.now_ns) == 5000
    taken: list[Row] = []
    while bench.collector.is_dumping or bench.out.rows:
        assert len(bench.out.rows) <= 1000
        taken += bench.out.rows
        del bench.out.rows[:]
        bench.settle(0.1)
    assert [row.attributes[names.STEP_INDEX] for row in taken] == list(range(5000))


def test_device_times_come_late() -> None:
    bench = Bench()
    engine = bench.engine(device_lag=2)
    engine.record_step(0, MS)
    engine.record_step(MS, 2 * MS)
    assert not bench.out.rows
    engine.record_step(2 * MS, 3 * MS, device_step=0, device_ns=700)
    engine.record_step(3 * MS, 4 * MS, device_step=1, device_ns=800)
    bench.now_ns = 5_000 * MS
    bench.collector.tick(bench.now_ns, [])
    device = [row.attributes.get(names.STEP_DEVICE_NS) for row in bench.out.rows]
    assert device == [700, 800]


def test_a_stepped_wall_clock_and_one_of_another_namespace() -> None:
    bench = Bench()
    engine = bench.engine()
    engine.record_step(0, MS)
    assert bench.out.rows[-1].start_ns == WALL_NS
    clock = bench.collector._clock
    before_ns = clock.offset_ns
    assert not clock.follow_steps()
    clock.wall_ns = lambda: bench.now_ns + WALL_NS + 3_000 * MS
    assert clock.follow_steps()
    bench.collector.clock_stepped(before_ns, [])
    engine.record_step(MS, 2 * MS)
    assert bench.out.rows[-1].start_ns == WALL_NS + 3_001 * MS
    connection = bench.collector.connected()
    hello = json.loads(engine._hello()[1:]) | {
        "engine_id": "other", "monotonic_ns": 5_000 * MS, "wall_ns": WALL_NS + 1_000 * MS,
    }  # fmt: skip
    bench.collector.take(connection, memoryview(b"\x01" + json.dumps(hello).encode()), 0)
    assert connection.offset_ns == WALL_NS - 4_000 * MS


def test_ranges() -> None:
    assert ranges([]) == ""
    assert ranges([0]) == "0"
    assert ranges([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"
