"""What an engine is: its limits, and the known time that a step of it takes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenlag.errors import InputError

POLICIES = ("mixed", "prefill-first")
KV_TESTS = ("first-chunk", "full-prompt", "reserve-max")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Limits of one engine.

    Attributes:
        max_seqs: slots, the most sequences that run at once.
        max_batch_tokens: token budget of a step.
        kv_tokens: KV capacity in tokens.
        policy: `mixed`, or `prefill-first` (no decode while prefill work can be scheduled).
        kv_test: what admission asks of the pool: blocks for the `first-chunk`, for the
            `full-prompt`, or `reserve-max` (prompt and declared maximum output set aside).
        prompt_threshold: most tokens of one prompt in a step; 0 is no such limit.
        pipeline_depth: 1, or 2 where the next batch is handed over while one still runs.
    """

    max_seqs: int
    max_batch_tokens: int
    kv_tokens: int
    policy: str = "mixed"
    kv_test: str = "first-chunk"
    prompt_threshold: int = 0
    pipeline_depth: int = 1

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise InputError(f"policy {self.policy!r} is none of {', '.join(POLICIES)}")
        if self.kv_test not in KV_TESTS:
            raise InputError(f"kv_test {self.kv_test!r} is none of {', '.join(KV_TESTS)}")
        if self.pipeline_depth not in (1, 2):
            raise InputError("pipeline_depth must be 1 or 2")
        if not 0 < self.max_seqs <= self.max_batch_tokens:
            raise InputError("max_seqs must be at least 1 and at most max_batch_tokens")


@dataclass(frozen=True, slots=True)
class StepChange:
    """From `from_s` to `until_s`, a step takes `factor` times as long and `add_ms` more."""

    from_s: float
    until_s: float = float("inf")
    factor: float = 1.0
    add_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class StepModel:
    """What a step costs: `a + b·P + c·D + d·C + e·W` in ms, times a lognormal of `noise_sigma`.

    W is attention's work in prompt chunks: for each of their tokens, the tokens before it. Where
    prompts are long it is most of what a step costs (captures of a real engine say so).

    Other truths than that straight one, so that an analyzer is not judged by its own form:

    Attributes:
        noise_rho: how much of a step's noise the next one keeps (0: none).
        knee_tokens: tokens of a step (prompt and decoding) that cost next to nothing; past
            that `b` each, around a corner of `knee_width` tokens.
        tile_tokens: prompt tokens are paid in multiples of this.
        tile_seqs: decoding sequences are paid in multiples of this.
        effects: faults; tables that `steptime` reads.
    """

    a_ms: float
    b_ms: float
    c_ms: float
    d_ms: float
    e_ms: float = 0.0
    noise_sigma: float = 0.0
    changes: tuple[StepChange, ...] = ()
    noise_rho: float = 0.0
    knee_tokens: float = 0.0
    knee_width: float = 32.0
    tile_tokens: int = 0
    tile_seqs: int = 0
    effects: tuple[Mapping[str, Any], ...] = ()

    def cost_ms(
        self, n_prefill: int, n_decode: int, n_context: int, attention_work: float = 0.0
    ) -> float:
        """Return the undisturbed time of a step in milliseconds."""
        n_paid = _tiled(n_decode, self.tile_seqs)
        rest_ms = self.c_ms * n_paid + self.d_ms * n_context + self.e_ms * attention_work
        return self.a_ms + self.prefill_ms(n_prefill, n_decode) + rest_ms

    def prefill_ms(self, n_prefill: int, n_decode: int) -> float:
        """Return the part of a step's time that its prompt tokens make."""
        n_paid = _tiled(n_prefill, self.tile_tokens)
        if not self.knee_tokens:
            return self.b_ms * n_paid
        both, alone = self._over_knee(n_paid + n_decode), self._over_knee(n_decode)
        return self.b_ms * (both - alone)

    def _over_knee(self, n_tokens: float) -> float:
        """Softplus: 0 far below the knee, the tokens past it far above, a curve between."""
        x = (n_tokens - self.knee_tokens) / self.knee_width
        return self.knee_width * (max(x, 0.0) + math.log1p(math.exp(-abs(x))))


def _tiled(n: int, tile: int) -> int:
    return -(-n // tile) * tile if tile else n
