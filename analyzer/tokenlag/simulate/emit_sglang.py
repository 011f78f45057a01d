"""A run as SGLang tells it without help: slices of each request at trace level 3.

Traits that are kept: one root a request and a span for each process below it; prompt chunks
and single tokens as nested slices; events `schedule` that name the batch, on the slice that
ended next; no second wait after a preemption, an event `retract` instead; nothing of requests
that have not ended.
"""

from __future__ import annotations

import hashlib
import random
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from tokenlag_tracer import conventions as names

from tokenlag.simulate.log import EpochLog, Request
from tokenlag.simulate.otlp_json import AttributeValue, Scope, Span, attributes_text, span_text
from tokenlag.simulate.run import Run
from tokenlag.simulate.timeline import Timeline, request_ids

SCOPE = Scope("sglang server", None)

_LATENCY = "gen_ai.latency."
_DISPATCH_S = 1e-4  # tokenizer to scheduler


def resource_of(run: Run, log: EpochLog) -> dict[str, AttributeValue | None]:
    """Return the resource attributes that SGLang sets."""
    del run, log
    return {names.SERVICE_NAME: "sglang"}


Event = tuple[float, str, dict[str, AttributeValue | None]]  # seconds, name, attributes


@dataclass
class _Slice:
    """A slice with its events, and the slices in it."""

    name: str
    start_s: float
    end_s: float
    inner: list[_Slice] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    attributes: dict[str, AttributeValue | None] = field(default_factory=dict)


def spans(run: Run, timeline: Timeline) -> Iterator[tuple[int, int, str]]:
    """Yield end (unix ns), number of the epoch's resource, and text of each span."""
    ids = random.Random(f"sglang ids {run.key}")
    sizes = [
        {step.index: len(step.chunks) + step.n_decode for step in log.steps} for log in run.epochs
    ]
    for request in run.requests:
        if request.done_s is None or request.error or request.epoch < 0 or run.gave_up(request):
            continue
        trace = request_ids(run, request).trace
        tree = _tree(run.epochs[request.epoch], request, sizes[request.epoch])
        stack: list[tuple[str | None, _Slice]] = [(None, tree)]
        while stack:
            parent, item = stack.pop()
            span = Span(
                trace, f"{ids.getrandbits(64):016x}", parent, item.name, names.KIND_INTERNAL,
                timeline.ns(item.start_s), timeline.ns(item.end_s), item.attributes,
            )  # fmt: skip
            text = span_text(span, extra=_events_text(item.events, timeline))
            yield span.end_ns, request.epoch, text
            stack += [(span.span_id, one) for one in item.inner]


def _tree(log: EpochLog, request: Request, sizes: dict[int, int]) -> _Slice:
    """Everything that is drawn of a request."""
    assert request.done_s is not None
    rid = f"{request.number:08x}{request.number:024x}"
    slices, loose = _slices(log, request, sizes)
    threads = []
    for label, first_pid, inner, events in (
        ("Tokenizer", 10, [_Slice("tokenize", request.arrival_s, request.engine_s)], []),
        ("Scheduler", 100, slices, loose),
    ):
        pid = str(first_pid + log.engine)
        told: dict[str, AttributeValue | None] = {
            "host_id": "sim", "rid": rid, "thread_label": label, "pid": pid, "tp_rank": 0,
        }  # fmt: skip
        name = f"{label} (host:sim | pid:{pid})"
        start_s = inner[0].start_s
        threads.append(_Slice(name, start_s, request.done_s, inner, events, told))
    root = f" Req {rid[:8]}"
    return _Slice(root, request.arrival_s, request.done_s, threads, [], _told(request, rid))


def _told(request: Request, rid: str) -> dict[str, AttributeValue | None]:
    first_s = request.first_token_s
    assert request.done_s is not None
    return {
        "rid": rid,
        "module": "sglang::request",
        names.REQUEST_ID: rid,
        names.REQUEST_MAX_TOKENS: request.n_max_output or None,
        "gen_ai.usage.prompt_tokens": request.n_prompt,
        "gen_ai.usage.completion_tokens": request.n_generated,
        "gen_ai.usage.cached_tokens": request.n_cached,
        f"{_LATENCY}time_to_first_token": None if first_s is None else first_s - request.arrival_s,
        f"{_LATENCY}e2e": request.done_s - request.arrival_s,
        names.FINISH_REASONS: '{"type": "length"}',
    }


def _slices(
    log: EpochLog, request: Request, sizes: dict[int, int]
) -> tuple[list[_Slice], list[Event]]:
    """What the scheduler draws for a request, and the events that found no slice."""
    assert request.scheduled_s is not None
    assert request.done_s is not None
    steps = log.steps
    top = [_Slice("prefill_waiting", request.engine_s, request.scheduled_s)]
    events: list[Event] = []
    drawn: list[_Slice] = []  # those that take events, as they end
    for chunks in request.prefills:
        if not chunks:
            continue
        whole = _Slice(
            "prefill_forward", steps[chunks[0].step].start_s, steps[chunks[-1].step].end_s
        )
        at_s = whole.start_s
        for chunk in chunks:
            step = steps[chunk.step]
            events.append((step.start_s, "schedule", _batch(log, step.index, sizes, "prefill")))
            if len(chunks) > 1:
                whole.inner.append(_Slice("chunked_prefill", at_s, step.end_s))
                at_s = step.end_s
        drawn += [*whole.inner, whole]
        top.append(whole)
    first_s = request.first_token_s
    if first_s is not None and request.done_s > first_s:
        decode = _Slice("decode_forward", first_s, request.done_s)
        at_s = first_s
        for first, last in log.decode_runs(request):
            for step in steps[first : last + 1]:
                mode = "prefill" if step.chunks else "decode"
                events.append((step.start_s, "schedule", _batch(log, step.index, sizes, mode)))
                decode.inner.append(_Slice("decode_loop", min(at_s, step.end_s), step.end_s))
                at_s = step.end_s
        drawn += [*decode.inner, decode]
        # A prompt that is computed again is drawn inside the decode that was interrupted.
        again = [item for item in top[2:] if item.start_s >= first_s]
        decode.inner += again
        top = [item for item in top if item not in again] + [decode]
    waits = [wait for wait in request.queues if wait[2] == "preempted"]
    events += [(start_s, "retract", {}) for start_s, _, _ in waits]
    loose: list[Event] = []
    drawn.sort(key=lambda item: item.end_s)
    ends = [item.end_s for item in drawn]
    for event in sorted(events, key=lambda one: one[0]):
        after = drawn[bisect_right(ends, event[0]) :]
        holder = next((item for item in after if item.start_s <= event[0]), None)
        (holder.events if holder else loose).append(event)
    return top, loose


def _batch(
    log: EpochLog, index: int, sizes: dict[int, int], mode: str
) -> dict[str, AttributeValue | None]:
    digest = hashlib.blake2b(f"{log.engine}/{log.epoch}/{index}".encode(), digest_size=4)
    return {"bid": digest.hexdigest(), "batch_size": sizes[index], "forward_mode": mode}


def _events_text(events: list[Event], timeline: Timeline) -> str:
    if not events:
        return ""
    texts = [
        f'{{"timeUnixNano":"{timeline.ns(at_s)}","name":"{name}",'
        f'"attributes":[{attributes_text(attributes)}]}}'
        for at_s, name, attributes in events
    ]
    return f',"events":[{",".join(texts)}]'
