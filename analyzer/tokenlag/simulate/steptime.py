"""How long a step takes: the model's time, what a fault does to it, and noise.

Effects are what the analyzer's own model does not know of: stops at intervals, first uses of
a shape, a jump above a captured batch size, requests that make steps dearer, clocks that
flip, climb or sleep. Each keeps the state of one engine from its start.
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenlag.errors import InputError
from tokenlag.simulate.config import StepModel


@dataclass(frozen=True, slots=True)
class Batch:
    """What a step has in it, and when.

    Attributes:
        now_s: when it begins.
        n_prefill: prompt tokens.
        n_decode: decoding sequences.
        n_context: tokens in KV of all that is scheduled.
        features: of its requests, one entry for each request that has it.
        attention_work: of its prompt chunks, tokens × (context + tokens / 2), summed.
    """

    now_s: float
    n_prefill: int
    n_decode: int
    n_context: int
    features: tuple[str, ...] = ()
    attention_work: float = 0.0


class Effect(ABC):
    """Something that changes the time of steps; one object for one engine epoch."""

    def __init__(self, model: StepModel, start_s: float) -> None:
        self.model = model
        self.start_s = start_s

    @abstractmethod
    def apply(self, cost_ms: float, batch: Batch) -> float:
        """Return the step's time in milliseconds, given its time without this effect."""

    def ended(self, end_s: float) -> None:  # noqa: B027 most have nothing to learn from it
        """Learn when the step ended."""


class Pauses(Effect):
    """The first step at or after each multiple of `every_s` takes `add_ms` more."""

    def __init__(
        self,
        model: StepModel,
        start_s: float,
        every_s: float,
        add_ms: float,
        from_s: float = 0.0,
        until_s: float = float("inf"),
    ) -> None:
        super().__init__(model, start_s)
        self._every_s = every_s
        self._add_ms = add_ms
        self._until_s = until_s
        self._next = max(1, -int(-from_s // every_s))

    def apply(self, cost_ms: float, batch: Batch) -> float:
        """See `Effect`."""
        if batch.now_s < self._next * self._every_s or batch.now_s >= self._until_s:
            return cost_ms
        self._next = int(batch.now_s / self._every_s) + 1
        return cost_ms + self._add_ms


class FirstUse(Effect):
    """The first step of each shape class takes `add_ms` more.

    The class is the next power of two of the step's prompt tokens, else of its streams.
    """

    def __init__(self, model: StepModel, start_s: float, add_ms: float) -> None:
        super().__init__(model, start_s)
        self._add_ms = add_ms
        self._seen: set[tuple[str, int]] = set()

    def apply(self, cost_ms: float, batch: Batch) -> float:
        """See `Effect`."""
        n_tokens = batch.n_prefill or batch.n_decode
        shape = ("prefill" if batch.n_prefill else "decode", (n_tokens - 1).bit_length())
        if shape in self._seen:
            return cost_ms
        self._seen.add(shape)
        return cost_ms + self._add_ms


class Ceiling(Effect):
    """Steps that decode more than `above` sequences take `add_ms` more."""

    def __init__(
        self, model: StepModel, start_s: float, above: int, add_ms: float, from_s: float = 0.0
    ) -> None:
        super().__init__(model, start_s)
        self._above = above
        self._add_ms = add_ms
        self._from_s = from_s

    def apply(self, cost_ms: float, batch: Batch) -> float:
        """See `Effect`."""
        is_over = batch.n_decode > self._above and batch.now_s >= self._from_s
        return cost_ms + self._add_ms if is_over else cost_ms


class Tax(Effect):
    """Each step with requests of a feature takes `add_ms` more, once or for each of them."""

    def __init__(
        self,
        model: StepModel,
        start_s: float,
        feature: str,
        add_ms: float,
        each: bool = False,
        from_s: float = 0.0,
    ) -> None:
        super().__init__(model, start_s)
        self._feature = feature
        self._add_ms = add_ms
        self._each = each
        self._from_s = from_s

    def apply(self, cost_ms: float, batch: Batch) -> float:
        """See `Effect`."""
        n_marked = batch.features.count(self._feature)
        if not n_marked or batch.now_s < self._from_s:
            return cost_ms
        return cost_ms + self._add_ms * (n_marked if self._each else 1)


class Part(Effect):
    """From `from_s` on a part of the step takes `factor` times as long.

    `part` is `prefill` (what its prompt tokens take) or `decode` (steps without prompt tokens).
    """

    def __init__(
        self, model: StepModel, start_s: float, part: str, factor: float, from_s: float = 0.0
    ) -> None:
        super().__init__(model, start_s)
        if part not in ("prefill", "decode"):
            raise InputError(f"part {part!r} is neither 'prefill' nor 'decode'")
        self._part = part
        self._factor = factor
        self._from_s = from_s

    def apply(self, cost_ms: float, batch: Batch) -> float:
        """See `Effect`."""
        if batch.now_s < self._from_s:
            return cost_ms
        if self._part == "decode":
            return cost_ms if batch.n_prefill else cost_ms * self._factor
        own_ms = self.model.prefill_ms(batch.n_prefill, batch.n_decode)
        return cost_ms + own_ms * (self._factor - 1.0)


class Flip(Effect):
    """Two levels: `factor` times as long in every other stretch of `every_s`."""

    def __init__(
        self, model: StepModel, start_s: float, every_s: float, factor: float, from_s: float = 0.0
    ) -> None:
        super().__init__(model, start_s)
        self._every_s = every_s
        self._factor = factor
        self._from_s = from_s

    def apply(self, cost_ms: float, batch: Batch) -> float:
        """See `Effect`."""
        since_s = batch.now_s - self._from_s
        is_slow = since_s >= 0 and int(since_s / self._every_s) % 2 == 0
        return cost_ms * self._factor if is_slow else cost_ms


class Ramp(Effect):
    """The factor climbs from 1 at `from_s` to `factor` at `from_s + over_s`, and stays."""

    def __init__(
        self, model: StepModel, start_s: float, from_s: float, over_s: float, factor: float
    ) -> None:
        super().__init__(model, start_s)
        self._from_s = from_s
        self._over_s = over_s
        self._factor = factor

    def apply(self, cost_ms: float, batch: Batch) -> float:
        """See `Effect`."""
        share = min(max((batch.now_s - self._from_s) / self._over_s, 0.0), 1.0)
        return cost_ms * (1.0 + (self._factor - 1.0) * share)


class AfterIdle(Effect):
    """After `idle_s` without a step, steps take `factor` times as long for `for_s`."""

    def __init__(
        self, model: StepModel, start_s: float, idle_s: float, for_s: float, factor: float
    ) -> None:
        super().__init__(model, start_s)
        self._idle_s = idle_s
        self._for_s = for_s
        self._factor = factor
        self._ended_s = start_s
        self._slow_until_s = float("-inf")

    def apply(self, cost_ms: float, batch: Batch) -> float:
        """See `Effect`."""
        if batch.now_s - self._ended_s >= self._idle_s:
            self._slow_until_s = batch.now_s + self._for_s
        return cost_ms * self._factor if batch.now_s < self._slow_until_s else cost_ms

    def ended(self, end_s: float) -> None:
        """See `Effect`."""
        self._ended_s = end_s


EFFECTS: Mapping[str, type[Effect]] = {
    "pauses": Pauses,
    "first-use": FirstUse,
    "ceiling": Ceiling,
    "tax": Tax,
    "part": Part,
    "flip": Flip,
    "ramp": Ramp,
    "after-idle": AfterIdle,
}


class StepTime:
    """The time of each step of one engine epoch.

    Args:
        model: what an undisturbed step costs, and which effects it has.
        noise: source of the noise.
        start_s: when the engine starts.
    """

    def __init__(self, model: StepModel, noise: random.Random, start_s: float) -> None:
        self._model = model
        self._noise = noise
        self._effects = [make_effect(table, model, start_s) for table in model.effects]
        self._memory = 0.0
        self.needs_features = any(isinstance(effect, Tax) for effect in self._effects)

    def cost_ms(self, batch: Batch) -> float:
        """Return what the step takes, in milliseconds."""
        model = self._model
        cost_ms = model.cost_ms(
            batch.n_prefill, batch.n_decode, batch.n_context, batch.attention_work
        )
        for change in model.changes:
            if change.from_s <= batch.now_s < change.until_s:
                cost_ms = cost_ms * change.factor + change.add_ms
        for effect in self._effects:
            cost_ms = effect.apply(cost_ms, batch)
        return cost_ms * self._noise_factor()

    def ended(self, end_s: float) -> None:
        """Learn when the step ended."""
        for effect in self._effects:
            effect.ended(end_s)

    def _noise_factor(self) -> float:
        sigma, rho = self._model.noise_sigma, self._model.noise_rho
        if not sigma:
            return 1.0
        fresh = self._noise.lognormvariate(0.0, sigma)
        if not rho:
            return fresh
        # AR(1) in the logarithm: `sigma` stays the spread, neighbours are alike.
        self._memory = rho * self._memory + math.sqrt(1.0 - rho * rho) * math.log(fresh)
        return math.exp(self._memory)


def make_effect(table: Mapping[str, Any], model: StepModel, start_s: float) -> Effect:
    """Return the effect that a recipe's table describes.

    Raises:
        InputError: an unknown kind or key, or one that is missing.
    """
    options = dict(table)
    kind = options.pop("kind", None)
    if kind not in EFFECTS:
        raise InputError(f"effect {kind!r} is none of {', '.join(EFFECTS)}")
    try:
        return EFFECTS[kind](model, start_s, **options)
    except TypeError as error:
        raise InputError(str(error), place=f"effect {kind}") from None


def check_effects(tables: Iterable[Mapping[str, Any]], model: StepModel) -> None:
    """Raise InputError where a table is no effect."""
    for table in tables:
        make_effect(table, model, 0.0)
