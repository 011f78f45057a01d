"""text-generation-inference as its router writes it: a small server, and its spans.

The shape is that of its own code: a handler's span with durations as Rust prints them, below
it a span for the scheduling that has one `infer` for each batch and one `waiting` while other
prompts go first, each with a link to the batch; and each batch a trace of its own, with links
back and its size.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from tests.read.otlp import T0, Json, attributes

MS = 1_000_000


@dataclass
class Asked:
    """A request, and what became of it.

    Args:
        at_ms: when it came.
        n_prompt: tokens of it.
        n_output: tokens of the answer.
    """

    at_ms: float
    n_prompt: int
    n_output: int
    n_tokens: int = 0
    taken_ms: float = 0.0
    first_ms: float = 0.0
    done_ms: float = 0.0
    turns: list[tuple[str, float, float, int]] = field(default_factory=list)  # name, times, batch
    sent_ms: list[tuple[float, int]] = field(default_factory=list)  # of each token, and its turn


@dataclass
class Batch:
    """A batch that was computed."""

    start_ms: float
    end_ms: float
    prompts: list[int]
    decoding: list[int]
    n_new: int = 0  # of those whose first chunk is in it, where streams go on beside them

    @property
    def size(self) -> int:
        """As its span says."""
        return self.n_new or len(self.prompts) + len(self.decoding)


def serve(requests: list[Asked], max_batch: int = 64, *, is_chunked: bool = False) -> list[Batch]:
    """Runs a server until all requests are done; fills in what they met.

    Args:
        requests: in order of their times.
        max_batch: requests at once.
        is_chunked: prompts are taken 300 tokens at a time, while the other streams decode.
    """
    if is_chunked:
        return _serve_chunked(requests, max_batch)
    batches: list[Batch] = []
    waiting, running = list(range(len(requests))), []
    now = 0.0
    while waiting or running:
        came = [i for i in waiting if requests[i].at_ms <= now][: max_batch - len(running)]
        if not came and not running:
            now = requests[waiting[0]].at_ms
            continue
        if came:
            n_tokens = sum(requests[i].n_prompt for i in came)
            start, end = now, now + 15 + 0.04 * n_tokens
            for i in running:
                requests[i].turns.append(("waiting", start, end, len(batches)))
            for i in came:
                waiting.remove(i)
                requests[i].taken_ms, requests[i].first_ms = start, end
            _give(requests, came, start, end, len(batches))
            batches.append(Batch(start, end, came, []))
            running += [i for i in came if requests[i].n_tokens < requests[i].n_output]
            now = end
        if running:
            start, end = now, now + 12 + 0.15 * len(running)
            _give(requests, running, start, end, len(batches))
            batches.append(Batch(start, end, [], list(running)))
            running = [i for i in running if requests[i].n_tokens < requests[i].n_output]
            now = end
    return batches


def _serve_chunked(requests: list[Asked], max_batch: int) -> list[Batch]:
    """The batch that takes a prompt's first chunk has no span of the streams that are under way."""
    batches: list[Batch] = []
    waiting, running = list(range(len(requests))), []
    left = [one.n_prompt for one in requests]
    now = 0.0
    while waiting or running:
        came = [i for i in waiting if requests[i].at_ms <= now][:1]
        came = came if len(running) < max_batch else []
        if not came and not running:
            now = requests[waiting[0]].at_ms
            continue
        members = [*came, *running]
        chunks = {i: min(left[i], 300) for i in members if left[i]}
        start, end = now, now + 12 + 0.15 * len(members) + 0.04 * sum(chunks.values())
        number = len(batches)
        for i in members:
            one = requests[i]
            if i in came:
                one.taken_ms = start
            if i in came or not came:
                one.turns.append(("infer", start, end, number))
            elif one.turns:  # the span of the batch before stays open
                name, begin, _, batch = one.turns[-1]
                one.turns[-1] = (name, begin, end, batch)
            left[i] -= chunks.get(i, 0)
            if not left[i]:
                one.n_tokens += 1
                one.first_ms = one.first_ms or end
                one.done_ms = end
                one.sent_ms.append((end - 0.01, len(one.turns) - 1))
        waiting = [i for i in waiting if i not in came]
        decoding = sorted(set(members) - set(chunks))
        batches.append(Batch(start, end, sorted(chunks), decoding, len(came)))
        running = [i for i in members if requests[i].n_tokens < requests[i].n_output]
        now = end
    return batches


def _give(requests: list[Asked], members: list[int], start: float, end: float, batch: int) -> None:
    for i in members:
        requests[i].turns.append(("infer", start, end, batch))
        requests[i].sent_ms.append((end - 0.01, len(requests[i].turns) - 1))
        requests[i].n_tokens += 1
        requests[i].done_ms = end


def load(n: int, seed: int, gap_ms: float = 90.0) -> list[Asked]:
    """Requests of a steady load."""
    chance, at_ms, made = random.Random(seed), 0.0, []
    for _ in range(n):
        at_ms += chance.expovariate(1 / gap_ms)
        made.append(Asked(at_ms, chance.randint(50, 900), chance.randint(5, 60)))
    return made


def spans(
    requests: list[Asked],
    batches: list[Batch],
    *,
    has_prompts: bool = False,
    has_batches: bool = True,
    has_links: bool = True,
    has_sends: bool = False,
    server: int = 0,
) -> list[Json]:
    """What the router exports.

    Args:
        requests: that were served.
        batches: in which.
        has_prompts: the handler's span tells the prompt's tokens, which released ones do not.
        has_batches: the batches' own traces were kept.
        has_links: links were.
        has_sends: each token's sending was.
        server: tells ids of several.
    """
    made: list[Json] = []
    for i, one in enumerate(requests):
        trace, root, below = f"{server:016x}{i + 1:016x}", _id(server, i, 0), _id(server, i, 1)
        inference = one.done_ms - one.taken_ms
        told: dict[str, Any] = {
            "validation_time": "0ns", "queue_time": _rust(one.taken_ms - one.at_ms),
            "inference_time": _rust(inference), "time_per_token": _rust(inference / one.n_output),
        }  # fmt: skip
        if has_prompts:
            told["prompt_tokens"] = str(one.n_prompt)
        made.append(_span(trace, root, "", "generate_stream", one.at_ms, one.done_ms + 0.1, told))
        made.append(_span(trace, below, root, "generate_stream", one.at_ms, one.done_ms, {}))
        for k, (name, start, end, batch) in enumerate(one.turns, 2):
            links = [_batch(server, batch)] if has_links else []
            made.append(_span(trace, _id(server, i, k), below, name, start, end, {}, links))
        for k, (sent, turn) in enumerate(one.sent_ms if has_sends else (), 10_000):
            above = _id(server, i, turn + 2)
            made.append(_span(trace, _id(server, i, k), above, "send_generation", sent, sent, {}))
    for number, batch in enumerate(batches) if has_batches else ():
        of_batch = _batch(server, number)
        told = {"batch_size": batch.size}
        times = (batch.start_ms, batch.end_ms)
        made.append(_span(of_batch["traceId"], of_batch["spanId"], "", "batch", *times, told))
    return made


def _span(
    trace: str, own: str, parent: str, name: str, start_ms: float, end_ms: float,
    told: dict[str, Any], links: list[Json] | None = None,
) -> Json:  # fmt: skip
    return {
        "traceId": trace, "spanId": own, "parentSpanId": parent, "name": name, "kind": 1,
        "startTimeUnixNano": str(T0 + round(start_ms * MS)),
        "endTimeUnixNano": str(T0 + round(end_ms * MS)),
        "attributes": attributes(told), "status": {}, "links": links or [],
    }  # fmt: skip


def _id(server: int, request: int, number: int) -> str:
    return f"{server + 1:02x}{request:08x}{number:06x}"


def _batch(server: int, number: int) -> Json:
    return {"traceId": f"b{server:015x}{number + 1:016x}", "spanId": f"b{server:03x}{number:012x}"}


def _rust(ms: float) -> str:
    return f"{ms:.6f}ms" if ms >= 1 else f"{ms * 1000:.3f}µs"
