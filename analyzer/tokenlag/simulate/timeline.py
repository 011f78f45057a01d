"""Seconds of a run as unix nanoseconds, and what an engine tells of itself."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import NamedTuple

from tokenlag_tracer import conventions as names

from tokenlag.simulate.log import EpochLog, Request
from tokenlag.simulate.otlp_json import AttributeValue
from tokenlag.simulate.run import Run

# 2026-03-02T12:00:00Z, a Monday at noon.
DEFAULT_END_NS = 1_772_452_800_000_000_000

# The engine is up some seconds before its first request; engines of a fleet start in turn.
ENGINE_START_LEAD_NS = 30_000_000_000
ENGINE_START_APART_NS = 1_700_000_000


def engine_id(log: EpochLog) -> str:
    """Return the id of the engine whose epoch this is."""
    return f"sim-{log.engine}"


@dataclass(frozen=True, slots=True)
class Timeline:
    """Places a run on unix time: its last instant is at `end_ns`.

    Attributes:
        run_end_s: the run's last instant, in seconds of the run.
        end_ns: where that is put, unix ns.
        client_skew_ns: how far the client's clock is ahead.
    """

    run_end_s: float
    end_ns: int
    client_skew_ns: int = 0

    def ns(self, time_s: float) -> int:
        """Return unix nanoseconds of a time of the run in seconds."""
        return self.end_ns + round((time_s - self.run_end_s) * 1e9)

    def epoch_ns(self, log: EpochLog) -> int:
        """Return when an engine epoch began, in unix nanoseconds."""
        is_restart = log.start_s > 0
        lead_ns = 0 if is_restart else ENGINE_START_LEAD_NS - log.engine * ENGINE_START_APART_NS
        return self.ns(log.start_s) - lead_ns


class RequestIds(NamedTuple):
    """Ids of one request's spans, lower-case hex; the same in every form of a run's traces."""

    trace: str
    client: str
    request: str
    engine: str


def request_ids(run: Run, request: Request) -> RequestIds:
    """Return the ids of one request's trace and main spans."""
    text = f"{run.key}/{request.number}"
    digest = hashlib.blake2b(text.encode(), digest_size=40).hexdigest()
    return RequestIds(digest[:32], digest[32:48], digest[48:64], digest[64:])


def resource_of(
    run: Run, log: EpochLog, *, has_replica: bool = True
) -> dict[str, AttributeValue | None]:
    """Return the resource attributes of one engine of the run: its limits and its name."""
    config = log.config or run.variant.engine
    text = json.dumps(asdict(config), sort_keys=True)
    threshold = config.prompt_threshold or None
    resource: dict[str, AttributeValue | None] = {
        names.SERVICE_NAME: "sim",
        names.SERVICE_INSTANCE_ID: engine_id(log) if has_replica else None,
        names.HOST_NAME: ("sim-host" if not log.engine else f"sim-host-{log.engine}")
        if has_replica
        else None,
        names.ENGINE_NAME: "sim",
        names.ENGINE_VERSION: "1",
        names.ENGINE_MAX_SEQS: config.max_seqs,
        names.ENGINE_MAX_BATCH_TOKENS: config.max_batch_tokens,
        names.ENGINE_KV_TOKENS: config.kv_tokens,
        names.ENGINE_CHUNKED_PREFILL: config.policy == "mixed" or threshold is not None,
        names.ENGINE_PREFIX_CACHING: any(r.n_cached for r in run.requests),
        names.CONFIG_HASH: hashlib.blake2b(text.encode(), digest_size=6).hexdigest(),
        names.MODEL_NAME: run.variant.model,
    }
    resource.update(run.variant.resource)
    return resource
