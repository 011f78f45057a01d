"""Writes a simulated run as the native Parquet that traces are kept in, without JSON between.

The rows are those that reading the run's OTLP JSON gives (a test holds that); only the way there
is shorter, so that hours can be simulated and diagnosed by the hundred.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
from tokenlag.read.spans import ROWS_PER_FILE, dtype
from tokenlag.read.vocabulary import RESOURCE_PREFIX
from tokenlag.simulate.emit_contract import ContractEmitter
from tokenlag.simulate.emit_steps import ranges
from tokenlag.simulate.log import EpochLog
from tokenlag.simulate.run import Run
from tokenlag.simulate.timeline import DEFAULT_END_NS, Timeline, engine_id, resource_of
from tokenlag_tracer import conventions as names

Columns = dict[str, list[Any]]


def write_native(run: Run, path: Path, *, drop: frozenset[str] = frozenset()) -> int:
    """Write a run in the full form of the contract; returns the number of spans.

    Args:
        run: the run; of engines without speculation and gateways.
        path: a file ending in `.parquet`; folders are made.
        drop: what is not recorded, as in `write_traces`.
    """
    timeline = Timeline(run_end_s=run.last_instant_s, end_ns=DEFAULT_END_NS)
    resources = [
        resource_of(run, log, has_replica="replica" not in drop)
        | {names.ENGINE_EPOCH: timeline.epoch_ns(log)}
        for log in run.epochs
    ]
    frames = []
    if "steps" not in drop:
        frames = [
            _with_resource(_steps(run, timeline, number, drop), resources[number])
            for number in range(len(run.epochs))
        ]
    for number, spans in _requests(run, timeline, drop).items():
        frames.append(_with_resource(spans, resources[number]))
    frame = pl.concat(frames, how="diagonal").sort("end_ns")
    frame = frame.with_columns(source=pl.lit(str(path)), scope=pl.lit(names.SCOPE_NAME))
    path.parent.mkdir(parents=True, exist_ok=True)
    frame.write_parquet(path, compression="lz4", statistics=False, row_group_size=4 * ROWS_PER_FILE)
    return frame.height


def _with_resource(columns: Columns, resource: Mapping[str, Any]) -> pl.DataFrame:
    types = {"kind": "code", "start_ns": "int", "end_ns": "int", "status_code": "code"}
    types |= names.SPAN_ATTRIBUTE_TYPES
    frame = pl.DataFrame(
        {
            name: pl.Series(name, values, dtype=dtype(types.get(name, "str")), strict=True)
            for name, values in columns.items()
        }
    )
    return frame.with_columns(
        pl.lit(value, dtype=dtype(names.RESOURCE_ATTRIBUTE_TYPES[key])).alias(RESOURCE_PREFIX + key)
        for key, value in resource.items()
        if value is not None and key in names.RESOURCE_ATTRIBUTE_TYPES
    )


# --- steps -------------------------------------------------------------------------------------


def _steps(run: Run, timeline: Timeline, number: int, drop: frozenset[str]) -> Columns:
    """An engine's steps and heartbeats, as columns."""
    log = run.epochs[number]
    steps = log.steps
    ids = random.Random(f"ids {run.key} {number}")
    ns = timeline.ns
    starts, ends = [ns(s.start_s) for s in steps], [ns(s.end_s) for s in steps]
    members: set[int] = set()
    lists: list[str | None] = []
    for step in steps:
        members.difference_update(step.left)
        members.update(step.joined)
        is_full = step.index % names.FULL_LIST_EVERY_STEPS == 0
        lists.append(ranges(sorted(members)) if is_full and members else None)
    split = [tuple(zip(*s.chunks, strict=True)) if s.chunks else (None, None, None) for s in steps]
    n = len(steps)
    columns: Columns = {
        "start_ns": starts,
        "end_ns": ends,
        names.STEP_INDEX: [s.index for s in steps],
        names.STEP_DECODE_COUNT: [s.n_decode for s in steps],
        names.STEP_PREFILL_REQUESTS: [one[0] for one in split],
        names.STEP_PREFILL_TOKENS: [one[1] for one in split],
        names.STEP_PREFILL_CONTEXT: [one[2] for one in split],
        names.STEP_DECODE_JOINED: [ranges(s.joined) if s.joined else None for s in steps],
        names.STEP_DECODE_LEFT: [ranges(s.left) if s.left else None for s in steps],
        names.STEP_DECODE_REQUESTS: lists,
        names.STEP_CONTEXT_TOKENS: [s.n_context for s in steps],
        names.STEP_RUNNING: [s.n_running for s in steps],
        names.STEP_WAITING: [s.n_waiting for s in steps],
        names.STEP_WAITING_TOKENS: [s.n_waiting_tokens for s in steps],
        names.STEP_OLDEST_WAIT_NS: [round(s.oldest_wait_s * 1e9) for s in steps],
        names.STEP_KV_USAGE: [round(s.kv_frac, 5) for s in steps],
        names.STEP_KV_RESERVED: [
            None if s.kv_reserved_frac is None else round(s.kv_reserved_frac, 5) for s in steps
        ],
        names.STEP_PREEMPTED: [s.preempted or None for s in steps],
        names.STEP_ADMIT_BOUND: [s.admit_bound for s in steps],
        names.STEP_DROPPED: [0] * n,
    }
    if "admit_bound" in drop:
        del columns[names.STEP_ADMIT_BOUND]
    beats = _heartbeats(starts, ends, ns(run.last_instant_s))
    for name, values in columns.items():
        values += _of_beats(name, beats)
    n += len(beats)
    epoch_ns = timeline.epoch_ns(log)
    columns |= {
        "trace_id": _trace_ids(log, epoch_ns, columns["start_ns"]),
        "span_id": [f"{ids.getrandbits(64):016x}" for _ in range(n)],
        "parent_id": [None] * n,
        "name": [names.SPAN_ENGINE_STEP] * n,
        "kind": [names.KIND_INTERNAL] * n,
        "status_code": [0] * n,
        names.ENGINE_EPOCH: [epoch_ns] * n,
    }
    if "replica" not in drop:
        columns[names.ENGINE_ID] = [engine_id(log)] * n
    return columns


def _heartbeats(starts: list[int], ends: list[int], until_ns: int) -> list[tuple[int, int]]:
    """Time and last step's index of each ten seconds of idleness after the first step."""
    return [
        (beat, index)
        for index, (begin, end) in enumerate(zip(ends, [*starts[1:], until_ns], strict=True))
        for beat in range(begin + names.HEARTBEAT_NS, end, names.HEARTBEAT_NS)
    ]


def _of_beats(name: str, beats: list[tuple[int, int]]) -> list[Any]:
    if name in ("start_ns", "end_ns"):
        return [beat for beat, _ in beats]
    if name == names.STEP_INDEX:
        return [index for _, index in beats]
    is_zero = name in (names.STEP_DECODE_COUNT, names.STEP_RUNNING, names.STEP_WAITING)
    return [0 if is_zero else None] * len(beats)


def _trace_ids(log: EpochLog, epoch_ns: int, starts: list[int]) -> list[str]:
    known: dict[int, str] = {}
    ids = []
    for start_ns in starts:
        window = start_ns // names.ENGINE_TRACE_NS
        if window not in known:
            text = f"{engine_id(log)}/{epoch_ns}/{window}"
            known[window] = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        ids.append(known[window])
    return ids


# --- requests ----------------------------------------------------------------------------------


def _requests(run: Run, timeline: Timeline, drop: frozenset[str]) -> dict[int, Columns]:
    """Spans of requests and phases, by the number of their resource."""
    emitter = ContractEmitter(
        run, timeline, is_compact=False, drop=drop, lost_frac=0.0, sample_frac=1.0
    )
    rows: dict[int, list[Any]] = {}
    for number, span in emitter.request_spans():
        rows.setdefault(number, []).append(span)
    found: dict[int, Columns] = {}
    for number, spans in rows.items():
        columns: Columns = {
            "trace_id": [s.trace_id for s in spans],
            "span_id": [s.span_id for s in spans],
            "parent_id": [s.parent_id for s in spans],
            "name": [s.name for s in spans],
            "kind": [s.kind for s in spans],
            "start_ns": [s.start_ns for s in spans],
            "end_ns": [s.end_ns for s in spans],
            "status_code": [names.STATUS_ERROR if s.is_error else 0 for s in spans],
        }
        n_spans = len(spans)
        for at, span in enumerate(spans):
            for key, value in span.attributes.items():
                if value is not None and key in names.SPAN_ATTRIBUTE_TYPES:
                    if key not in columns:
                        columns[key] = [None] * n_spans
                    columns[key][at] = value
        found[number] = columns
    return found
