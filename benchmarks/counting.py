"""What counts as noticed, stated and sure, and shares with their intervals."""

from __future__ import annotations

import math
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"
MOVED = 0.20  # a fault is noticed if its symptom rose by so much
STATED = 0.5  # confidence from which a finding is stated
SURE = 0.9


def wilson(k: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's interval of a share."""
    if n == 0:
        return 0.0, 1.0
    centre = (k + z * z / 2) / (n + z * z)
    half = z / (n + z * z) * math.sqrt(k * (n - k) / n + z * z / 4)
    return max(centre - half, 0.0), min(centre + half, 1.0)


def share(k: int, n: int) -> str:
    """A share with its interval, in words for a table."""
    low, high = wilson(k, n)
    return f"{k}/{n} = {k / n:.3f} ({low:.3f} to {high:.3f})" if n else "0/0"
