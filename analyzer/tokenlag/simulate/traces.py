"""Writes a run as traces: which form, what is left out, where on the clock."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tokenlag.errors import InputError
from tokenlag.simulate import emit_sglang, emit_vllm
from tokenlag.simulate.emit_contract import ContractEmitter
from tokenlag.simulate.otlp_json import Scope, write_lines
from tokenlag.simulate.run import Run
from tokenlag.simulate.timeline import DEFAULT_END_NS, Timeline, resource_of

ENGINES = {"vllm": emit_vllm, "sglang": emit_sglang}  # as they write without a recorder
FORMS = ("contract", "compact", *ENGINES)

DROPS = {
    "steps": "no llm.engine_step spans",
    "client": "no client spans",
    "request": "no llm.request spans: what the front end saw",
    "network": "no llm.network spans",
    "frontend": "no llm.frontend spans",
    "queue": "no llm.queue spans",
    "prefill": "no llm.prefill spans and no chunks",
    "chunks": "no llm.prefill_chunk spans",
    "decode": "no llm.decode spans",
    "cached": "no cached tokens",
    "preemptions": "no preemption counts, events or re-queue spans",
    "replica": "no engine id, instance or host",
    "waiting": "no queue depth",
    "kv_usage": "no use of KV",
    "running": "not told how many run",
    "admit_bound": "not told what kept the queue's head out",
    "tenant": "no tenant",
}


@dataclass(frozen=True, slots=True)
class Damage:
    """What happens to traces on their way.

    Attributes:
        lost_step_frac: share of step records lost; the index shows the holes.
        sample_frac: share of request traces kept, with their weight.
        lost_request_frac: share of request traces lost, without a word.
        duplicate_frac: share of spans that are there twice.
        client_skew_ms: how far the client's clock is ahead.
    """

    lost_step_frac: float = 0.0
    sample_frac: float = 1.0
    duplicate_frac: float = 0.0
    client_skew_ms: float = 0.0
    lost_request_frac: float = 0.0

    def __post_init__(self) -> None:
        lost = (self.lost_step_frac, self.lost_request_frac)
        if not (all(0 <= share < 1 for share in lost) and 0 < self.sample_frac <= 1):
            raise InputError("lost_step_frac, lost_request_frac and sample_frac are shares of 1")


NO_DAMAGE = Damage()


def write_traces(
    run: Run,
    path: str | Path,
    form: str = "contract",
    drop: Iterable[str] = (),
    end_ns: int | None = None,
    damage: Damage = NO_DAMAGE,
) -> int:
    """Write a run as OTLP JSON lines.

    Args:
        run: the run.
        path: `.jsonl`, `.jsonl.gz` or `.jsonl.zst`; folders are made.
        form: `contract`, `compact`, `vllm` or `sglang`.
        drop: names from `DROPS`: what is not recorded.
        end_ns: unix ns of the last span's end; by default a fixed day in 2026.
        damage: losses, sampling, duplicates, clock skew.

    Returns:
        The number of spans written.

    Raises:
        InputError: an unknown form or drop, or a path that cannot be written.
    """
    dropped = frozenset(drop)
    unknown = sorted(dropped - set(DROPS))
    if unknown:
        raise InputError(f"cannot drop {unknown[0]!r}", hint=f"one of {', '.join(DROPS)}")
    if form not in FORMS:
        raise InputError(f"no form {form!r}", hint=f"one of {', '.join(FORMS)}")
    timeline = Timeline(
        run_end_s=run.last_instant_s,
        end_ns=DEFAULT_END_NS if end_ns is None else end_ns,
        client_skew_ns=round((damage.client_skew_ms + run.variant.edge.client_skew_ms) * 1e6),
    )
    if form in ENGINES:
        engine = ENGINES[form]
        spans = list(engine.spans(run, timeline))
        resources = [engine.resource_of(run, log) for log in run.epochs]
        scopes = [engine.SCOPE] * len(resources)
    else:
        emitter = ContractEmitter(
            run,
            timeline,
            is_compact=form == "compact",
            drop=dropped,
            lost_frac=damage.lost_step_frac,
            sample_frac=damage.sample_frac,
            lost_request_frac=damage.lost_request_frac,
        )
        spans = list(emitter.spans())
        has_replica = "replica" not in dropped
        resources = [resource_of(run, log, has_replica=has_replica) for log in run.epochs]
        scopes = [Scope()] * len(resources)
    if run.variant.gateway is not None:
        resources.append(run.variant.gateway.resource)
        scopes.append(run.variant.gateway.scope)
    if damage.duplicate_frac:
        chance = random.Random(f"duplicates {run.seed}")
        spans += [span for span in spans if chance.random() < damage.duplicate_frac]
    return write_lines(Path(path), spans, resources, scopes)
