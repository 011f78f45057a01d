"""From rule hits to ordered findings: by explained time, causes before their consequences.

`effect_ms` of every rule is user-visible time, so that hits can be ordered by it. A rule's
`explains` names what follows from it: such a hit is ordered below its cause, if the cause
accounts for a real part of it, or the hit itself has found that it follows from that cause (a
queue near the end of what an engine takes grows by far more than what filled it). One fault then
reads as one finding with what it led to.

What is stated as confidence is the rule's own, less where another cause that does not follow
from this one, nor this one from it, explains as much: one of the two is then often a shadow of
the other. How much less was counted on generated cases, see docs/accuracy.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tokenlag.judge.rule import CAUSES
from tokenlag.judge.run import RuleHit

COVERS_FRAC = 0.3
STATED_CONFIDENCE = 0.5
# Of the rule's confidence, what a rival of the same weight takes; counted, see docs/accuracy.md.
CONTESTED = 0.3


@dataclass(frozen=True)
class Ranked:
    """A hit in its place: `consequence_of` is the cause's rule id, or None for a cause.

    `explained_ms`: its effect in its own symptom, that of what it led to there included.
    """

    hit: RuleHit
    consequence_of: str | None
    confidence: float
    explained_ms: float | None


def confidence_of(hit: RuleHit) -> float:
    """The rule's own confidence, 0.7 where it states none."""
    value = hit.row.confidence
    return 0.7 if value is None else min(max(float(value), 0.0), 0.99)


def is_cause(hit: RuleHit) -> bool:
    """Whether a hit may be the verdict's cause."""
    return hit.rule.kind == "problem" and confidence_of(hit) >= STATED_CONFIDENCE


def rank(hits: Sequence[RuleHit]) -> list[Ranked]:
    """Causes by effect, each followed by its consequences; then weak hits, then notes."""
    problems = sorted(
        (h for h in hits if h.rule.kind == "problem"),
        key=lambda h: (not is_cause(h), -_effect(h), h.rule.id),
    )
    parent = _causes_of(problems)
    led_to = {id(hit): [o for o in problems if parent[id(o)] is hit] for hit in problems}
    causes = [h for h in problems if parent[id(h)] is None]
    weight = {id(h): _total(h, led_to[id(h)]) for h in causes}
    # Not in place: the list that is being sorted is read for each key.
    causes = sorted(
        causes, key=lambda h: (not is_cause(h), -_with_kin(h, causes, weight), _place(h))
    )
    ordered: list[Ranked] = []
    for cause in causes:
        below = led_to[id(cause)]
        ordered.append(
            Ranked(cause, None, _stated(cause, causes, weight), _explained(cause, below))
        )
        ordered.extend(Ranked(o, cause.rule.id, confidence_of(o), _explained(o, [])) for o in below)
    notes = [h for h in hits if h.rule.kind == "note"]
    return ordered + [Ranked(n, None, confidence_of(n), _explained(n, [])) for n in notes]


def _stated(hit: RuleHit, causes: Sequence[RuleHit], weight: Mapping[int, float]) -> float:
    """The rule's confidence, less by what the heaviest rival weighs against it.

    The same cause on another engine is no rival.
    """
    if not is_cause(hit):
        return confidence_of(hit)
    rivals = [
        weight[id(other)]
        for other in causes
        if other.rule.id != hit.rule.id
        and is_cause(other)
        and not _culprits(other) & _culprits(hit)
    ]
    if not rivals:
        return confidence_of(hit)
    own = weight[id(hit)]
    against = min(1.0, max(rivals) / own) if own > 0 else 1.0
    # Still a cause: what was sure enough to be ranked does not fall out of the verdict.
    return max(confidence_of(hit) * (1.0 - CONTESTED * against), STATED_CONFIDENCE)


def _with_kin(hit: RuleHit, causes: Sequence[RuleHit], weight: Mapping[int, float]) -> float:
    """A cause's time and that of the causes with the same culprit: one culprit, several harms.

    They stand together in the order of the closed list, whichever harm is the larger.
    """
    return sum(weight[id(o)] for o in causes if o is hit or _culprits(o) & _culprits(hit))


def _culprits(hit: RuleHit) -> set[str]:
    return {b.culprit for b in hit.row.blame}


def _place(hit: RuleHit) -> tuple[int, str]:
    known = list(CAUSES)
    return (known.index(hit.rule.id) if hit.rule.id in CAUSES else len(known), hit.rule.id)


def _total(cause: RuleHit, led_to: Sequence[RuleHit]) -> float:
    """A cause's own time and that of what it led to, where it was another symptom's."""
    others = [_effect(o) for o in led_to if _symptom(o) != _symptom(cause)]
    return (_explained(cause, led_to) or 0.0) + sum(others)


def _explained(cause: RuleHit, led_to: Sequence[RuleHit]) -> float | None:
    """A cause's time within its symptom; None where neither it nor what it led to states one.

    Consequences there are part of the cause's own figure, but for what found by itself that it
    follows from this cause: such a queue is what users saw of it.
    """
    within = [o for o in led_to if cause.rule.id in o.row.follows_from]
    known = [
        _effect(h)
        for h in (cause, *within)
        if h.row.effect_ms is not None and _symptom(h) == _symptom(cause)
    ]
    return max(known, default=None)


def _symptom(hit: RuleHit) -> str | None:
    return hit.row.symptom or (hit.rule.symptom[0] if hit.rule.symptom else None)


def _effect(hit: RuleHit) -> float:
    """Explained milliseconds; 0 where the rule states none."""
    value = hit.row.effect_ms
    return value if value is not None and math.isfinite(value) else 0.0


def _causes_of(problems: Sequence[RuleHit]) -> dict[int, RuleHit | None]:
    """For each hit the cause at the end of its chain, or None for a cause.

    Where a chain comes round to itself, the first of the circle in order of effect is the cause.
    """
    direct = {id(hit): _explained_by(hit, problems) for hit in problems}
    place = {id(hit): number for number, hit in enumerate(problems)}
    found: dict[int, RuleHit | None] = {}
    for hit in problems:
        chain, seen = [hit], {id(hit)}
        while (above := direct[id(chain[-1])]) is not None and id(above) not in seen:
            chain.append(above)
            seen.add(id(above))
        last = chain[-1]
        if above is not None:
            circle = chain[[id(h) for h in chain].index(id(above)) :]
            last = min(circle, key=lambda h: place[id(h)])
        found[id(hit)] = None if last is hit else last
    return found


def _explained_by(hit: RuleHit, problems: Sequence[RuleHit]) -> RuleHit | None:
    """The strongest hit that explains this one."""
    best: RuleHit | None = None
    for other in problems:
        if other is hit or hit.rule.id not in other.rule.explains or not is_cause(other):
            continue
        if other.rule.id in hit.row.follows_from:
            pass
        elif other.rule.id in hit.rule.explains:
            # Each may follow from the other: the larger is the cause.
            if _effect(other) <= _effect(hit):
                continue
        elif _effect(other) < COVERS_FRAC * _effect(hit):
            continue
        if best is None or _effect(other) > _effect(best):
            best = other
    return best


def share_of(ranked: Ranked, excess_ms: Mapping[str, float]) -> float | None:
    """Share of the symptom's excess that a hit explains; the rule's own figure wins."""
    hit = ranked.hit
    if hit.row.share is not None:
        return min(max(float(hit.row.share), 0.0), 1.0)
    total = excess_ms.get(_symptom(hit) or "", math.nan)
    explained = ranked.explained_ms
    if not math.isfinite(total) or total <= 0 or explained is None:
        return None
    return min(max(explained / total, 0.0), 1.0)
