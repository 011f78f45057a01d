"""The list of what the cache holds."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tokenlag.report.pages import grid
from tokenlag.store.cache import Manifest

_NAMED: Final = 2
_STEPS_S: Final = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"))


def cache_text(
    folder: Path,
    segments: Iterable[tuple[Path, Manifest | None, int, float]],
    max_bytes: int,
    *,
    now_s: float,
) -> str:
    """A line for the whole and a row for each segment, the newest first.

    Args:
        folder: of the cache.
        segments: as `Cache.segments` yields them.
        max_bytes: what it may take.
        now_s: the present, unix seconds.
    """
    rows: list[list[object]] = []
    n_all = 0
    for path, manifest, n_bytes, used_s in segments:
        n_all += n_bytes
        inputs = manifest.inputs if manifest is not None else []
        named = ", ".join(one.key.path for one in inputs[:_NAMED])
        more = f" and {len(inputs) - _NAMED} more" if len(inputs) > _NAMED else ""
        rows.append(
            [
                path.name,
                f"{n_bytes / 1e6:,.1f} MB",
                len(inputs),
                f"{sum(one.n_rows for one in inputs):,}",
                _ago(now_s - used_s),
                named + more if manifest is not None else "damaged; the next run removes it",
            ]
        )
    size = f"{n_all / 1e6:,.1f} MB of at most {max_bytes / 1e6:,.0f} MB"
    head = f"{folder}: {len(rows)} segments, {size}"
    if not rows:
        return f"{head}\n"
    names = ["segment", "size", "files", "spans", "last used", "of"]
    return f"{head}\n\n{grid(names, rows)}\n"


def _ago(seconds: float) -> str:
    for length, unit in _STEPS_S:
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return "now"
