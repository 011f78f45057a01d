"""Requests in flight: front end and engines joined by request id, held until both are done.

The two sides are different processes, so neither order nor presence can be relied on: what
belongs together meets here under the request id (or the context that the front end handed on),
and is let go a moment after its last word. All is bounded: the oldest goes first, and is
counted.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from tokenlag_tracer import identity
from tokenlag_tracer.fronts import Fields, Front, front_rows, hex_of, int_of, text_of
from tokenlag_tracer.identity import Context
from tokenlag_tracer.sequences import Sequence
from tokenlag_tracer.spans import Row
from tokenlag_tracer.steps import EngineState

SETTLE_NS: Final = 500_000_000
MAX_OPEN: Final = 32_768


@dataclass(slots=True, eq=False)
class OpenRequest:
    """One request: its front end, if there is one, and what engines did for it."""

    trace_id: int
    is_sampled: bool
    front: Front | None = None
    sequences: list[Sequence] = field(default_factory=list)
    settles_ns: int = 0
    weight: float | None = None
    is_decided: bool = False
    is_kept: bool = True

    @property
    def is_front_done(self) -> bool:
        """Whether its front end, if there is one, is done with it."""
        return self.front is None or self.front.done_ns is not None

    @property
    def is_done(self) -> bool:
        """Whether nobody has more to tell."""
        return self.is_front_done and all(s.ended_ns is not None for s in self.sequences)


class RequestTable:
    """All requests in flight.

    Args:
        decide: of a request that is done, how many it stands for; None: it is left out.
        new_id: makes span ids.
        resource: number of the front end's own resource.
        let_go: is told of each sequence that is given up before its end was told.
    """

    def __init__(
        self,
        decide: Callable[[OpenRequest], float | None],
        resource: int,
        new_id: Callable[[], int] = identity.new_span_id,
        new_trace_id: Callable[[], int] = identity.new_trace_id,
        let_go: Callable[[Sequence], None] = lambda _: None,
    ) -> None:
        self._decide = decide
        self._new_id = new_id
        self._new_trace_id = new_trace_id
        self._resource = resource
        self._let_go = let_go
        self._open: OrderedDict[int, OpenRequest] = OrderedDict()  # by id()
        self._by_request_id: dict[str, OpenRequest] = {}
        self._by_span: dict[int, OpenRequest] = {}
        self._of: dict[Sequence, OpenRequest] = {}
        self._settling: deque[OpenRequest] = deque()
        self.n_evicted = 0
        self.n_written = 0
        self.n_left_out = 0

    def __len__(self) -> int:
        return len(self._open)

    # --- front ends ---------------------------------------------------------------------------

    def arrived(self, at_ns: int, offset_ns: int, fields: Fields) -> None:
        """A front end received a request."""
        span_id, trace_id = hex_of(fields.pop("key", None)), hex_of(fields.pop("trace", None))
        parent_id = hex_of(fields.pop("parent", None))
        is_sampled = fields.pop("is_sampled", True) is not False
        if not span_id or not trace_id:
            return
        front = Front(span_id, parent_id, at_ns, offset_ns, fields)
        request = self._named(fields.get("request_id"))
        if request is None or request.front is not None:
            request = self._new(OpenRequest(trace_id, is_sampled))
        request.front, request.trace_id, request.is_sampled = front, trace_id, is_sampled
        self._by_span[span_id] = request
        self._name(request, fields.get("request_id"))

    def updated(self, fields: Fields) -> None:
        """A front end knows more of a request."""
        request = self._by_span.get(hex_of(fields.pop("key", None)))
        if request is not None and request.front is not None:
            self._update(request, request.front, fields)

    def stage(self, at_ns: int, fields: Fields) -> None:
        """A front end did a piece of work for a request."""
        request = self._by_span.get(hex_of(fields.get("key")))
        stage, end_ns = fields.get("stage"), int_of(fields.get("end_ns"))
        if request is None or request.front is None or end_ns is None:
            return
        if isinstance(stage, str) and len(request.front.stages) < 64:
            request.front.stages.append((stage, at_ns, end_ns))

    def delivered(self, at_ns: int, now_ns: int, fields: Fields) -> None:
        """A front end is done with a request."""
        request = self._by_span.get(hex_of(fields.pop("key", None)))
        if request is None or request.front is None:
            return
        self._update(request, request.front, fields)
        request.front.done_ns = at_ns
        self._settle(request, now_ns)

    def _update(self, request: OpenRequest, front: Front, fields: Fields) -> None:
        front.fields.update(fields)
        request_id = fields.get("request_id")
        if request_id is None:
            return
        other = self._named(request_id)
        if other is not None and other is not request and other.front is None:
            request.sequences += other.sequences  # the engine was quicker to say the id
            self._forget(other)
            self._of.update((sequence, request) for sequence in other.sequences)
        self._name(request, request_id)

    # --- engines ------------------------------------------------------------------------------

    def queued(self, engine: EngineState, at_ns: int, fields: Fields) -> None:
        """An engine took a request in."""
        index = int_of(fields.pop("index", None))
        if index is None:
            return
        request_id = fields.get("request_id")
        context = identity.parse_traceparent(text_of(fields.pop("traceparent", None)))
        reason = text_of(fields.pop("reason", None)) or "arrival"
        sequence = Sequence(
            engine.engine_id, engine.epoch_ns, engine.resource, index, text_of(request_id),
            self._new_id(), at_ns, engine.offset_ns, context, fields, reason,
        )  # fmt: skip
        request = self._by_span.get(context.span_id) if context is not None else None
        if request is None:
            request = self._named(request_id)
        if request is None:
            request = self._new(OpenRequest(*self._new_trace(context)))
            self._name(request, request_id)
        request.sequences.append(sequence)
        self._of[sequence] = request
        engine.sequences[index] = sequence

    def ended(self, engine: EngineState, at_ns: int, now_ns: int, fields: Fields) -> None:
        """An engine is done with a request."""
        index = int_of(fields.pop("index", None))
        sequence = None if index is None else engine.sequences.get(index)
        if sequence is None:
            return
        sequence.fields.update(fields)
        sequence.end(at_ns)
        request = self._of.get(sequence)
        if request is not None and (request.is_front_done if request.front else request.is_done):
            self._settle(request, now_ns)

    def waiting(self, engine: EngineState, at_ns: int, fields: Fields) -> None:
        """A waiting request waits for something else."""
        sequence = engine.sequences.get(int_of(fields.get("index")) or 0)
        if sequence is not None and (reason := text_of(fields.get("reason"))):
            sequence.wait_for(reason, at_ns)

    def _new_trace(self, context: Context | None) -> tuple[int, bool]:
        if context is None:
            return self._new_trace_id(), True
        return context.trace_id, context.is_sampled

    # --- the table ----------------------------------------------------------------------------

    def _new(self, request: OpenRequest) -> OpenRequest:
        self._open[id(request)] = request
        while len(self._open) > MAX_OPEN:
            _, oldest = self._open.popitem(last=False)
            self._forget(oldest)
            for sequence in oldest.sequences:
                self._let_go(sequence)
            self.n_evicted += 1
        return request

    def _named(self, request_id: object) -> OpenRequest | None:
        return self._by_request_id.get(request_id) if isinstance(request_id, str) else None

    def _name(self, request: OpenRequest, request_id: object) -> None:
        if isinstance(request_id, str):
            self._by_request_id[request_id] = request

    def _forget(self, request: OpenRequest) -> None:
        self._open.pop(id(request), None)
        front = request.front
        if front is not None:
            self._by_span.pop(front.span_id, None)
        for sequence in request.sequences:
            self._of.pop(sequence, None)
        ids = [sequence.request_id for sequence in request.sequences]
        ids.append(text_of(front.fields.get("request_id")) if front is not None else None)
        for request_id in ids:
            if request_id is not None and self._by_request_id.get(request_id) is request:
                del self._by_request_id[request_id]

    def _settle(self, request: OpenRequest, now_ns: int) -> None:
        if not request.settles_ns:
            self._settling.append(request)
            request.settles_ns = now_ns + SETTLE_NS

    # --- out ----------------------------------------------------------------------------------

    def due(
        self, now_ns: int, engines: Callable[[Sequence], EngineState | None]
    ) -> Iterator[list[Row]]:
        """Yields the spans of requests that have settled, request by request.

        Args:
            now_ns: monotonic.
            engines: finds the engine of a sequence.
        """
        while self._settling and self._settling[0].settles_ns <= now_ns:
            request = self._settling.popleft()
            request.settles_ns = 0
            if id(request) not in self._open or not request.is_front_done:
                continue
            rows = self._write(request, engines)
            if request.is_done:
                self._forget(request)
            if rows:
                yield rows

    def rest(self, engines: Callable[[Sequence], EngineState | None]) -> Iterator[list[Row]]:
        """Yields what is known of all requests: nobody will tell more of them."""
        for request in list(self._open.values()):
            rows = self._write(request, engines, is_last=True)
            self._forget(request)
            if rows:
                yield rows

    def _write(
        self,
        request: OpenRequest,
        engines: Callable[[Sequence], EngineState | None],
        *,
        is_last: bool = False,
    ) -> list[Row]:
        front = request.front
        done: list[Sequence] = []
        for sequence in request.sequences:
            if sequence.is_written or (sequence.ended_ns is None and not is_last):
                continue
            sequence.is_written = True
            done.append(sequence)
            engine = engines(sequence)
            if engine is not None:
                sequence.close(engine.last_index, engine.last_end_ns)
                engine.sequences.pop(sequence.index, None)
        if not request.is_decided:
            request.weight = self._decide(request)
            request.is_kept = request.weight is not None
            request.is_decided = True
            self.n_written += request.is_kept
            self.n_left_out += not request.is_kept
        rows: list[Row] = []
        if request.is_kept:
            weight = request.weight if request.weight != 1 else None
            if (
                front is not None
                and not front.is_written
                and (front.done_ns is not None or is_last)
            ):
                rows += front_rows(
                    front, request.sequences, request.trace_id, weight, self._resource,
                    self._new_id,
                )  # fmt: skip
            for sequence in done:
                parent_id = front.span_id if front is not None else 0
                if front is None and sequence.context is not None:
                    parent_id = sequence.context.span_id
                rows += sequence.rows(request.trace_id, parent_id, weight, self._new_id)
        if front is not None and front.done_ns is not None:
            front.is_written = True
        return rows
