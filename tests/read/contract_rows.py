"""Contract spans of one request and of steps, and how tests look at what became of them."""

from __future__ import annotations

from typing import Any

from tokenlag.store.connection import Store
from tokenlag_tracer import conventions as c

from tests.read.span_rows import MS, T0, Row, span

EPOCH = T0 - 60_000 * MS
ENGINE = {c.SERVICE_INSTANCE_ID: "e0", c.ENGINE_NAME: "vllm", c.CONFIG_HASH: "cafe"}
FRONT = {c.SERVICE_INSTANCE_ID: "api", c.HOST_NAME: "h1"}
CLIENT = {c.SERVICE_INSTANCE_ID: "load", c.HOST_NAME: "h1"}


def request(
    name: str = "r0",
    at: float = 0,
    *,
    trace: str = "a" * 32,
    index: int = 0,
    engine_trace: str | None = None,
    compact: bool = False,
    client: bool = True,
    front: bool = True,
    parts: bool = True,
    **more: Any,
) -> list[Row]:
    """One request: sent at `at`, received +2, engine +5, scheduled +15, first token +35,
    last token +75, end +80 (ms)."""
    own = {c.ENGINE_ID: "e0", c.ENGINE_EPOCH: EPOCH, c.REQUEST_INDEX: index}
    usage = {c.USAGE_INPUT_TOKENS: 100, c.USAGE_OUTPUT_TOKENS: 5, c.USAGE_CACHED_TOKENS: 20}
    key = f"{trace[:4]}{name}"
    rows = []
    if client:
        rows += [
            span(
                f"chat {name}", at, at + 85, trace=trace, id_=f"{key}-c", kind=c.KIND_CLIENT,
                resource=CLIENT, REQUEST_ID=name, OPERATION_NAME="chat", REQUEST_MODEL="m",
                TIME_TO_FIRST_CHUNK=0.040, CLIENT_INTENDED_NS=1 * MS, CLIENT_GAP_P50_NS=10 * MS,
                CLIENT_GAP_MAX_NS=12 * MS,
            ),
            span(
                c.SPAN_NETWORK, at, at + 2, trace=trace, parent=f"{key}-c", DIRECTION="in",
                CLOCK="same", resource=CLIENT,
            ),
        ]  # fmt: skip
    if front:
        rows += [
            span(
                c.SPAN_REQUEST, at + 2, at + 80, trace=trace, id_=f"{key}-r", kind=c.KIND_SERVER,
                parent=f"{key}-c" if client else None, resource=FRONT,
                **({"REQUEST_ID": name, "OPERATION_NAME": "chat", "REQUEST_MODEL": "m",
                    "FINISH_REASONS": ["length"], "TENANT": "t", "REQUEST_MAX_TOKENS": 5,
                    "FIRST_TOKEN_NS": 33 * MS, "LAST_TOKEN_NS": 73 * MS}
                   | usage | (own if compact else {}) | more),
            ),
            span(c.SPAN_FRONTEND, at + 2, at + 5, trace=trace, parent=f"{key}-r", STAGE="tokenize",
                 resource=FRONT),
        ]  # fmt: skip
    where = engine_trace or trace
    parent = f"{key}-r" if compact else f"{key}-e"
    if not compact:
        rows.append(
            span(
                c.SPAN_ENGINE_REQUEST, at + 5, at + 75, trace=where, id_=f"{key}-e",
                parent=f"{key}-r" if where == trace and front else None, resource=ENGINE,
                **({"REQUEST_ID": name, "SEQUENCE": 0, "PREEMPTIONS": 0} | own | usage),
            )
        )  # fmt: skip
    if parts:
        rows += [
            span(c.SPAN_QUEUE, at + 5, at + 15, trace=where, parent=parent, resource=ENGINE,
                 QUEUE_REASON="arrival"),
            span(c.SPAN_PREFILL, at + 15, at + 35, trace=where, parent=parent, id_=f"{key}-p",
                 resource=ENGINE, PREFILL_TOKENS=80, PREFILL_RECOMPUTE=False),
            span(c.SPAN_PREFILL_CHUNK, at + 15, at + 35, trace=where, parent=f"{key}-p",
                 resource=ENGINE, STEP_INDEX=0, CHUNK_TOKENS=80, CHUNK_CONTEXT=20),
            span(c.SPAN_DECODE, at + 35, at + 75, trace=where, parent=parent, resource=ENGINE,
                 DECODE_FIRST_STEP=1, DECODE_LAST_STEP=4, DECODE_TOKENS=4),
        ]  # fmt: skip
    return rows


def step(
    index: int, start: float, end: float, *, engine: str = "e0", resource: Row | None = None,
    epoch: int | None = EPOCH, count: int = 0, **attributes: Any,
) -> Row:  # fmt: skip
    told = {"ENGINE_ID": engine, "STEP_INDEX": index, "STEP_DECODE_COUNT": count}
    if epoch is not None:
        told["ENGINE_EPOCH"] = epoch
    return span(
        c.SPAN_ENGINE_STEP, start, end, trace="f" * 32, resource=resource or ENGINE,
        **(told | attributes),
    )  # fmt: skip


STEPS = [
    step(0, 15, 35, STEP_PREFILL_REQUESTS=[0], STEP_PREFILL_TOKENS=[80],
         STEP_PREFILL_CONTEXT=[20], STEP_RUNNING=1, STEP_WAITING=0),
    step(1, 35, 45, count=1, STEP_DECODE_JOINED="0", STEP_RUNNING=1),
    step(2, 45, 55, count=1, STEP_RUNNING=1),
    step(3, 55, 65, count=1, STEP_RUNNING=1),
    step(4, 65, 75, count=1, STEP_RUNNING=1),
]  # fmt: skip


def phases(store: Store, key: int = 0) -> list[tuple[str, str | None, float, float]]:
    return [
        (kind, detail, (start - T0) / MS, (end - T0) / MS)
        for kind, detail, start, end in store.fetchall(
            "select kind, detail, start_ns, end_ns from phases where request_key = ? "
            "order by start_ns, end_ns",
            [key],
        )
    ]


def one(store: Store, sql: str) -> Any:
    rows = store.fetchall(sql)
    assert len(rows) == 1, rows
    return rows[0] if len(rows[0]) > 1 else rows[0][0]


WHOLE = [
    ("network_in", None, 0, 2),
    ("frontend", "tokenize", 2, 5),
    ("queue", "arrival", 5, 15),
    ("prefill", None, 15, 35),
    ("decode", None, 35, 75),
    ("delivery", None, 75, 80),
]
