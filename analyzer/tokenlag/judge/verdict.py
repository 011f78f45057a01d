"""The verdict: one of three honest endings.

A cause from the closed list; nothing wrong, within a stated bound; or it cannot be told,
because something was not recorded, and what. A slowness that is real and fits no cause is a
problem without a cause, with the dimension along which slow requests differ most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tokenlag.judge.diagnosis import Finding, Stat, Symptom, Verdict
from tokenlag.judge.drift import token_drift
from tokenlag.judge.excess import Excess
from tokenlag.judge.figures import Requests

MIN_REQUESTS = 5
MIN_LIFT = 1.5
STATED_CONFIDENCE = 0.5
# A finding that explains less of the excess is no lead, and no cause where the rest cannot be told.
LEAD_SHARE = 0.3

NO_STEPS = (
    "; engine steps were not recorded, so stops within a stream and slow steps would hardly show"
)

# What would tell where a symptom's excess went.
NEEDED: dict[str, tuple[str, ...]] = {
    "ttft": ("queue", "prefill", "steps", "cached_tokens"),
    "itl": ("steps",),
    "e2e": ("decode", "steps"),
    "client": ("network",),
}

# What clients wait beyond the server shows before the first chunk at the latest.
_NAMES: dict[str, Symptom] = {"ttft": "ttft", "itl": "itl", "e2e": "e2e", "client": "ttft"}


@dataclass(frozen=True)
class Situation:
    """What the verdict is made from."""

    findings: Sequence[Finding]
    excess: Mapping[str, Excess]
    capabilities: set[str]
    latency: Mapping[str, Stat]
    requests: Requests
    missed: Sequence[str]
    """Labels of objectives that are missed."""
    n_steps: int
    n_in_flight: int = 0
    """Requests that came before the window and were still in the engine during it."""
    unjudged: Mapping[str, bool] = field(default_factory=dict)
    """Labels of objectives that nothing recorded tells, and whether they are likely missed."""


def decide(situation: Situation) -> Verdict:
    """The verdict of a window that holds at least one request."""
    causes = [
        f
        for f in situation.findings
        if f.severity == "problem" and f.confidence >= STATED_CONFIDENCE and not f.consequence_of
    ]
    if causes and not _is_shadow(situation, causes[0]):
        top = causes[0]
        return Verdict("problem", top.symptom, top.rule, [], None, top.summary)
    n = len(situation.requests)
    if n < MIN_REQUESTS:
        why = f"{n} requests arrived in the window: too few to tell slow from usual"
        if situation.n_in_flight > n:
            why += f"; {situation.n_in_flight} that came before it were in flight: begin it earlier"
        return _inconclusive(None, ["requests"], why)
    if situation.latency["e2e"].n == 0 and situation.latency["ttft"].n == 0:
        return _inconclusive(None, ["e2e"], "no request tells how long it took")
    visible = [e for e in situation.excess.values() if e.is_visible]
    if situation.missed and not visible:
        return _unexplained_or_blind(
            situation, _missed_symptom(situation.missed[0]), _missed(situation)
        )
    if visible:
        worst = max(visible, key=lambda e: (bool(e.slow.any()), np.nan_to_num(e.alone_ms)))
        return _unexplained_or_blind(situation, worst.symptom, worst.reason)
    for hint in (e for e in situation.excess.values() if e.is_hinted):
        if _missing(situation, hint.symptom):
            return _unexplained_or_blind(situation, hint.symptom, hint.reason)
    if "steps" not in situation.capabilities and (drift := token_drift(situation.requests)):
        of = "" if drift.engine is None else f" of {drift.engine}"
        reason = (
            f"tokens{of} became {drift.ratio:.1f} times slower within the window, at equal company"
        )
        return _unexplained_or_blind(situation, "itl", reason)
    if _is_start_burst(situation):
        return _inconclusive(
            "ttft",
            ["steps"],
            "most requests were sent together at the start, and without steps what they "
            "waited for does not show",
        )
    for label, is_likely_missed in situation.unjudged.items():
        if is_likely_missed:
            symptom = _NAMES[_missed_symptom(label)]
            why = f"whether {label} is met: requests' mean times between tokens alone are above it"
            missing = _missing(situation, symptom)
            return _inconclusive(
                symptom, missing, f"{why}, and steps, which tell each gap, were not recorded"
            )
    return _healthy(situation)


def _is_shadow(situation: Situation, finding: Finding) -> bool:
    """Whether a cause explains little of a rise whose rest nothing that was recorded can tell."""
    excess = situation.excess.get(finding.symptom or "")
    return (
        excess is not None
        and excess.is_visible
        and bool(np.isfinite(excess.rise_ms))
        and finding.share is not None
        and finding.share < LEAD_SHARE
        and bool(_missing(situation, excess.symptom))
    )


def _is_start_burst(situation: Situation) -> bool:
    """Whether most requests are a start burst that waited, with no steps to say for what."""
    if "steps" in situation.capabilities:
        return False
    wave = situation.requests.bools("is_first_wave")
    over = situation.requests.floats("ttft_ms") - 2 * situation.requests.floats("alone_ttft_ms")
    return bool(wave.mean() >= 0.5 and np.nanmedian(np.where(wave, over, np.nan)) > 0)


def _missed(situation: Situation) -> str:
    return f"missed: {', '.join(situation.missed)}"


def _missed_symptom(label: str) -> str:
    metric = label.split("_")[0]
    return "itl" if metric == "tpot" else metric


def _inconclusive(symptom: Symptom | None, missing: list[str], why: str) -> Verdict:
    return Verdict("inconclusive", symptom, None, missing, None, f"Cannot tell: {why}.")


def _unexplained_or_blind(situation: Situation, symptom: str, reason: str) -> Verdict:
    """A real slowness without a cause: named as such, or as what is missing to find it."""
    key = symptom if symptom in _NAMES else "e2e"
    name = _NAMES[key]
    missing = _missing(situation, key)
    lead = _lead(situation)
    if missing:
        fits = f" What fits best: {lead}" if lead else ""
        return Verdict(
            "inconclusive", name, None, missing, None,
            f"{name.upper()} is slow ({reason}), but the cause cannot be told: "
            f"{', '.join(missing)} not recorded.{fits}",
        )  # fmt: skip
    dimension = _dimension(situation, key)
    known = f"no cause is sure. What fits best: {lead}" if lead else "no known cause explains it."
    where = (
        f" Slow requests differ most in {next(iter(dimension))} = {next(iter(dimension.values()))}."
        if dimension
        else ""
    )
    return Verdict(
        "problem", name, None, [], dimension,
        f"{name.upper()} is slow ({reason}), and {known}{where}",
    )  # fmt: skip


def _lead(situation: Situation) -> str | None:
    """What the weak finding says that explains most; None if none explains a real part."""
    weak = [
        f
        for f in situation.findings
        if f.severity == "problem" and not f.consequence_of and (f.share or 0.0) >= LEAD_SHARE
    ]
    return max(weak, key=lambda f: f.share or 0.0).summary if weak else None


def _missing(situation: Situation, symptom: str) -> list[str]:
    return [need for need in NEEDED[symptom] if need not in situation.capabilities]


def _dimension(situation: Situation, symptom: str) -> dict[str, str] | None:
    """The value of tenant, engine or prompt length that slow requests have more than the rest."""
    slow = situation.excess[symptom].slow
    requests = situation.requests
    if not slow.any() or slow.all():
        key = "e2e_ms" if symptom == "e2e" else "ttft_ms"
        values = np.nan_to_num(requests.floats(key), nan=0.0)
        slow = values >= np.quantile(values, 0.9)
    prompt = requests.floats("n_prompt")
    lengths = np.array([_length_class(p) for p in prompt], dtype=object)
    best: tuple[float, str, str] | None = None
    for name, labels in (
        ("tenant", requests.objects("tenant")),
        ("engine", requests.objects("engine_id")),
        ("prompt", lengths),
    ):
        for value in {v for v in labels.tolist() if v is not None}:
            has = labels == value
            share, overall = float(has[slow].mean()), float(has.mean())
            lift = share / overall if overall > 0 else 0.0
            score = (share - overall) * lift
            if lift >= MIN_LIFT and share >= 0.5 and (best is None or score > best[0]):
                best = (score, name, str(value))
    return {best[1]: best[2]} if best else None


def _length_class(n_prompt: float) -> str | None:
    if not n_prompt >= 1:
        return None
    low = 2 ** int(np.log2(n_prompt))
    return f"{low} to {2 * low} tokens"


def _healthy(situation: Situation) -> Verdict:
    """Nothing wrong: with the bound within which that is said."""
    ttft, e2e, itl = (situation.latency[m] for m in ("ttft", "e2e", "itl"))
    parts = []
    if ttft.p90 is not None:
        parts.append(f"TTFT p90 {_ms(ttft.p90)}")
    if itl.p99 is not None:
        parts.append(f"time between tokens p99 {_ms(itl.p99)}")
    if e2e.p90 is not None:
        parts.append(f"E2E p90 {_ms(e2e.p90)}")
    seen = f"{len(situation.requests)} requests"
    if situation.n_steps:
        seen += f", {situation.n_steps} steps"
    basis = _basis(situation)
    blind = "" if "steps" in situation.capabilities else NO_STEPS
    if situation.unjudged:
        blind += f"; {', '.join(situation.unjudged)} was asked for, and nothing recorded tells it"
    return Verdict(
        "healthy", None, None, [], None,
        f"Nothing wrong found in {seen}: {', '.join(parts)}; {basis}{blind}.",
    )  # fmt: skip


def _basis(situation: Situation) -> str:
    if "baseline" in situation.capabilities:
        rose = [e.symptom.upper() for e in situation.excess.values() if e.is_excused]
        if rose:
            return (
                f"no mean but of {' and '.join(rose)} rose by 30 % over the baseline, and that by "
                "no more than busy minutes do by themselves"
            )
        return "no mean rose by 30 % over the baseline"
    if np.isfinite(situation.excess["ttft"].alone_ms):
        factor = situation.excess["ttft"].factor
        return f"fewer than one request in ten is above {factor:.0f} times its alone cost " \
            "(no baseline)"  # fmt: skip
    return "there is neither a baseline nor an alone cost to compare with, so only " \
        "waiting could be judged"  # fmt: skip


def _ms(value: float) -> str:
    return f"{value / 1000:.2f} s" if value >= 1000 else f"{value:.3g} ms"
