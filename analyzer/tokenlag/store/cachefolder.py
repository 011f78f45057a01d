"""Where the cache lies, and how much it may take."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from tokenlag.errors import UsageError

HIDDEN: Final = ".tokenlag-cache"  # readers of folders pass hidden ones by
DEFAULT_MAX_BYTES: Final = 4 * 2**30
MAX_VARIABLE: Final = "TOKENLAG_CACHE_SIZE"
_UNITS: Final = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def default_folder() -> Path:
    """`tokenlag` under `XDG_CACHE_HOME`, which is `~/.cache` where it is not set."""
    home = os.environ.get("XDG_CACHE_HOME")
    # The specification says that a relative one is to be ignored.
    base = Path(home) if home and Path(home).is_absolute() else Path.home() / ".cache"
    return base / "tokenlag"


def beside_traces(path: str) -> Path:
    """A hidden folder in the folder of traces, or beside the file or pattern."""
    given = Path(path).expanduser()
    while not given.is_dir() and given != given.parent:
        given = given.parent
    return given / HIDDEN


def max_bytes() -> int:
    """What the cache may take: `TOKENLAG_CACHE_SIZE`, such as 500MB or 10GB, else 4 GiB.

    Raises:
        UsageError: the variable is no size.
    """
    text = os.environ.get(MAX_VARIABLE)
    if not text:
        return DEFAULT_MAX_BYTES
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)B?", text.strip(), re.IGNORECASE)
    if match is None:
        raise UsageError(f"{MAX_VARIABLE}: {text!r} is not a size", hint="500MB, 10GB")
    return int(float(match[1]) * _UNITS[match[2].upper()])
