"""The entry point by which `opentelemetry-instrument` starts the tracer.

It asks of an instrumentor no more than these methods, so that nothing of
`opentelemetry-instrumentation` has to be installed where it is not used.
"""

from __future__ import annotations

from typing import Any


class TokenlagInstrumentor:
    """Installs the engines' adapters, as `OTEL_PYTHON_DISABLED_INSTRUMENTATIONS` allows."""

    def instrument(self, **_: Any) -> None:
        """Has the adapters wait for their engines to be imported."""
        from tokenlag_tracer import config, engines

        if not config.is_disabled():
            engines.autoload()

    def uninstrument(self, **_: Any) -> None:
        """Restores what was changed."""
        from tokenlag_tracer import engines

        engines.uninstrument()

    def instrumentation_dependencies(self) -> tuple[str, ...]:
        """Returns nothing: which engines there are is found when they are imported."""
        return ()
