"""What lies before the engine: a first-come-first-served pool of workers."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from tokenlag.errors import InputError
from tokenlag.simulate.log import Request


@dataclass(frozen=True, slots=True)
class FrontendConfig:
    """A pool through which every request goes before an engine sees it.

    Attributes:
        workers: how many requests are prepared at once.
        service_ms: what one takes, for any prompt.
        service_us_per_token: and for each prompt token.
        stage: what is done there, as `llm.frontend` spans name it.
    """

    workers: int
    service_ms: float
    service_us_per_token: float = 0.0
    stage: str = "preprocess"

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise InputError("a front end has at least one worker")

    def service_s(self, request: Request) -> float:
        """Return what preparing one request takes, in seconds."""
        return self.service_ms / 1e3 + self.service_us_per_token * request.n_prompt / 1e6


class Frontend:
    """The pool at work. Requests must come in the order of their arrival."""

    def __init__(self, config: FrontendConfig) -> None:
        self._config = config
        self._free_s = [0.0] * config.workers

    def take(self, request: Request) -> None:
        """Set when the request is done here and reaches an engine's queue."""
        begin_s = max(request.arrival_s, heapq.heappop(self._free_s))
        request.engine_s = begin_s + self._config.service_s(request)
        heapq.heappush(self._free_s, request.engine_s)
