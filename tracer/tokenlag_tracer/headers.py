"""What HTTP headers tell of a request: when the edge took it, who sent it, what it is called."""

from __future__ import annotations

import re
import time
from typing import Final

_SECRETS: Final = re.compile(r"authoriz|cookie|secret|token|passw|credential|api-?key|x-key")
_LABEL: Final = re.compile(r"[\w.:@/ -]{1,64}")
_KEY: Final = re.compile(r"(?i)(?:sk|pk|rk|hf|ghp|xox\w)[-_]|bearer\b|basic\b|eyJ")
_ID: Final = re.compile(r"[\w.:@/=+-]{1,128}")
_STAMP: Final = re.compile(r"(?:t=)?(\d{9,19}(?:\.\d{1,9})?)s?")
_DAY_NS: Final = 86_400_000_000_000


def carries_keys(header: str) -> bool:
    """Returns whether a header of this name carries secrets, which are no labels."""
    return _SECRETS.search(header.lower()) is not None


def label(text: str) -> str | None:
    """Returns a tenant's label; None if it is none, or looks like a key."""
    return text if _LABEL.fullmatch(text) and not _KEY.match(text) else None


def is_id(text: str) -> bool:
    """Returns whether a text can be a request's id: one word, and not long."""
    return _ID.fullmatch(text) is not None


def edge_stamp_ns(text: str, now_unix_ns: int | None = None) -> int | None:
    """Returns the unix time in ns that an `X-Request-Start` header gives, None if it gives none.

    Edges write seconds (`t=1512379167.574`), milliseconds or microseconds; which it is follows
    from its size. What is more than a day away is no stamp of this request.
    """
    match = _STAMP.fullmatch(text.strip())
    if match is None:
        return None
    whole, _, part = match[1].partition(".")
    # 9 to 11 digits are seconds, 12 to 14 ms, 15 to 17 µs, 18 and 19 ns.
    unit_ns = 10 ** (9 - 3 * ((len(whole) - 9) // 3))
    stamp_ns = int(whole) * unit_ns + int((part or "0").ljust(9, "0")) * unit_ns // 10**9
    now_unix_ns = time.time_ns() if now_unix_ns is None else now_unix_ns
    return stamp_ns if abs(now_unix_ns - stamp_ns) < _DAY_NS else None
