"""What a comparison of two loads says, as plain records: what reports print and JSON holds."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

SCHEMA: Final = "tokenlag.comparison/1"

Moved = Literal["higher", "lower", "same", "unknown"]
Cause = Literal[
    "shape", "load", "speed", "load or speed", "shape or speed", "load, shape or speed", "unknown"
]


class Change(msgspec.Struct, frozen=True):
    """One metric of B against A.

    Attributes:
        metric: "ttft", "e2e", "tpot" (ms); "input_tokens", "output_tokens".
        figure: "mean", or "median" where a file has no mean.
        a: of A.
        b: of B.
        low: of the 95 % interval of b − a; None where the files have no spread.
        high: the same.
        moved: B against A; "same" within 5 %, or within the interval.
    """

    metric: str
    figure: str
    a: float
    b: float
    low: float | None
    high: float | None
    moved: Moved

    @property
    def ms(self) -> float:
        """B − A."""
        return self.b - self.a


class Part(msgspec.Struct, frozen=True):
    """A part of the change of one metric, ms.

    Attributes:
        metric: "ttft", "e2e" or "tpot".
        cause: what it comes from.
        ms: its size, signed as B − A.
        half_ms: half of its 95 % interval; None where it follows from figures without one.
        text: what moved, for a person.
    """

    metric: str
    cause: Cause
    ms: float
    half_ms: float | None
    text: str


class SideText(msgspec.Struct, frozen=True):
    """What is said of one side."""

    name: str
    tool: str
    level: str | None
    model: str | None
    requests: int | None
    failed: int
    load: str
    in_flight: float | None


class Comparison(msgspec.Struct, frozen=True):
    """B against A.

    Attributes:
        a: the first side.
        b: the second.
        changes: the metrics, those that are known.
        parts: what the changes of ttft, tpot and e2e are made of.
        why: for each of ttft, e2e and tpot that moved, the cause that made most of it.
        verdict: sentences for a person, the first one the answer.
        notes: what limits the answer, and what was translated.
    """

    a: SideText
    b: SideText
    changes: list[Change]
    parts: list[Part]
    why: dict[str, Cause]
    verdict: list[str]
    notes: list[str]
    schema: str = SCHEMA
