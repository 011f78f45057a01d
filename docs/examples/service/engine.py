"""An engine: continuous batching, chunked prefill, prefix caching, preemption; and its tracing.

The tracer's part is a few lines: `StepTracer`, and its `queued`, `step` and `finished`.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from model import Decoder, Piece
from tokenlag_tracer import conventions as names
from tokenlag_tracer.engines.torch_runner import StepTracer, model_resource

BLOCK = 64


@dataclass(frozen=True)
class Limits:
    """What binds the engine."""

    max_seqs: int = 8
    max_batch_tokens: int = 2048
    kv_tokens: int = 32768
    max_len: int = 8192
    chunked_prefill: bool = True
    prefix_caching: bool = True
    hidden: int = 128
    n_layers: int = 2


@dataclass(eq=False)
class Request:
    """One request. `deliver` gets each token and when it was known; None at the end."""

    request_id: str
    tokens: list[int]
    max_tokens: int
    deliver: Callable[[int | None, int], None]
    traceparent: str | None = None
    n_prompt: int = 0
    n_computed: int = 0
    n_prefill: int = 0
    slot: int = -1
    queued_ns: int = 0
    is_aborted: bool = False

    @property
    def is_decoding(self) -> bool:
        """Its prompt is computed; each step gives it a token."""
        return self.n_computed >= self.n_prefill


@dataclass
class Plan:
    """Who is in the next step with how many tokens, and who had to leave for it."""

    work: list[tuple[Request, int]] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    bound: str = "none"


class PrefixCache:
    """Keeps the KV of prompt heads, in blocks, by the tokens up to each block's end."""

    def __init__(self, most: int = 256) -> None:
        self._most = most
        self._blocks: OrderedDict[tuple[int, ...], torch.Tensor] = OrderedDict()

    def load(self, request: Request, cache: torch.Tensor) -> int:
        """Copies what is known of a prompt into its slot; returns how many tokens that is."""
        n = 0
        while n + BLOCK < request.n_prefill:  # at least one token is to be computed
            block = self._blocks.get(tuple(request.tokens[: n + BLOCK]))
            if block is None:
                break
            cache[:, :, request.slot, n : n + BLOCK] = block
            n += BLOCK
        return n

    def store(self, request: Request, cache: torch.Tensor) -> None:
        """Keeps a prompt's blocks."""
        for n in range(0, request.n_prompt - BLOCK, BLOCK):
            key = tuple(request.tokens[: n + BLOCK])
            if key not in self._blocks:
                self._blocks[key] = cache[:, :, request.slot, n : n + BLOCK].clone()
            self._blocks.move_to_end(key)
        while len(self._blocks) > self._most:
            self._blocks.popitem(last=False)


class Engine:
    """Runs requests in a thread of its own."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.model = Decoder(limits.hidden, limits.n_layers, limits.max_seqs, limits.max_len)
        self._inbox: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._free = list(range(limits.max_seqs))
        self._prefixes = PrefixCache() if limits.prefix_caching else None
        self._warm_up()
        self.tracer = StepTracer(
            resource={
                **model_resource(self.model),
                names.MODEL_NAME: "tiny",
                names.ENGINE_MAX_SEQS: limits.max_seqs,
                names.ENGINE_MAX_BATCH_TOKENS: limits.max_batch_tokens,
                names.ENGINE_KV_TOKENS: limits.kv_tokens,
                names.ENGINE_CHUNKED_PREFILL: limits.chunked_prefill,
                names.ENGINE_PREFIX_CACHING: limits.prefix_caching,
            }
        )
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def _warm_up(self) -> None:
        for n_pieces in range(1, self.limits.max_seqs + 1):
            self.model([Piece(slot, [0], 1) for slot in range(n_pieces)])
        for n_tokens in (16, 64, 256, min(1024, self.limits.max_batch_tokens)):
            self.model([Piece(0, [0] * n_tokens, 0)])

    def submit(self, request: Request) -> None:
        """Takes a request in, from any thread: from here on it waits."""
        request.queued_ns = time.monotonic_ns()
        self._inbox.put(request)

    def stop(self) -> None:
        """Ends the thread after the step under way."""
        self._inbox.put(None)
        self._thread.join()
        self.tracer.recorder.close()

    # --- the loop -----------------------------------------------------------------------------

    def _run(self) -> None:
        while self._take_in():
            self._drop_aborted()
            plan = self._plan()
            if plan.work:
                self._step(plan)

    def _take_in(self) -> bool:
        is_idle = not self._running and not self._waiting
        while is_idle or not self._inbox.empty():
            request = self._inbox.get()
            if request is None:
                return False
            request.n_prompt = request.n_prefill = len(request.tokens)
            self._waiting.append(request)
            is_idle = False
            self.tracer.queued(
                request, request.request_id, at_ns=request.queued_ns,
                prompt_tokens=request.n_prompt, max_tokens=request.max_tokens,
                traceparent=request.traceparent, model="tiny",
            )  # fmt: skip
        return True

    def _drop_aborted(self) -> None:
        for request in [r for r in (*self._running, *self._waiting) if r.is_aborted]:
            if request in self._running:
                self._release(request)
            else:
                self._waiting.remove(request)
            self.tracer.aborted(request)

    def _step(self, plan: Plan) -> None:
        pieces = [
            Piece(r.slot, r.tokens[r.n_computed : r.n_computed + n], r.n_computed)
            for r, n in plan.work
        ]
        parts = [(r, n, r.n_computed, not r.is_decoding) for r, n in plan.work]
        waiting = self._waiting
        now_ns = time.monotonic_ns()
        with self.tracer.step(
            parts,
            preempted=plan.preempted,
            running=len(self._running),
            waiting=len(waiting),
            waiting_tokens=sum(r.n_prefill for r in waiting),
            oldest_wait_ns=now_ns - waiting[0].queued_ns if waiting else 0,
            kv_usage=sum(r.n_computed for r in self._running) / self.limits.kv_tokens,
            admit_bound=plan.bound,
        ):
            tokens = self.model(pieces)
        ready_ns = time.monotonic_ns()
        for (request, n), token in zip(plan.work, tokens, strict=True):
            was_prefill = not request.is_decoding
            request.n_computed += n
            if not request.is_decoding:
                continue
            if was_prefill and self._prefixes is not None:
                self._prefixes.store(request, self.model.cache)
            request.tokens.append(token)
            request.deliver(token, ready_ns)
            n_generated = len(request.tokens) - request.n_prompt
            if n_generated >= request.max_tokens:
                self._release(request)
                self.tracer.finished(request, "length", output_tokens=n_generated)
                request.deliver(None, ready_ns)

    # --- scheduling ---------------------------------------------------------------------------

    def _plan(self) -> Plan:
        plan = Plan()
        if not self.limits.chunked_prefill:
            # Whole prompts first; streams wait for them.
            self._admit(plan, max(self.limits.max_batch_tokens, self._head_size()))
            if plan.work:
                return plan
        budget = self.limits.max_batch_tokens
        for request in list(self._running):
            if request.is_decoding and self._make_room(request, plan):
                plan.work.append((request, 1))
                budget -= 1
        for request in self._running:
            n = min(budget, request.n_prefill - request.n_computed)
            if n > 0:
                plan.work.append((request, n))
                budget -= n
        if self.limits.chunked_prefill:
            self._admit(plan, budget)
        return plan

    def _head_size(self) -> int:
        return self._waiting[0].n_prefill if self._waiting else 0

    def _admit(self, plan: Plan, budget: int) -> None:
        """Takes from the queue what has a slot, KV and budget; notes what kept its head out."""
        while self._waiting:
            request = self._waiting[0]
            is_whole = not self.limits.chunked_prefill
            if not self._free:
                plan.bound = "slots"
            elif self._reserved() + request.n_prefill + 1 > self.limits.kv_tokens:
                plan.bound = "kv"
            elif budget <= 0 or (is_whole and request.n_prefill > budget):
                plan.bound = "tokens"
            else:
                self._waiting.popleft()
                self._running.append(request)
                request.slot = self._free.pop()
                if self._prefixes is not None:
                    request.n_computed = self._prefixes.load(request, self.model.cache)
                n = min(budget, request.n_prefill - request.n_computed)
                plan.work.append((request, n))
                budget -= n
                continue
            return

    def _reserved(self) -> int:
        return sum(max(r.n_computed, r.n_prefill) for r in self._running)

    def _make_room(self, request: Request, plan: Plan) -> bool:
        """Finds KV for one more token, at the cost of the youngest; returns whether it could."""
        while request in self._running and self._reserved() + 1 > self.limits.kv_tokens:
            victim = self._running[-1]
            self._release(victim)
            plan.work = [entry for entry in plan.work if entry[0] is not victim]
            plan.preempted.append(victim)
            victim.n_computed, victim.n_prefill = 0, len(victim.tokens)
            self._waiting.appendleft(victim)
        return request in self._running

    def _release(self, request: Request) -> None:
        self._running.remove(request)
        self._free.append(request.slot)
        request.slot = -1
