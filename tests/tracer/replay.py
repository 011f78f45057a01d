"""A simulated run pushed through the recorders, as an engine and a front end would call them."""

from __future__ import annotations

from collections.abc import Callable

from tokenlag.simulate.log import EpochLog, Request
from tokenlag.simulate.run import Run
from tokenlag.simulate.timeline import request_ids
from tokenlag_tracer.front_recorder import FrontRecorder, FrontRequest
from tokenlag_tracer.recorder import EngineRecorder

Event = tuple[float, int, int, Callable[[], None]]


class Replay:
    """Replays one epoch.

    Args:
        run: the run.
        log: which of its epochs.
        engine: records its steps.
        front: records its requests.
        base_ns: monotonic time of the run's second 0.
    """

    def __init__(
        self, run: Run, log: EpochLog, engine: EngineRecorder, front: FrontRecorder, base_ns: int
    ) -> None:
        self._run = run
        self._log = log
        self._engine = engine
        self._front = front
        self._base_ns = base_ns
        self._handles: dict[int, FrontRequest] = {}
        self._indexes: dict[int, int] = {}

    def at(self, time_s: float) -> int:
        """Monotonic ns of a time of the run."""
        return self._base_ns + round(time_s * 1e9)

    def play(self) -> None:
        """Calls the recorders in the order of time."""
        events: list[Event] = []
        edge = self._run.variant.edge
        for request in self._log.requests:
            assert request.done_s is not None
            handed_s = request.done_s + edge.delivery_ms / 1e3
            number = request.number
            events += [
                (request.arrival_s, 0, number, lambda r=request: self._arrive(r)),
                (request.engine_s, 1, request.index, lambda r=request: self._queue(r)),
                (request.done_s, 3, number, lambda r=request: self._end(r)),
                (handed_s, 4, number, lambda r=request, s=handed_s: self._deliver(r, s)),
            ]
        # An engine takes requests in when it puts a batch together, so a step that is recorded
        # at its end follows those.
        for step in self._log.steps:
            events.append((step.end_s, 2, step.index, lambda s=step: self._step(s)))
        for _, _, _, call in sorted(events, key=lambda event: event[:3]):
            call()

    def _arrive(self, request: Request) -> None:
        ids = request_ids(self._run, request)
        variant = self._run.variant
        handle = self._front.arrived(
            f"req-{request.number}",
            at_ns=self.at(request.arrival_s),
            traceparent=f"00-{ids.trace}-{ids.client}-01",
            model=variant.model,
            operation=variant.operation,
            stream=request.n_output > 0,
            max_tokens=request.n_max_output or None,
            tenant=request.tenant,
            prefix_id=request.prefix_id,
            conversation_id=request.conversation_id,
        )
        handle.stage("tokenize", self.at(request.arrival_s), self.at(request.engine_s))
        self._handles[request.number] = handle

    def _queue(self, request: Request) -> None:
        index = self._engine.queued(
            f"req-{request.number}",
            at_ns=self.at(request.engine_s),
            prompt_tokens=request.n_prompt,
            traceparent=self._handles[request.number].context.traceparent,
        )
        self._indexes[request.index] = index

    def _step(self, step) -> None:
        indexes = self._indexes
        self._engine.record_step(
            self.at(step.start_s),
            self.at(step.end_s),
            joined=[indexes[i] for i in step.joined],
            left=[indexes[i] for i in step.left],
            prefill=[(indexes[i], n_tokens, n_context) for i, n_tokens, n_context in step.chunks],
            preempted=[indexes[i] for i in step.preempted],
            context_tokens=step.n_context,
            running=step.n_running,
            waiting=step.n_waiting,
            waiting_tokens=step.n_waiting_tokens,
            oldest_wait_ns=round(step.oldest_wait_s * 1e9),
            kv_usage=step.kv_frac,
            kv_reserved=-1.0 if step.kv_reserved_frac is None else step.kv_reserved_frac,
            admit_bound=step.admit_bound,
        )

    def _end(self, request: Request) -> None:
        self._engine.finished(
            self._indexes[request.index],
            "length" if request.n_output else "stop",
            at_ns=self.at(request.done_s or 0.0),
            output_tokens=request.n_generated,
            cached_tokens=request.n_cached,
        )

    def _deliver(self, request: Request, handed_s: float) -> None:
        self._handles[request.number].finished(
            at_ns=self.at(handed_s),
            finish_reasons=["length" if request.n_output else "stop"],
            output_tokens=request.n_generated,
        )
