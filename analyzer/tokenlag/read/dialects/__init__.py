"""Dialects: how one producer's spans become canonical rows.

A dialect is the keys that it needs, a rank of trust, and an SQL script from the view
`spans` to the staging tables of `staging.sql`. In that view an attribute column is
called by its constant's name in `conventions.py` in lower case ("step_index"), a
resource key the same with `res_` before it; keys that only a dialect knows have the
name given here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tokenlag_tracer import conventions

PACKAGE: Final = "tokenlag.read.dialects"


@dataclass(frozen=True)
class Dialect:
    """One producer's way to write spans.

    Attributes:
        name: as it appears in `requests.dialects`.
        trust: smaller wins, field by field, where two dialects tell of one request.
        scripts: its `.sql` files in this package, in order.
        keys: column name → (attribute key, type) for keys outside the conventions.
        resource_keys: the same for resource attributes; columns get `res_` before them.
        event_names: span events that the script reads.
        event_keys: their attributes, by type; columns of `span_events` have the keys' names.
        link_names: names of spans whose links the script reads, as events named `link`.
        span_names: an RE2 pattern that some span's name matches if the dialect is there at
            all; without such a name the scripts are not run. None: always run.
    """

    name: str
    trust: int
    scripts: tuple[str, ...]
    keys: dict[str, tuple[str, str]] = field(default_factory=dict)
    resource_keys: dict[str, tuple[str, str]] = field(default_factory=dict)
    event_names: frozenset[str] = frozenset()
    event_keys: dict[str, str] = field(default_factory=dict)
    link_names: frozenset[str] = frozenset()
    span_names: str | None = None


# De-facto keys that several engines write; semconv has no names for them.
_LATENCY_KEYS: Final[dict[str, tuple[str, str]]] = {
    "prompt_tokens": ("gen_ai.usage.prompt_tokens", "int"),
    "completion_tokens": ("gen_ai.usage.completion_tokens", "int"),
    "time_to_first_token_s": ("gen_ai.latency.time_to_first_token", "float"),
    "e2e_s": ("gen_ai.latency.e2e", "float"),
    "time_in_queue_s": ("gen_ai.latency.time_in_queue", "float"),
    "time_in_prefill_s": ("gen_ai.latency.time_in_model_prefill", "float"),
    "time_in_decode_s": ("gen_ai.latency.time_in_model_decode", "float"),
    "time_in_inference_s": ("gen_ai.latency.time_in_model_inference", "float"),
    "n_choices_asked": ("gen_ai.request.n", "int"),
    "cached_tokens": ("gen_ai.usage.cached_tokens", "int"),
    "response_model": ("gen_ai.response.model", "str"),
}

# Clients first, for the contract's script looks at who has one. The rest run beside the contract's,
# in this order: they do not see what it stages.
DIALECTS: Final[tuple[Dialect, ...]] = (
    Dialect(
        "genai-client",
        9,
        ("genai_client.sql",),
        keys={
            "prompt_tokens": ("gen_ai.usage.prompt_tokens", "int"),
            "completion_tokens": ("gen_ai.usage.completion_tokens", "int"),
            "response_model": ("gen_ai.response.model", "str"),
            "cached_tokens_underscore": ("gen_ai.usage.cache_read_input_tokens", "int"),
            "server_first_token_s": ("gen_ai.server.time_to_first_token", "float"),
            # OpenLLMetry's and OpenInference's own, and those of the conventions' first form.
            "llm_request_type": ("llm.request.type", "str"),
            "llm_request_model": ("llm.request.model", "str"),
            "openinference_kind": ("openinference.span.kind", "str"),
            "openinference_model": ("llm.model_name", "str"),
            "openinference_prompt": ("llm.token_count.prompt", "int"),
            "openinference_completion": ("llm.token_count.completion", "int"),
            "openinference_cached": ("llm.token_count.prompt_details.cache_read", "int"),
            "session_id": ("session.id", "str"),
            "vercel_first_chunk_ms": ("ai.response.msToFirstChunk", "float"),
            "vercel_model": ("ai.model.id", "str"),
            "vercel_prompt": ("ai.usage.promptTokens", "int"),
            "vercel_completion": ("ai.usage.completionTokens", "int"),
        },
    ),
    # After the clients', whose spans may be a gateway's own calls.
    Dialect(
        "gateway",
        9,
        ("gateway.sql",),
        keys={
            "prompt_tokens": ("gen_ai.usage.prompt_tokens", "int"),
            "completion_tokens": ("gen_ai.usage.completion_tokens", "int"),
            "response_model": ("gen_ai.response.model", "str"),
            "response_id": ("gen_ai.response.id", "str"),
            "router_request_id": ("vllm.request_id", "str"),
            "router_model": ("vllm.model", "str"),
            "x_request_id": ("x_request_id", "str"),
            "plain_model": ("model", "str"),
            "plain_input_tokens": ("input_tokens", "int"),
            "plain_output_tokens": ("output_tokens", "int"),
        },
        span_names="^(Received Proxy Server Request$|router /|gateway\\.request$|forward_request$"
        "|llm_d\\.pd_proxy\\.request$|http-request$)",
    ),
    Dialect("contract", 1, ("contract.sql",)),
    Dialect(
        "vllm",
        2,
        ("vllm.sql",),
        keys=_LATENCY_KEYS
        | {
            "time_in_scheduler_s": ("gen_ai.latency.time_in_scheduler", "float"),
            "time_in_forward_s": ("gen_ai.latency.time_in_model_forward", "float"),
            "time_in_execute_s": ("gen_ai.latency.time_in_model_execute", "float"),
            # TensorRT-LLM's, of the same span.
            "kv_transfer_s": ("gen_ai.latency.kv_cache_transfer_time", "float"),
        },
        resource_keys={
            "vllm_process_id": ("vllm.process_id", "str"),
            "vllm_module": ("vllm.instrumenting_module_name", "str"),
        },
        span_names="^llm_request$",
    ),
    Dialect(
        "sglang",
        3,
        ("sglang.sql", "sglang_steps.sql"),
        keys=_LATENCY_KEYS
        | {
            "rid": ("rid", "str"),
            "module": ("module", "str"),
            "host_id": ("host_id", "str"),
            "pid": ("pid", "str"),
            "thread_label": ("thread_label", "str"),
            "tp_rank": ("tp_rank", "int"),
            "dp_rank": ("dp_rank", "int"),
        },
        event_names=frozenset({"retract", "schedule"}),
        event_keys={"bid": "str", "batch_size": "int", "forward_mode": "str"},
        span_names="(^| )Req [0-9A-Za-z_-]",
    ),
    Dialect(
        "tgi",
        4,
        ("tgi.sql", "tgi_batches.sql"),
        keys={  # durations and counts as Rust prints them
            "tgi_validation_time": ("validation_time", "str"),
            "tgi_queue_time": ("queue_time", "str"),
            "tgi_inference_time": ("inference_time", "str"),
            "tgi_time_per_token": ("time_per_token", "str"),
            "tgi_prompt_tokens": ("prompt_tokens", "str"),
            "tgi_generated_tokens": ("generated_tokens", "str"),
            "tgi_batch_size": ("batch_size", "int"),
        },
        link_names=frozenset({"infer"}),
        span_names="^(generate|generate_stream|completions|chat_completions|compat_generate)$",
    ),
    Dialect(
        "dynamo",
        5,
        ("dynamo.sql",),
        keys={
            "plain_model": ("model", "str"),
            "plain_input_tokens": ("input_tokens", "int"),
            "plain_output_tokens": ("output_tokens", "int"),
            "plain_ttft_ms": ("ttft_ms", "float"),
            "plain_finish_reason": ("finish_reason", "str"),
            "disagg_role": ("disagg_role", "str"),
        },
        span_names="^(engine\\.generate|dynamo\\.request)$",
    ),
    Dialect(
        "llama.cpp",
        6,
        ("llama_cpp.sql",),
        keys=_LATENCY_KEYS,
        span_names="^llama\\.cpp\\.completion$",
    ),
)


def span_columns() -> dict[str, tuple[str, str]]:
    """Column name → (attribute key, type) of every attribute that some dialect reads."""
    columns = {
        constant.lower(): (key, conventions.SPAN_ATTRIBUTE_TYPES[key])
        for constant, key in _constants().items()
        if key in conventions.SPAN_ATTRIBUTE_TYPES
    }
    for dialect in DIALECTS:
        columns |= dialect.keys
    return columns


def resource_columns() -> dict[str, tuple[str, str]]:
    """Column name (with `res_`) → (resource key, type) of every resource key read."""
    columns = {
        f"res_{constant.lower()}": (key, conventions.RESOURCE_ATTRIBUTE_TYPES[key])
        for constant, key in _constants().items()
        if key in conventions.RESOURCE_ATTRIBUTE_TYPES
    }
    for dialect in DIALECTS:
        columns |= {f"res_{name}": spec for name, spec in dialect.resource_keys.items()}
    return columns


def event_names() -> frozenset[str]:
    """Names of span events that some dialect reads."""
    return frozenset().union(*(dialect.event_names for dialect in DIALECTS))


def event_columns() -> dict[str, str]:
    """Attributes of span events that some dialect reads, with their types."""
    return {key: kind for dialect in DIALECTS for key, kind in dialect.event_keys.items()}


def link_names() -> frozenset[str]:
    """Names of spans whose links some dialect reads."""
    return frozenset().union(*(dialect.link_names for dialect in DIALECTS))


def script_names() -> dict[str, str | int]:
    """The contract's span names, kinds and other constants, for scripts' placeholders."""
    return {
        name: value
        for name, value in vars(conventions).items()
        if name.isupper() and isinstance(value, str | int) and not isinstance(value, bool)
    }


def _constants() -> dict[str, str]:
    return {
        name: value
        for name, value in vars(conventions).items()
        if name.isupper() and isinstance(value, str)
    }
