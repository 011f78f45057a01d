"""Records of engines that are no spans: Dynamo's, TensorRT-LLM's, llama.cpp's."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from tokenlag.errors import InputError
from tokenlag.read.load import load_traces
from tokenlag.read.messages import Seen
from tokenlag.read.sources.engine_records import EngineRecordReader
from tokenlag.read.sources.otlp_json import TextError
from tokenlag.read.sources.sink import Sink
from tokenlag.store.connection import Store

from tests.read.test_loadtest_damage import damage

T0_MS = 1_782_777_600_000
MS = 1_000_000


@pytest.fixture
def store() -> Iterator[Store]:
    with Store() as made:
        yield made


def load(store: Store, folder: Path, text: str) -> None:
    (folder / "in").mkdir()
    (folder / "in" / "records.json").write_text(text)
    load_traces(store, [folder / "in"], work_dir=folder)


def lines(*records: Any) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def forward_pass(index: int, *, worker: str = "w", envelope: bool = True, **more: Any) -> Any:
    fpm = {
        "version": 1, "worker_id": worker, "dp_rank": 0, "counter_id": index, "wall_time": 0.025,
        "scheduled_requests": {
            "num_prefill_requests": 2, "sum_prefill_tokens": 257, "var_prefill_length": 100.0,
            "sum_prefill_kv_tokens": 64, "num_decode_requests": 3, "sum_decode_kv_tokens": 1024,
            "var_decode_kv_tokens": 50.0,
        },
        "queued_requests": {
            "num_prefill_requests": 1, "sum_prefill_tokens": 900, "num_decode_requests": 1,
        },
    } | more  # fmt: skip
    event = {
        "schema": "dynamo.fpm.trace.v1", "source": {"component": "backend"},
        "capture_mode": "full", "observed_at_unix_ms": T0_MS + 25 * index, "fpm": fpm,
    }  # fmt: skip
    return {"timestamp": 25 * index, "event": event} if envelope else event


@pytest.mark.parametrize("envelope", [True, False])
def test_dynamo_forward_passes_are_steps(store: Store, tmp_path: Path, envelope: bool) -> None:
    load(store, tmp_path, lines(*(forward_pass(i, envelope=envelope) for i in range(3))))
    rows = store.fetchall(
        "select step_index, (end_ns - $1) / 1e6, cadence_ms, n_prefill_tokens, n_chunks, n_decode, "
        "n_context_tokens, n_running, n_waiting, n_waiting_tokens, attention_work from steps "
        "order by step_index",
        [T0_MS * MS],
    )
    work = 129 * (32 + 129 / 2) + 128 * (32 + 128 / 2)
    assert rows == [(i, 25 * i, 25, 257, 2, 3, 1024, 5, 2, 900, work) for i in range(3)]
    assert store.fetchall("select engine_id from epochs") == [("w:0",)]
    assert store.scalar("select count(*) from chunks") == 0  # nobody says whose they are


def test_dynamo_workers_are_engines(store: Store, tmp_path: Path) -> None:
    rows = [forward_pass(i, worker=w) for w in ("a", "b") for i in range(2)]
    load(store, tmp_path, lines(*rows))
    assert store.fetchall("select engine_id from epochs order by 1") == [("a:0",), ("b:0",)]


def test_a_heartbeat_is_no_step(store: Store, tmp_path: Path) -> None:
    idle = forward_pass(2, wall_time=0.0, scheduled_requests={}, queued_requests={})
    load(store, tmp_path, lines(forward_pass(0), forward_pass(1), idle))
    assert store.scalar("select count(*) from steps") == 2


def dynamo_request(number: int, **more: Any) -> Any:
    request = {
        "request_id": f"request-{number}", "model": "m", "input_tokens": 900,
        "output_tokens": 20, "cached_tokens": 64, "request_received_ms": T0_MS + 100 * number,
        "total_time_ms": 800, "ttft_ms": 150.5,
    } | more  # fmt: skip
    return {
        "schema": "dynamo.request.trace.v1", "event_type": "request_end",
        "event_time_unix_ms": T0_MS + 100 * number + 800, "request": request,
        "agent_context": {"session_id": "s"},
    }  # fmt: skip


def test_dynamo_request_trace(store: Store, tmp_path: Path) -> None:
    load(store, tmp_path, lines(dynamo_request(0), dynamo_request(1)))
    assert store.fetchall(
        "select dialects, request_id, model, n_prompt, n_cached, n_output, ttft_ms, e2e_ms, "
        "conversation_id from requests order by arrival_ns"
    ) == [
        ("dynamo", f"request-{i}", "m", 900, 64, 20, 150.5, 800, "s") for i in range(2)
    ]  # fmt: skip


def test_dynamo_request_whose_receipt_is_not_told(store: Store, tmp_path: Path) -> None:
    load(store, tmp_path, lines(dynamo_request(0, request_received_ms=None)))
    assert store.scalar("select arrival_ns from requests") == T0_MS * MS


def iteration(index: int, **more: Any) -> Any:
    return {
        "iter": index, "iterLatencyMS": 20.0,
        "timestamp": f"06-30-2026 00:00:{index * 20 // 1000:02d}.{index * 20 % 1000 * 1000:06d}",
        "numActiveRequests": 8, "numQueuedRequests": 3,
        "kvCacheStats": {"usedNumBlocks": 600, "maxNumBlocks": 1000, "tokensPerBlock": 64},
        "inflightBatchingStats": {
            "numScheduledRequests": 8, "numContextRequests": 1, "numGenRequests": 7,
            "numCtxTokens": 300, "numCtxKvTokens": 20, "numGenKvTokens": 5000,
        },
        "specDecodingStats": {"numDraftTokens": 24, "numAcceptedTokens": 12},
    } | more  # fmt: skip


@pytest.mark.parametrize("form", ["a list", "pretty", "lines"])
def test_tensorrt_iterations_are_steps(store: Store, tmp_path: Path, form: str) -> None:
    records = [iteration(i) for i in range(1, 4)]
    text = {
        "a list": json.dumps(records), "pretty": json.dumps(records, indent=2),
        "lines": lines(*records),
    }[form]  # fmt: skip
    load(store, tmp_path, text)
    rows = store.fetchall(
        "select step_index, cadence_ms, n_prefill_tokens, n_chunks, n_decode, n_context_tokens, "
        "n_running, n_waiting, kv_usage_frac, n_drafted, n_accepted from steps order by 1"
    )
    assert rows == [(i, 20, 300, 1, 7, 5000, 8, 3, 0.6, 24, 12) for i in range(1, 4)]
    assert store.fetchall("select engine_name, kv_tokens from epochs") == [("tensorrt-llm", 64000)]


def told_of(id_: int, n_generated: int, position: int, **more: Any) -> Any:
    """A request as an iteration lists it after it: in its prompt until it has a token."""
    stage = "GENERATION_IN_PROGRESS" if n_generated else "CONTEXT_IN_PROGRESS"
    return {
        "id": id_, "stage": stage, "contextPrefillPosition": position,
        "numGeneratedTokens": n_generated, "avgNumDecodedTokensPerIter": 1.0, "scheduled": True,
        "paused": False, "reusedBlocksPerRequest": 0, "missedBlocksPerRequest": 2,
    } | more  # fmt: skip


def batch(n_context: int, n_gen: int, n_tokens: int, n_kv: int = 0) -> Any:
    return {
        "inflightBatchingStats": {
            "numScheduledRequests": n_context + n_gen, "numContextRequests": n_context,
            "numGenRequests": n_gen, "numCtxTokens": n_tokens, "numCtxKvTokens": n_kv,
            "numGenKvTokens": 100 * n_gen,
        }
    }  # fmt: skip


DONE: dict[str, Any] = {"stage": "GENERATION_COMPLETE"}
IDLE: dict[str, Any] = {"stage": "QUEUED", "scheduled": False}
# Three requests, 2049 to 2051, of which the first has its prompt in two chunks and the last waits.
RUN: list[tuple[Any, list[Any]]] = [
    (batch(2, 0, 164), [told_of(2049, 0, 64), told_of(2050, 1, 100), told_of(2051, 0, 0, **IDLE)]),
    (batch(1, 1, 36, 64), [told_of(2049, 1, 100), told_of(2050, 2, 100),
                           told_of(2051, 0, 0, **IDLE)]),
    (batch(1, 2, 30, 64), [told_of(2049, 2, 100), told_of(2050, 3, 100, **DONE),
                           told_of(2051, 1, 94, reusedBlocksPerRequest=1)]),
    # The one that ended is computed once more under the overlap scheduler, and not listed.
    (batch(0, 3, 0), [told_of(2049, 3, 100), told_of(2051, 2, 94)]),
    (batch(0, 2, 0), [told_of(2049, 3, 100, scheduled=False, paused=True), told_of(2051, 3, 94)]),
    (batch(0, 2, 0), [told_of(2049, 4, 100), told_of(2051, 4, 94, **DONE)]),
]  # fmt: skip


def run_of(steps: list[tuple[Any, list[Any]]], **more: Any) -> list[Any]:
    return [
        iteration(i, requestStats=requests, **sizes, **more)
        for i, (sizes, requests) in enumerate(steps, 7)
    ]


def intervals(store: Store) -> list[tuple[int, int, int]]:
    return store.fetchall(
        "select request_index, first_step, last_step from memberships order by 1, 2"
    )


def test_tensorrt_requests_are_members_of_steps(store: Store, tmp_path: Path) -> None:
    load(store, tmp_path, json.dumps(run_of(RUN)))
    assert intervals(store) == [(2049, 9, 10), (2049, 12, 12), (2050, 8, 9), (2051, 10, 12)]
    assert store.fetchall(
        "select step_index, request_index, n_tokens, n_context from chunks order by 1, 2"
    ) == [(7, 2049, 64, 0), (7, 2050, 100, 0), (8, 2049, 36, 64), (9, 2051, 30, 64)]
    assert store.fetchall("select step_index, n_decode, n_chunks from steps order by 1") == [
        (7, 0, 2), (8, 1, 1), (9, 2, 1), (10, 2, 0), (11, 1, 0), (12, 2, 0)
    ]  # fmt: skip
    assert store.fetchall("select step_index, request_index from preemptions") == [(11, 2049)]
    assert store.scalar("select count(*) from read_notes where kind = 'membership_mismatch'") == 0


def long_run(n: int, *missing: int) -> list[Any]:
    """A request that has its prompt in the first iteration and decodes in all others."""
    steps = [(batch(1, 0, 50), [told_of(7, 1, 50)])]
    steps += [(batch(0, 1, 0), [told_of(7, i + 1, 50)]) for i in range(1, n)]
    return [one for one in run_of(steps) if one["iter"] - 7 not in missing]


def test_tensorrt_members_are_known_after_a_lost_iteration(store: Store, tmp_path: Path) -> None:
    load(store, tmp_path, json.dumps(long_run(200, 100)))
    assert intervals(store) == [(7, 8, 106), (7, 108, 206)]


def test_tensorrt_members_are_not_used_where_many_iterations_are_lost(
    store: Store, tmp_path: Path
) -> None:
    """Reading `/metrics` drains it: two readers take iterations from each other."""
    load(store, tmp_path, json.dumps(long_run(200, *range(3, 200, 2))))
    assert intervals(store) == []
    assert store.fetchall("select count(*), sum(n_decode) from steps") == [(101, 100)]
    notes = [text for (text,) in store.fetchall("select text from read_notes")]
    assert any("who was in its steps is not used, for 98 of 199" in text for text in notes)


def test_tensorrt_chunks_whose_sizes_do_not_add_up_are_even(store: Store, tmp_path: Path) -> None:
    told = [told_of(1, 1, 100), told_of(2, 1, 60)]  # 160 in all, where 90 were computed
    load(store, tmp_path, json.dumps(run_of([(batch(2, 0, 90, 10), told)])))
    rows = store.fetchall("select request_index, n_tokens, n_context from chunks order by 1")
    assert rows == [(1, 45, 5), (2, 45, 5)]


def test_tensorrt_chunks_of_requests_that_are_not_listed(store: Store, tmp_path: Path) -> None:
    load(store, tmp_path, json.dumps(run_of([(batch(3, 0, 90), [told_of(1, 1, 30)])])))
    assert store.fetchall("select n_chunks, n_prefill_tokens from steps") == [(3, 90)]
    assert store.fetchall("select request_index, n_tokens from chunks") == [(1, 30)]


def test_tensorrt_iterations_with_requests_say_when_they_began(
    store: Store, tmp_path: Path
) -> None:
    load(store, tmp_path, json.dumps(run_of(RUN)))
    at, end = store.fetchone("select start_ns, end_ns from steps where step_index = 7") or (0, 0)
    assert (at, end) == (T0_MS * MS + 140 * MS, T0_MS * MS + 160 * MS)


def test_tensorrt_ranks_are_engines(store: Store, tmp_path: Path) -> None:
    records = [one for rank in (0, 1) for one in run_of(RUN, attentionDpRank=rank)]
    load(store, tmp_path, json.dumps(records))
    assert store.fetchall("select count(*) from steps group by epoch_key") == [(6,), (6,)]
    assert store.scalar("select count(*) from read_notes where kind = 'duplicate_steps'") == 0


def iteration_with_requests(index: int) -> Any:
    return json.loads(json.dumps(run_of(RUN)[index]))  # damage is done in place


def test_tensorrt_iterations_without_a_time_are_counted(store: Store, tmp_path: Path) -> None:
    records = [iteration(1), iteration(2) | {"timestamp": None}]
    load(store, tmp_path, json.dumps(records))
    assert store.scalar("select count(*) from steps") == 1
    assert store.scalar("select sum(n) from read_notes where kind = 'unusable_spans'") == 1


def answer(number: int, **timings: Any) -> Any:
    return {
        "id": f"chatcmpl-{number}", "object": "chat.completion", "created": T0_MS // 1000 + number,
        "model": "m.gguf", "choices": [{"message": {"content": "text that nobody may read"}}],
        "timings": {
            "cache_n": 236, "prompt_n": 64, "prompt_ms": 120.5, "predicted_n": 41,
            "predicted_ms": 800.25, "predicted_per_second": 51.2,
        } | timings,
    }  # fmt: skip


def test_llama_cpp_answers(store: Store, tmp_path: Path) -> None:
    load(store, tmp_path, lines(answer(0), answer(1)))
    assert (
        store.fetchall(
            "select dialects, n_prompt, n_cached, n_output, ttft_ms, e2e_ms, round(tpot_ms, 6) "
            "from requests"
        )
        == [("llama.cpp", 300, 236, 41, 120.5, 920.75, 20.00625)] * 2
    )
    assert store.fetchall(
        "select distinct kind, (end_ns - start_ns) / 1e6, n_tokens from phases order by 1"
    ) == [("decode", 800.25, 40), ("prefill", 120.5, 64)]
    notes = [text for (text,) in store.fetchall("select text from read_notes")]
    assert any("say only in which second they were done" in text for text in notes)
    for file in tmp_path.rglob("*.parquet"):
        assert b"nobody may read" not in file.read_bytes()


def test_records_that_say_no_moment_are_refused_in_one_line(store: Store, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        load(store, tmp_path, lines({k: v for k, v in answer(0).items() if k != "created"}))
    assert "\n" not in str(caught.value)


class Kept:
    """Stands in for a sink and its columns: keeps the spans."""

    def __init__(self) -> None:
        self.columns = self
        self.spans: list[Any] = []

    def add(self, _source: str, _resource: Any, _scope: str, spans: list[Any]) -> None:
        self.spans += spans


@pytest.mark.parametrize(
    "make", [forward_pass, dynamo_request, iteration, iteration_with_requests, answer]
)
def test_damaged_records_are_counted_or_refused(make: Callable[[int], Any]) -> None:
    chance = random.Random(make.__name__)
    n_kept = n_refused = 0
    for _ in range(400):
        record = make(1)
        for _ in range(chance.randint(1, 4)):
            damage(record, chance)
        sink, seen = Kept(), Seen()
        reader = EngineRecordReader(cast("Sink", sink))
        try:
            reader.read(json.dumps(record).encode(), "x", seen)
        except TextError:
            n_refused += 1
            continue
        assert len(sink.spans) + seen.n_bad_spans == 1
        for span in sink.spans:
            n_kept += 1
            assert 0 < span.start_time_unix_nano < 2**62
            assert span.end_time_unix_nano is None or span.end_time_unix_nano < 2**62
            assert all(len(a.value.array_value.values) <= 65_536 for a in span.attributes
                       if a.value.array_value is not None)  # fmt: skip
    assert n_kept > 30
    assert n_refused > 20
