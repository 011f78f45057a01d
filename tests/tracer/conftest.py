"""The tracer's tests leave no writer and no settings behind."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from tokenlag_tracer import link


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in list(os.environ):
        if name.startswith(("TOKENLAG_", "OTEL_")) and name != "TOKENLAG_SHARED":
            monkeypatch.delenv(name)
    yield
    link.close_shared_link()
    os.environ.pop("TOKENLAG_SOCKET", None)
