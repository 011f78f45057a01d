"""A fleet of engines as lines: what its store summed up, and which engines were read."""

from __future__ import annotations

from statistics import median
from typing import Final

from tokenlag.read.stores.summary import EngineSummary, Fleet
from tokenlag.report import format as fmt

_TITLES: Final = (
    ("ttft_p90_ms", "TTFT p90"),
    ("queue_p90_ms", "queue p90"),
    ("tpot_p90_ms", "per token p90"),
    ("e2e_p90_ms", "e2e p90"),
)


def fleet_lines(fleet: Fleet | None) -> list[str]:
    """What to say of a fleet, engine by engine only of those that were read in full."""
    if fleet is None:
        return []
    n, n_requests = len(fleet.engines), sum(one.requests for one in fleet.engines)
    chosen = [one for one in fleet.engines if one.is_read]
    lines = [
        f"{n:,} engines with {n_requests:,} requests were summed up in the store; "
        f"{len(chosen)} were read, and the diagnosis is of those"
    ]
    usual = [f"{title} {_usual(fleet, name)}" for name, title in _TITLES if _usual(fleet, name)]
    if usual:
        lines.append(f"half of the engines are below: {', '.join(usual)}")
    lines += [f"{fmt.clean(one.engine)}: {_told(one)}" for one in chosen]
    if fleet.model is not None:
        lines.append(
            f"a step of this fleet: {fleet.model.base_ms:.3g} ms + {fleet.model.per_seq_ms:.3g} ms "
            f"a decoding request + {fleet.model.per_token_ms:.3g} ms a prompt token "
            f"({fleet.model.steps:,} steps of {fleet.model.engines:,} engines)"
        )
    return lines


def _usual(fleet: Fleet, name: str) -> str | None:
    values = [getattr(one, name) for one in fleet.engines if getattr(one, name) is not None]
    return fmt.milliseconds(median(values)) if values else None


def _told(one: EngineSummary) -> str:
    parts = [fmt.clean(one.why or ""), fmt.plural(one.requests, "request")]
    parts += [
        f"{title} {fmt.milliseconds(value)}"
        for name, title in _TITLES[:3]
        if (value := getattr(one, name)) is not None
    ]
    if one.step_ratio is not None:
        parts.append(f"steps {one.step_ratio:.2f} × the fleet's")
    return ", ".join(part for part in parts if part)
