"""Generated cases beyond one fault of one engine with all spans there.

`pairs`: two faults at once, of different places. `fleets`: several engines, and what is wrong is
wrong with one of them, or with all, or with none. `missing`: a case of `generate` (or a fault
outside the engine) of which a part was not recorded. A seed and a number name a case here, too.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tokenlag.simulate.faults import FAULTS, TWIN_OF, Draft, Fault, Table, full_step_ms
from tokenlag.simulate.faults_edge import EDGE_FAULTS
from tokenlag.simulate.generate import draft_case, generate
from tokenlag.simulate.recipe import Recipe
from tokenlag.simulate.traces import NO_DAMAGE, Damage

ALL_FAULTS: Mapping[str, Fault] = {**FAULTS, **EDGE_FAULTS}

PLACES: Mapping[str, tuple[str, ...]] = {
    "work": ("prompts", "outputs", "context", "slots", "long", "ghosts", "prefix"),
    "steps": ("factor", "constant", "prefill", "pauses", "tax"),
    "edge": ("frontend", "way-in", "buffer", "reader"),
}
# Sessions answer to what they get: what comes late must not send the next request.
NOT_TOGETHER = frozenset({("prefix", "buffer"), ("prefix", "reader"), ("prefix", "frontend")})

FLEET_KINDS = ("slow-one", "slow-one", "host-one", "pauses-one", "hot", "slow-all", "healthy")
MAX_FLEET_REQUESTS = 1500


@dataclass(frozen=True)
class Unrecorded:
    """What was not recorded: names from `traces.DROPS`, and what happened on the way."""

    drop: frozenset[str] = frozenset()
    damage: Damage = NO_DAMAGE


MISSING: Mapping[str, Unrecorded] = {
    "steps": Unrecorded(frozenset({"steps"})),
    "steps-and-sampled": Unrecorded(frozenset({"steps"}), Damage(sample_frac=0.25)),
    "sampled": Unrecorded(damage=Damage(sample_frac=0.2)),
    "requests-lost": Unrecorded(damage=Damage(lost_request_frac=0.3)),
    "steps-lost": Unrecorded(damage=Damage(lost_step_frac=0.05)),
    "client": Unrecorded(frozenset({"client", "network"})),
    "queue-depth": Unrecorded(frozenset({"waiting", "admit_bound"})),
    "kv-usage": Unrecorded(frozenset({"kv_usage"})),
    "running": Unrecorded(frozenset({"running", "waiting", "admit_bound"})),
    "cached": Unrecorded(frozenset({"cached"})),
    "chunks": Unrecorded(frozenset({"chunks"})),
    "preemptions": Unrecorded(frozenset({"preemptions"})),
}

# What a fault's own rule would look at; most cases lack that.
NEEDED_BY: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("slots", "surge", "ghosts"), ("queue-depth", "running", "requests-lost")),
    "preempt": ("preemptions", "kv-usage"),
    **dict.fromkeys(("prefix", "context"), ("cached",)),
    **dict.fromkeys(EDGE_FAULTS, ("client",)),
}
NEEDED_BY_STEPS = ("steps", "steps-and-sampled", "steps-lost", "sampled", "chunks")


@dataclass(frozen=True)
class Part:
    """One thing that is wrong in a case.

    Attributes:
        kind: the fault, as `ALL_FAULTS` or `FLEET_KINDS` name it.
        cause: what a diagnosis must say; `accept`: causes that are right as well.
        symptom: what it moves.
        alone: the case with nothing but this wrong.
    """

    kind: str
    cause: str
    accept: tuple[str, ...]
    symptom: str
    alone: Recipe = field(repr=False)

    @property
    def right(self) -> frozenset[str]:
        """Every cause that is right."""
        return frozenset({self.cause, *self.accept})


@dataclass(frozen=True)
class VarietyCase:
    """One case of a set.

    Attributes:
        set_name: `pairs`, `fleets` or `missing`.
        number: with set and seed, its name.
        kind: what it is, for the tables.
        parts: what is wrong: none, one or two things.
        compared: `apart`, `within` or `none`, as of `generate.Case`.
        change_s: when it begins, for `within`.
        engines: ids of the engines that are at fault, where it is not all.
        unrecorded: what the traces lack.
        recipe: the case; `twin`: the same without what is wrong.
    """

    set_name: str
    number: int
    kind: str
    parts: tuple[Part, ...]
    compared: str
    change_s: float | None
    engines: tuple[str, ...]
    unrecorded: Unrecorded
    recipe: Recipe = field(repr=False)
    twin: Recipe = field(repr=False)


SETS = ("pairs", "fleets", "missing")


def make(set_name: str, number: int, seed: int = 0) -> VarietyCase:
    """Return case `number` of a set and a seed."""
    rng = random.Random(f"{set_name} {seed} {number}")
    makers = {"pairs": _pair, "fleets": _fleet, "missing": _missing}
    return makers[set_name](rng, number, seed)


def _recipe(name: str, seed: int, table: Table) -> Recipe:
    table = {**table, "truth": {"healthy": True}}
    return Recipe(name=name, shows=name, seed=seed, path=Path("generated"), table=table)


def _put(draft: Draft, kind: str, key: str) -> None:
    """Put a fault in, of a size that depends on the case and the fault alone."""
    draft.rng = random.Random(f"{key} {kind}")
    ALL_FAULTS[kind].put(draft)


# --- two faults at once ---------------------------------------------------------------------------


def _pair(rng: random.Random, number: int, seed: int) -> VarietyCase:
    kinds = _two_kinds(rng)
    faults = [ALL_FAULTS[kind] for kind in kinds]
    loads = [x for x in faults[0].loads if x in faults[1].loads]
    compared = rng.choice([x for x in faults[0].compared if x in faults[1].compared])
    draft, _ = draft_case(rng, rng.choice(loads), compared)
    # One worker for each request: the front end is no limit until it is made one.
    draft.table["frontend"] = {"workers": 64, "service_ms": draft.table["edge"]["frontend_ms"]}
    key, run_seed = f"{seed} {number}", rng.randrange(1, 10**6)
    both, twin = copy.deepcopy(draft), copy.deepcopy(draft.table)
    for kind in kinds:
        _put(both, kind, key)
        if kind in TWIN_OF:
            alone = copy.deepcopy(draft)
            _put(alone, kind, key)
            twin = TWIN_OF[kind](alone, twin)
    name = f"pairs{seed}-{number}"
    parts = []
    for kind, fault in zip(kinds, faults, strict=True):
        alone = copy.deepcopy(draft)
        if kind not in TWIN_OF:
            alone.table = copy.deepcopy(twin)
        _put(alone, kind, key)
        recipe = _recipe(f"{name}-{kind}", run_seed, alone.table)
        parts.append(Part(kind, fault.cause, fault.accept, fault.symptom, recipe))
    return VarietyCase(
        "pairs", number, "+".join(kinds), tuple(parts), compared,
        draft.change_s if compared == "within" else None, (), Unrecorded(),
        _recipe(name, run_seed, both.table), _recipe(f"{name}-twin", run_seed, twin),
    )  # fmt: skip


def _two_kinds(rng: random.Random) -> tuple[str, str]:
    """Two faults of different places that can be put into one case."""
    while True:
        one, other = rng.sample(sorted(PLACES), 2)
        kinds = sorted((rng.choice(PLACES[one]), rng.choice(PLACES[other])), key=_is_late)
        faults = [ALL_FAULTS[kind] for kind in kinds]
        if (kinds[0], kinds[1]) in NOT_TOGETHER:
            continue
        if set(faults[0].loads) & set(faults[1].loads) and (
            set(faults[0].compared) & set(faults[1].compared)
        ):
            return kinds[0], kinds[1]


def _is_late(kind: str) -> int:
    """Faults of the work come first: they make the tables that the others change."""
    return 0 if kind in PLACES["work"] else 1


# --- several engines ------------------------------------------------------------------------------


def _fleet(rng: random.Random, number: int, seed: int) -> VarietyCase:
    kind = rng.choice(FLEET_KINDS)
    n_engines = rng.choice((2, 3, 4, 6))
    compared = rng.choice(("apart",) if kind == "slow-all" else ("apart", "none"))
    draft, _ = draft_case(rng, rng.choice(("low", "mid")), compared)
    main = draft.table["workload"]["main"]
    main["rate_per_s"] = min(draft.rate * n_engines, MAX_FLEET_REQUESTS / draft.duration_s)
    draft.table["fleet"] = {
        "engines": n_engines, "router": rng.choice(("round-robin", "least-loaded")),
    }  # fmt: skip
    bad = rng.randrange(n_engines)
    if kind == "hot":
        # Its twin is the same load in turn.
        bad = 0
        _hot(rng, draft, n_engines)
    twin = copy.deepcopy(draft.table)
    accept: tuple[str, ...] = ()
    if kind == "hot":
        cause, symptom = "replica-hot-spot", "ttft"
        draft.table["fleet"]["router"] = "affinity"
        twin["fleet"]["router"] = "least-loaded"
    elif kind != "healthy":
        source = {"slow": "factor", "host": "constant", "pauses": "pauses"}[kind.split("-")[0]]
        _put(draft, source, f"fleets {seed} {number}")
        cause, symptom = FAULTS[source].cause, FAULTS[source].symptom
        if kind.endswith("-one"):
            draft.table["fleet"]["affected"] = [bad]
            if source == "factor":
                cause = "slow-replica"
            elif source == "constant":
                accept = ("slow-replica",)
    name, run_seed = f"fleets{seed}-{number}", rng.randrange(1, 10**6)
    recipe = _recipe(name, run_seed, draft.table)
    is_one = kind.endswith("-one") or kind == "hot"
    parts = () if kind == "healthy" else (Part(kind, cause, accept, symptom, recipe),)
    return VarietyCase(
        "fleets", number, kind, parts, compared, None, (f"sim-{bad}",) if is_one else (),
        Unrecorded(), recipe, _recipe(f"{name}-twin", run_seed, twin),
    )  # fmt: skip


def _hot(rng: random.Random, draft: Draft, n_engines: int) -> None:
    """A prefix that most requests share, and more of them than one engine takes."""
    main, engine = draft.table["workload"]["main"], draft.table["engine"]
    n_shared, share = rng.choice((512, 1024, 2048)), rng.uniform(0.6, 0.8)
    engine["max_seqs"] = min(engine["max_seqs"], 32)
    engine["kv_tokens"] = engine["max_seqs"] * (draft.prompt[1] + draft.output[1] + n_shared) * 2
    slots, mid = engine["max_seqs"], sum(draft.output) / 2
    most = slots * 1e3 / (mid * full_step_ms(draft.table["step"], slots, slots / mid, draft))
    rate = most * rng.uniform(1.1, 1.3) / share
    main.update(shared_frac=share, shared_tokens=n_shared, shared_prefix="system-prompt")
    main["rate_per_s"] = rate
    main["until_s"] = min(draft.duration_s, MAX_FLEET_REQUESTS / rate)
    # What the others get is far below what they take.
    if (1 - share) * rate / (n_engines - 1) > 0.6 * most:
        main["shared_frac"] = 0.8


# --- what was not recorded --------------------------------------------------------------------


def _missing(rng: random.Random, number: int, seed: int) -> VarietyCase:
    kind = "healthy" if rng.random() < 0.2 else rng.choice(sorted(ALL_FAULTS))
    needed = (*NEEDED_BY.get(kind, ()), *NEEDED_BY_STEPS)
    name = rng.choice(needed if rng.random() < 0.7 else sorted(MISSING))
    label = f"{kind} without {name}"
    if kind in EDGE_FAULTS:
        fault = EDGE_FAULTS[kind]
        compared = rng.choice(fault.compared)
        draft, _ = draft_case(rng, rng.choice(fault.loads), compared)
        draft.table["frontend"] = {"workers": 64, "service_ms": draft.table["edge"]["frontend_ms"]}
        run_seed = rng.randrange(1, 10**6)
        twin = _recipe(f"missing{seed}-{number}-twin", run_seed, copy.deepcopy(draft.table))
        _put(draft, kind, f"{seed} {number}")
        recipe = _recipe(f"missing{seed}-{number}", run_seed, draft.table)
        part = Part(kind, fault.cause, fault.accept, fault.symptom, recipe)
        return VarietyCase(
            "missing", number, label, (part,), compared, None, (), MISSING[name], recipe, twin
        )
    case = generate(number, seed, kind)
    parts: tuple[Part, ...] = ()
    if case.cause and case.symptom:
        parts = (Part(kind, case.cause, case.accept, case.symptom, case.recipe),)
    return VarietyCase(
        "missing", number, label, parts, case.compared, case.change_s, (), MISSING[name],
        case.recipe, case.twin,
    )  # fmt: skip
