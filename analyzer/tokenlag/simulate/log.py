"""What happened in a run: each request, each step, and who decoded in which steps."""

from __future__ import annotations

from dataclasses import dataclass, field

from tokenlag.simulate.config import EngineConfig


@dataclass(slots=True, eq=False)
class Request:
    """One request, as its client sent it; the engine fills in what became of it.

    Times are seconds of the run. `n_output` 0 is prefill only (embedding): no token comes out.
    """

    number: int
    sent_s: float
    arrival_s: float
    engine_s: float
    n_prompt: int
    n_output: int
    n_cached: int = 0
    n_max_output: int = 0
    source: str = ""
    tenant: str | None = None
    conversation_id: str | None = None
    prefix_id: str | None = None
    is_ghost: bool = False
    gives_up_s: float | None = None
    turn: int = 0
    features: tuple[str, ...] = ()
    intended_s: float | None = None
    held_s: float = 0.0
    compile_s: float = 0.0
    is_transferred: bool = False
    taken_s: float | None = None
    legs: list[Request] = field(default_factory=list)
    # what the engine did with it
    epoch: int = -1
    index: int = -1
    n_generated: int = 0
    n_computed: int = 0
    n_blocks: int = 0
    n_preemptions: int = 0
    seen_s: float | None = None
    scheduled_s: float | None = None
    first_token_s: float | None = None
    done_s: float | None = None
    error: str | None = None
    queues: list[tuple[float, float, str]] = field(default_factory=list)
    prefills: list[list[Chunk]] = field(default_factory=list)
    prefill_token_steps: list[int] = field(default_factory=list)
    decodes: list[tuple[int, int]] = field(default_factory=list)
    yields: list[int] = field(default_factory=list)
    queued_s: float = 0.0
    is_decoding: bool = False
    k_start: int = 0
    k_end: int = 0
    n_at_start: int = 0

    def gave_up_by(self, now_s: float) -> bool:
        """Return whether its client had given up by `now_s`, before the answer was complete."""
        if self.gives_up_s is None or self.gives_up_s > now_s or self.error:
            return False
        return self.done_s is None or self.done_s > self.gives_up_s

    @property
    def open_wait_s(self) -> float | None:
        """Since when it has been waiting, if it waits now; else None."""
        n_waits = sum(reason in ("arrival", "preempted") for _, _, reason in self.queues)
        return self.queued_s if n_waits < self.n_preemptions + 1 else None

    @property
    def n_total(self) -> int:
        """Tokens whose KV the sequence needs before its next token: prompt and generated."""
        return self.n_prompt + self.n_generated


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a prompt: which step took it, its tokens, tokens in KV before it."""

    step: int
    n_tokens: int
    n_context: int

    @property
    def attention_work(self) -> float:
        """For each of its tokens the tokens before it, summed."""
        return self.n_tokens * (self.n_context + self.n_tokens / 2)


@dataclass(slots=True)
class Step:
    """One engine step; times in seconds of the run, counts after scheduling it."""

    index: int
    start_s: float
    end_s: float
    busy_s: float
    chunks: tuple[tuple[int, int, int], ...]
    n_prefill: int
    n_decode: int
    n_context: int
    n_running: int
    n_waiting: int
    n_waiting_tokens: int
    oldest_wait_s: float
    kv_frac: float
    kv_reserved_frac: float | None
    preempted: tuple[int, ...]
    admit_bound: str
    joined: tuple[int, ...]
    left: tuple[int, ...]
    new_tokens: tuple[int, ...] = ()
    n_drafted: int | None = None
    n_accepted: int | None = None


@dataclass(slots=True)
class EpochLog:
    """All steps and sequences of one engine from its start to its end or restart."""

    epoch: int
    start_s: float
    engine: int = 0
    steps: list[Step] = field(default_factory=list)
    decode_steps: list[int] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    end_s: float = 0.0
    role: str | None = None
    config: EngineConfig | None = None

    def decode_runs(self, request: Request) -> list[tuple[int, int]]:
        """Return first and last step index of each uninterrupted run of decode steps."""
        runs: list[tuple[int, int]] = []
        for k_start, k_end in request.decodes:
            if k_end <= k_start:
                continue
            first, last = self.decode_steps[k_start], self.decode_steps[k_end - 1]
            if last - first == k_end - k_start - 1:
                runs.append((first, last))
                continue
            begin = previous = first
            for step in self.decode_steps[k_start + 1 : k_end]:
                if step != previous + 1:
                    runs.append((begin, previous))
                    begin = step
                previous = step
            runs.append((begin, previous))
        return runs

    def token_times_s(self, request: Request) -> list[float]:
        """Return when each token of a request came out of the engine, in order."""
        times = [self.steps[step].end_s for step in request.prefill_token_steps]
        at = 0
        for first, last_step in self.decode_runs(request):
            for step in self.steps[first : last_step + 1]:
                n_tokens = request.yields[at] if request.yields else 1
                times.extend([step.end_s] * n_tokens)
                at += 1
        times.sort()
        return times
