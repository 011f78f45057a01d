"""Gateways and routers: held, sent on, and one row with what is behind them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenlag.store.connection import Store
from tokenlag_tracer import conventions as c

from tests.read.span_rows import T0, Row, load_rows, span

Load = Callable[..., Store]
SERVER, CLIENT, INTERNAL = c.KIND_SERVER, c.KIND_CLIENT, c.KIND_INTERNAL


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    with Store() as store:

        def run(rows: list[Row]) -> Store:
            load_rows(store, tmp_path, rows)
            return store

        yield run


def llm_request(parent: str | None, start: float, end: float, **more: Any) -> Row:
    keys = {
        "gen_ai.latency.time_to_first_token": 0.2, "gen_ai.latency.time_in_queue": 0.05,
        "gen_ai.latency.time_in_model_prefill": 0.14, "gen_ai.usage.prompt_tokens": 50,
        "gen_ai.usage.completion_tokens": 9,
    }  # fmt: skip
    return span(
        "llm_request", start, end, parent=parent, kind=SERVER, scope="vllm.tracing.otel",
        **(keys | more),
    )  # fmt: skip


def production_stack(start: float = 0, sent: float = 120, end: float = 1000) -> list[Row]:
    return [
        span("router /v1/chat/completions", start, end, id_="1" * 16, kind=SERVER, scope="r",
             resource={"service.name": "router", "service.instance.id": "router-1"},
             **{"vllm.request_id": "abc", "vllm.model": "m"}),
        span("process_request", sent, end - 2, id_="2" * 16, parent="1" * 16, kind=CLIENT,
             scope="r"),
    ]  # fmt: skip


def hops(store: Store) -> list[tuple[Any, ...]]:
    return store.fetchall(
        "select gateway, instance, (start_ns - $1) / 1e6, (upstream_ns - $1) / 1e6, "
        "(upstream_end_ns - $1) / 1e6, (end_ns - $1) / 1e6 from hops order by start_ns",
        [T0],
    )


def test_production_stack_and_the_engine_behind_it_are_one_request(load: Load) -> None:
    store = load([*production_stack(), llm_request("2" * 16, 125, 990)])
    assert hops(store) == [("production-stack", "router-1", 0, 120, 998, 1000)]
    assert store.fetchall(
        "select dialects, (sent_ns - $1) / 1e6, (arrival_ns - $1) / 1e6, ttft_ms, "
        "(client_end_ns - $1) / 1e6, n_prompt, model from requests",
        [T0],
    ) == [("vllm,production-stack", 0, 125, 200, 1000, 50, "m")]


def test_a_gateway_alone_is_what_its_caller_saw(load: Load) -> None:
    store = load(production_stack())
    assert store.fetchall("select dialects, request_id, model, e2e_ms, ttft_ms from requests") == [
        ("production-stack", "abc", "m", 1000, None)
    ]
    assert hops(store) == [("production-stack", "router-1", 0, 120, 998, 1000)]


def test_a_client_before_the_gateway_is_the_outermost(load: Load) -> None:
    rows = [*production_stack(10, 120, 1000), llm_request("2" * 16, 125, 990)]
    rows[0]["parent_id"] = "c" * 16
    client = span("chat m", 0, 1010, id_="c" * 16, kind=CLIENT, scope="sdk", OPERATION_NAME="chat",
                  REQUEST_MODEL="m", TIME_TO_FIRST_CHUNK=0.4)  # fmt: skip
    store = load([client, *rows])
    assert store.fetchall(
        "select dialects, (sent_ns - $1) / 1e6, (client_end_ns - $1) / 1e6 from requests", [T0]
    ) == [("vllm,genai-client", 0, 1010)]
    assert hops(store) == [("production-stack", "router-1", 10, 120, 998, 1000)]


def litellm(*inner: Row) -> list[Row]:
    return [
        span("Received Proxy Server Request", 0, 900, id_="1" * 16, kind=SERVER, scope="litellm",
             resource={"service.name": "litellm"}),
        *inner,
    ]  # fmt: skip


def litellm_call(name: str, id_: str, parent: str, kind: int = INTERNAL) -> Row:
    return span(
        name, 40, 890, id_=id_ * 16, parent=parent * 16, kind=kind, scope="litellm",
        REQUEST_MODEL="m", USAGE_INPUT_TOKENS=50, USAGE_OUTPUT_TOKENS=9,
        **{"gen_ai.response.id": "chatcmpl-9"},
    )  # fmt: skip


@pytest.mark.parametrize(
    "inner",
    [
        [("litellm_request", "2", "1", INTERNAL), ("raw_gen_ai_request", "3", "2", INTERNAL)],
        [("raw_gen_ai_request", "3", "1", INTERNAL)],  # without the nested span, since 1.81
        [("chat m", "3", "1", CLIENT)],  # the second form, named by the conventions
    ],
    ids=["nested", "flat", "semconv"],
)
def test_litellm_in_each_of_its_forms(load: Load, inner: list[tuple[str, str, str, int]]) -> None:
    rows = litellm(*(litellm_call(*one) for one in inner))
    store = load([*rows, llm_request(inner[-1][1] * 16, 60, 880)])
    assert hops(store) == [("litellm", "litellm", 0, 40, 890, 900)]
    assert store.fetchall(
        "select dialects, n_prompt, n_output, (sent_ns - $1) / 1e6 from requests", [T0]
    ) == [("vllm,litellm", 50, 9, 0)]


def test_litellm_without_a_common_trace_joins_by_the_answers_id(load: Load) -> None:
    rows = litellm(litellm_call("litellm_request", "2", "1"))
    engine = llm_request(None, 60, 880, trace="b" * 32, REQUEST_ID="chatcmpl-9")
    store = load([*rows, engine])
    assert store.fetchall("select dialects from requests") == [("vllm,litellm",)]
    assert [row[0] for row in hops(store)] == ["litellm"]


def test_llm_d_holds_until_it_has_chosen(load: Load) -> None:
    store = load([
        span("gateway.request", 0, 900, id_="1" * 16, kind=SERVER, scope="epp", REQUEST_MODEL="m"),
        span("gateway.request_orchestration", 1, 31, id_="2" * 16, parent="1" * 16, scope="epp"),
        span("run_scheduler_profile", 2, 30, id_="3" * 16, parent="2" * 16, scope="epp"),
        span("forward_request", 35, 890, id_="4" * 16, parent="1" * 16, kind=SERVER, scope="s"),
        span("prefill", 36, 300, id_="5" * 16, parent="4" * 16, kind=CLIENT, scope="s"),
        llm_request("5" * 16, 40, 290),
    ])  # fmt: skip
    assert hops(store) == [
        ("llm-d", None, 0, 31, None, 900), ("llm-d-sidecar", None, 35, 36, 300, 890),
    ]  # fmt: skip
    assert store.fetchall("select dialects from requests") == [("vllm,llm-d",)]


def test_dynamo(load: Load) -> None:
    store = load([
        span("http-request", 0, 900, id_="1" * 16, kind=SERVER, scope="d", **{"x_request_id": "q"}),
        span("kv_router.route_request", 5, 9, id_="2" * 16, parent="1" * 16, scope="d"),
        span("handle_payload", 12, 880, id_="3" * 16, parent="1" * 16, scope="d"),
        llm_request("3" * 16, 14, 870),
    ])  # fmt: skip
    assert hops(store) == [("dynamo-frontend", None, 0, 12, 880, 900)]
    assert store.fetchall("select dialects from requests") == [("vllm,dynamo-frontend",)]


def test_dynamo_with_the_routing_alone(load: Load) -> None:
    store = load([
        span("http-request", 0, 900, id_="1" * 16, kind=SERVER, scope="d"),
        span("router.route_request", 5, 9, id_="2" * 16, parent="1" * 16, scope="d"),
    ])  # fmt: skip
    assert hops(store) == [("dynamo-frontend", None, 0, 9, None, 900)]


def test_what_was_never_sent_on(load: Load) -> None:
    store = load(production_stack()[:1])
    assert hops(store) == [("production-stack", "router-1", 0, None, None, 1000)]


def test_other_peoples_web_spans_are_no_gateways(load: Load) -> None:
    store = load([
        span("GET /health", 0, 1, kind=SERVER, scope="web"),
        llm_request(None, 40, 880),
    ])  # fmt: skip
    assert hops(store) == []
