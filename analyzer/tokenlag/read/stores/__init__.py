"""Trace stores: databases that hold spans of a whole fleet, asked for those of a window.

What is selected, converted and summed up is so in the store, and columns of span rows come
back. What is here decides whether an argument names a store; it imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

CLICKHOUSE: Final = ("clickhouse://", "clickhouses://")


def is_store(path: str | Path) -> bool:
    """Returns whether an argument names a trace store and not a file."""
    return str(path).lower().startswith(CLICKHOUSE)


def any_store(paths: Sequence[str | Path]) -> bool:
    """Returns whether one of the arguments does."""
    return any(is_store(path) for path in paths)
