"""Runs a recipe: workload through one engine, over its restarts, to a finished log."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from tokenlag.errors import InputError
from tokenlag.simulate.delivery import received
from tokenlag.simulate.engine import Engine, StepHook
from tokenlag.simulate.fleet import Fleet, FleetConfig
from tokenlag.simulate.handoff import Handoff
from tokenlag.simulate.log import EpochLog, Request
from tokenlag.simulate.recipe import Recipe, Truth, Variant
from tokenlag.simulate.workload import Workload

ERROR_RESTART = "engine_restart"
ERROR_TIMEOUT = "timeout"
ERROR_UNAVAILABLE = "engine_unavailable"


@dataclass(slots=True)
class Run:
    """What happened: every step of every engine epoch and every request.

    Attributes:
        variant: what was run.
        seed: with which seed.
        epochs: step logs, one for each start of the engine, in order.
        requests: all requests in the order of their making.
        end_s: when the run's data end, in seconds of the run.
        received: by request number, when each token reached the client, in seconds of the run;
            None where nothing lies between them but the way itself.
    """

    variant: Variant
    seed: int
    epochs: list[EpochLog]
    requests: list[Request]
    end_s: float
    received: dict[int, list[float]] | None = None
    _last_instant_s: float | None = field(default=None, repr=False)

    @property
    def key(self) -> str:
        """What names the run: recipe, variant and seed."""
        return f"{self.variant.recipe}/{self.variant.name}/{self.seed}"

    @property
    def truth(self) -> Truth:
        """What a diagnosis of the run must and must not say."""
        return self.variant.truth

    def gave_up(self, request: Request) -> bool:
        """Whether its client gave up first; the engine was not told and worked on."""
        if request.gives_up_s is None:
            return False
        return request.gave_up_by(self.last_instant_s - self.variant.edge.network_ms / 1e3)

    @property
    def last_instant_s(self) -> float:
        """When the last span ends: the client hears of a last token a little after it came out."""
        if self._last_instant_s is None:
            edge = self.variant.edge
            after_s = (edge.delivery_ms + edge.network_ms) / 1e3
            ends = [request.done_s for request in self.requests if request.done_s is not None]
            steps_end_s = max((epoch.end_s for epoch in self.epochs), default=0.0)
            last_s = max(steps_end_s, max(ends, default=0.0) + after_s)
            got = (times[-1] for times in (self.received or {}).values() if times)
            self._last_instant_s = max(last_s, max(got, default=0.0))
        return self._last_instant_s

    @property
    def n_steps(self) -> int:
        """Number of engine steps."""
        return sum(len(epoch.steps) for epoch in self.epochs)


def run(
    recipe: Recipe,
    seed: int | None = None,
    control: bool = False,
    variant: str | None = None,
    hook: StepHook | None = None,
) -> Run:
    """Run a recipe.

    Args:
        recipe: what to run.
        seed: of arrivals and lengths; the recipe's own by default. With another seed, a recipe's
            `reseed` table adds step noise and moves deterministic sends, so that seeds differ.
        control: run the recipe's control instead of the fault.
        variant: run this variant.
        hook: changes the time of steps; see `Engine`.

    Raises:
        InputError: no such variant, no control, or a request that no engine of this size can hold.
    """
    name = variant
    if control:
        name = recipe.control
        if name is None:
            name = recipe.base if recipe.variant().truth.healthy else "control"
    chosen = recipe.variant(name)
    used_seed = chosen.seed if seed is None else seed
    model, jitter_s = chosen.step, 0.0
    if used_seed != chosen.seed:
        jitter_s = float(chosen.reseed.get("jitter_s", 0.0))
        sigma = chosen.reseed.get("noise_sigma", model.noise_sigma)
        model = replace(model, noise_sigma=float(sigma))
    workload = Workload(chosen.workload, chosen.edge, seed=used_seed, jitter_s=jitter_s)
    if chosen.fleet is not None or chosen.frontend is not None:
        if chosen.restart is not None:
            raise InputError("a fleet or a front end with a restart is not simulated")
        fleet = Fleet(
            chosen.fleet or FleetConfig(),
            chosen.engine,
            model,
            frontend=chosen.frontend,
            seed=used_seed,
            on_done=workload.follow_up,
            hook=hook,
        )
        fleet.add(workload.initial())
        end_s = fleet.run(chosen.horizon_s)
        return _delivered(Run(chosen, used_seed, fleet.logs, workload.requests, end_s))
    noise = random.Random(f"noise {used_seed}")
    if chosen.handoff is not None:
        handoff = Handoff(
            chosen.handoff, chosen.engine, model, noise=noise, on_done=workload.follow_up
        )
        handoff.add(workload.initial())
        end_s = handoff.run(chosen.horizon_s)
        return Run(chosen, used_seed, handoff.logs, workload.requests, end_s)

    epochs: list[EpochLog] = []
    restart = chosen.restart
    first = Engine(
        chosen.engine,
        model,
        noise=noise,
        on_done=workload.follow_up,
        hook=hook,
        speculation=chosen.speculation,
    )
    first.add(workload.initial())
    end_s = first.run(min(chosen.horizon_s, restart.at_s if restart else float("inf")))
    first.close()
    epochs.append(first.log)
    if restart is not None and end_s >= restart.at_s:
        up_s = restart.at_s + restart.down_s
        second = Engine(
            chosen.engine,
            model,
            noise=noise,
            on_done=workload.follow_up,
            hook=hook,
            epoch=1,
            start_s=up_s,
            speculation=chosen.speculation,
        )
        lost = first.open_requests()
        for request in lost:
            request.error, request.done_s = ERROR_RESTART, restart.at_s
        for request in first.pending():
            if request.engine_s < up_s:
                request.error, request.done_s = ERROR_UNAVAILABLE, request.engine_s
                lost.append(request)
            else:
                second.add([request])
        if restart.retry_after_s is not None:
            for request in lost:
                heard_s = max(request.done_s or 0.0, request.arrival_s)
                sent_s = max(heard_s + restart.retry_after_s, up_s)
                second.add([workload.again(request, sent_s)])
        end_s = second.run(chosen.horizon_s)
        second.close()
        epochs.append(second.log)
    return _delivered(Run(chosen, used_seed, epochs, workload.requests, end_s))


def _delivered(made: Run) -> Run:
    """Let the tokens of a run that is over pass what lies between the engine and the client."""
    config = made.variant.delivery
    if config is None:
        return made
    kinds = {table.get("kind") for table in made.variant.workload.values()}
    if kinds & {"closed", "sessions"}:
        raise InputError("what delivery delays must not send the next request: open loops only")
    edge = made.variant.edge
    way_s = (edge.delivery_ms + edge.network_ms) / 1e3
    made.received = received(config, made.epochs, made.requests, way_s)
    return made
