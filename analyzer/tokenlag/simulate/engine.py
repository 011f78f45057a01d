"""A small continuous-batching engine in simulated time, with a step-time model that is known.

One step takes `a + b·P + c·D + d·C` milliseconds: P prompt tokens in the step, D sequences
that decode one token, C the tokens already computed of every sequence scheduled in it. The
scheduler is that of a chunked-prefill engine: decodes first, then running prefills, then
waiting requests first come, first served, under a token budget, a slot cap and a KV pool of
16-token blocks; a block that is missing preempts the last running sequence.

Decoding sequences are not visited in each step. They all advance together, so a counter of
decode steps tells when each ends and when it needs its next block; a step costs what changes
in it, not what runs in it.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tokenlag.errors import InputError

BLOCK_TOKENS = 16

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
    turn: int = 0
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
    _queued_s: float = 0.0
    _is_decoding: bool = False
    _k_start: int = 0
    _k_end: int = 0
    _n_at_start: int = 0

    @property
    def open_wait_s(self) -> float | None:
        """Since when it has been waiting, if it waits now; else None."""
        return self._queued_s if len(self.queues) < self.n_preemptions + 1 else None

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


@dataclass(slots=True)
class EpochLog:
    """All steps and sequences of one engine from its start to its end or restart."""

    epoch: int
    start_s: float
    steps: list[Step] = field(default_factory=list)
    decode_steps: list[int] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    end_s: float = 0.0

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
        for first, last_step in self.decode_runs(request):
            times.extend(step.end_s for step in self.steps[first : last_step + 1])
        times.sort()
        return times


OnDone = Callable[[Request, float], Iterable[Request]]
StepHook = Callable[[int, float, float, int, int], float]


def _blocks(n_tokens: int) -> int:
    return -(-n_tokens // BLOCK_TOKENS)


class Engine:
    """Runs requests through one engine epoch.

    Args:
        config: the limits.
        model: the step-time model.
        noise: source of the step noise.
        on_done: called when a request ends, returns the requests it gives rise to.
        hook: optional; gets step index, start (s), predicted ms, P and D, returns the ms it takes.
    """

    def __init__(
        self,
        config: EngineConfig,
        model: StepModel,
        *,
        noise: random.Random,
        on_done: OnDone,
        hook: StepHook | None = None,
        epoch: int = 0,
        start_s: float = 0.0,
    ) -> None:
        self.config = config
        self.model = model
        self.log = EpochLog(epoch=epoch, start_s=start_s, end_s=start_s)
        self.waiting: deque[Request] = deque()
        self.running: dict[Request, None] = {}
        self._noise = noise
        self._on_done = on_done
        self._hook = hook
        self._arrivals: list[tuple[float, int, Request]] = []
        self._partials: dict[Request, None] = {}
        self._decoding: dict[Request, None] = {}
        self._n_blocks = config.kv_tokens // BLOCK_TOKENS
        self._n_free = self._n_blocks
        self._n_reserved = 0
        self._k = 0
        self._phase_blocks = [0] * BLOCK_TOKENS
        self._ends: dict[int, list[Request]] = {}
        self._n_decode_context = 0
        self._n_waiting_tokens = 0
        self._changed_joined: dict[Request, None] = {}
        self._changed_left: dict[Request, None] = {}
        self._was_decoding = False
        self._held: list[Request] = []
        self._chunks: list[tuple[Request, Chunk]] = []
        self._preempted: list[int] = []
        self._budget = 0
        self._index = 0
        self._now_s = start_s
        self._decode_is_scheduled = False

    # --- arrivals -------------------------------------------------------------------------

    def add(self, requests: Iterable[Request]) -> None:
        """Queue requests for the moment each reaches the engine."""
        for request in requests:
            heapq.heappush(self._arrivals, (request.engine_s, request.number, request))

    def open_requests(self) -> list[Request]:
        """Return what the engine has taken in and not finished, running first."""
        return [*self.running, *self.waiting]

    def pending(self) -> list[Request]:
        """Return requests that have not reached the engine yet."""
        return [request for _, _, request in self._arrivals]

    def _take_in(self, now_s: float) -> None:
        arrivals = self._arrivals
        while arrivals and arrivals[0][0] <= now_s:
            request = heapq.heappop(arrivals)[2]
            self._check_size(request)
            request.epoch = self.log.epoch
            request.index = len(self.log.requests)
            request.seen_s = now_s
            request._queued_s = request.engine_s
            self.log.requests.append(request)
            self.waiting.append(request)
            self._n_waiting_tokens += request.n_prompt - request.n_cached

    def _check_size(self, request: Request) -> None:
        n_tokens = request.n_prompt + request.n_output
        if self.config.kv_test == "reserve-max":
            n_tokens = max(n_tokens, request.n_prompt + request.n_max_output)
        if not request.is_ghost and _blocks(n_tokens) > self._n_blocks:
            raise InputError(
                f"a request of {n_tokens} tokens does not fit into {self.config.kv_tokens} of KV"
            )

    # --- the loop -------------------------------------------------------------------------

    def run(self, until_s: float) -> float:
        """Run until nothing is left to do or the next step would end after `until_s`.

        Returns:
            The time at which the engine stopped, in seconds of the run.

        Raises:
            InputError: the head of the queue can never be admitted.
        """
        now_s = self.log.start_s
        decided_s = now_s
        while True:
            self._take_in(decided_s)
            if not self.running and not self.waiting:
                if not self._arrivals:
                    return now_s
                now_s = decided_s = max(now_s, self._arrivals[0][0])
                if now_s >= until_s:
                    return until_s
                self._take_in(now_s)
            step = self._step(decided_s, now_s)
            if step is None:
                # Everything that ran was preempted, or slots are held one step longer: try again.
                if not (self._release() or self._preempted):
                    raise InputError(f"request {self.waiting[0].number} can never be admitted")
                decided_s = now_s
                continue
            if step.end_s > until_s:
                self._retract(step)
                return until_s
            self._finish_step(step)
            now_s = step.end_s
            decided_s = now_s
            if self.config.pipeline_depth == 2:
                # The next batch is put together while this one runs.
                decided_s = step.end_s - 0.75 * (step.end_s - step.busy_s)
                if not self.running and not self.waiting:
                    decided_s = now_s

    def _retract(self, step: Step) -> None:
        """Forget a step that did not end within the run: a span that never ended is not written."""
        for request, chunk in self._chunks:
            request.prefills[-1].remove(chunk)
            if not request.prefills[-1]:
                request.prefills.pop()
        if step.n_decode:
            self.log.decode_steps.pop()

    # --- one step -------------------------------------------------------------------------

    def _step(self, decided_s: float, now_s: float) -> Step | None:
        config = self.config
        self._chunks = []
        self._preempted = []
        self._budget = config.max_batch_tokens
        self._index = len(self.log.steps)
        self._now_s = decided_s
        self._decode_is_scheduled = False
        bound = "none"
        if config.policy == "mixed":
            self._schedule_decodes()
            self._schedule_partials()
            bound = self._admit()
        else:
            self._schedule_partials()
            bound = self._admit()
            if not self._chunks:
                self._schedule_decodes()
        n_decode = len(self._decoding) if self._decode_is_scheduled else 0
        if not n_decode and not self._chunks:
            return None
        n_prefill = sum(chunk.n_tokens for _, chunk in self._chunks)
        n_context = sum(chunk.n_context for _, chunk in self._chunks)
        n_decode_context = self._n_decode_context if n_decode else 0
        cost_ms = self._cost_ms(decided_s, now_s, n_prefill, n_decode, n_context + n_decode_context)
        joined, left = self._membership_change(n_decode > 0)
        if n_decode:
            self.log.decode_steps.append(self._index)
        reserved: float | None = None
        if config.kv_test == "reserve-max":
            reserved = self._n_reserved / self._n_blocks
        return Step(
            index=self._index,
            start_s=decided_s,
            end_s=now_s + cost_ms / 1e3,
            busy_s=now_s,
            chunks=tuple((r.index, c.n_tokens, c.n_context) for r, c in self._chunks),
            n_prefill=n_prefill,
            n_decode=n_decode,
            n_context=n_decode_context + n_decode,
            n_running=len(self.running),
            n_waiting=len(self.waiting),
            n_waiting_tokens=self._n_waiting_tokens,
            oldest_wait_s=self._oldest_wait_s(decided_s),
            kv_frac=1 - self._n_free / self._n_blocks,
            kv_reserved_frac=reserved,
            preempted=tuple(self._preempted),
            admit_bound=bound,
            joined=joined,
            left=left,
        )

    def _cost_ms(
        self, decided_s: float, now_s: float, n_prefill: int, n_decode: int, n_context: int
    ) -> float:
        cost_ms = self.model.cost_ms(n_prefill, n_decode, n_context)
        for change in self.model.changes:
            if change.from_s <= now_s < change.until_s:
                cost_ms = cost_ms * change.factor + change.add_ms
        if self.model.noise_sigma:
            cost_ms *= self._noise.lognormvariate(0.0, self.model.noise_sigma)
        if self._hook is not None:
            cost_ms = self._hook(self._index, now_s, cost_ms, n_prefill, n_decode)
        return cost_ms

    def _schedule_decodes(self) -> None:
        if not self._decoding:
            return
        phase = self._k % BLOCK_TOKENS
        need = self._phase_blocks[phase]
        if need <= self._n_free:
            self._n_free -= need
        else:
            for request in list(self.running):
                if request not in self._decoding or self._block_phase(request) != phase:
                    continue
                if self._make_room(1, request):
                    self._n_free -= 1
        self._decode_is_scheduled = bool(self._decoding)
        self._budget -= len(self._decoding)

    def _schedule_partials(self) -> None:
        for request in list(self._partials):
            if self._budget <= 0:
                return
            if request not in self._partials:
                continue
            n_tokens = self._chunk_size(request)
            need = _blocks(request.n_computed + n_tokens) - request.n_blocks
            if not self._make_room(need, request):
                continue
            self._take_chunk(request, min(n_tokens, self._budget), need)

    def _admit(self) -> str:
        """Admit from the queue; return what kept its head out."""
        config = self.config
        if self._preempted:
            return "kv"
        while self.waiting:
            if len(self.running) + len(self._held) >= config.max_seqs:
                return "slots"
            if self._budget <= 0:
                return "tokens"
            request = self.waiting[0]
            cached = request.n_cached if not request.n_preemptions else 0
            request.n_computed = cached
            n_tokens = self._chunk_size(request)
            need = _blocks(cached + n_tokens)
            if not self._fits(request, need):
                return "kv"
            self.waiting.popleft()
            self._n_waiting_tokens -= request.n_total - cached
            self.running[request] = None
            reason = "preempted" if request.n_preemptions else "arrival"
            request.queues.append((request._queued_s, self._now_s, reason))
            if request.scheduled_s is None:
                request.scheduled_s = self._now_s
            request.prefills.append([])
            self._take_chunk(request, n_tokens, need)
        return "none"

    def _fits(self, request: Request, need: int) -> bool:
        kv_test = self.config.kv_test
        if kv_test == "first-chunk":
            return need <= self._n_free
        if kv_test == "full-prompt":
            return _blocks(request.n_total) <= self._n_free
        promised = _blocks(request.n_prompt + request.n_max_output)
        if self._n_reserved + promised > self._n_blocks:
            return False
        self._n_reserved += promised
        return True

    def _chunk_size(self, request: Request) -> int:
        n_tokens = min(request.n_total - request.n_computed, self._budget)
        threshold = self.config.prompt_threshold
        return min(n_tokens, threshold) if threshold else n_tokens

    def _take_chunk(self, request: Request, n_tokens: int, need: int) -> None:
        chunk = Chunk(self._index, n_tokens, request.n_computed)
        self._chunks.append((request, chunk))
        request.prefills[-1].append(chunk)
        request.n_blocks += need
        self._n_free -= need
        self._budget -= n_tokens
        self._partials[request] = None

    def _make_room(self, need: int, request: Request) -> bool:
        """Preempt from the end of the running list until `need` blocks are free."""
        while need > self._n_free:
            victim = next(reversed(self.running))
            self._preempt(victim)
            if victim is request:
                return False
        return True

    def _preempt(self, victim: Request) -> None:
        del self.running[victim]
        if victim._is_decoding:
            in_step = self._decode_is_scheduled
            has_new_block = in_step and self._block_phase(victim) == self._k % BLOCK_TOKENS
            self._n_free += int(has_new_block)
            self._budget += int(in_step)
            self._leave_decoding(victim)
        else:
            self._partials.pop(victim, None)
        self._n_free += victim.n_blocks
        self._unreserve(victim)
        victim.n_blocks = 0
        victim.n_computed = 0
        victim.n_preemptions += 1
        victim._queued_s = self._now_s
        self.waiting.appendleft(victim)
        self._n_waiting_tokens += victim.n_total
        self._preempted.append(victim.index)

    def _unreserve(self, request: Request) -> None:
        if self.config.kv_test == "reserve-max":
            self._n_reserved -= _blocks(request.n_prompt + request.n_max_output)

    # --- decoding, by counter ----------------------------------------------------------------

    def _block_phase(self, request: Request) -> int:
        return (request._k_start - request._n_at_start) % BLOCK_TOKENS

    def _enter_decoding(self, request: Request) -> None:
        self._decoding[request] = None
        request._is_decoding = True
        request._k_start = self._k
        request._n_at_start = request.n_computed
        request._k_end = self._k + (request.n_output - request.n_generated)
        self._phase_blocks[self._block_phase(request)] += 1
        self._n_decode_context += request.n_computed
        if not request.is_ghost:
            self._ends.setdefault(request._k_end, []).append(request)
        self._changed_joined[request] = None

    def _leave_decoding(self, request: Request) -> None:
        del self._decoding[request]
        request._is_decoding = False
        n_tokens = self._k - request._k_start
        request.decodes.append((request._k_start, self._k))
        request.n_generated += n_tokens
        request.n_computed += n_tokens
        request.n_blocks = _blocks(request.n_computed)
        self._phase_blocks[self._block_phase(request)] -= 1
        self._n_decode_context -= request.n_computed
        if request in self._changed_joined:
            del self._changed_joined[request]  # it never was in a step
        else:
            self._changed_left[request] = None

    def _membership_change(self, is_decoding: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return who began and who stopped decoding since the step before."""
        if is_decoding and self._was_decoding:
            joined = tuple(sorted(r.index for r in self._changed_joined))
            left = tuple(sorted(r.index for r in self._changed_left))
        elif is_decoding:
            joined, left = tuple(sorted(r.index for r in self._decoding)), ()
        elif self._was_decoding:
            stayed = {r.index for r in self._decoding if r not in self._changed_joined}
            joined, left = (), tuple(sorted(stayed | {r.index for r in self._changed_left}))
        else:
            joined, left = (), ()
        self._changed_joined.clear()
        self._changed_left.clear()
        self._was_decoding = is_decoding
        return joined, left

    # --- after a step ---------------------------------------------------------------------------

    def _finish_step(self, step: Step) -> None:
        self.log.steps.append(step)
        self.log.end_s = step.end_s
        self._release()
        done: list[Request] = []
        if step.n_decode:
            self._k += 1
            self._n_decode_context += step.n_decode
            for request in self._ends.pop(self._k, ()):
                if request._is_decoding and request._k_end == self._k:
                    self._leave_decoding(request)
                    done.append(request)
        for request, chunk in self._chunks:
            request.n_computed += chunk.n_tokens
            if request.n_computed < request.n_total:
                continue
            del self._partials[request]
            if request.n_output:
                request.n_generated += 1
                request.prefill_token_steps.append(step.index)
                if request.first_token_s is None:
                    request.first_token_s = step.end_s
            if request.n_generated >= request.n_output and not request.is_ghost:
                done.append(request)
            else:
                self._enter_decoding(request)
        for request in done:
            request.done_s = step.end_s
            del self.running[request]
            if self.config.pipeline_depth == 2:
                self._held.append(request)  # known only after the next batch has been put together
            else:
                self._free(request)
            self.add(self._on_done(request, step.end_s))

    def _release(self) -> bool:
        held, self._held = self._held, []
        for request in held:
            self._free(request)
        return bool(held)

    def _free(self, request: Request) -> None:
        self._n_free += request.n_blocks
        request.n_blocks = 0
        self._unreserve(request)

    def close(self) -> None:
        """Close the books on sequences that are still open: their decode so far."""
        for request in list(self._decoding):
            self._leave_decoding(request)

    def _oldest_wait_s(self, now_s: float) -> float:
        oldest_s = 0.0
        for request in self.waiting:
            oldest_s = max(oldest_s, now_s - request._queued_s)
            if not request.n_preemptions:
                break
        return oldest_s
