"""TGI, TensorRT-LLM, Dynamo's workers, vLLM's proposed children, and other clients' spans."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenlag.store.connection import Store
from tokenlag_tracer import conventions as c

from tests.read.span_rows import T0, Row, load_rows, span

Load = Callable[..., Store]


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    with Store() as store:

        def run(rows: list[Row]) -> Store:
            load_rows(store, tmp_path, rows)
            return store

        yield run


def phases(store: Store) -> list[tuple[Any, ...]]:
    return store.fetchall(
        "select kind, detail, (start_ns - $1) / 1e6, (end_ns - $1) / 1e6 from phases "
        "where kind <> 'uncovered' order by start_ns, end_ns",
        [T0],
    )


# --- text-generation-inference ------------------------------------------------------------


def tgi(name: str = "generate_stream", **more: Any) -> Row:
    told = {
        "total_time": "1.005s", "validation_time": "500µs", "queue_time": "204.5ms",
        "inference_time": "800ms", "time_per_token": "16ms",
    }  # fmt: skip
    keys = {k: v for k, v in (told | more).items() if v is not None and k != "total_time"}
    return span(name, 0, 1005, kind=c.KIND_SERVER, scope="text-generation-router",
                resource={"service.name": "tgi.router"}, **keys)  # fmt: skip


def test_tgi_durations_are_read_as_rust_prints_them(load: Load) -> None:
    store = load([tgi()])
    assert store.fetchall(
        "select dialects, n_prompt, n_output, ttft_ms, e2e_ms, is_prefill_only from requests"
    ) == [("tgi", None, 50, None, 1005, False)]
    assert phases(store) == [
        ("frontend", "preprocess", 0, 0.5),
        ("queue", "arrival", 0.5, 205),
        ("decode", "includes prefill", 205, 1005),
    ]
    assert store.fetchall("select engine_name from epochs") == [("tgi",)]
    notes = [text for (text,) in store.fetchall("select text from read_notes")]
    assert any("do not say when their first token came" in text for text in notes)


def test_tgi_counts_where_it_tells_them(load: Load) -> None:
    store = load([tgi(prompt_tokens="812", generated_tokens="49")])
    assert store.fetchall("select n_prompt, n_output from requests") == [(812, 49)]


def test_tgi_batches_are_counted_and_not_used(load: Load) -> None:
    store = load([tgi(), *(span("batch", 210 + i, 211 + i, scope="r") for i in range(5))])
    notes = [text for (text,) in store.fetchall("select text from read_notes")]
    assert any(text.startswith("5 batch spans") for text in notes)


@pytest.mark.parametrize("nonsense", ["fast", "", "12", "1.2.3ms", "-5ms"])
def test_tgi_nonsense_is_no_duration(load: Load, nonsense: str) -> None:
    store = load([tgi(queue_time=nonsense)])
    assert [kind for kind, *_ in phases(store)] == ["frontend"]


def test_other_peoples_generate_spans_are_not_tgi(load: Load) -> None:
    store = load([tgi(), span("generate", 0, 10, trace="b" * 32, scope="app")])
    assert store.fetchall("select dialects from requests") == [("tgi",)]


# --- TensorRT-LLM -------------------------------------------------------------------------


def tensorrt(**more: Any) -> Row:
    told = {
        "gen_ai.latency.time_to_first_token": 0.5, "gen_ai.latency.e2e": 2.0,
        "gen_ai.latency.time_in_queue": 0.1, "gen_ai.usage.prompt_tokens": 800,
        "gen_ai.usage.completion_tokens": 31,
    }  # fmt: skip
    return span("llm_request", 0, 2000, kind=c.KIND_SERVER, scope="tensorrt_llm.tracing",
                **{k: v for k, v in (told | more).items() if v is not None})  # fmt: skip


def test_tensorrt_prefill_is_what_the_first_token_took_beyond_the_queue(load: Load) -> None:
    store = load([tensorrt()])
    assert phases(store) == [
        ("queue", None, 0, 100), ("prefill", "includes frontend", 100, 500),
        ("decode", None, 500, 2000),
    ]  # fmt: skip
    assert store.fetchall("select engine_name from epochs") == [("tensorrt-llm",)]


def test_tensorrt_kv_transfer_is_a_wait_of_its_own(load: Load) -> None:
    store = load([tensorrt(**{"gen_ai.latency.kv_cache_transfer_time": 0.15})])
    assert phases(store)[:3] == [
        ("queue", None, 0, 100), ("queue", "kv_transfer", 100, 250),
        ("prefill", "includes frontend", 250, 500),
    ]  # fmt: skip


def test_tensorrt_minus_one_is_unknown(load: Load) -> None:
    store = load([tensorrt(**{"gen_ai.latency.time_in_queue": -1.0})])
    assert [kind for kind, *_ in phases(store)] == ["decode"]


# --- vLLM's proposed children ----------------------------------------------------------------


def test_vllm_children_go_before_attributes(load: Load) -> None:
    parent = span("llm_request", 0, 1000, id_="1" * 16, kind=c.KIND_SERVER,
                  scope="vllm.tracing.otel",
                  **{"gen_ai.latency.time_to_first_token": 0.4})  # fmt: skip
    spots = [
        ("vllm_queue", 10, 110), ("vllm_async_kv_transfer", 110, 160), ("vllm_prefill", 160, 400),
        ("vllm_decode", 400, 1000), ("vllm_step_execution", 400, 420),
    ]  # fmt: skip
    store = load([
        parent,
        *(span(n, a, b, parent="1" * 16, scope="vllm.tracing.otel") for n, a, b in spots),
    ])  # fmt: skip
    assert phases(store) == [
        ("queue", None, 10, 110), ("queue", "kv_transfer", 110, 160), ("prefill", None, 160, 400),
        ("decode", None, 400, 1000),
    ]  # fmt: skip
    assert store.fetchall("select text from read_notes where kind = 'startup_spans'") == []


# --- Dynamo ------------------------------------------------------------------------------------


def generate(start: float, end: float, *, role: str | None = None, **more: Any) -> Row:
    keys = {"model": "m", "input_tokens": 900, "output_tokens": 20, "ttft_ms": 150.0} | more
    if role:
        keys["disagg_role"] = role
    return span("engine.generate", start, end, scope="dynamo", **keys)


def test_dynamo_without_the_engines_own_spans(load: Load) -> None:
    store = load([
        span("http-request", 0, 900, id_="1" * 16, kind=c.KIND_SERVER, scope="d"),
        span("handle_payload", 12, 890, id_="3" * 16, parent="1" * 16, scope="d"),
        generate(14, 880, parent="3" * 16),
    ])  # fmt: skip
    assert store.fetchall(
        "select dialects, n_prompt, n_output, ttft_ms, (sent_ns - $1) / 1e6 from requests", [T0]
    ) == [("dynamo,dynamo-frontend", 900, 20, 150, 0)]
    assert store.fetchall("select gateway from hops") == [("dynamo-frontend",)]


def test_dynamo_beside_the_engines_own_spans_adds_no_second_request(load: Load) -> None:
    store = load([generate(14, 880), tensorrt()])
    assert store.fetchall("select dialects from requests") == [("vllm",)]


def test_dynamo_prefill_and_decode_workers_are_one_request(load: Load) -> None:
    store = load([
        generate(0, 300, role="prefill", output_tokens=1, ttft_ms=290.0),
        generate(310, 900, role="decode", ttft_ms=40.0),
    ])  # fmt: skip
    assert store.fetchall("select dialects, ttft_ms, n_output from requests") == [
        ("dynamo", 350, 20)
    ]
    assert store.fetchall("select role from sequences order by start_ns") == [
        ("prefill",), ("decode",)
    ]  # fmt: skip


# --- clients ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind", "keys", "told"),
    [
        (
            "ChatCompletion", c.KIND_INTERNAL,
            {"openinference.span.kind": "LLM", "llm.model_name": "m",
             "llm.token_count.prompt": 50, "llm.token_count.completion": 9,
             "llm.token_count.prompt_details.cache_read": 16, "session.id": "s1"},
            ("m", "chat", 50, 9, 16, "s1", None),
        ),
        (
            "openai.chat", c.KIND_CLIENT,
            {"llm.request.type": "chat", "gen_ai.request.model": "m",
             "gen_ai.usage.prompt_tokens": 50, "gen_ai.usage.completion_tokens": 9,
             "gen_ai.usage.cache_read_input_tokens": 16},
            ("m", "chat", 50, 9, 16, None, None),
        ),
        (
            "openai.completion", c.KIND_CLIENT,
            {"llm.request.type": "completion", "llm.request.model": "m",
             "gen_ai.usage.prompt_tokens": 50, "gen_ai.usage.completion_tokens": 9},
            ("m", "text_completion", 50, 9, None, None, None),
        ),
        (
            "chat m", c.KIND_CLIENT,
            {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m",
             "gen_ai.usage.input_tokens": 50, "gen_ai.usage.output_tokens": 9,
             "gen_ai.server.time_to_first_token": 0.25},
            ("m", "chat", 50, 9, None, None, 250),
        ),
        (
            "ai.streamText.doStream", c.KIND_INTERNAL,
            {"ai.model.id": "m", "ai.response.msToFirstChunk": 321.5,
             "ai.usage.promptTokens": 50, "ai.usage.completionTokens": 9},
            ("m", None, 50, 9, None, None, 321.5),
        ),
    ],
    ids=["openinference", "openllmetry", "openllmetry-old", "openlit", "vercel"],
)  # fmt: skip
def test_clients_of_other_instrumentations(
    load: Load, name: str, kind: int, keys: dict[str, Any], told: tuple[Any, ...]
) -> None:
    store = load([span(name, 0, 900, kind=kind, scope="app", **keys)])
    assert store.fetchall(
        "select model, operation, n_prompt, n_output, n_cached, conversation_id, ttft_ms "
        "from requests where dialects = 'genai-client'"
    ) == [told]


def test_a_chain_around_a_call_is_no_request(load: Load) -> None:
    chain = {"openinference.span.kind": "CHAIN"}
    llm = {"openinference.span.kind": "LLM", "llm.model_name": "m"}
    store = load([
        span("agent", 0, 1000, id_="1" * 16, scope="app", **chain),
        span("ChatCompletion", 10, 500, parent="1" * 16, scope="app", **llm),
        span("ChatCompletion", 510, 990, parent="1" * 16, scope="app", **llm),
    ])  # fmt: skip
    assert store.scalar("select count(*) from requests") == 2


def test_two_instrumentations_of_one_call_are_one_request(load: Load) -> None:
    outer = {"openinference.span.kind": "LLM", "llm.model_name": "m"}
    inner = {"llm.request.type": "chat", "gen_ai.request.model": "m"}
    store = load([
        span("ChatCompletion", 0, 900, id_="1" * 16, scope="a", **outer),
        span("openai.chat", 1, 899, parent="1" * 16, kind=c.KIND_CLIENT, scope="b", **inner),
    ])  # fmt: skip
    assert store.fetchall("select e2e_ms from requests") == [(900,)]
