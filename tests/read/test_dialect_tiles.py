"""Whatever spans say, a request's phases tile it to the nanosecond."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenlag.store.connection import Store
from tokenlag_tracer import conventions as c

from tests.read.span_rows import T0, Row, load_rows, span

NAMES = [
    (c.SPAN_NETWORK, {"DIRECTION": "in"}),
    (c.SPAN_NETWORK, {"DIRECTION": "out"}),
    (c.SPAN_FRONTEND, {"STAGE": "tokenize"}),
    (c.SPAN_FRONTEND, {"STAGE": "detokenize"}),
    (c.SPAN_QUEUE, {"QUEUE_REASON": "arrival"}),
    (c.SPAN_QUEUE, {"QUEUE_REASON": "preempted"}),
    (c.SPAN_PREFILL, {}),
    (c.SPAN_DECODE, {}),
]
moments = st.integers(-20, 120)


@st.composite
def requests(draw: st.DrawFn) -> list[Row]:
    """Some requests with phases anywhere: overlapping, outside, backwards, without end."""
    rows: list[Row] = []
    for i in range(draw(st.integers(1, 20))):
        trace = f"{i:032x}"
        server = span(c.SPAN_REQUEST, 0, draw(st.integers(0, 100)), trace=trace, id_="r",
                      kind=c.KIND_SERVER, parent="c")  # fmt: skip
        if draw(st.booleans()):
            server[c.FIRST_TOKEN_NS] = draw(moments)
            server[c.LAST_TOKEN_NS] = draw(moments)
        if draw(st.booleans()):
            rows.append(span("chat m", draw(moments), draw(moments), trace=trace, id_="c",
                             kind=c.KIND_CLIENT, OPERATION_NAME="chat"))  # fmt: skip
        rows.append(server)
        for _ in range(draw(st.integers(0, 8))):
            name, attributes = draw(st.sampled_from(NAMES))
            rows.append(
                span(name, draw(moments), draw(moments), trace=trace, parent="r", **attributes)
            )
    for row in rows:  # nanoseconds, so that every rounding would show
        for key in ("start_ns", "end_ns"):
            row[key] = T0 + (row[key] - T0) // 1_000_000
    return rows


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(requests())
def test_phases_tile(rows: list[Row]) -> None:
    with Store() as store, tempfile.TemporaryDirectory() as folder:
        load_rows(store, Path(folder), rows)
        tiles = store.fetchall(
            "select request_key, kind, start_ns, end_ns from phases where end_ns > start_ns "
            "order by request_key, start_ns"
        )
        told = store.fetchall(
            "select request_key, least(arrival_ns, coalesce(sent_ns, arrival_ns)), arrival_ns, "
            "end_ns, e2e_ms from requests where end_ns is not null"
        )
        keys = dict(store.fetchall("select trace_id, request_key from requests"))
        starts: dict[int, list[int]] = {}
        for row in rows:
            if row.get(c.DIRECTION) == "in" and row["end_ns"] >= row["start_ns"]:
                starts.setdefault(keys[row["trace_id"]], []).append(row["start_ns"])
        for key, sent, arrival, end, e2e in told:
            mine = [tile[1:] for tile in tiles if tile[0] == key]
            total = sum(b - a for _, a, b in mine)
            if end == arrival and not mine:
                continue
            # From the send where it is on the server's clock, else from the arrival, to the end.
            assert mine[0][1] in (sent, arrival, min(starts.get(key, [arrival])))
            assert mine[-1][2] == end
            assert total == end - mine[0][1]
            assert all(a[2] == b[1] for a, b in itertools.pairwise(mine))
            assert e2e == (end - arrival) / 1e6
            covered = sum(min(b, end) - max(a, arrival) for _, a, b in mine if b > arrival)
            assert covered == end - arrival


def tiles_of(rows: list[Row]) -> list[tuple[str, int, int]]:
    """Kind, start and end (ms) of the only request's phases, in time."""
    with Store() as store, tempfile.TemporaryDirectory() as folder:
        load_rows(store, Path(folder), rows)
        return [
            (str(kind), int(a), int(b))
            for kind, a, b in store.fetchall(
                "select kind, (start_ns - ?) // 1000000, (end_ns - ?) // 1000000 from phases "
                "where end_ns > start_ns order by start_ns",
                [T0, T0],
            )
        ]


def sequence(*phases: Row) -> list[Row]:
    """One request on one engine, 0 to 100 ms, with these phases."""
    return [
        span(c.SPAN_REQUEST, 0, 100, id_="r", kind=c.KIND_SERVER),
        span(c.SPAN_ENGINE_REQUEST, 0, 100, id_="e", parent="r", ENGINE_ID="e0", REQUEST_INDEX=1),
        *phases,
    ]


@pytest.mark.parametrize("is_crowded", [False, True])
def test_between_runs_of_decoding_a_stream_waits_for_its_token(is_crowded: bool) -> None:
    phases = [
        span(c.SPAN_PREFILL, 0, 20, parent="e"),
        span(c.SPAN_DECODE, 30, 50, parent="e", DECODE_FIRST_STEP=2, DECODE_LAST_STEP=3),
        span(c.SPAN_DECODE, 70, 100, parent="e", DECODE_FIRST_STEP=5, DECODE_LAST_STEP=6),
    ]
    if is_crowded:
        phases.append(span(c.SPAN_QUEUE, 0, 10, parent="e", QUEUE_REASON="arrival"))
    tiles = tiles_of(sequence(*phases))
    assert "uncovered" not in [kind for kind, _, _ in tiles]
    assert [t for t in tiles if t[0] == "decode"] == [
        ("decode", 20, 30), ("decode", 30, 50), ("decode", 50, 70), ("decode", 70, 100),
    ]  # fmt: skip


@pytest.mark.parametrize("is_crowded", [False, True])
def test_a_hole_before_a_prefill_again_stays_a_hole(is_crowded: bool) -> None:
    phases = [
        span(c.SPAN_PREFILL, 0, 20, parent="e"),
        span(c.SPAN_DECODE, 20, 50, parent="e", DECODE_FIRST_STEP=2, DECODE_LAST_STEP=3),
        span(c.SPAN_PREFILL, 70, 80, parent="e", PREFILL_RECOMPUTE=True),
        span(c.SPAN_DECODE, 80, 100, parent="e", DECODE_FIRST_STEP=5, DECODE_LAST_STEP=6),
    ]
    if is_crowded:
        phases.append(span(c.SPAN_QUEUE, 0, 10, parent="e", QUEUE_REASON="arrival"))
    assert ("uncovered", 50, 70) in tiles_of(sequence(*phases))
