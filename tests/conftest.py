"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test leaves anything in the user's cache, or finds anything there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


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
