"""A run as spans of the trace contract: full form, or compact (phases under `llm.request`)."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from tokenlag_tracer import conventions as names

from tokenlag.simulate.emit_gateway import gateway_spans, received_s, released_s, upstream_id
from tokenlag.simulate.emit_steps import StepEmitter, TextSpan
from tokenlag.simulate.log import EpochLog, Request
from tokenlag.simulate.otlp_json import AttributeValue, Span, span_text
from tokenlag.simulate.run import ERROR_TIMEOUT, ERROR_UNAVAILABLE, Run
from tokenlag.simulate.timeline import Timeline, engine_id, request_ids


class ContractEmitter:
    """Turns one run into contract spans.

    Args:
        run: the run.
        timeline: places seconds of the run on unix time.
        is_compact: engine's keys on `llm.request`, phases directly under it.
        drop: what to leave out; see `DROPS` in `traces`.
        lost_frac: share of step records that get lost (the index shows a hole).
        sample_frac: share of request traces kept, with a weight; steps are always kept.
        lost_request_frac: share of request traces that get lost, with nothing to tell it.
    """

    def __init__(
        self,
        run: Run,
        timeline: Timeline,
        *,
        is_compact: bool,
        drop: frozenset[str],
        lost_frac: float,
        sample_frac: float,
        lost_request_frac: float = 0.0,
    ) -> None:
        self._run = run
        self._time = timeline
        self._is_compact = is_compact
        self._drop = drop
        self._lost_frac = lost_frac
        self._sample_frac = sample_frac
        self._lost_request_frac = lost_request_frac
        self._ids = random.Random(f"ids {run.key}")
        self._chance = random.Random(f"chance {run.key}")
        frontend = run.variant.frontend
        self._stage = frontend.stage if frontend is not None else "tokenize"
        self._client_name = f"{run.variant.operation} {run.variant.model}"

    def spans(self) -> Iterator[TextSpan]:
        """Yield end (unix ns), number of the epoch's resource, and text of each span."""
        if "steps" not in self._drop:
            steps = StepEmitter(
                self._run,
                self._time,
                drop=self._drop,
                lost_frac=self._lost_frac,
                ids=self._ids,
                chance=self._chance,
            )
            for number, log in enumerate(self._run.epochs):
                yield from steps.spans(number, log)
        for number, span in self.request_spans():
            yield span.end_ns, number, span_text(span)

    def request_spans(self) -> Iterator[tuple[int, Span]]:
        """Yield the number of the resource and the span, of all spans but the engines' steps."""
        for request in self._run.requests:
            if request.is_ghost or (request.done_s is None and not self._run.gave_up(request)):
                continue  # a span that has not ended is never exported
            if self._sample_frac < 1 and self._chance.random() >= self._sample_frac:
                continue
            if self._lost_request_frac and self._chance.random() < self._lost_request_frac:
                continue
            number = max(request.epoch, 0)
            for span in self._request_spans(request):
                yield number, span
            trace_id, client_id, request_id, _ = request_ids(self._run, request)
            if (gateway := self._run.variant.gateway) is not None:
                for span in gateway_spans(
                    gateway, request, self._time, trace_id=trace_id, request_id=request_id,
                    parent_id=None if "client" in self._drop else client_id,
                    heard_s=self._ending(request)[1], model=self._run.variant.model,
                ):  # fmt: skip
                    yield len(self._run.epochs), span
            for leg in request.legs:
                for span in self._engine_spans(leg, trace_id, request_id, self._span_id()):
                    yield leg.epoch, span

    # --- requests ---------------------------------------------------------------------------

    def _span_id(self) -> str:
        return f"{self._ids.getrandbits(64):016x}"

    def _ending(self, request: Request) -> tuple[float, float, str | None]:
        """Return when the server's span and the client's end (s), and with which error."""
        edge = self._run.variant.edge
        if self._run.gave_up(request) and request.gives_up_s is not None:
            return request.gives_up_s + edge.network_ms / 1e3, request.gives_up_s, ERROR_TIMEOUT
        assert request.done_s is not None
        handed_s = request.done_s + edge.delivery_ms / 1e3
        got = (self._run.received or {}).get(request.number)
        return handed_s, got[-1] if got else handed_s + edge.network_ms / 1e3, request.error

    def _request_spans(self, request: Request) -> Iterator[Span]:
        time, drop = self._time, self._drop
        handed_s, heard_s, error = self._ending(request)
        trace_id, client_id, request_id, engine_id = request_ids(self._run, request)
        is_error = error is not None
        log = self._run.epochs[request.epoch] if request.epoch >= 0 else None
        if request.legs:
            log = None
        tokens_s = self._token_times_s(request, log)
        if error == ERROR_TIMEOUT:
            tokens_s = [token_s for token_s in tokens_s if token_s <= handed_s]
        gateway = self._run.variant.gateway
        caller_id = None if "client" in drop else client_id
        sent_s = request.sent_s
        if gateway is not None:
            caller_id, sent_s = upstream_id(request_id), released_s(request)
        if "client" not in drop:
            skew_ns = time.client_skew_ns
            client_s = request.sent_s if gateway is None else received_s(request)
            yield self._span(
                trace_id, client_id, None, self._client_name,
                time.ns(client_s) + skew_ns, time.ns(heard_s) + skew_ns,
                self._client_attributes(request, tokens_s, error),
                kind=names.KIND_CLIENT, is_error=is_error,
            )  # fmt: skip
        if "network" not in drop:
            yield self._span(
                trace_id, self._span_id(), caller_id,
                names.SPAN_NETWORK, time.ns(sent_s) + time.client_skew_ns,
                time.ns(request.arrival_s),
                {names.DIRECTION: "in", names.CLOCK: "remote" if time.client_skew_ns else "same"},
            )  # fmt: skip
        if "frontend" not in drop and request.error != ERROR_UNAVAILABLE:
            yield self._span(
                trace_id, self._span_id(), request_id, names.SPAN_FRONTEND,
                time.ns(request.arrival_s), time.ns(request.engine_s), {names.STAGE: self._stage},
            )  # fmt: skip
        attributes = self._request_attributes(request, tokens_s, error)
        done_s = request.done_s
        if log is not None and done_s is not None and self._is_compact:
            attributes.update(self._engine_attributes(request))
        if "request" not in drop:
            yield self._span(
                trace_id, request_id, caller_id,
                names.SPAN_REQUEST, time.ns(request.arrival_s), time.ns(handed_s), attributes,
                kind=names.KIND_SERVER, is_error=is_error,
            )  # fmt: skip
        if done_s is None or (log is None and not request.legs):
            return
        if log is not None and self._is_compact:
            yield from self._phase_spans(request, log, trace_id, request_id, done_s)
        elif log is not None:
            yield from self._engine_spans(request, trace_id, request_id, engine_id)
        if "network" not in drop and error != ERROR_TIMEOUT:
            yield self._span(
                trace_id, self._span_id(), request_id, names.SPAN_NETWORK,
                time.ns(done_s), time.ns(handed_s),
                {names.DIRECTION: "out", names.CLOCK: "same"},
            )  # fmt: skip

    def _token_times_s(self, request: Request, log: EpochLog | None) -> list[float]:
        """When the request's tokens left the engine, or all its engines."""
        if log is not None:
            return log.token_times_s(request)
        logs = [(self._run.epochs[leg.epoch], leg) for leg in request.legs if leg.epoch >= 0]
        return sorted(time_s for log, leg in logs for time_s in log.token_times_s(leg))

    def _engine_spans(
        self, request: Request, trace_id: str, parent_id: str, span_id: str
    ) -> Iterator[Span]:
        """Yield what one engine did for a request: its span, and the phases under it."""
        if request.epoch < 0 or request.done_s is None:
            return
        start_s = request.engine_s if request.taken_s is None else request.taken_s
        yield self._span(
            trace_id, span_id, parent_id, names.SPAN_ENGINE_REQUEST,
            self._time.ns(start_s), self._time.ns(request.done_s),
            self._engine_attributes(request),
        )  # fmt: skip
        log = self._run.epochs[request.epoch]
        yield from self._phase_spans(request, log, trace_id, span_id, request.done_s)

    def _phase_spans(
        self, request: Request, log: EpochLog, trace_id: str, parent_id: str, done_s: float
    ) -> Iterator[Span]:
        time, drop = self._time, self._drop
        steps = log.steps
        queues = list(request.queues)
        if request.open_wait_s is not None:  # it ended while it waited
            reason = "preempted" if request.n_preemptions else "arrival"
            queues.append((request.open_wait_s, done_s, reason))
        for start_s, end_s, reason in queues:
            if "queue" in drop or (reason == "preempted" and "preemptions" in drop):
                continue
            yield self._span(
                trace_id, self._span_id(), parent_id, names.SPAN_QUEUE,
                time.ns(start_s), time.ns(end_s), {names.QUEUE_REASON: reason},
            )  # fmt: skip
        for number, chunks in enumerate(request.prefills):
            if not chunks or "prefill" in drop:
                continue
            prefill_id = self._span_id()
            yield self._span(
                trace_id, prefill_id, parent_id, names.SPAN_PREFILL,
                time.ns(steps[chunks[0].step].start_s), time.ns(steps[chunks[-1].step].end_s),
                {
                    names.PREFILL_TOKENS: sum(chunk.n_tokens for chunk in chunks),
                    names.PREFILL_RECOMPUTE: number > 0 or request.taken_s is not None,
                },
            )  # fmt: skip
            if "chunks" in drop:
                continue
            for chunk in chunks:
                step = steps[chunk.step]
                yield self._span(
                    trace_id, self._span_id(), prefill_id, names.SPAN_PREFILL_CHUNK,
                    time.ns(step.start_s), time.ns(step.end_s),
                    {
                        names.STEP_INDEX: chunk.step,
                        names.CHUNK_TOKENS: chunk.n_tokens,
                        names.CHUNK_CONTEXT: chunk.n_context,
                    },
                )  # fmt: skip
        for span in self._decode_spans(request, log, trace_id, parent_id):
            if "decode" not in drop:
                yield span

    def _decode_spans(
        self, request: Request, log: EpochLog, trace_id: str, parent_id: str
    ) -> Iterator[Span]:
        steps = log.steps
        prefill_ends = request.prefill_token_steps
        previous_s: float | None = None
        at = 0
        for first, last in log.decode_runs(request):
            # A run begins when the token before it came out: the time in which a prefill kept
            # the sequence out of the steps is part of its decode.
            before = [step for step in prefill_ends if step < first]
            start_s = steps[before[-1]].end_s if before else steps[first].start_s
            if previous_s is not None:
                start_s = max(start_s, previous_s)
            previous_s = steps[last].end_s
            yield self._span(
                trace_id, self._span_id(), parent_id, names.SPAN_DECODE,
                self._time.ns(start_s), self._time.ns(previous_s),
                {
                    names.DECODE_FIRST_STEP: first,
                    names.DECODE_LAST_STEP: last,
                    names.DECODE_TOKENS: _n_yielded(request, at, last - first + 1),
                },
            )  # fmt: skip
            at += last - first + 1

    def _span(
        self,
        trace_id: str,
        span_id: str,
        parent_id: str | None,
        name: str,
        start_ns: int,
        end_ns: int,
        attributes: dict[str, AttributeValue | None],
        *,
        kind: int = names.KIND_INTERNAL,
        is_error: bool = False,
    ) -> Span:
        return Span(
            trace_id, span_id, parent_id, name, kind, start_ns, end_ns, attributes, is_error
        )

    def _cached(self, request: Request) -> int | None:
        return None if "cached" in self._drop else request.n_cached

    def _client_attributes(
        self, request: Request, tokens_s: list[float], error: str | None
    ) -> dict[str, AttributeValue | None]:
        variant, edge = self._run.variant, self._run.variant.edge
        way_s = (edge.delivery_ms + edge.network_ms) / 1e3
        got_s = (self._run.received or {}).get(request.number)
        if got_s is None:
            got_s = [token_s + way_s for token_s in tokens_s]
        gaps_ns = sorted(
            round((after - before) * 1e9) for before, after in itertools.pairwise(got_s)
        )
        sent_s = request.sent_s if variant.gateway is None else received_s(request)
        first_chunk_s = round(got_s[0] - sent_s, 9) if got_s else None
        has_list = variant.delivery is not None and variant.delivery.has_chunk_list
        return {
            names.OPERATION_NAME: variant.operation,
            names.REQUEST_MODEL: variant.model,
            names.REQUEST_STREAM: request.n_output > 0,
            names.REQUEST_ID: f"req-{request.number}",
            names.USAGE_INPUT_TOKENS: None if error else request.n_prompt,
            names.USAGE_OUTPUT_TOKENS: None if error else request.n_generated,
            names.TIME_TO_FIRST_CHUNK: first_chunk_s,
            names.CLIENT_CHUNKS: len(tokens_s) if request.n_output else None,
            names.CLIENT_GAP_P50_NS: _nearest(gaps_ns, 0.5),
            names.CLIENT_GAP_P99_NS: _nearest(gaps_ns, 0.99),
            names.CLIENT_GAP_MAX_NS: _nearest(gaps_ns, 1.0),
            names.CLIENT_INTENDED_NS: _intended_ns(request) if variant.gateway is None else None,
            names.CLIENT_CHUNK_MS: ",".join(f"{(t - request.sent_s) * 1e3:.1f}" for t in got_s)
            if has_list
            else None,
            names.ERROR_TYPE: error,
        }

    def _request_attributes(
        self, request: Request, tokens_s: list[float], error: str | None
    ) -> dict[str, AttributeValue | None]:
        variant, time = self._run.variant, self._time
        start_ns = time.ns(request.arrival_s)
        finished = "length" if request.n_output else "stop"
        return {
            names.OPERATION_NAME: variant.operation,
            names.REQUEST_MODEL: variant.model,
            names.REQUEST_STREAM: request.n_output > 0,
            names.REQUEST_ID: f"req-{request.number}",
            names.USAGE_INPUT_TOKENS: request.n_prompt,
            names.USAGE_OUTPUT_TOKENS: len(tokens_s),
            names.USAGE_CACHED_TOKENS: self._cached(request),
            names.REQUEST_MAX_TOKENS: request.n_max_output or None,
            names.CONVERSATION_ID: request.conversation_id,
            names.FINISH_REASONS: ["abort" if error else finished],
            names.ERROR_TYPE: error,
            names.TENANT: None if "tenant" in self._drop else request.tenant,
            names.PREFIX_ID: request.prefix_id,
            names.REQUEST_FEATURES: ",".join(request.features) or None,
            names.SAMPLE_WEIGHT: 1 / self._sample_frac if self._sample_frac < 1 else None,
            names.FIRST_TOKEN_NS: time.ns(tokens_s[0]) - start_ns if tokens_s else None,
            names.LAST_TOKEN_NS: time.ns(tokens_s[-1]) - start_ns if tokens_s else None,
        }

    def _engine_attributes(self, request: Request) -> dict[str, AttributeValue | None]:
        log = self._run.epochs[request.epoch]
        return {
            names.ENGINE_ID: None if "replica" in self._drop else engine_id(log),
            names.ENGINE_EPOCH: self._time.epoch_ns(log),
            names.REQUEST_INDEX: request.index,
            names.SEQUENCE: 0,
            names.ROLE: self._run.epochs[request.epoch].role,
            names.REQUEST_ID: f"req-{request.number}",
            names.PREEMPTIONS: None if "preemptions" in self._drop else request.n_preemptions,
            names.USAGE_INPUT_TOKENS: request.n_prompt,
            names.USAGE_OUTPUT_TOKENS: request.n_generated,
            names.USAGE_CACHED_TOKENS: self._cached(request),
        }


def _n_yielded(request: Request, at: int, n_steps: int) -> int:
    """Tokens of a run of decode steps, the first of which is the sequence's step `at`."""
    return sum(request.yields[at : at + n_steps]) if request.yields else n_steps


def _intended_ns(request: Request) -> int | None:
    """How long before the send it was meant to be sent; None where nobody tells."""
    if request.intended_s is None:
        return None
    return round((request.sent_s - request.intended_s) * 1e9)


def _nearest(ordered: list[int], share: float) -> int | None:
    """Return the nearest-rank percentile of a sorted list, None of an empty one."""
    if not ordered:
        return None
    rank = max(1, -(-round(share * 1000) * len(ordered) // 1000))
    return ordered[min(rank, len(ordered)) - 1]
