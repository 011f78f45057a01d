"""Steps with a known price: what the step model is asked to find out again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from tokenlag.explain.stepmodel import Floats, StepArrays


@dataclass(frozen=True)
class Truth:
    """A price list, in milliseconds; `shape` bends the token term where it is not a hinge."""

    base: float = 6.0
    per_seq: float = 0.05
    per_token: float = 0.04
    knee: float = 0.0
    per_attention: float = 2e-6
    per_context: float = 4e-5
    tokens_ms: Callable[[Floats], Floats] | None = None

    def ms(self, prefill: Floats, n: Floats, attention: Floats, ctx: Floats) -> Floats:
        total = prefill + n
        if self.tokens_ms is not None:
            over = self.tokens_ms(total)
        elif self.knee > 0:
            over = self.per_token * np.maximum(0.0, total - self.knee)
        else:
            over = self.per_token * prefill
        return np.asarray(
            self.base
            + self.per_seq * n
            + over
            + self.per_attention * attention
            + self.per_context * ctx
        )


def batches(
    n_steps: int, seed: int, mixed_frac: float = 0.3, sizes: tuple[int, int] = (32, 2048)
) -> tuple[Floats, Floats, Floats, Floats]:
    """Prefill tokens, decoding sequences, attention work and context of varied steps."""
    rng = np.random.default_rng(seed)
    n = rng.integers(1, 65, n_steps).astype(np.float64)
    is_mixed = rng.random(n_steps) < mixed_frac
    prefill = np.where(is_mixed, rng.integers(*sizes, n_steps), 0).astype(np.float64)
    before = np.where(is_mixed, rng.integers(0, 8000, n_steps), 0)
    ctx = n * rng.uniform(200, 3000, n_steps)
    return prefill, n, prefill * (before + prefill / 2.0), ctx


def steps_of(
    truth: Truth,
    n_steps: int,
    seed: int = 1,
    noise: float = 0.0,
    mixed_frac: float = 0.3,
    sizes: tuple[int, int] = (32, 2048),
) -> StepArrays:
    prefill, n, attention, ctx = batches(n_steps, seed, mixed_frac, sizes)
    rng = np.random.default_rng(seed + 1000)
    factor = np.exp(rng.normal(0.0, noise, n_steps)) if noise else np.ones(n_steps)
    return StepArrays(
        cadence_ms=truth.ms(prefill, n, attention, ctx) * factor,
        n_prefill_tokens=prefill,
        n_decode=n,
        attention_work=attention,
        n_context_tokens=ctx,
        usable=np.ones(n_steps, dtype=bool),
    )
