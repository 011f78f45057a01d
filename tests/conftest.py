"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of captures and other people's files beside the checkout; skips without it."""
    folder = Path(os.environ.get("TOKENLAG_SHARED", REPO.parent / "shared"))
    if not folder.is_dir():
        pytest.skip("no shared folder: set TOKENLAG_SHARED to have captures read")
    return folder


@pytest.fixture(scope="session")
def bundled_trace() -> Path:
    """A real vLLM's spans in the trace contract, with long prompts that freeze the streams."""
    return REPO / "fixtures" / "traces" / "long-prompt.jsonl.gz"
