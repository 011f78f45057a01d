"""Sources: what turns the bytes of one format into span rows. No source knows a dialect.

What is here decides by a file's first bytes which source reads it, and imports none.
"""

from __future__ import annotations

import re
from typing import Final

OTLP_JSON: Final = "otlp_json"

# One of these is in the first part of every file of OTLP JSON.
_OTLP_MARKS: Final = (
    b"resourceSpans",
    b"resource_spans",
    b'"batches"',
    b"resourceLogs",
    b"resource_logs",
    b"resourceMetrics",
    b"resource_metrics",
    b"resourceProfiles",
    b"resource_profiles",
)
_JSON_LINE: Final = re.compile(rb"^[ \t\xef\xbb\xbf]*[{\[]", re.MULTILINE)


def find_source(head: bytes) -> str | None:
    """Returns the name of the source that reads a file which begins so, if one does.

    Args:
        head: the first bytes, decompressed.
    """
    is_otlp = any(mark in head for mark in _OTLP_MARKS)
    return OTLP_JSON if is_otlp and _JSON_LINE.search(head) else None
