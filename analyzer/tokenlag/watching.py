"""A sliding window diagnosed again and again; what is told is what changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tokenlag.errors import TokenlagError

if TYPE_CHECKING:
    from tokenlag.judge.diagnosis import Diagnosis, Finding

# A figure that is told again only if it grew or fell by this much is no flicker.
TELLING: Final = 1.5


@dataclass(frozen=True)
class Change:
    """One thing that is different from the time before.

    Args:
        sign: `=` a new verdict, `+` a finding that came, `-` one that went, `~` one whose share
            moved, `!` something could not be read or judged.
        text: what to print.
    """

    sign: str
    text: str


@dataclass
class Watch:
    """Remembers the last diagnosis and says what the next changes."""

    _verdict: tuple[str, str | None, str | None] | None = None
    _findings: dict[str, float] = field(default_factory=dict)
    _trouble: tuple[str, ...] = ()

    def changes(
        self, diagnosis: Diagnosis | None, troubles: Sequence[TokenlagError]
    ) -> list[Change]:
        """What is new in a diagnosis; None is one that could not be made.

        Args:
            diagnosis: of the window as it is now.
            troubles: what could not be used; told when they change.
        """
        told = [Change("!", line) for line in self._new_troubles(troubles)]
        if diagnosis is None:
            return told
        verdict = diagnosis.verdict
        now = (verdict.status, verdict.cause, verdict.symptom)
        if now != self._verdict:
            told.append(Change("=", f"{verdict.status.upper()}: {verdict.summary}"))
        self._verdict = now
        told += self._new_findings(diagnosis.findings)
        return told

    def _new_troubles(self, troubles: Sequence[TokenlagError]) -> list[str]:
        now = tuple(str(trouble) for trouble in troubles)
        new = [line for line in now if line not in self._trouble]
        self._trouble = now
        return new

    def _new_findings(self, findings: Sequence[Finding]) -> list[Change]:
        told = []
        findings = [one for one in findings if one.consequence_of is None]
        now = {finding.rule: finding.share or 0.0 for finding in findings}
        for finding in findings:
            before = self._findings.get(finding.rule)
            share = now[finding.rule]
            if before is None:
                told.append(Change("+", f"{finding.rule}: {finding.summary}"))
            elif not before / TELLING <= share <= before * TELLING:
                told.append(
                    Change("~", f"{finding.rule}: {share:.0%} of the time (was {before:.0%})")
                )
            else:
                now[finding.rule] = before  # slow growth is told, too, when it adds up
        told += [Change("-", rule) for rule in self._findings if rule not in now]
        self._findings = now
        return told
