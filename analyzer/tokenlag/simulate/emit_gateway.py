"""A gateway's spans around a request, as each gateway or router writes them itself."""

from __future__ import annotations

from collections.abc import Iterator

from tokenlag_tracer import conventions as names

from tokenlag.simulate.gateway import GatewayConfig
from tokenlag.simulate.log import Request
from tokenlag.simulate.otlp_json import AttributeValue, Span
from tokenlag.simulate.timeline import Timeline

_AFTER_NS = 300_000  # from the last byte of the answer to the end of the gateway's span


def received_s(request: Request) -> float:
    """When the gateway received it: before its queue for a connection, if it has one."""
    return request.sent_s if request.intended_s is None else request.intended_s


def released_s(request: Request) -> float:
    """When the gateway sent it on."""
    return request.sent_s + request.held_s


def upstream_id(request_id: str) -> str:
    """The span that the server's request hangs under."""
    return f"{(int(request_id, 16) + 1) % 2**64:016x}"


def gateway_spans(
    config: GatewayConfig,
    request: Request,
    time: Timeline,
    *,
    trace_id: str,
    parent_id: str | None,
    request_id: str,
    heard_s: float,
    model: str,
) -> Iterator[Span]:
    """Yield the spans of one request, the call's id being `upstream_id(request_id)`."""
    outer_id = f"{(int(request_id, 16) + 2) % 2**64:016x}"
    call_id = upstream_id(request_id)
    start_ns, sent_ns = time.ns(received_s(request)), time.ns(released_s(request))
    heard_ns = time.ns(heard_s)

    def span(
        name: str,
        span_id: str,
        parent: str | None,
        kind: int,
        start: int,
        end: int,
        attributes: dict[str, AttributeValue | None] | None = None,
    ) -> Span:
        return Span(trace_id, span_id, parent, name, kind, start, end, attributes or {})

    end_ns = heard_ns + _AFTER_NS
    usage: dict[str, AttributeValue | None] = {
        names.REQUEST_MODEL: model,
        names.USAGE_INPUT_TOKENS: request.n_prompt,
        names.USAGE_OUTPUT_TOKENS: request.n_generated,
    }
    if config.form == "production-stack":
        asked: dict[str, AttributeValue | None] = {
            "http.method": "POST",
            "vllm.request_id": f"router-{request.number}",
            "vllm.model": model,
            "vllm.routing_logic": "roundrobin",
        }
        yield span(
            "router /v1/chat/completions", outer_id, parent_id, names.KIND_SERVER, start_ns, end_ns,
            asked,
        )  # fmt: skip
        yield span(
            "process_request", call_id, outer_id, names.KIND_CLIENT, sent_ns, heard_ns,
            {"vllm.is_streaming": True},
        )  # fmt: skip
    elif config.form in ("litellm", "litellm-flat"):
        yield span(
            "Received Proxy Server Request", outer_id, parent_id, names.KIND_SERVER, start_ns,
            end_ns, usage if config.form == "litellm-flat" else None,
        )  # fmt: skip
        inner = "litellm_request" if config.form == "litellm" else "raw_gen_ai_request"
        yield span(
            inner, call_id, outer_id, names.KIND_INTERNAL, sent_ns, heard_ns, usage
        )  # fmt: skip
    elif config.form == "llm-d":
        # One stream of ext_proc; the proxy sends when the choice is made.
        yield span(
            "gateway.request", call_id, parent_id, names.KIND_SERVER, start_ns, end_ns,
            {names.REQUEST_MODEL: model},
        )  # fmt: skip
        yield span(
            "gateway.request_orchestration", outer_id, call_id, names.KIND_INTERNAL, start_ns,
            sent_ns,
        )  # fmt: skip
    else:
        yield span(
            "http-request", outer_id, parent_id, names.KIND_SERVER, start_ns, end_ns,
            {"x_request_id": f"router-{request.number}"},
        )  # fmt: skip
        yield span("handle_payload", call_id, outer_id, names.KIND_INTERNAL, sent_ns, heard_ns)
