"""What the user asked for and whether it was met, as rows of words."""

from __future__ import annotations

from tokenlag.judge.diagnosis import Diagnosis, Goodput, ObjectiveOutcome
from tokenlag.report import format as fmt


def rows(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Labelled rows: the objectives of `--slo` and the share within the limits of `--goodput`."""
    made = []
    if diagnosis.objectives:
        made.append(("asked", ", ".join(map(_objective, diagnosis.objectives))))
    if diagnosis.goodput:
        made.append(("goodput", _goodput(diagnosis.goodput)))
    return made


def _objective(outcome: ObjectiveOutcome) -> str:
    asked = f"{outcome.metric} p{outcome.percentile:g} ≤ {fmt.milliseconds(outcome.limit_ms)}"
    if outcome.actual_ms is None:
        return f"{asked} (nothing recorded tells it)"
    return (
        f"{asked} ({'met' if outcome.is_met else 'missed'}: {fmt.milliseconds(outcome.actual_ms)})"
    )


def _goodput(goodput: Goodput) -> str:
    limits = " and ".join(f"{m} {fmt.milliseconds(ms)}" for m, ms in goodput.limits_ms.items())
    if goodput.share is None:
        return f"cannot be told: no request tells a figure of {limits}"
    per_s = goodput.requests_per_s
    rate = f", {fmt.rounded(per_s)} requests/s" if per_s is not None else ""
    return f"{fmt.percent(goodput.share)} of requests within {limits}{rate}"
