"""One engine as the writer sees it: who decodes now, which steps were lost, how long steps are."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Final

from tokenlag_tracer import conventions as names
from tokenlag_tracer import wire
from tokenlag_tracer.sequences import Chunk, Sequence
from tokenlag_tracer.spans import Attributes, Row, attributes_of, step_attributes, step_row

# A step is long if it costs this much more than the median of the steps before it.
LONG_FACTOR: Final = 4.0
LONG_LEAST_NS: Final = 20_000_000
_N_COSTS: Final = 255


@dataclass(slots=True)
class Seen:
    """What a step record came to.

    Attributes:
        row: its span; None if there was no room for it.
        cost_ns: its cadence: time since the step before ended, or since it began if later.
        is_long: it cost far more than those before.
    """

    row: Row | None
    cost_ns: int
    is_long: bool


class EngineState:
    """Follows one engine's steps.

    Args:
        engine_id: of the engine.
        epoch_ns: when it started, unix ns.
        resource: number of its resource.
        offset_ns: unix time minus its monotonic time.
        new_id: makes span ids.
        full_every: a full list of members at least every so many steps.
    """

    def __init__(
        self,
        engine_id: str,
        epoch_ns: int,
        resource: int,
        offset_ns: int,
        new_id: Callable[[], int],
        full_every: int = names.FULL_LIST_EVERY_STEPS,
    ) -> None:
        self.engine_id = engine_id
        self.epoch_ns = epoch_ns
        self.resource = resource
        self.offset_ns = offset_ns
        self.sequences: dict[int, Sequence] = {}
        self.n_steps = 0
        self.n_lost = 0
        self.n_skipped = 0
        self.n_dropped_by_sender = 0
        self.last_index = -1
        self.last_end_ns = 0
        self._new_id = new_id
        self._full_every = full_every
        self._members: set[int] = set()
        self._is_known = False
        self._is_full_due = True
        self._costs: deque[int] = deque(maxlen=_N_COSTS)
        self._long_ns = 1 << 62

    # --- steps --------------------------------------------------------------------------------

    def step(self, record: wire.StepRecord, *, has_room: bool = True) -> Seen:
        """Takes a step in and returns its span.

        Args:
            record: the step.
            has_room: its span can be exported; if not, it counts as lost.
        """
        is_gap = record.index != self.last_index + 1
        cost_ns = record.end_ns - max(record.start_ns, self.last_end_ns)
        is_long = not is_gap and self._is_long(cost_ns)
        self.n_steps += 1
        self.n_dropped_by_sender = record.dropped
        self._follow(record, is_gap, is_long)
        self.last_index, self.last_end_ns = record.index, record.end_ns
        if not has_room:
            self.lost(1)
            return Seen(None, cost_ns, is_long)
        members: list[int] | None = None
        if self._is_known and (
            record.members is not None or self._is_full_due or record.index % self._full_every == 0
        ):
            members = sorted(self._members)
            self._is_full_due = False
        attributes = step_attributes(record, members, record.dropped + self.n_lost, self.n_skipped)
        row = step_row(
            self.engine_id, self.epoch_ns, record.start_ns + self.offset_ns,
            record.end_ns + self.offset_ns, attributes,
            span_id=self._new_id(), resource=self.resource,
        )  # fmt: skip
        return Seen(row, cost_ns, is_long)

    def beat(self, record: wire.BeatRecord) -> Row | None:
        """Returns the heartbeat of an idle engine, None before its first step."""
        if record.index < 0:
            return None
        at_ns = record.at_ns + self.offset_ns
        attributes: Attributes = {
            names.STEP_INDEX: record.index, names.STEP_DECODE_COUNT: 0, names.STEP_RUNNING: 0,
            names.STEP_WAITING: 0, names.STEP_DROPPED: record.dropped + self.n_lost,
        }  # fmt: skip
        return step_row(
            self.engine_id, self.epoch_ns, at_ns, at_ns, attributes,
            span_id=self._new_id(), resource=self.resource,
        )  # fmt: skip

    def lost(self, n_steps: int) -> None:
        """Notes spans of steps that did not get out; the next one lists everybody."""
        self.n_lost += n_steps
        self._is_full_due = True

    def skipped(self, n_steps: int) -> None:
        """Notes spans of steps that were left out by choice."""
        self.n_skipped += n_steps
        self._is_full_due = True

    def _is_long(self, cost_ns: int) -> bool:
        costs = self._costs
        costs.append(cost_ns)
        if self.n_steps % 64 == 16:
            self._long_ns = max(int(median(costs) * LONG_FACTOR), LONG_LEAST_NS)
        return cost_ns > self._long_ns

    # --- what it says of sequences ------------------------------------------------------------

    def _follow(self, record: wire.StepRecord, is_gap: bool, is_long: bool) -> None:
        sequences = self.sequences
        for index in record.preempted:
            if (sequence := sequences.get(index)) is not None:
                sequence.leave(self.last_index, self.last_end_ns)
                sequence.preempt(record.start_ns)
        self._follow_members(record, is_gap)
        for index, n_tokens, n_context in zip(
            record.prefill_requests, record.prefill_tokens, record.prefill_context, strict=True
        ):
            if (sequence := sequences.get(index)) is not None:
                sequence.chunk(
                    Chunk(record.index, record.start_ns, record.end_ns, n_tokens, n_context)
                )
                sequence.is_culprit = sequence.is_culprit or is_long
        if record.new_tokens and self._is_known:
            members = sorted(self._members)
            if len(members) == len(record.new_tokens):
                for index, n_tokens in zip(members, record.new_tokens, strict=True):
                    if n_tokens != 1 and (sequence := sequences.get(index)) is not None:
                        sequence.add_extra(n_tokens - 1)

    def _follow_members(self, record: wire.StepRecord, is_gap: bool) -> None:
        if record.members is not None and (is_gap or not self._is_known):
            after = set(record.members)
            self._left(self._members - after, is_exact=False)
            for index in self._members & after:
                if (sequence := self.sequences.get(index)) is not None:
                    sequence.hole()
            # The engine's first step tells exactly who began in it.
            self._joined(after - self._members, record, is_exact=record.index == 0)
            self._members, self._is_known = after, True
            return
        if is_gap:
            self._is_known = False  # until the next full list
        if not self._is_known:
            return
        if record.left:
            self._left(record.left)
            self._members.difference_update(record.left)
        if record.joined:
            self._joined(record.joined, record)
            self._members.update(record.joined)
        if len(self._members) != record.decode_count:
            self._is_known = False

    def _left(self, indexes: Iterable[int], *, is_exact: bool = True) -> None:
        for index in indexes:
            if (sequence := self.sequences.get(index)) is not None:
                sequence.leave(self.last_index, self.last_end_ns, is_exact=is_exact)

    def _joined(
        self, indexes: Iterable[int], record: wire.StepRecord, *, is_exact: bool = True
    ) -> None:
        for index in indexes:
            if (sequence := self.sequences.get(index)) is not None:
                sequence.join(record.index, record.start_ns, record.end_ns, is_exact=is_exact)


class DeviceHold:
    """Keeps step spans back until their device times have come, a few steps later.

    Args:
        lag: how many steps a device time may be late; 0 keeps nothing back.
    """

    def __init__(self, lag: int) -> None:
        self._lag = max(0, min(lag, 64))
        self._held: deque[Row] = deque()

    def put(self, row: Row | None, device_step: int, device_ns: int) -> list[Row]:
        """Takes a step's span and a device time; returns the spans that need not wait."""
        if row is not None:
            self._held.append(row)
        if device_step >= 0 and device_ns >= 0:
            for held in self._held:
                if held.attributes[names.STEP_INDEX] == device_step:
                    held.attributes[names.STEP_DEVICE_NS] = device_ns
        ready: list[Row] = []
        while len(self._held) > self._lag:
            ready.append(self._held.popleft())
        return ready

    def flush(self) -> list[Row]:
        """Returns all that are held: their device times do not come any more."""
        ready = list(self._held)
        self._held.clear()
        return ready


def engine_resource(
    told: Mapping[str, object], engine_id: str, host: str, instance: str
) -> Attributes:
    """Returns an engine's resource attributes: what it told of itself, by the contract's keys."""
    return attributes_of(
        {names.HOST_NAME: host, names.SERVICE_INSTANCE_ID: instance or engine_id, **told},
        names.RESOURCE_ATTRIBUTE_TYPES,
    )
