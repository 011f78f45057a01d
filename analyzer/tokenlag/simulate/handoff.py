"""A prefill and a decode engine, with a hand-over of the KV between them.

A decode slot is reserved for each request when it arrives, first come, first served, and held
until the request is done. The transfer starts when the prompt is done and the slot is there. If
nothing is ever transferred, the decode engine computes the prompt a second time.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tokenlag.simulate.config import EngineConfig, StepModel
from tokenlag.simulate.engine import Engine, OnDone
from tokenlag.simulate.log import EpochLog, Request

PREFILL = "prefill"
DECODE = "decode"


@dataclass(frozen=True, slots=True)
class HandoffConfig:
    """The hand-over.

    Attributes:
        transfer_ms: time that the KV of a prompt is on its way.
        slots: sequences that the decode engine holds, those included that wait for their KV.
        recompute: nothing is transferred; the decode engine computes the prompt again.
        prefill_seqs: prompts that the prefill engine works on at once.
        prefill_tokens: its token budget.
    """

    transfer_ms: float
    slots: int
    recompute: bool = False
    prefill_seqs: int = 1
    prefill_tokens: int = 8192


class Handoff:
    """Runs requests through both engines.

    Args:
        handoff: the hand-over.
        engine: limits of the decode engine; those of the other follow from it and `handoff`.
        model: step-time model of both.
        noise: source of step noise.
        on_done: called when a request ends, returns the requests it gives rise to.
    """

    def __init__(
        self,
        handoff: HandoffConfig,
        engine: EngineConfig,
        model: StepModel,
        *,
        noise: random.Random,
        on_done: OnDone,
    ) -> None:
        self._config = handoff
        self._on_done = on_done
        prefill = replace(
            engine, max_seqs=handoff.prefill_seqs, max_batch_tokens=handoff.prefill_tokens
        )
        self.prefill = Engine(prefill, model, noise=noise, on_done=self._prefilled)
        self.decode = Engine(engine, model, noise=noise, on_done=self._decoded, epoch=1)
        self.prefill.log.role, self.decode.log.role = PREFILL, DECODE
        self.decode.log.engine = 1
        self._of_leg: dict[Request, Request] = {}
        self._n_free = handoff.slots
        self._unreserved: deque[Request] = deque()
        self._slot_s: dict[int, float] = {}
        self._prefilled_s: dict[int, float] = {}

    @property
    def logs(self) -> list[EpochLog]:
        """What happened on each engine."""
        return [self.prefill.log, self.decode.log]

    def add(self, requests: Iterable[Request]) -> None:
        """Send requests to the prefill engine, and into the line for decode slots."""
        for request in sorted(requests, key=lambda r: (r.engine_s, r.number)):
            leg = replace(_fresh(request), n_output=0)
            request.legs = [leg]
            self._of_leg[leg] = request
            self.prefill.add([leg])
            self._unreserved.append(request)
            self._reserve(request.engine_s)

    def run(self, until_s: float) -> float:
        """Run both engines in the order of time; return when the last one stopped."""
        engines = [self.prefill, self.decode]
        while True:
            ready = [e for e in engines if e.next_s < float("inf")]
            if not ready or not min(ready, key=lambda e: e.next_s).advance(until_s):
                break
        self.prefill.close()
        self.decode.close()
        _count_waiting(self.decode.log, self._slot_s, self._of_leg)
        return max(engine.now_s for engine in engines)

    def _prefilled(self, leg: Request, now_s: float) -> list[Request]:
        request = self._of_leg[leg]
        self._prefilled_s[request.number] = now_s
        self._hand_over(request)
        return []

    def _decoded(self, leg: Request, now_s: float) -> list[Request]:
        request = self._of_leg[leg]
        request.first_token_s, request.done_s = leg.first_token_s, now_s
        request.n_generated = leg.n_generated
        self._n_free += 1
        self._reserve(now_s)
        self.add(self._on_done(request, now_s))
        return []

    def _reserve(self, now_s: float) -> None:
        while self._unreserved and self._n_free:
            request = self._unreserved.popleft()
            self._n_free -= 1
            self._slot_s[request.number] = max(now_s, request.engine_s)
            self._hand_over(request)

    def _hand_over(self, request: Request) -> None:
        """Move on to decode once both the prompt and the slot are there."""
        if request.number not in self._slot_s or request.number not in self._prefilled_s:
            return
        done_s, slot_s = self._prefilled_s[request.number], self._slot_s[request.number]
        begin_s = max(done_s, slot_s)
        leg = _fresh(request)
        if slot_s > done_s:
            leg.queues.append((done_s, slot_s, "arrival"))
        if self._config.recompute:
            leg.engine_s = begin_s
        else:
            leg.engine_s = begin_s + self._config.transfer_ms / 1e3
            leg.queues.append((begin_s, leg.engine_s, "kv_transfer"))
            leg.is_transferred = True
        leg.taken_s = done_s
        request.legs.append(leg)
        self._of_leg[leg] = request
        self.decode.add([leg])


def _fresh(request: Request) -> Request:
    """The same request for one engine, nothing done of it yet."""
    return Request(
        number=request.number, sent_s=request.sent_s, arrival_s=request.arrival_s,
        engine_s=request.engine_s, n_prompt=request.n_prompt, n_output=request.n_output,
        n_cached=request.n_cached, n_max_output=request.n_max_output, source=request.source,
        turn=request.turn, features=request.features,
    )  # fmt: skip


def _count_waiting(log: EpochLog, slot_s: dict[int, float], of_leg: dict[Request, Request]) -> None:
    """Tell in the decode steps how many requests stand in line for a slot."""
    edges: list[tuple[float, int]] = []
    for request in {id(r): r for r in of_leg.values()}.values():
        end_s = slot_s.get(request.number, float("inf"))
        if end_s > request.engine_s:
            edges += [(request.engine_s, 1), (end_s, -1)]
    edges.sort()
    n_waiting, at = 0, 0
    for step in log.steps:
        while at < len(edges) and edges[at][0] <= step.start_s:
            n_waiting += edges[at][1]
            at += 1
        step.n_waiting = n_waiting
        step.admit_bound = "slots" if n_waiting else step.admit_bound
