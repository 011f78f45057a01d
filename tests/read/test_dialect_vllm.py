"""vLLM's own request spans: one flat span a request, in seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenlag.store.connection import Store
from tokenlag_tracer import conventions as c

from tests.read.span_rows import MS, T0, Row, load_rows, span

Load = Callable[..., Store]
RESOURCE = {c.SERVICE_INSTANCE_ID: "proc-1", c.SERVICE_NAME: "vllm"}


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    with Store() as store:

        def run(rows: list[Row]) -> Store:
            load_rows(store, tmp_path, rows)
            return store

        yield run


def vllm(start: float = 0, end: float = 1000, **attributes: Any) -> Row:
    told: dict[str, Any] = {
        "gen_ai.latency.time_to_first_token": 0.4,
        "gen_ai.latency.e2e": 1.0,
        "gen_ai.latency.time_in_queue": 0.25,
        "gen_ai.latency.time_in_model_prefill": 0.1,
        "gen_ai.latency.time_in_model_decode": 0.59,
        "gen_ai.latency.time_in_model_inference": 0.69,
        "gen_ai.usage.prompt_tokens": 700,
        "gen_ai.usage.completion_tokens": 7,
        c.REQUEST_ID: "cmpl-r0-0",
        c.REQUEST_MAX_TOKENS: 7,
        "gen_ai.request.n": 1,
    }
    keys = {"trace", "id_", "parent", "scope", "resource", "status"}
    frame = {key: attributes.pop(key) for key in keys & set(attributes)}
    told |= {f"gen_ai.latency.{k}" if not k.startswith("gen_ai") else k: v
             for k, v in attributes.items()}  # fmt: skip
    return span(
        "llm_request", start, end, kind=c.KIND_SERVER,
        **({"scope": "vllm.tracing.otel", "resource": RESOURCE} | frame),
        **{k: v for k, v in told.items() if v is not None},
    )  # fmt: skip


def phases(store: Store) -> list[tuple[str, float, float, str]]:
    return [
        (kind, (start - T0) / MS, (end - T0) / MS, origin)
        for kind, start, end, origin in store.fetchall(
            "select kind, start_ns, end_ns, origin from phases order by start_ns, end_ns"
        )
    ]


def test_phases_of_a_request_span(load: Load) -> None:
    store = load([vllm()])
    assert phases(store) == [
        ("frontend", 0, 50, "derived"),  # TTFT − queue − prefill
        ("queue", 50, 300, "measured"),
        ("prefill", 300, 400, "measured"),
        ("decode", 400, 990, "measured"),
        ("uncovered", 990, 1000, "derived"),
    ]
    assert store.fetchall(
        "select ttft_ms, ttft_origin, e2e_ms, n_prompt, n_output, n_max_output, tpot_ms, dialects,"
        " n_cached, n_preemptions from requests"
    ) == [(400, "measured", 1000, 700, 7, 7, 100, "vllm", None, None)]
    assert store.fetchall("select engine_id, engine_name, epoch from epochs") == [
        ("proc-1", "vllm", None)
    ]
    assert store.fetchall("select epoch_key, request_key, request_index from sequences") == [
        (0, 0, None)
    ]


@pytest.mark.parametrize("unknown", [-1, None])
def test_minus_one_and_missing_are_not_measured(load: Load, unknown: float | None) -> None:
    store = load([vllm(time_in_queue=unknown)])
    assert phases(store) == [
        ("uncovered", 0, 300, "derived"),  # what is before the prefill is not known
        ("prefill", 300, 400, "measured"),
        ("decode", 400, 990, "measured"),
        ("uncovered", 990, 1000, "derived"),
    ]


def test_no_latency_at_all(load: Load) -> None:
    store = load([
        vllm(time_to_first_token=None, time_in_queue=-1, time_in_model_prefill=-1,
             time_in_model_decode=-1, time_in_model_inference=-1)
    ])  # fmt: skip
    assert phases(store) == [("uncovered", 0, 1000, "derived")]
    assert store.fetchall("select ttft_ms, e2e_ms from requests") == [(None, 1000)]
    assert store.fetchall("select n from quality where kind = 'no_phases'") == [(1,)]


def test_the_engines_phases_may_exceed_the_front_ends_ttft(load: Load) -> None:
    store = load([vllm(time_in_queue=0.32)])
    told = phases(store)
    assert [kind for kind, *_ in told] == ["queue", "prefill", "decode", "uncovered"]
    assert sum(end - start for _, start, end, _ in told) == 1000


def test_older_names_give_prefill_as_what_is_left_of_ttft(load: Load) -> None:
    store = load([
        vllm(time_in_model_prefill=None, time_in_model_decode=None, time_in_model_inference=None,
             time_in_scheduler=0.001, time_in_model_forward=0.2, time_in_model_execute=0.3)
    ])  # fmt: skip
    assert phases(store) == [
        ("queue", 0, 250, "measured"),
        ("prefill", 250, 400, "derived"),
        ("decode", 400, 1000, "derived"),
    ]
    assert store.fetchall("select detail from phases where kind = 'prefill'") == [
        ("includes frontend",)
    ]


def test_milliseconds_in_the_place_of_seconds_are_noticed(load: Load) -> None:
    store = load([
        vllm(time_to_first_token=400.0, e2e=1000.0, time_in_queue=250.0,
             time_in_model_prefill=100.0, time_in_model_decode=590.0)
    ])  # fmt: skip
    assert store.fetchall("select ttft_ms from requests") == [(400,)]
    assert phases(store)[1] == ("queue", 50, 300, "measured")
    assert store.fetchall("select n from quality where kind = 'milliseconds'") == [(1,)]


def test_nonsense_is_not_believed(load: Load) -> None:
    store = load([vllm(time_to_first_token=1.8e9, time_in_queue=1.8e9)])
    assert store.fetchall("select ttft_ms from requests") == [(None,)]
    assert "queue" not in [kind for kind, *_ in phases(store)]


def test_start_up_spans_are_set_aside_and_counted(load: Load) -> None:
    module = RESOURCE | {"vllm.instrumenting_module_name": "vllm.engine_core"}
    store = load([
        vllm(),
        span("Overall Loading", -9000, -1, scope="vllm.v1.engine.core_client", resource=module),
        span("Load weights", -8000, -7000, scope="", resource=module),
    ])  # fmt: skip
    assert store.fetchall("select count(*) from requests") == [(1,)]
    assert store.fetchall("select kind, place, n from read_notes") == [("startup_spans", "vllm", 2)]


def test_n_sequences_come_as_n_spans_that_each_say_one(load: Load) -> None:
    store = load([
        vllm(id_="s1", parent="outer"),
        vllm(id_="s2", parent="outer", end=1100, e2e=1.1),
        vllm(id_="s3", parent="outer", start=2000, end=3000),  # the same id again, later
    ])  # fmt: skip
    assert store.fetchall(
        "select n_choices, n_output, e2e_ms, tpot_ms from requests order by arrival_ns"
    ) == [(2, 14, 1100, pytest.approx(700 / 6)), (1, 7, 1000, 100)]
    assert store.fetchall("select request_key, sequence from sequences order by 1, 2") == [
        (0, 0), (0, 1), (1, 0),
    ]  # fmt: skip


def test_child_spans_are_better_than_attributes(load: Load) -> None:
    store = load([
        vllm(id_="s1"),
        span("vllm_queue", 40, 260, parent="s1", resource=RESOURCE),
        span("vllm_prefill", 260, 395, parent="s1", resource=RESOURCE),
        span("vllm_decode", 395, 1000, parent="s1", resource=RESOURCE),
    ])  # fmt: skip
    assert phases(store) == [
        ("uncovered", 0, 40, "derived"),
        ("queue", 40, 260, "measured"),
        ("prefill", 260, 395, "measured"),
        ("decode", 395, 1000, "measured"),
    ]


def contract(
    name: str, start: float, end: float, *, engine: bool = True, **attributes: Any
) -> list[Row]:
    key = f"k-{name}"
    rows = [
        span(c.SPAN_REQUEST, start, end, id_=key, kind=c.KIND_SERVER,
             **({"REQUEST_ID": name, "TENANT": "t"} | attributes))
    ]  # fmt: skip
    if engine:
        rows += [
            span(c.SPAN_ENGINE_REQUEST, start + 5, end, id_=key + "e", parent=key, REQUEST_ID=name,
                 ENGINE_ID="e0", REQUEST_INDEX=1),
            span(c.SPAN_QUEUE, start + 5, start + 300, parent=key + "e"),
            span(c.SPAN_PREFILL, start + 300, start + 400, parent=key + "e"),
        ]  # fmt: skip
    return rows


@pytest.mark.parametrize(
    ("ours", "theirs"), [("r0", "cmpl-r0-0"), ("r0", "r0"), ("abc", "chatcmpl-abc"), ("x", "other")]
)
def test_one_request_seen_by_two_is_one_row(load: Load, ours: str, theirs: str) -> None:
    store = load([*contract(ours, -2, 1001), vllm(**{c.REQUEST_ID: theirs})])
    assert store.fetchall(
        "select request_id, dialects, tenant, e2e_ms, n_prompt, n_output from requests"
    ) == [(ours, "contract,vllm", "t", 1003, 700, 7)]
    assert store.fetchall("select count(*), min(engine_id) from epochs") == [(1, "e0")]
    assert store.fetchall("select count(*) from sequences") == [(1,)]
    # The contract's engine phases, none of vLLM's; the front end's only vLLM told.
    assert [kind for kind, *_ in phases(store)][:4] == ["uncovered", "frontend", "queue", "prefill"]


def test_where_the_contract_knows_no_engine_the_phases_are_vllms(load: Load) -> None:
    store = load([*contract("r0", -2, 1001, engine=False), vllm()])
    assert [kind for kind, *_ in phases(store)] == [
        "uncovered", "frontend", "queue", "prefill", "decode", "uncovered", "delivery",
    ]  # fmt: skip
    assert store.fetchall("select ttft_ms from requests") == [(400,)]


def test_two_of_each_in_a_trace_go_by_their_ids(load: Load) -> None:
    store = load([
        *contract("r0", 0, 1000), *contract("r1", 10, 1010),
        vllm(start=10, end=1010, **{c.REQUEST_ID: "cmpl-r1-0"}), vllm(end=1000),
        vllm(start=500, end=1500, **{c.REQUEST_ID: "cmpl-r7-0"}),
    ])  # fmt: skip
    assert store.fetchall("select request_id, dialects from requests order by arrival_ns") == [
        ("r0", "contract,vllm"),
        ("r1", "contract,vllm"),
        ("cmpl-r7-0", "vllm"),
    ]


def test_what_only_vllm_told_runs_on_the_same_engine(load: Load) -> None:
    warm = vllm(start=-5000, end=-4000, trace="b" * 32, **{c.REQUEST_ID: "cmpl-warm-0"})
    store = load([*contract("r0", -2, 1001), vllm(), warm])
    assert store.fetchall("select distinct engine_id from epochs") == [("e0",)]
    assert store.fetchall("select count(*) from sequences where epoch_key = 0") == [(2,)]
