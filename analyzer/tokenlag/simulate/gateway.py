"""A gateway or router in front of the server: whose spans it writes."""

from __future__ import annotations

from dataclasses import dataclass

from tokenlag_tracer import conventions as names

from tokenlag.errors import InputError
from tokenlag.simulate.otlp_json import AttributeValue, Scope

FORMS = ("production-stack", "litellm", "litellm-flat", "llm-d", "dynamo")
SCOPES = {
    "production-stack": "vllm-router",
    "litellm": "litellm",
    "litellm-flat": "litellm",
    "llm-d": "llm-d-router/pkg/epp",
    "dynamo": "dynamo",
}


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """Whose spans stand before the server; how long it holds is in `[edge]` or the workload.

    Attributes:
        form: one of `FORMS`.
    """

    form: str = "production-stack"

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise InputError(f"no form {self.form!r}", hint=f"one of {', '.join(FORMS)}")

    @property
    def resource(self) -> dict[str, AttributeValue | None]:
        """Its resource attributes."""
        return {names.SERVICE_NAME: self.form, names.SERVICE_INSTANCE_ID: f"{self.form}-0"}

    @property
    def scope(self) -> Scope:
        """Its instrumentation scope."""
        return Scope(SCOPES[self.form], None)
