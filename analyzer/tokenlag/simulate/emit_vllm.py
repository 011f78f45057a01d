"""A run as vLLM tells it without help: one `llm_request` span for each finished request.

Traits that are kept: attributes and units as vLLM names them, nothing about steps, aborted
requests are absent, a wait after a preemption hides in prefill or decode, and a request that
arrives behind a long step counts as queued only when the engine looks at it next.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from tokenlag_tracer import conventions as names

from tokenlag.simulate.emit_gateway import gateway_spans, upstream_id
from tokenlag.simulate.log import EpochLog
from tokenlag.simulate.otlp_json import AttributeValue, Scope, Span, span_text
from tokenlag.simulate.run import Run
from tokenlag.simulate.timeline import Timeline, request_ids

SCOPE = Scope("vllm.tracing.otel", None)
SPAN_NAME = "llm_request"

# The remote parent's flags, as the SDK writes them.
_FLAGS = ',"flags":768'

# Keys that are vLLM's own, or that the conventions have since renamed.
_LATENCY = "gen_ai.latency."
_PROMPT_TOKENS = "gen_ai.usage.prompt_tokens"
_COMPLETION_TOKENS = "gen_ai.usage.completion_tokens"
_TOP_P = "gen_ai.request.top_p"
_N = "gen_ai.request.n"


def resource_of(run: Run, log: EpochLog) -> dict[str, AttributeValue | None]:
    """Return the resource attributes that vLLM's API server process sets."""
    return {
        names.SERVICE_NAME: "vllm",
        names.SERVICE_INSTANCE_ID: f"{run.variant.recipe}-{run.seed}-{log.engine}",
        "vllm.instrumenting_module_name": "vllm.llm_engine",
        "vllm.process_id": "4242",
    }


def spans(run: Run, timeline: Timeline) -> Iterator[tuple[int, int, str]]:
    """Yield end (unix ns), number of the epoch's resource, and text of each span."""
    ids = random.Random(f"vllm ids {run.key}")
    delivery_s = run.variant.edge.delivery_ms / 1e3
    gateway = run.variant.gateway
    for request in run.requests:
        if request.done_s is None or request.error or request.is_ghost or run.gave_up(request):
            continue
        assert request.scheduled_s is not None
        first_s = request.first_token_s
        queued_s = max(request.engine_s, request.seen_s or request.engine_s)
        processed_s = request.done_s + delivery_s
        attributes: dict[str, AttributeValue | None] = {
            f"{_LATENCY}time_to_first_token": (
                None if first_s is None else first_s + delivery_s - request.arrival_s
            ),
            f"{_LATENCY}e2e": processed_s - request.arrival_s,
            f"{_LATENCY}time_in_queue": request.scheduled_s - queued_s,
            _PROMPT_TOKENS: request.n_prompt,
            _COMPLETION_TOKENS: request.n_generated,
            f"{_LATENCY}time_in_model_prefill": (
                None if first_s is None else first_s - request.scheduled_s
            ),
            f"{_LATENCY}time_in_model_decode": (
                None if first_s is None else request.done_s - first_s
            ),
            f"{_LATENCY}time_in_model_inference": request.done_s - request.scheduled_s,
            names.REQUEST_ID: f"cmpl-req-{request.number}-0",
            _TOP_P: 1.0,
            names.REQUEST_MAX_TOKENS: request.n_max_output or None,
            _N: 1,
        }
        of = request_ids(run, request)
        span = Span(
            trace_id=of.trace,
            span_id=f"{ids.getrandbits(64):016x}",
            parent_id=of.client if gateway is None else upstream_id(of.request),
            name=SPAN_NAME,
            kind=names.KIND_SERVER,
            start_ns=timeline.ns(request.arrival_s),
            end_ns=timeline.ns(processed_s),
            attributes=attributes,
        )
        yield span.end_ns, request.epoch, span_text(span, extra=_FLAGS)
        if gateway is None:
            continue
        heard_s = processed_s + run.variant.edge.network_ms / 1e3
        for span in gateway_spans(
            gateway, request, timeline, trace_id=of.trace, request_id=of.request,
            parent_id=None, heard_s=heard_s, model=run.variant.model,
        ):  # fmt: skip
            yield span.end_ns, len(run.epochs), span_text(span)
