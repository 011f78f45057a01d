"""The writer's mind without its sockets: records in, spans out, time handed in."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from tokenlag_tracer import conventions as names
from tokenlag_tracer import identity, wire
from tokenlag_tracer.clock import STEP_NS, Clock
from tokenlag_tracer.config import Config
from tokenlag_tracer.fronts import client_row
from tokenlag_tracer.inflight import RequestTable
from tokenlag_tracer.ring import BATCH_SPANS, Ring
from tokenlag_tracer.sampling import Sampler
from tokenlag_tracer.sequences import Sequence
from tokenlag_tracer.spans import Attributes, Row, attributes_of
from tokenlag_tracer.steps import DeviceHold, EngineState

MAX_ENGINES: Final = 256
MAX_SEQUENCES: Final = 32_768
# After a stall or a dump, what follows is exported too: how it ended is part of the story.
AFTER_STALL_NS: Final = 10_000_000_000
RING_FULL_EVERY: Final = 64
RING_ROOM: Final = 2 * BATCH_SPANS  # what the ring gives up leaves room for what is new


class Out(Protocol):
    """Where spans go."""

    def has_room(self, n_rows: int = 1) -> bool:
        """Returns whether so many can be taken."""

    def put(self, rows: list[Row]) -> bool:
        """Takes all of some spans or none."""

    def take_lost_steps(self) -> dict[int, int]:
        """Returns, by resource, steps whose spans failed to get out."""


@dataclass(slots=True)
class Connection:
    """One sender, as its hello said who it is."""

    offset_ns: int
    role: str = ""
    engine: EngineState | None = None
    hold: DeviceHold = field(default_factory=lambda: DeviceHold(0))
    last_ns: int = 0


class Collector:
    """Turns records into spans.

    Args:
        config: sampling, ring, stalls.
        out: where spans go.
        clock: the pod's.
        resources: by number; this adds to it.
        own_resource: resource attributes that every span has: of the standard variables.
        new_id: makes span ids.
        new_trace_id: makes trace ids.
    """

    def __init__(
        self,
        config: Config,
        out: Out,
        clock: Clock,
        resources: dict[int, Attributes],
        own_resource: Attributes,
        new_id: Callable[[], int] = identity.new_span_id,
        new_trace_id: Callable[[], int] = identity.new_trace_id,
    ) -> None:
        self._config = config
        self._out = out
        self._clock = clock
        self._resources = resources
        self._own_resource = own_resource
        self._new_id = new_id
        self._engines: dict[tuple[str, int], EngineState] = {}
        self._by_resource: dict[int, EngineState] = {}
        self._ring = Ring(config.ring_s, config.ring_max_bytes) if config.ring_s > 0 else None
        self._open_until_ns = 0
        resources[0] = dict(own_resource)
        sampler = Sampler(config)
        self._requests = RequestTable(sampler.decide, 0, new_id, new_trace_id, self._let_go)
        self.n_records = 0
        self.n_bad = 0
        self.n_stalls = 0
        self.n_refused_requests = 0

    # --- records --------------------------------------------------------------------------------

    def connected(self) -> Connection:
        """Returns a new sender's state."""
        return Connection(self._clock.offset_ns)

    def take(self, connection: Connection, data: memoryview, now_ns: int) -> None:
        """Takes one record in. What is no record is counted and forgotten.

        Args:
            connection: who sent it.
            data: its bytes.
            now_ns: monotonic.
        """
        self.n_records += 1
        kind = data[0] if data else -1
        connection.last_ns = now_ns
        try:
            if kind == wire.KIND_STEP:
                self._step(connection, wire.unpack_step(data), now_ns)
            elif kind == wire.KIND_EVENT:
                self._event(connection, wire.unpack_json(data), now_ns)
            elif kind == wire.KIND_BEAT:
                self._beat(connection, wire.unpack_beat(data), now_ns)
            elif kind == wire.KIND_HELLO:
                self._hello(connection, wire.unpack_json(data))
            else:
                self.n_bad += 1
        except (wire.WireError, TypeError, ValueError, KeyError, IndexError, AttributeError,
                OverflowError):  # fmt: skip
            self.n_bad += 1

    def _hello(self, connection: Connection, told: dict[str, Any]) -> None:
        connection.role = str(told["role"])
        if "wall_ns" in told:
            offset_ns = int(told["wall_ns"]) - int(told["monotonic_ns"])
            # The same clock everywhere, unless the sender lives in another time namespace.
            is_same = abs(offset_ns - self._clock.offset_ns) < STEP_NS
            connection.offset_ns = self._clock.offset_ns if is_same else offset_ns
        if connection.role != "engine":
            return
        engine_id, epoch_ns = str(told["engine_id"])[: wire.MAX_TEXT], int(told["epoch_ns"])
        engine = self._engines.get((engine_id, epoch_ns))
        if engine is None:
            engine = self._new_engine(engine_id, epoch_ns, told.get("resource") or {}, connection)
        engine.offset_ns = connection.offset_ns
        connection.engine = engine
        connection.hold = DeviceHold(int(told.get("device_lag", 0)))

    def _new_engine(
        self, engine_id: str, epoch_ns: int, told: dict[str, Any], connection: Connection
    ) -> EngineState:
        number = max(self._resources) + 1
        known = attributes_of(told, names.RESOURCE_ATTRIBUTE_TYPES)
        resource = {**known, **self._own_resource}
        if names.SERVICE_NAME not in resource:
            resource[names.SERVICE_NAME] = known.get(names.ENGINE_NAME, "unknown_service")
        # The front end is of the same service, which it does not know the name of.
        self._resources[0].setdefault(names.SERVICE_NAME, resource[names.SERVICE_NAME])
        resource.setdefault(names.SERVICE_INSTANCE_ID, engine_id)
        if len(self._engines) >= MAX_ENGINES:
            oldest = next(iter(self._engines))
            del self._by_resource[self._engines.pop(oldest).resource]
        self._resources[number] = resource
        engine = EngineState(
            engine_id, epoch_ns, number, connection.offset_ns, self._new_id,
            names.FULL_LIST_EVERY_STEPS if self._ring is None else RING_FULL_EVERY,
        )  # fmt: skip
        self._engines[engine_id, epoch_ns] = engine
        self._by_resource[number] = engine
        return engine

    def _step(self, connection: Connection, record: wire.StepRecord, now_ns: int) -> None:
        engine = connection.engine
        if engine is None:
            raise wire.WireError("a step of nobody")
        has_room = self._ring is not None or self._out.has_room()
        seen = engine.step(record, has_room=has_room)
        self._send(connection.hold.put(seen.row, record.device_step, record.device_ns), now_ns)
        stall_ns = self._config.stall_s * 1e9
        if seen.is_long and seen.cost_ns > stall_ns and self._ring is not None:
            self.n_stalls += 1
            self.dump(now_ns)

    def _beat(self, connection: Connection, record: wire.BeatRecord, now_ns: int) -> None:
        if connection.engine is None:
            raise wire.WireError("a heartbeat of nobody")
        self._send(connection.hold.flush(), now_ns)
        row = connection.engine.beat(record)
        if row is not None:
            self._send([row], now_ns)

    def _event(self, connection: Connection, body: Any, now_ns: int) -> None:
        name, at_ns, fields = body
        at_ns = int(at_ns)
        if not isinstance(fields, dict):
            raise wire.WireError("an event without fields")
        requests, engine = self._requests, connection.engine
        if name == wire.ARRIVED:
            requests.arrived(at_ns, connection.offset_ns, fields)
        elif name == wire.UPDATED:
            requests.updated(fields)
        elif name == wire.STAGE:
            requests.stage(at_ns, fields)
        elif name == wire.DELIVERED:
            requests.delivered(at_ns, now_ns, fields)
        elif name == wire.CLIENT:
            row = client_row(at_ns, connection.offset_ns, fields, 0)
            if row is not None:
                self._send([row], now_ns)
        elif engine is None:
            raise wire.WireError("an engine's event of nobody")
        elif name == wire.QUEUED:
            if len(engine.sequences) >= MAX_SEQUENCES:
                engine.sequences.pop(next(iter(engine.sequences)))
            requests.queued(engine, at_ns, fields)
        elif name == wire.WAITING:
            requests.waiting(engine, at_ns, fields)
        elif name == wire.ENDED:
            requests.ended(engine, at_ns, now_ns, fields)
        else:
            raise wire.WireError("an event that nobody knows")

    # --- time -----------------------------------------------------------------------------------

    def tick(self, now_ns: int, connections: Iterable[Connection] = ()) -> None:
        """Does what is due: settled requests, late device times, losses, old ring contents."""
        for rows in self._requests.due(now_ns, self._engine_of):
            self._send_request(rows, now_ns)
        for connection in connections:
            if now_ns - connection.last_ns > 1_000_000_000:
                self._send(connection.hold.flush(), now_ns)
        for resource, n_lost in self._out.take_lost_steps().items():
            if (engine := self._by_resource.get(resource)) is not None:
                engine.lost(n_lost)
        if self._ring is not None:
            self._pour()
            self._skip(self._ring.expire(now_ns))

    def disconnected(self, connection: Connection, now_ns: int) -> None:
        """A sender is gone: what waits for its device times goes out without."""
        self._send(connection.hold.flush(), now_ns)

    def finish(self, now_ns: int) -> None:
        """All senders are gone: what is known of open requests goes out."""
        for rows in self._requests.rest(self._engine_of):
            self._send_request(rows, now_ns)

    def dump(self, now_ns: int) -> int:
        """Exports what the ring holds, and what follows in the next seconds.

        Returns:
            How many spans go out.
        """
        if self._ring is None:
            return 0
        self._open_until_ns = now_ns + AFTER_STALL_NS
        n_spans = self._ring.release(now_ns)
        self._pour()
        return n_spans

    @property
    def is_dumping(self) -> bool:
        """Whether some of the ring's spans still wait for room on their way out."""
        return self._ring is not None and self._ring.is_leaving

    def _pour(self) -> None:
        """Hands on what the ring gave up, as far as there is room: minutes are many spans."""
        while self._ring is not None and self._ring.is_leaving and self._out.has_room(RING_ROOM):
            self._out.put(self._ring.take())

    def clock_stepped(self, before_ns: int, connections: Iterable[Connection]) -> None:
        """Moves everybody who went by the pod's clock to its new offset.

        Args:
            before_ns: the offset that it had.
            connections: all that there are.
        """
        after_ns = self._clock.offset_ns
        for connection in connections:
            if connection.offset_ns == before_ns:
                connection.offset_ns = after_ns
        for engine in self._engines.values():
            if engine.offset_ns == before_ns:
                engine.offset_ns = after_ns

    # --- out ------------------------------------------------------------------------------------

    def _engine_of(self, sequence: Sequence) -> EngineState | None:
        return self._engines.get((sequence.engine_id, sequence.epoch_ns))

    def _let_go(self, sequence: Sequence) -> None:
        if (engine := self._engine_of(sequence)) is not None:
            engine.sequences.pop(sequence.index, None)

    def _send(self, rows: list[Row], now_ns: int) -> None:
        if not rows:
            return
        if self._ring is not None and now_ns >= self._open_until_ns:
            self._skip(self._ring.put(rows, now_ns))
        elif not self._out.put(rows):
            self._lose(rows)

    def _send_request(self, rows: list[Row], now_ns: int) -> None:
        if self._ring is None and not self._out.has_room(len(rows)):
            self.n_refused_requests += 1
            return
        self._send(rows, now_ns)

    def _skip(self, n_steps: dict[int, int]) -> None:
        for resource, n in n_steps.items():
            if (engine := self._by_resource.get(resource)) is not None:
                engine.skipped(n)

    def _lose(self, rows: list[Row]) -> None:
        for row in rows:
            if row.name == names.SPAN_ENGINE_STEP:
                engine = self._by_resource.get(row.resource)
                if engine is not None:
                    engine.lost(1)

    def status(self) -> dict[str, Any]:
        """Returns counters, for `tokenlag-tracer status`."""
        return {
            "records": self.n_records,
            "bad_records": self.n_bad,
            "open_requests": len(self._requests),
            "requests_kept": self._requests.n_written,
            "requests_sampled_out": self._requests.n_left_out,
            "requests_evicted": self._requests.n_evicted,
            "requests_refused": self.n_refused_requests,
            "stalls": self.n_stalls,
            "ring_bytes": self._ring.n_bytes if self._ring is not None else 0,
            "engines": [
                {
                    "id": engine.engine_id, "epoch_ns": engine.epoch_ns, "steps": engine.n_steps,
                    "dropped_by_sender": engine.n_dropped_by_sender, "lost_here": engine.n_lost,
                    "skipped": engine.n_skipped,
                }
                for engine in self._engines.values()
            ],
        }  # fmt: skip
