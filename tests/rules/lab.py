"""Fixtures made on the fly and diagnosed, once for all tests of a run.

`python -m tests.rules.lab > tests/rules/matrix.txt` writes the reviewed table anew.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path

import msgspec
from tokenlag.judge.diagnosis import Diagnosis, Finding
from tokenlag.pipeline import Request, diagnose
from tokenlag.simulate.recipe import Truth, load_recipe
from tokenlag.simulate.run import run
from tokenlag.simulate.traces import NO_DAMAGE, Damage, write_traces

MATRIX = Path(__file__).with_name("matrix.txt")

DAMAGED: dict[str, tuple[str, str, Damage]] = {
    "S02-lost-steps": ("S02", "mixed-2048", Damage(lost_step_frac=0.05)),
    "S05-lost-requests": ("S05", "control", Damage(lost_request_frac=0.15)),
    "S11-lost-requests": ("S11", "healthy", Damage(lost_request_frac=0.15)),
}
"""Fixtures that are a recipe whose traces suffered on their way."""

RULE_NOT_WRITTEN: frozenset[str] = frozenset()
"""Causes that recipes have and rules do not yet: no other cause may be blamed with certainty."""


JUDGED = (
    "S01", "S02", "S03", "S04", "abandoned", "agent", "chat", "decode-batch-grew", "demo",
    "gateway-adds-wait", "long-prompt-30k", "nightly-embedding", "outputs-grew", "overlap-two-deep",
    "peak-hour", "prompts-grew", "restart", "slow", "tab-completion",
    "S06", "S07", "S08", "S10", "S12", "context-grew", "grammar-wait", "network-in", "prefill-slow",
    "slow-reader", "speculation", "step-tax", "tenant-flood", "S05", "S09", "S11",
)  # fmt: skip
"""The recipes of the table."""

AGAINST_TWIN = ("S09",)
"""Recipes whose steps are slow from the first on: only a baseline can tell, their healthy twin."""


@dataclass(frozen=True)
class Fixture:
    """One row of the table: a recipe's variant in one form, with one seed."""

    recipe: str
    variant: str
    seed: int | None = None
    form: str = "contract"
    damage: Damage = NO_DAMAGE
    drop: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        seed = "" if self.seed is None else f"-{self.seed}"
        lost = (self.damage.lost_step_frac, self.damage.lost_request_frac)
        hurt = "" if self.damage == NO_DAMAGE else f"-lost{lost[0]:g}-{lost[1]:g}"
        less = f"-without-{'-'.join(self.drop)}" if self.drop else ""
        return f"{self.recipe}-{self.variant}{seed}-{self.form}{hurt}{less}"

    @property
    def truth(self) -> Truth:
        return load_recipe(self.recipe).variant(self.variant).truth

    @property
    def twin(self) -> Fixture | None:
        """What it is compared with: nothing, or its healthy twin with another seed."""
        if self.recipe not in AGAINST_TWIN:
            return None
        return Fixture(
            self.recipe,
            load_recipe(self.recipe).control or "healthy",
            1000 + (self.seed or 0),
            drop=self.drop,
        )


def all_fixtures() -> list[Fixture]:
    """Every variant of every recipe that is judged, and the damaged ones."""
    made = [Fixture(name, v) for name in JUDGED for v in load_recipe(name).variants]
    return made + [Fixture(r, v, damage=d) for r, v, d in DAMAGED.values()]


def fixture_of_case(name: str, variant: str | None) -> Fixture:
    """The fixture that a rule's [[case]] names."""
    if name in DAMAGED:
        recipe, of, damage = DAMAGED[name]
        return Fixture(recipe, of, damage=damage)
    return Fixture(name, variant or load_recipe(name).base)


class Lab:
    """Makes traces and diagnoses them in a folder that the workers of a test run share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def traces(self, fixture: Fixture) -> Path:
        """The fixture's traces, made if they are not there."""
        path = self.folder / f"{fixture.name}.jsonl"
        if not path.exists():
            done = run(load_recipe(fixture.recipe), seed=fixture.seed, variant=fixture.variant)
            with _in_place_of(path) as part:
                write_traces(
                    done, part, form=fixture.form, drop=fixture.drop, damage=fixture.damage
                )
        return path

    def diagnose(
        self, fixture: Fixture, baseline: Fixture | None = None, slo: str | None = None
    ) -> Diagnosis:
        """The diagnosis, judged by the objective that the recipe's truth names.

        Args:
            fixture: what to diagnose.
            baseline: what to compare with, if not with the fixture's twin.
            slo: objectives, if not the truth's.
        """
        baseline = baseline or fixture.twin
        against = f"-against-{baseline.name}" if baseline else ""
        path = self.folder / f"{fixture.name}{against}.json"
        if not path.exists():
            request = Request(
                [str(self.traces(fixture))],
                baseline_traces=[str(self.traces(baseline))] if baseline else [],
                slo=slo or fixture.truth.slo,
                n_workers=0,
            )
            outcome = diagnose(request, now_ns=0, tz=UTC)
            assert outcome.problems == [], [str(p) for p in outcome.problems]
            with _in_place_of(path) as part:
                part.write_bytes(msgspec.json.encode(outcome.diagnosis))
        return msgspec.json.decode(path.read_bytes(), type=Diagnosis)


@contextlib.contextmanager
def _in_place_of(path: Path) -> Iterator[Path]:
    """A file beside `path` that takes its name once it is whole: workers share the folder."""
    part = path.with_name(f"{os.getpid()}-{path.name}")
    yield part
    part.replace(path)


def problems(found: Diagnosis) -> list[Finding]:
    """Findings that something is wrong, consequences included."""
    return [f for f in found.findings if f.severity == "problem" or f.consequence_of]


def causes(found: Diagnosis) -> list[str]:
    """Problem rules that fired as causes, those that follow from none."""
    return [f.rule for f in problems(found) if f.consequence_of is None]


def row(fixture: Fixture, found: Diagnosis) -> str:
    """The fixture's row: its name, the verdict, and every rule that fired with what it is.

    C: the verdict's cause, P: a problem beside it, +: a consequence, n: a note.
    """
    fired = []
    for finding in found.findings:
        if finding.consequence_of:
            mark = "+"
        elif finding.severity == "note":
            mark = "n"
        else:
            mark = "C" if finding.rule == found.verdict.cause else "P"
        fired.append(f"{mark} {finding.rule}")
    return f"{_title(fixture):34} {found.verdict.status:13} {'  '.join(sorted(fired))}".rstrip()


def _title(fixture: Fixture) -> str:
    for name, (recipe, variant, damage) in DAMAGED.items():
        if (recipe, variant, damage) == (fixture.recipe, fixture.variant, fixture.damage):
            return name
    return f"{fixture.recipe}:{fixture.variant}"


HEAD = [
    "# Which rules fire on which fixture: `python -m tests.rules.lab`, reviewed by eye.",
    "# C the verdict's cause, P a problem beside it, + a consequence, n a note",
]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(Path(folder))
        lines = [*HEAD, *(row(f, lab.diagnose(f)) for f in all_fixtures())]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
