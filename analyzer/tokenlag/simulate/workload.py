"""Who sends what and when: open-loop arrivals, closed-loop clients, sessions with pauses.

Random numbers are drawn in a fixed order, so that a seed names one workload: for each source
in the order of the recipe, first all arrivals, then prompt and output of each request.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tokenlag.errors import InputError
from tokenlag.simulate.decoding import BLOCK_TOKENS
from tokenlag.simulate.log import Request

KINDS = ("poisson", "at", "closed", "sessions", "ghosts", "planned")


@dataclass(frozen=True, slots=True)
class Edge:
    """What lies between the client and the engine; times in milliseconds.

    Attributes:
        network_ms: send to receipt, and last byte to client.
        network_spread: the network's time varies by this fraction, evenly, up and down.
        frontend_ms: receipt to the engine's queue, for any prompt.
        frontend_us_per_token: and for each prompt token.
        delivery_ms: token ready to bytes accepted by the socket.
        network_in_ms: more time from send to receipt, as it changes: `[[time, ms], …]`.
        client_skew_ms: how far the client's clock is ahead.
        gateway_ms: how long a gateway holds a request, as it changes: `[[time, ms], …]`.
        gateway_us_per_token: and for each prompt token.
    """

    network_ms: float = 1.0
    network_spread: float = 0.0
    frontend_ms: float = 1.0
    frontend_us_per_token: float = 0.0
    delivery_ms: float = 0.1
    network_in_ms: tuple[tuple[float, float], ...] = ()
    client_skew_ms: float = 0.0
    gateway_ms: tuple[tuple[float, float], ...] = ()
    gateway_us_per_token: float = 0.0


class Workload:
    """All sources of one recipe.

    Args:
        sources: name → table of the recipe's `workload`.
        edge: network and front end.
        seed: of the arrivals and lengths.
        jitter_s: moves each deterministic send by up to this much (for reseeded runs).

    Raises:
        InputError: a table that is not a workload.
    """

    def __init__(
        self,
        sources: Mapping[str, Mapping[str, Any]],
        edge: Edge,
        *,
        seed: int,
        jitter_s: float = 0.0,
    ) -> None:
        self._edge = edge
        self._random = random.Random(seed)
        # Apart from the arrivals' stream: network jitter must not move lengths or arrivals.
        self._edge_random = random.Random(f"edge {seed}")
        self._jitter_random = random.Random(f"jitter {seed}")
        self._feature_random = random.Random(f"features {seed}")
        self._jitter_s = jitter_s
        self._numbers = itertools.count()
        self._sources = dict(sources)
        self._planned_s: dict[str, deque[float]] = {}
        self.requests: list[Request] = []

    def initial(self) -> list[Request]:
        """Return the requests that do not depend on an answer to another one."""
        made: list[Request] = []
        for name, table in self._sources.items():
            if table.get("off"):
                continue
            kind = table.get("kind")
            if kind not in KINDS:
                raise InputError(
                    f"kind {kind!r} is none of {', '.join(KINDS)}", place=f"workload.{name}"
                )
            try:
                made.extend(getattr(self, f"_{kind}")(name, table))
            except KeyError as error:
                raise InputError(
                    f"key {error.args[0]!r} is missing", place=f"workload.{name}"
                ) from None
        return made

    def follow_up(self, request: Request, now_s: float) -> list[Request]:
        """Return what the client sends after the answer to `request` has come out at `now_s`."""
        table = self._sources.get(request.source, {})
        kind = table.get("kind")
        heard_s = now_s + (self._edge.delivery_ms + self._edge.network_ms) / 1e3
        if kind == "closed" and heard_s < table.get("until_s", float("inf")):
            if request.turn + 1 >= table.get("requests_each", float("inf")):
                return []
            return [self._new(request.source, table, heard_s, turn=request.turn + 1)]
        if kind == "planned":
            planned = self._planned_s.get(request.source)
            return [self._send_planned(request.source, heard_s)] if planned else []
        if kind == "sessions" and request.turn + 1 < table["turns"]:
            # The pause lies between the last token and the next turn's arrival at the engine.
            pause_s = self._random.expovariate(1 / table["pause_s"])
            way_s = (self._edge.network_ms + self._edge.frontend_ms) / 1e3
            return [
                self._turn(
                    request.source,
                    table,
                    max(heard_s, now_s + pause_s - way_s),
                    str(request.conversation_id),
                    request.turn + 1,
                )
            ]
        return []

    def again(self, request: Request, sent_s: float) -> Request:
        """Return the same request, sent once more (a client's retry)."""
        return self._make(
            request.source,
            sent_s,
            request.n_prompt,
            request.n_output,
            self._sources.get(request.source, {}),
            n_cached=request.n_cached,
            turn=request.turn,
            conversation_id=request.conversation_id,
        )

    # --- kinds ----------------------------------------------------------------------------

    def _poisson(self, name: str, table: Mapping[str, Any]) -> Iterable[Request]:
        times = list(self._poisson_times(table))
        return [self._new(name, table, time_s) for time_s in times]

    def _poisson_times(self, table: Mapping[str, Any]) -> Iterator[float]:
        """Yield Poisson arrivals; a ramp `[[time, rate], …]` is thinned from its highest rate."""
        rate = table["rate_per_s"]
        ramp = rate if isinstance(rate, list) else None
        peak = max(point[1] for point in ramp) if ramp else float(rate)
        time_s = float(table.get("from_s", 0.0))
        while True:
            time_s += self._random.expovariate(peak)
            if time_s >= table["until_s"]:
                return
            if ramp is None or self._random.random() * peak < _interpolate(ramp, time_s):
                yield time_s

    def _at(self, name: str, table: Mapping[str, Any]) -> Iterable[Request]:
        times = list(table["times_s"])
        if "every_s" in table:
            first_s, n_times = times[0], int(table["n_times"])
            times = [first_s + k * table["every_s"] for k in range(n_times)]
        made = []
        for time_s in times:
            for _ in range(table.get("n", 1)):
                jitter_s = 0.0 if table.get("fixed") else self._jitter_s
                moved_s = time_s + self._jitter_random.random() * jitter_s
                made.append(self._new(name, table, moved_s))
        return made

    def _closed(self, name: str, table: Mapping[str, Any]) -> Iterable[Request]:
        ramp_s = float(table.get("start_over_s", 0.0)) + self._jitter_s
        return [
            self._new(name, table, self._jitter_random.random() * ramp_s)
            for _ in range(table["clients"])
        ]

    def _planned(self, name: str, table: Mapping[str, Any]) -> Iterable[Request]:
        """Sends at planned times, of a client with no more than `clients` open at once."""
        times = list(table.get("times_s", ()))
        if "every_s" in table:
            times = [times[0] + k * table["every_s"] for k in range(int(table["n_times"]))]
        if "rate_per_s" in table:
            times = list(self._poisson_times(table))
        self._planned_s[name] = deque(float(time_s) for time_s in times)
        n_first = min(int(table["clients"]), len(times))
        return [self._send_planned(name, 0.0) for _ in range(n_first)]

    def _send_planned(self, name: str, free_s: float) -> Request:
        """Send what was planned next, as soon as a connection is free."""
        intended_s = self._planned_s[name].popleft()
        request = self._new(name, self._sources[name], max(intended_s, free_s))
        request.intended_s = intended_s
        return request

    def _sessions(self, name: str, table: Mapping[str, Any]) -> Iterable[Request]:
        """The first turns; with `turn_every_s` as many conversations are under way at the start.

        Those begin before it, at the rate of the others, and are at the turn that they would
        have come to by then.
        """
        over_s, n = table["start_over_s"], table["sessions"]
        starts = [self._random.uniform(0, over_s) for _ in range(n)]
        every_s, n_turns = float(table.get("turn_every_s", 0.0)), int(table["turns"])
        n_before = round(n * every_s * (n_turns - 1) / over_s) if over_s else 0
        ages_s = [self._random.uniform(0, every_s * (n_turns - 1)) for _ in range(n_before)]
        first = [(start_s, 0) for start_s in starts]
        for age_s in ages_s:
            turn = math.floor(age_s / every_s) + 1
            first.append((turn * every_s - age_s, turn))
        return [
            self._turn(name, table, sent_s, f"session-{number}", turn)
            for number, (sent_s, turn) in enumerate(first)
        ]

    def _ghosts(self, name: str, table: Mapping[str, Any]) -> Iterable[Request]:
        made = [self._new(name, table, float(table.get("from_s", 0.0))) for _ in range(table["n"])]
        for request in made:
            request.is_ghost = True
        return made

    # --- one request -----------------------------------------------------------------------

    def _turn(
        self, name: str, table: Mapping[str, Any], sent_s: float, conversation: str, turn: int
    ) -> Request:
        n_prompt = int(table["first_prompt"]) + int(table["prompt_step"]) * turn
        n_before = n_prompt - int(table["prompt_step"]) if turn else 0
        reuse = table.get("reuse", "good")
        n_cached = n_before // BLOCK_TOKENS * BLOCK_TOKENS if reuse == "good" else 0
        if isinstance(reuse, int):
            n_cached = min(reuse, n_before)
        return self._make(
            name,
            sent_s,
            n_prompt,
            int(table["output"]),
            table,
            n_cached=n_cached,
            turn=turn,
            conversation_id=conversation,
        )

    def _new(self, name: str, table: Mapping[str, Any], sent_s: float, *, turn: int = 0) -> Request:
        n_shared = 0
        if "shared_frac" in table and self._random.random() < table["shared_frac"]:
            n_shared = int(table["shared_tokens"])
        n_prompt = n_shared + self._draw(table["prompt"])
        n_output = self._draw(table["output"])
        made = self._make(name, sent_s, n_prompt, n_output, table, turn=turn, n_cached=n_shared)
        if n_shared:
            made.prefix_id = str(table["shared_prefix"])
        return made

    def _draw(self, length: Any) -> int:
        if isinstance(length, list):
            return self._random.randint(int(length[0]), int(length[1]))
        return int(length)

    def _make(
        self,
        name: str,
        sent_s: float,
        n_prompt: int,
        n_output: int,
        table: Mapping[str, Any],
        *,
        n_cached: int = 0,
        turn: int = 0,
        conversation_id: str | None = None,
    ) -> Request:
        edge = self._edge
        network_s = edge.network_ms / 1e3
        if edge.network_spread:
            network_s *= 1 + edge.network_spread * self._edge_random.uniform(-1, 1)
        if edge.network_in_ms:
            network_s += _interpolate([list(p) for p in edge.network_in_ms], sent_s) / 1e3
        held_s = edge.gateway_us_per_token * n_prompt / 1e6
        if edge.gateway_ms:
            held_s += _interpolate([list(p) for p in edge.gateway_ms], sent_s) / 1e3
        arrival_s = sent_s + held_s + network_s
        frontend_s = edge.frontend_ms / 1e3 + edge.frontend_us_per_token * n_prompt / 1e6
        cached = n_cached or int(table.get("cached", 0))
        request = Request(
            number=next(self._numbers),
            sent_s=sent_s,
            arrival_s=arrival_s,
            engine_s=arrival_s + frontend_s,
            n_prompt=n_prompt,
            n_output=n_output,
            n_cached=min(cached, n_prompt - 1),
            n_max_output=int(table.get("max_output", n_output)),
            source=name,
            held_s=held_s,
            tenant=table.get("tenant"),
            conversation_id=conversation_id,
            prefix_id=table.get("prefix"),
            turn=turn,
        )
        if "features" in table:
            share = float(table.get("features_frac", 1.0))
            # A stream of its own: marking requests must not move arrivals or lengths.
            if share >= 1.0 or self._feature_random.random() < share:
                request.features = tuple(str(table["features"]).split(","))
                if "compile_ms" in table:
                    request.compile_s = self._feature_random.uniform(*table["compile_ms"]) / 1e3
        if "give_up_after_s" in table:
            request.gives_up_s = sent_s + float(table["give_up_after_s"])
        self.requests.append(request)
        return request


def _interpolate(points: list[list[float]], time_s: float) -> float:
    before = points[0]
    for point in points:
        if point[0] >= time_s:
            span_s = point[0] - before[0]
            share = (time_s - before[0]) / span_s if span_s else 1.0
            return before[1] + share * (point[1] - before[1])
        before = point
    return before[1]
