"""A simulated engine, recorded, written and read back, is what the simulator says it was."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
import tokenlag_tracer
from tokenlag.read.load import load_traces
from tokenlag.simulate.recipe import load_recipe
from tokenlag.simulate.run import Run, run
from tokenlag.simulate.traces import write_traces
from tokenlag.store.connection import Store
from tokenlag_tracer import conventions as names
from tokenlag_tracer import link

from tests.tracer.replay import Replay

RUNS = [
    ("S02", "mixed-512"),
    ("S03", "fault"),
    ("overlap-two-deep", "slots"),
    ("nightly-embedding", "healthy"),
]

STEPS = """
select step_index, start_ns - (select min(start_ns) from steps) as start_ns, end_ns - start_ns,
    n_prefill_tokens, n_chunks, n_decode, n_new_tokens, n_context_tokens, n_running, n_waiting,
    n_waiting_tokens, round(oldest_wait_ms, 3), round(kv_usage_frac, 4),
    round(kv_reserved_frac, 4), n_preempted, admit_bound, is_after_hole
from steps order by step_index
"""
CHUNKS = """
select step_index, request_index, n_tokens, n_context from chunks order by all
"""
MEMBERSHIPS = """
select request_index, first_step, last_step, seq_key is not null from memberships order by all
"""
REQUESTS = """
select request_id, operation, model, tenant, prefix_id, conversation_id, n_max_output, n_prompt,
    n_cached, n_output, n_preemptions, n_computed, finish_reason, is_aborted, is_open,
    is_prefill_only, weight,
    engine_ns - arrival_ns, scheduled_ns - arrival_ns, prefilled_ns - arrival_ns,
    first_token_ns - arrival_ns, last_token_ns - arrival_ns, end_ns - arrival_ns
from requests order by request_id
"""
PHASES = """
select r.request_id, p.kind, p.detail, p.n_tokens, p.is_recompute,
    p.start_ns - r.arrival_ns, p.end_ns - p.start_ns
from phases p join requests r using (request_key)
where p.kind <> 'network_in'
order by all
"""


def tables(folder: Path, work_dir: Path) -> tuple[dict[str, list[tuple[Any, ...]]], list[str]]:
    work_dir.mkdir()
    with Store() as store:
        result = load_traces(store, [folder], work_dir=work_dir, n_workers=1)
        assert not result.problems
        notes = [row[0] for row in store.fetchall("select text from read_notes")]
        found = {
            name: store.fetchall(text)
            for name, text in (
                ("steps", STEPS), ("chunks", CHUNKS), ("memberships", MEMBERSHIPS),
                ("requests", REQUESTS), ("phases", PHASES),
            )
        }  # fmt: skip
    return found, notes


def record(done: Run, folder: Path) -> None:
    os.environ["TOKENLAG_TRACES_DIR"] = str(folder)
    # The queue must hold what a real engine would take minutes to say.
    os.environ["TOKENLAG_QUEUE_SPANS"] = "200000"
    os.environ["TOKENLAG_EXIT_WAIT"] = os.environ["TOKENLAG_FLUSH_WAIT"] = "60"
    try:
        base_ns = time.monotonic_ns() - round(done.last_instant_s * 1e9)
        engine = tokenlag_tracer.engine(
            "sim-0", resource={names.ENGINE_NAME: "sim", names.MODEL_NAME: done.variant.model}
        )
        front = tokenlag_tracer.front()
        for recorder in (engine, front):
            # Minutes are said within a second here: wait for the writer instead of dropping.
            recorder.channel._connection.setblocking(True)
        [log] = done.epochs
        Replay(done, log, engine, front, base_ns).play()
        assert engine.n_dropped == front.n_dropped == 0
    finally:
        link.close_shared_link()  # waits for the writer to have written all
        for name in ("TRACES_DIR", "QUEUE_SPANS", "EXIT_WAIT", "FLUSH_WAIT"):
            del os.environ[f"TOKENLAG_{name}"]


def same(told: Any, truth: Any) -> bool:
    """Equal but for the rounding of nanoseconds on two ways."""
    if isinstance(told, int) and isinstance(truth, int):
        return abs(told - truth) <= 2
    if isinstance(told, float) and isinstance(truth, float):
        return told == pytest.approx(truth, abs=2e-3)
    return bool(told == truth)


@pytest.mark.parametrize(("recipe", "variant"), RUNS)
def test_round_trip(recipe: str, variant: str, tmp_path: Path) -> None:
    done = run(load_recipe(recipe), variant=variant)
    record(done, tmp_path / "traces")
    write_traces(done, tmp_path / "truth" / "t.jsonl", drop=["client"])
    told, notes = tables(tmp_path / "traces", tmp_path / "a")
    truth, _ = tables(tmp_path / "truth", tmp_path / "b")
    assert not notes
    for name in truth:
        assert len(told[name]) == len(truth[name]), name
        wrong = [
            (row, expected)
            for row, expected in zip(told[name], truth[name], strict=True)
            if not all(map(same, row, expected))
        ]
        assert not wrong, f"{len(wrong)} of {name}: {wrong[0]}"
