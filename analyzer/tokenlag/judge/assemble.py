"""Hits, figures and excess → findings → the diagnosis."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tokenlag.judge.diagnosis import Exemplar, Finding, Interval
from tokenlag.judge.rank import Ranked, share_of
from tokenlag.judge.run import RuleHit

Exemplars = Mapping[int, Exemplar]
MAX_EXEMPLARS = 3


def to_findings(
    ranked: Sequence[Ranked],
    excess_ms: Mapping[str, float],
    exemplars: Exemplars,
    engines: list[str],
    rfc3339: Callable[[int], str],
) -> list[Finding]:
    """Findings in the order of `ranked`.

    Args:
        ranked: hits in their order.
        excess_ms: the excess of each symptom, for the shares.
        exemplars: by request key.
        engines: the window's engines, for rules that do not name theirs.
        rfc3339: formats unix nanoseconds.
    """
    return [_finding(r, excess_ms, exemplars, engines, rfc3339) for r in ranked]


def exemplar_keys(hits: Sequence[RuleHit]) -> list[int]:
    """Request keys that any finding may show."""
    keys: set[int] = set()
    for hit in hits:
        keys.update((hit.row.exemplar_keys or hit.row.request_keys)[:MAX_EXEMPLARS])
    return sorted(keys)


def _finding(
    ranked: Ranked,
    excess_ms: Mapping[str, float],
    exemplars: Exemplars,
    engines: list[str],
    rfc3339: Callable[[int], str],
) -> Finding:
    hit = ranked.hit
    rule, row = hit.rule, hit.row
    shown = (row.exemplar_keys or row.request_keys)[:MAX_EXEMPLARS]
    return Finding(
        rule=rule.id,
        # What follows from another finding is told under it, and is no problem of its own.
        severity="note" if ranked.consequence_of else rule.kind,
        symptom=row.symptom or (rule.symptom[0] if rule.symptom else None),
        confidence=round(ranked.confidence, 2),
        share=share_of(ranked, excess_ms),
        affected_requests=row.n_support,
        engines=list(row.engines) or engines,
        window=Interval(rfc3339(row.from_ns), rfc3339(row.to_ns)),
        summary=hit.summary,
        evidence=hit.evidence,
        facts=row.facts,
        blame=list(row.blame),
        ruled_out=hit.ruled_out,
        exemplars=[exemplars[key] for key in shown if key in exemplars],
        remedies=hit.remedies,
        effect_ms=row.effect_ms,
        title=rule.title,
        means=rule.text.means,
        consequence_of=ranked.consequence_of,
    )
