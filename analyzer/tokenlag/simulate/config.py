"""What an engine is: its limits, and the known time that a step of it takes."""

from __future__ import annotations

from dataclasses import dataclass

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
    """What a step costs: `a + b·P + c·D + d·C` in ms, times a lognormal of `noise_sigma`."""

    a_ms: float
    b_ms: float
    c_ms: float
    d_ms: float
    noise_sigma: float = 0.0
    changes: tuple[StepChange, ...] = ()

    def cost_ms(self, n_prefill: int, n_decode: int, n_context: int) -> float:
        """Return the undisturbed time of a step in milliseconds."""
        return self.a_ms + self.b_ms * n_prefill + self.c_ms * n_decode + self.d_ms * n_context
