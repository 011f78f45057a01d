"""What is known of an engine that was not read in full: sums that its store made."""

from __future__ import annotations

import msgspec


class EngineSummary(msgspec.Struct, frozen=True):
    """An engine in the window, as its store sums it up; what is not known is None.

    Args:
        engine: its id.
        is_read: whether its requests and steps were read in full.
        why: what made it one of those, if anything.
        requests: that began in the window.
        steps: in the window.
        error_frac: share of requests that failed.
        ttft_p50_ms: time to first token.
        ttft_p90_ms: see above.
        e2e_p90_ms: end to end.
        queue_p90_ms: time in queues.
        tpot_p90_ms: time per output token after the first.
        busy_ms: time in steps.
        stopped_ms: of it in steps many times as long as usual, without a prompt in them.
        step_ratio: time of its steps over what the fleet's model says such batches take.
    """

    engine: str
    is_read: bool = False
    why: str | None = None
    requests: int = 0
    steps: int = 0
    error_frac: float | None = None
    ttft_p50_ms: float | None = None
    ttft_p90_ms: float | None = None
    e2e_p90_ms: float | None = None
    queue_p90_ms: float | None = None
    tpot_p90_ms: float | None = None
    busy_ms: float | None = None
    stopped_ms: float | None = None
    step_ratio: float | None = None


class FleetModel(msgspec.Struct, frozen=True):
    """What a step costs in the fleet: one line for all engines' batches.

    Args:
        engines: that shaped it.
        steps: that shaped it.
        base_ms: of every step.
        per_seq_ms: for each decoding request.
        per_token_ms: for each prompt token.
        per_attention_ms: for each product of a prompt token and a token that it attends to.
        per_context_ms: for each token that a decoding request attends to.
    """

    engines: int
    steps: int
    base_ms: float
    per_seq_ms: float
    per_token_ms: float
    per_attention_ms: float
    per_context_ms: float


class Fleet(msgspec.Struct, frozen=True):
    """All engines of a window, of which some were read in full."""

    engines: list[EngineSummary]
    model: FleetModel | None = None
