"""A small continuous-batching engine in simulated time, with a step-time model that is known.

One step takes `a + b·P + c·D + d·C` milliseconds: P prompt tokens in the step, D sequences
that decode one token, C the tokens already computed of every sequence scheduled in it (`e·W`,
attention within prompts, may come on top). The scheduler is that of a chunked-prefill engine:
decodes first, then running prefills, then waiting requests first come, first served, under a
token budget, a slot cap and a KV pool of 16-token blocks; a block that is missing preempts the
last running sequence.

Decoding sequences are not visited in each step. They all advance together, so a counter of
decode steps tells when each ends and when it needs its next block; a step costs what changes
in it, not what runs in it.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Iterable

from tokenlag.errors import InputError
from tokenlag.simulate.config import EngineConfig, StepModel
from tokenlag.simulate.decoding import BLOCK_TOKENS, DecodeBatch, blocks_for
from tokenlag.simulate.log import Chunk, EpochLog, Request, Step
from tokenlag.simulate.speculation import SpeculatingBatch, SpeculationConfig
from tokenlag.simulate.steptime import Batch, StepTime

OnDone = Callable[[Request, float], Iterable[Request]]
StepHook = Callable[[int, float, float, int, int], float]


class Engine:
    """Runs requests through one engine epoch.

    Args:
        config: the limits.
        model: the step-time model.
        noise: source of the step noise.
        on_done: called when a request ends, returns the requests it gives rise to.
        hook: optional; gets step index, start (s), predicted ms, P and D, returns the ms it takes.
        speculation: how it drafts, if it does.
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
        speculation: SpeculationConfig | None = None,
    ) -> None:
        self.config = config
        self.model = model
        self.log = EpochLog(epoch=epoch, start_s=start_s, end_s=start_s, config=config)
        self.waiting: deque[Request] = deque()
        self.running: dict[Request, None] = {}
        self._time = StepTime(model, noise, start_s)
        self._on_done = on_done
        self._hook = hook
        self._arrivals: list[tuple[float, int, Request]] = []
        self._partials: dict[Request, None] = {}
        self._speculating: SpeculatingBatch | None = None
        if speculation is not None:
            self._speculating = SpeculatingBatch(speculation, random.Random(f"drafts {epoch}"))
        self._decoding = self._speculating or DecodeBatch()
        self._n_blocks = config.kv_tokens // BLOCK_TOKENS
        self._n_free = self._n_blocks
        self._n_reserved = 0
        self._n_waiting_tokens = 0
        self._held: list[Request] = []
        self._chunks: list[tuple[Request, Chunk]] = []
        self._preempted: list[int] = []
        self._budget = 0
        self._index = 0
        self._now_s = start_s
        self._decided_s = start_s
        self.now_s = start_s
        self._decode_is_scheduled = False

    # --- arrivals -------------------------------------------------------------------------

    def add(self, requests: Iterable[Request]) -> None:
        """Queue requests for the moment each reaches the engine."""
        for request in requests:
            heapq.heappush(
                self._arrivals, (request.engine_s + request.compile_s, request.number, request)
            )

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
            request.queued_s = request.engine_s + request.compile_s
            self.log.requests.append(request)
            if request.compile_s:
                request.queues.append((request.engine_s, request.queued_s, "grammar"))
            if request.is_transferred:
                self._enter_transferred(request)
                continue
            self.waiting.append(request)
            self._n_waiting_tokens += request.n_prompt - request.n_cached

    def _enter_transferred(self, request: Request) -> None:
        """Let a sequence decode whose KV came from elsewhere; its slot is its own already."""
        request.scheduled_s = request.queued_s
        request.n_computed = request.n_prompt
        request.n_blocks = blocks_for(request.n_computed)
        self._n_free -= request.n_blocks
        self.running[request] = None
        self._decoding.enter(request)

    def _check_size(self, request: Request) -> None:
        n_tokens = request.n_prompt + request.n_output
        if self.config.kv_test == "reserve-max":
            n_tokens = max(n_tokens, request.n_prompt + request.n_max_output)
        if not request.is_ghost and blocks_for(n_tokens) > self._n_blocks:
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
        while self.advance(until_s):
            pass
        return self.now_s

    @property
    def next_s(self) -> float:
        """When the engine schedules next, as far as it knows; infinite if nothing is to do."""
        if self.running or self.waiting:
            return self._decided_s
        return max(self._decided_s, self._arrivals[0][0]) if self._arrivals else float("inf")

    def advance(self, until_s: float) -> bool:
        """Run one step; False if there is nothing to do or the step would end after `until_s`.

        Raises:
            InputError: the head of the queue can never be admitted.
        """
        self._take_in(self._decided_s)
        if not self.running and not self.waiting:
            if not self._arrivals:
                return False
            self.now_s = self._decided_s = max(self.now_s, self._arrivals[0][0])
            if self.now_s >= until_s:
                self.now_s = until_s
                return False
            self._take_in(self.now_s)
        step = self._step(self._decided_s, self.now_s)
        if step is None:
            # Everything that ran was preempted, or slots are held one step longer: try again.
            if not (self._release() or self._preempted):
                raise InputError(f"request {self.waiting[0].number} can never be admitted")
            self._decided_s = self.now_s
            return True
        if step.end_s > until_s:
            self._retract(step)
            self.now_s = until_s
            return False
        self._finish_step(step)
        self.now_s = self._decided_s = step.end_s
        if self.config.pipeline_depth == 2 and (self.running or self.waiting):
            # The next batch is put together while this one runs.
            self._decided_s = step.end_s - 0.75 * (step.end_s - step.busy_s)
        return True

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
        n_decode = len(self._decoding.members) if self._decode_is_scheduled else 0
        if not n_decode and not self._chunks:
            return None
        n_prefill = sum(chunk.n_tokens for _, chunk in self._chunks)
        n_context = sum(chunk.n_context for _, chunk in self._chunks)
        n_decode_context = self._decoding.n_context if n_decode else 0
        cost_ms = self._cost_ms(now_s, n_prefill, n_decode, n_context + n_decode_context)
        joined, left = self._decoding.membership_change(n_decode > 0)
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
            n_running=len(self.running) + len(self._held),  # a slot is held until its end is known
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

    def _cost_ms(self, now_s: float, n_prefill: int, n_decode: int, n_context: int) -> float:
        features: tuple[str, ...] = ()
        if self._time.needs_features:
            scheduled = [request for request, _ in self._chunks]
            scheduled += self._decoding.members if n_decode else ()
            features = tuple(name for request in scheduled for name in request.features)
        work = sum(c.attention_work for _, c in self._chunks) if self.model.e_ms else 0.0
        batch = Batch(now_s, n_prefill, n_decode, n_context, features, work)
        cost_ms = self._time.cost_ms(batch)
        if self._hook is not None:
            cost_ms = self._hook(self._index, now_s, cost_ms, n_prefill, n_decode)
        return cost_ms

    def _schedule_decodes(self) -> None:
        decoding = self._decoding
        need = decoding.n_blocks_needed()
        if need <= self._n_free:
            self._n_free -= need
        else:
            for request in list(self.running):
                is_member = request in decoding.members
                if is_member and decoding.needs_block(request) and self._make_room(1, request):
                    self._n_free -= 1
        self._decode_is_scheduled = bool(decoding.members)
        self._budget -= len(decoding.members)

    def _schedule_partials(self) -> None:
        for request in list(self._partials):
            if self._budget <= 0:
                return
            if request not in self._partials:
                continue
            n_tokens = self._chunk_size(request)
            need = blocks_for(request.n_computed + n_tokens) - request.n_blocks
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
            need = blocks_for(cached + n_tokens)
            if not self._fits(request, need):
                return "kv"
            self.waiting.popleft()
            self._n_waiting_tokens -= request.n_total - cached
            self.running[request] = None
            reason = "preempted" if request.n_preemptions else "arrival"
            request.queues.append((request.queued_s, self._now_s, reason))
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
            return blocks_for(request.n_total) <= self._n_free
        promised = blocks_for(request.n_prompt + request.n_max_output)
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
        if victim.is_decoding:
            in_step = self._decode_is_scheduled
            self._n_free += int(in_step and self._decoding.needs_block(victim))
            self._budget += int(in_step)
            self._decoding.leave(victim)
        else:
            self._partials.pop(victim, None)
        self._n_free += victim.n_blocks
        self._unreserve(victim)
        victim.n_blocks = 0
        victim.n_computed = 0
        victim.n_preemptions += 1
        victim.queued_s = self._now_s
        self.waiting.appendleft(victim)
        self._n_waiting_tokens += victim.n_total
        self._preempted.append(victim.index)

    def _unreserve(self, request: Request) -> None:
        if self.config.kv_test == "reserve-max":
            self._n_reserved -= blocks_for(request.n_prompt + request.n_max_output)

    # --- after a step ---------------------------------------------------------------------------

    def _finish_step(self, step: Step) -> None:
        self.log.steps.append(step)
        self.log.end_s = step.end_s
        self._time.ended(step.end_s)
        self._release()
        done = self._advance_decoding(step) if step.n_decode else []
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
                self._decoding.enter(request)
        done.sort(key=lambda request: request.number)  # follow-ups draw in this order
        for request in done:
            request.done_s = step.end_s
            del self.running[request]
            if self.config.pipeline_depth == 2:
                self._held.append(request)  # known only after the next batch has been put together
            else:
                self._free(request)
            self.add(self._on_done(request, step.end_s))

    def _advance_decoding(self, step: Step) -> list[Request]:
        speculating = self._speculating
        if speculating is None:
            if self.log.role is not None:
                for request in self._decoding.members:
                    if request.first_token_s is None:
                        request.first_token_s = step.end_s
            return self._decoding.advance()
        speculating.now_s = step.busy_s
        done = speculating.advance()
        step.new_tokens = speculating.new_tokens
        step.n_drafted, step.n_accepted = speculating.n_drafted, speculating.n_accepted
        return done

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
        for request in list(self._decoding.members):
            self._decoding.leave(request)

    def _oldest_wait_s(self, now_s: float) -> float:
        oldest_s = 0.0
        for request in self.waiting:
            oldest_s = max(oldest_s, now_s - request.queued_s)
            if not request.n_preemptions:
                break
        return oldest_s
