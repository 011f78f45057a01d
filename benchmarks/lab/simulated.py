"""The simulator against captures of a real engine: the same requests, played by its scheduler.

    python -m benchmarks.lab.simulated fixtures/captured/*/traces.jsonl.gz

Each capture's requests reach the simulated engine when they reached the real one, with the real
one's limits, prompts, cached tokens and outputs. A step takes what the simulator's model, fitted to
the capture's own steps, says (`fitted`), so two things are compared: the form of the step model, by
what it leaves of the steps' time, and the scheduler, by how many steps there are, what is in them,
and how long requests wait.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from tokenlag.read.load import load_traces
from tokenlag.simulate.config import EngineConfig, StepModel
from tokenlag.simulate.engine import Engine
from tokenlag.simulate.log import EpochLog, Request
from tokenlag.store.connection import Store

# Steps that cost more than this share of the others are what a busy machine did, not the batch.
KEPT_FRAC: Final = 0.95
_STEPS: Final = """
select case when s.n_decode > 0  -- who decodes was in the step before: the engine had work
            then (s.end_ns - lag(s.end_ns, 1, s.end_ns - (s.cadence_ms * 1e6)::bigint)
                  over (order by s.step_index)) / 1e6
            else s.cadence_ms end,
       s.n_prefill_tokens, s.n_decode,
       coalesce(s.n_context_tokens, 0) + coalesce(c.n_context, 0), s.n_chunks, s.n_waiting,
       s.n_running, s.admit_bound, s.attention_work, s.n_preempted,
       s.start_ns / 1e9
from steps s
left join (select epoch_key, step_index, sum(n_context) as n_context from chunks group by all) c
  using (epoch_key, step_index)
where s.n_prefill_tokens + s.n_decode > 0
order by s.step_index
"""
_SEQUENCES: Final = """
select q.start_ns / 1e9, q.n_prompt, q.n_output, coalesce(q.n_cached, 0), r.is_aborted,
       coalesce(p.wait_s, 0), p.first_s
from sequences q join requests r using (request_key)
left join (
    select seq_key, sum((end_ns - start_ns) / 1e9) filter (kind = 'queue') as wait_s,
           min(end_ns) filter (kind = 'prefill') / 1e9 as first_s
    from phases group by seq_key
) p using (seq_key)
order by q.start_ns
"""
# Steps from one request's last to the first of the one that took its place.
_GAP: Final = """
with firsts as (select seq_key, min(step_index) as first from chunks group by 1),
ends as (select seq_key, max(last_step) as last from memberships group by 1)
select mode(gap) from (
    select f.first - max(e.last) as gap
    from firsts f
    join ends e on e.last < f.first
    join steps s on s.step_index = f.first - 1 and s.n_waiting > 0
    group by f.seq_key, f.first
)
"""


@dataclass(frozen=True)
class Capture:
    """What a capture holds of one engine; `usual_gap` is None where nobody waited."""

    name: str
    config: EngineConfig
    steps: list[tuple[Any, ...]]
    sequences: list[tuple[Any, ...]]
    usual_gap: int | None


def read(path: Path, name: str) -> Capture:
    """Returns a capture's steps, sequences and limits.

    Raises:
        ValueError: it has not one engine, or does not tell its limits.
    """
    with tempfile.TemporaryDirectory() as work, Store() as store:
        load_traces(store, [path], work_dir=Path(work), n_workers=1)
        limits = store.fetchall("select max_seqs, max_batch_tokens, kv_tokens from epochs")
        if len(limits) != 1 or None in limits[0]:
            raise ValueError(f"{name}: one engine that tells its limits is needed")
        max_seqs, max_batch_tokens, kv_tokens = limits[0]
        config = EngineConfig(max_seqs, max_batch_tokens, kv_tokens, pipeline_depth=2)
        [[gap]] = store.fetchall(_GAP)
        return Capture(name, config, store.fetchall(_STEPS), store.fetchall(_SEQUENCES), gap)


def fitted(capture: Capture) -> tuple[StepModel, Any]:
    """Returns the step model of a capture, and how many times what it says each step took."""
    rows = np.array([(*row[:4], row[8]) for row in capture.steps], dtype=float)
    cost, shapes = rows[:, 0], np.column_stack([np.ones(len(rows)), rows[:, 1:]])
    kept = np.ones(len(rows), dtype=bool)
    for _ in range(5):
        # Shares of a step count, not ms: else a few long prompts decide everything.
        weight = 1 / np.maximum(cost, np.median(cost))
        found = _not_negative(shapes[kept] * weight[kept, None], cost[kept] * weight[kept])
        error = (cost - shapes @ found) * weight
        kept = error <= np.quantile(error, KEPT_FRAC)
    a_ms, *others = map(float, found)
    return StepModel(max(a_ms, 1e-3), *others), cost / np.maximum(shapes @ found, 1e-3)


def _not_negative(shapes: Any, costs: Any) -> Any:
    """Returns least squares whose terms only add: the worst that does not is left out, in turn."""
    used = list(range(shapes.shape[1]))
    while True:
        found = np.zeros(shapes.shape[1])
        scale = np.maximum(np.abs(shapes[:, used]).max(axis=0), 1e-12)
        found[used] = np.linalg.lstsq(shapes[:, used] / scale, costs, rcond=None)[0] / scale
        if (found >= 0).all():
            return found
        used.remove(int(np.argmin(found * np.abs(shapes).max(axis=0))))


def play(capture: Capture, model: StepModel, factors: Any) -> EpochLog:
    """Returns what the simulator does with a capture's requests.

    Args:
        capture: the capture.
        model: what a step costs.
        factors: how many times that each of the capture's steps took. What the machine did beside
            the engine falls on the simulated steps of the same moment.
    """
    zero_s = capture.sequences[0][0]
    starts_s = np.array([row[10] for row in capture.steps]) - zero_s

    def as_then(_: int, start_s: float, cost_ms: float, *__: int) -> float:
        at = int(np.searchsorted(starts_s, start_s, side="right")) - 1
        return cost_ms * float(factors[max(at, 0)])

    requests = [
        Request(
            number, start_s - zero_s, start_s - zero_s, start_s - zero_s, n_prompt, n_output,
            n_cached=min(n_cached, n_prompt - 1),
        )
        for number, (start_s, n_prompt, n_output, n_cached, *_) in enumerate(capture.sequences)
        if n_output
    ]  # fmt: skip
    engine = Engine(
        capture.config, model, noise=random.Random(1), on_done=lambda *_: (), hook=as_then
    )
    engine.add(requests)
    engine.run(float("inf"))
    return engine.log


def compare(capture: Capture) -> dict[str, Any]:
    """Returns figures of the capture beside the simulator's: pairs of real and simulated."""
    model, factors = fitted(capture)
    log = play(capture, model, factors)
    real = np.array([row[:7] for row in capture.steps], dtype=float)
    simulated = np.array(
        [(0, s.n_prefill, s.n_decode, 0, len(s.chunks), s.n_waiting, s.n_running)
         for s in log.steps], dtype=float,
    )  # fmt: skip
    done = [request for request in log.requests if request.first_token_s is not None]
    served = [row for row in capture.sequences if row[2]]
    waits = [
        [row[5] for row in served],
        [sum(end - start for start, end, _ in request.queues) for request in done],
    ]
    firsts = [
        [row[6] - row[0] for row in served if row[6] is not None],
        [(r.first_token_s or 0) - r.engine_s for r in done],
    ]

    def pair(values: Any, digits: int = 3) -> list[float]:
        return [round(float(value), digits) for value in values]

    both = (real, simulated)
    return {
        "capture": capture.name,
        "model_ms": [model.a_ms, model.b_ms, model.c_ms, model.d_ms, model.e_ms],
        "step_error_frac": round(float(np.median(np.abs(factors - 1))), 3),
        "steps": [len(real), len(simulated)],
        "steps_with_prompts": pair((steps[:, 1] > 0).sum() for steps in both),
        "most_tokens": pair((steps[:, 1] + steps[:, 2]).max() for steps in both),
        "mean_decoding": pair(steps[:, 2].mean() for steps in both),
        "most_running": pair(steps[:, 6].max() for steps in both),
        "mean_waiting": pair(steps[:, 5].mean() for steps in both),
        "wait_p50_s": pair(np.quantile(w, 0.5) for w in waits),
        "wait_p90_s": pair(np.quantile(w, 0.9) for w in waits),
        "first_token_p50_s": pair(np.quantile(f, 0.5) for f in firsts),
        "first_token_p90_s": pair(np.quantile(f, 0.9) for f in firsts),
        "preempted": [
            sum(row[9] for row in capture.steps),
            sum(len(step.preempted) for step in log.steps),
        ],
        "bounds": [
            _bounds(row[7] for row in capture.steps),
            _bounds(s.admit_bound for s in log.steps),
        ],
    }


def _bounds(told: Any) -> dict[str, int]:
    counts: dict[str, int] = {}
    for bound in told:
        counts[str(bound)] = counts.get(str(bound), 0) + 1
    return dict(sorted(counts.items()))


def main() -> int:
    """Compares the captures that are given."""
    parser = argparse.ArgumentParser(description="The simulator against captures.")
    parser.add_argument("traces", nargs="+", type=Path)
    for path in parser.parse_args().traces:
        capture = read(path, path.parent.name if path.is_file() else path.name)
        sys.stdout.write(json.dumps(compare(capture)) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
