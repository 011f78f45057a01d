"""Several engines behind a router, with a front end before it, in one simulated time.

Events are handled in the order of time: a request arrives, passes the front end, is routed to
an engine; the engine whose next step begins first takes it. A router's own count of requests
in flight is exact at the moment it decides.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tokenlag.errors import InputError
from tokenlag.simulate.config import EngineConfig, StepModel
from tokenlag.simulate.engine import Engine, OnDone, StepHook
from tokenlag.simulate.frontend import Frontend, FrontendConfig
from tokenlag.simulate.log import EpochLog, Request

ROUTERS = ("round-robin", "affinity", "least-loaded")


@dataclass(frozen=True, slots=True)
class FleetConfig:
    """Engines of one size behind a router.

    Attributes:
        engines: how many.
        router: `round-robin`; `affinity` (requests with a common prefix all go to the prefix's
            engine, the others in turn to engines without a prefix); `least-loaded` (fewest
            requests in flight).
        step_factor: by engine, how much longer its steps take; empty: all the same.
        affected: numbers of the engines that the step model's changes and effects happen to;
            empty: to all.
    """

    engines: int = 1
    router: str = "round-robin"
    step_factor: tuple[float, ...] = ()
    affected: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.router not in ROUTERS:
            raise InputError(f"router {self.router!r} is none of {', '.join(ROUTERS)}")
        if self.engines < 1:
            raise InputError("a fleet has at least one engine")
        if self.step_factor and len(self.step_factor) != self.engines:
            raise InputError("step_factor has one entry for each engine")
        if any(not 0 <= number < self.engines for number in self.affected):
            raise InputError("affected names engines by their number, from 0")

    def factor(self, engine: int) -> float:
        """Return how much longer the steps of an engine take."""
        return self.step_factor[engine] if self.step_factor else 1.0

    def model_of(self, engine: int, model: StepModel) -> StepModel:
        """Return the step model of an engine, without what happens to others alone."""
        if self.affected and engine not in self.affected:
            model = replace(model, changes=(), effects=())
        return _scaled(model, self.factor(engine))


class Router:
    """Decides which engine takes a request."""

    def __init__(self, config: FleetConfig) -> None:
        self._config = config
        self._home: dict[str, int] = {}
        self._turn = 0
        self._in_flight = [0] * config.engines

    def choose(self, request: Request) -> int:
        """Return the number of the engine for a request that is ready now."""
        chosen = self._choose(request)
        self._in_flight[chosen] += 1
        return chosen

    def done(self, engine: int) -> None:
        """Learn that an engine has finished a request."""
        self._in_flight[engine] -= 1

    def _choose(self, request: Request) -> int:
        n = self._config.engines
        if self._config.router == "least-loaded":
            return min(range(n), key=lambda i: (self._in_flight[i], i))
        if self._config.router == "affinity" and request.prefix_id is not None:
            return self._home.setdefault(request.prefix_id, len(self._home) % n)
        homes = set(self._home.values()) if self._config.router == "affinity" else set()
        free = [i for i in range(n) if i not in homes] or list(range(n))
        self._turn += 1
        return free[(self._turn - 1) % len(free)]


class Fleet:
    """Runs requests through a front end, a router and engines.

    Args:
        fleet: engines and router.
        engine: limits of each engine.
        model: step-time model of each engine, before its factor.
        frontend: the pool before the router; None: requests reach the router as they are.
        seed: of the step noise, apart for each engine.
        on_done: called when a request ends, returns the requests it gives rise to.
        hook: as of `Engine`.
    """

    def __init__(
        self,
        fleet: FleetConfig,
        engine: EngineConfig,
        model: StepModel,
        *,
        frontend: FrontendConfig | None,
        seed: int,
        on_done: OnDone,
        hook: StepHook | None = None,
    ) -> None:
        self._frontend = Frontend(frontend) if frontend is not None else None
        self._router = Router(fleet)
        self._on_done = on_done
        self._arrivals: list[tuple[float, int, Request]] = []
        self._ready: list[tuple[float, int, Request]] = []
        self._ended: list[tuple[float, int, int]] = []
        self.engines = [
            Engine(
                engine,
                fleet.model_of(number, model),
                noise=random.Random(f"noise {seed} {number}"),
                on_done=self._follow_up,
                hook=hook,
                epoch=number,
            )
            for number in range(fleet.engines)
        ]
        for number, made in enumerate(self.engines):
            made.log.engine = number

    @property
    def logs(self) -> list[EpochLog]:
        """What happened on each engine."""
        return [engine.log for engine in self.engines]

    def add(self, requests: Iterable[Request]) -> None:
        """Queue requests for the moment each is received."""
        for request in requests:
            heapq.heappush(self._arrivals, (request.arrival_s, request.number, request))

    def run(self, until_s: float) -> float:
        """Run until nothing is left to do, or until all steps that end by `until_s` have ended.

        Returns:
            The time at which the last engine stopped, in seconds of the run.
        """
        alive = list(self.engines)
        while alive:
            engine = min(alive, key=lambda e: e.next_s)
            event_s = min(
                (heap[0][0] for heap in (self._arrivals, self._ready) if heap),
                default=float("inf"),
            )
            if event_s <= engine.next_s:
                if event_s >= until_s:
                    break
                self._handle(event_s)
            elif not engine.advance(until_s):
                alive.remove(engine)
        for engine in self.engines:
            engine.close()
        return max(engine.now_s for engine in self.engines)

    def _handle(self, now_s: float) -> None:
        """Handle what happens at `now_s`: an arrival first, then who is ready for an engine."""
        if self._arrivals and self._arrivals[0][0] <= now_s:
            request = heapq.heappop(self._arrivals)[2]
            if self._frontend is not None:
                self._frontend.take(request)
            heapq.heappush(self._ready, (request.engine_s, request.number, request))
            return
        request = heapq.heappop(self._ready)[2]
        while self._ended and self._ended[0][0] <= now_s:
            self._router.done(heapq.heappop(self._ended)[2])
        chosen = self._router.choose(request)
        self.engines[chosen].add([request])

    def _follow_up(self, request: Request, end_s: float) -> list[Request]:
        heapq.heappush(self._ended, (end_s, request.number, request.epoch))
        self.add(self._on_done(request, end_s))
        return []


def _scaled(model: StepModel, factor: float) -> StepModel:
    if factor == 1.0:
        return model
    return replace(
        model,
        a_ms=model.a_ms * factor,
        b_ms=model.b_ms * factor,
        c_ms=model.c_ms * factor,
        d_ms=model.d_ms * factor,
    )
