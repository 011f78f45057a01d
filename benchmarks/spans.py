"""Writes OTLP JSON of one engine that serves one load, in the trace contract, any size.

The spans are consistent with each other: every request is prefilled in one step and
decodes in the steps that its span names, the steps' lists say the same, and times follow
the steps. The steps are one fixed length: this is weight for a reader, not a workload to
diagnose. Attributes are filled up to twelve a span with keys that real SDKs add and that
nobody reads, and every fourth span has an event.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from tokenlag_tracer import conventions as c

STEP_NS = 10_000_000
START_NS = 1_795_970_000_000_000_000
N_ATTRIBUTES = 12
SPANS_PER_LINE = 512
SPANS_PER_REQUEST = 7
ENGINE = "vllm-0:4242:0"

JsonSpan = dict[str, Any]


def attribute(key: str, value: object) -> dict[str, Any]:
    """Returns a key and its value as OTLP JSON writes them."""
    return {"key": key, "value": any_value(value)}


def any_value(value: object) -> dict[str, Any]:
    """Returns a value as an OTLP JSON AnyValue; integers become strings, as they must."""
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": [any_value(item) for item in value]}}
    return {"stringValue": value}


FILLERS: dict[str, object] = {
    "server.address": "10.0.0.7",
    "server.port": 8000,
    "thread.id": 140_213_337,
    "thread.name": "EngineCore",
    "code.function.name": "Scheduler.schedule",
    "code.file.path": "/opt/serve/scheduler.py",
    "code.line.number": 417,
    "k8s.pod.name": "serve-7c9f6d5b4-x2x8q",
    "network.protocol.version": "1.1",
    "http.route": "/v1/chat/completions",
    "user_agent.original": "python-httpx/0.27",
    "sampled": True,
}


class Load:
    """One engine's spans in time order.

    Args:
        n_spans: how many spans to yield in all.
        seed: of the only randomness, the sizes and ids.
    """

    def __init__(self, n_spans: int, seed: int = 7) -> None:
        self.n_spans = n_spans
        self.random = random.Random(seed)
        self.n_requests = max(1, int(n_spans * 0.6) // SPANS_PER_REQUEST)
        self.n_steps = max(2, n_spans - self.n_requests * SPANS_PER_REQUEST)
        self.n_made = 0

    def spans(self) -> Iterator[JsonSpan]:
        """Yields a step, then the requests that ended with it, and so on."""
        starts: dict[int, list[tuple[int, int, int]]] = {}
        ends: dict[int, list[tuple[int, int, int, int]]] = {}
        for index in range(self.n_requests):
            step = index * self.n_steps // self.n_requests
            n_prompt = self.random.randrange(50, 2000)
            n_output = min(self.random.randrange(8, 120), self.n_steps - step)
            starts.setdefault(step, []).append((index, n_prompt, n_output))
            last = step + max(n_output, 1) - 1
            ends.setdefault(last, []).append((index, n_prompt, n_output, step))
        running: set[int] = set()
        left: list[int] = []
        joining: list[int] = []
        n_context = 0
        for step in range(self.n_steps):
            chunks = starts.pop(step, [])
            running.update(joining)
            running.difference_update(left)
            yield self._step(step, chunks, sorted(running), joining, left, n_context)
            done = ends.pop(step, [])
            joining = [index for index, _, n_output in chunks if n_output > 1]
            left = [index for index, _, _, first in done if first != step]
            n_context += len(running) + sum(n_prompt for _, n_prompt, _ in chunks)
            n_context -= sum(n_prompt + n_output for _, n_prompt, n_output, _ in done)
            n_context = max(n_context, 0)
            for index, n_prompt, n_output, first in done:
                yield from self._request(index, n_prompt, n_output, first, step)

    def _span(
        self,
        name: str,
        start_ns: int,
        end_ns: int,
        trace_id: str,
        parent_id: str,
        values: dict[str, object],
        kind: int = c.KIND_INTERNAL,
    ) -> JsonSpan:
        attributes = [attribute(key, value) for key, value in values.items()]
        for key, value in FILLERS.items():
            if len(attributes) >= N_ATTRIBUTES:
                break
            attributes.append(attribute(key, value))
        span: JsonSpan = {
            "traceId": trace_id,
            "spanId": f"{self.random.getrandbits(64) | 1:016x}",
            "parentSpanId": parent_id,
            "flags": 256,
            "name": name,
            "kind": kind,
            "startTimeUnixNano": str(start_ns),
            "endTimeUnixNano": str(end_ns),
            "attributes": attributes,
            "status": {},
        }
        if self.n_made % 4 == 0:
            at_ns = (start_ns + end_ns) // 2
            event = {"timeUnixNano": str(at_ns), "name": "first_token", "attributes": []}
            event["attributes"] = [attribute("n", 1)]
            span["events"] = [event]
        self.n_made += 1
        return span

    def _step(
        self,
        step: int,
        chunks: list[tuple[int, int, int]],
        running: list[int],
        joined: list[int],
        left: list[int],
        n_context: int,
    ) -> JsonSpan:
        start_ns = START_NS + step * STEP_NS
        values: dict[str, object] = {
            c.ENGINE_ID: ENGINE,
            c.ENGINE_EPOCH: START_NS,
            c.STEP_INDEX: step,
            c.STEP_DECODE_COUNT: len(running),
            c.STEP_CONTEXT_TOKENS: n_context,
            c.STEP_RUNNING: len(running) + len(chunks),
            c.STEP_WAITING: 0,
            c.STEP_KV_USAGE: min(n_context / 500_000, 1.0),
        }
        if chunks:
            values[c.STEP_PREFILL_REQUESTS] = [index for index, _, _ in chunks]
            values[c.STEP_PREFILL_TOKENS] = [n_prompt for _, n_prompt, _ in chunks]
            values[c.STEP_PREFILL_CONTEXT] = [0 for _ in chunks]
        if joined:
            values[c.STEP_DECODE_JOINED] = ",".join(map(str, joined))
        if left:
            values[c.STEP_DECODE_LEFT] = ",".join(map(str, left))
        if step % c.FULL_LIST_EVERY_STEPS == 0 and running:
            values[c.STEP_DECODE_REQUESTS] = ",".join(map(str, running))
        trace_id = f"{0xE0000000 + start_ns // c.ENGINE_TRACE_NS:032x}"
        return self._span(c.SPAN_ENGINE_STEP, start_ns, start_ns + STEP_NS, trace_id, "", values)

    def _request(
        self, index: int, n_prompt: int, n_output: int, first: int, last: int
    ) -> Iterator[JsonSpan]:
        trace_id = f"{self.random.getrandbits(128) | 1:032x}"
        request_id = f"chatcmpl-{index:08d}"
        arrival_ns = START_NS + first * STEP_NS - 3_000_000
        first_ns, last_ns = START_NS + (first + 1) * STEP_NS, START_NS + (last + 1) * STEP_NS
        end_ns = last_ns + 400_000
        usage: dict[str, object] = {
            c.REQUEST_ID: request_id,
            c.USAGE_INPUT_TOKENS: n_prompt,
            c.USAGE_OUTPUT_TOKENS: n_output,
        }
        front = usage | {
            c.OPERATION_NAME: "chat",
            c.REQUEST_MODEL: "llama-70b",
            c.REQUEST_STREAM: True,
            c.REQUEST_MAX_TOKENS: 512,
            c.FINISH_REASONS: ["stop"],
            c.TENANT: f"team-{index % 8}",
            c.FIRST_TOKEN_NS: first_ns - arrival_ns,
            c.LAST_TOKEN_NS: last_ns - arrival_ns,
        }
        top = self._span(
            c.SPAN_REQUEST, arrival_ns, end_ns, trace_id, "", front, kind=c.KIND_SERVER
        )
        engine = usage | {
            c.ENGINE_ID: ENGINE,
            c.ENGINE_EPOCH: START_NS,
            c.REQUEST_INDEX: index,
            c.PREEMPTIONS: 0,
        }
        work = self._span(
            c.SPAN_ENGINE_REQUEST, arrival_ns + 1_000_000, last_ns, trace_id, top["spanId"], engine
        )
        yield self._span(
            c.SPAN_NETWORK,
            arrival_ns - 800_000,
            arrival_ns,
            trace_id,
            top["spanId"],
            {c.DIRECTION: "in", c.CLOCK: "same"},
        )
        taken_ns, begun_ns = arrival_ns + 1_000_000, arrival_ns + 3_000_000
        queue: dict[str, object] = {c.QUEUE_REASON: "arrival"}
        yield self._span(c.SPAN_QUEUE, taken_ns, begun_ns, trace_id, work["spanId"], queue)
        prefill: dict[str, object] = {c.PREFILL_TOKENS: n_prompt, c.PREFILL_RECOMPUTE: False}
        filled = self._span(c.SPAN_PREFILL, begun_ns, first_ns, trace_id, work["spanId"], prefill)
        yield filled
        chunk: dict[str, object] = {
            c.STEP_INDEX: first,
            c.CHUNK_TOKENS: n_prompt,
            c.CHUNK_CONTEXT: 0,
        }
        yield self._span(
            c.SPAN_PREFILL_CHUNK, begun_ns, first_ns, trace_id, filled["spanId"], chunk
        )
        decode: dict[str, object] = {
            c.DECODE_FIRST_STEP: first + 1,
            c.DECODE_LAST_STEP: last,
            c.DECODE_TOKENS: n_output - 1,
        }
        yield self._span(c.SPAN_DECODE, first_ns, last_ns, trace_id, work["spanId"], decode)
        yield work
        yield top


RESOURCE = {
    c.SERVICE_NAME: "serve",
    c.SERVICE_INSTANCE_ID: "i-0",
    c.ENGINE_NAME: "vllm",
    c.ENGINE_VERSION: "0.32.0",
    c.ENGINE_MAX_BATCH_TOKENS: 8192,
    c.ENGINE_MAX_SEQS: 256,
    c.ENGINE_KV_TOKENS: 500_000,
    c.ENGINE_CHUNKED_PREFILL: True,
}


def write(path: Path, n_spans: int) -> int:
    """Writes `n_spans` spans, 512 a line, and returns how many were written."""
    resource = {"attributes": [attribute(key, value) for key, value in RESOURCE.items()]}
    scope = {"name": c.SCOPE_NAME, "version": c.CONTRACT_VERSION}
    encoder = msgspec.json.Encoder()
    n_written = 0
    with path.open("wb") as file:
        batch: list[JsonSpan] = []

        def flush() -> None:
            scope_spans = {"scope": scope, "spans": batch}
            block = {"resource": resource, "scopeSpans": [scope_spans]}
            file.write(encoder.encode({"resourceSpans": [block]}) + b"\n")

        for span in Load(n_spans).spans():
            batch.append(span)
            n_written += 1
            if len(batch) == SPANS_PER_LINE or n_written == n_spans:
                flush()
                batch = []
            if n_written == n_spans:
                break
        if batch:
            flush()
    return n_written
