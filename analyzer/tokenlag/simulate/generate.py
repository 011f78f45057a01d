"""Random cases with a known truth: workload, engine, step times, and one fault or none.

Each case comes with its healthy twin: the same workload, lengths, engine and noise without the
fault. Truths of the step time have forms other than the analyzer's own (a soft knee, stairs of
tiles, noise with memory). All is drawn from one seed, so that a case's number names it.
"""

from __future__ import annotations

import copy
import math
import random
from dataclasses import dataclass, field
from pathlib import Path

from tokenlag.simulate.faults import COMPARED, FAULTS, TWIN_OF, Draft, Table, diurnal
from tokenlag.simulate.recipe import Recipe

DURATION_S = (80.0, 150.0)
MAX_REQUESTS = 900
HEALTHY_FRAC = 0.3


@dataclass(frozen=True)
class Case:
    """One generated case.

    Attributes:
        number: with the seed, its name.
        kind: the fault, or `healthy`; a cause may have several kinds.
        cause: what a diagnosis must say; None if healthy.
        accept: causes that are right as well (two harms of one culprit).
        symptom: what the fault moves.
        load: `low`, `mid` or `high`.
        form: the truth of the step time: `line`, `knee`, `tiles`; with `-ar` if noise remembers.
        size: how large the fault is, in the fault's own unit.
        compared: `apart` (the twin's traces are the baseline), `within` (the fault begins in
            the middle of the run) or `none`.
        change_s: when it begins, for `within`.
        duration_s: length of the run.
        culprit: name of the workload source that does the harm, if one does.
        recipe: the case; `twin`: the same without the fault.
    """

    number: int
    kind: str
    cause: str | None
    accept: tuple[str, ...]
    symptom: str | None
    load: str
    form: str
    size: float
    compared: str
    change_s: float | None
    duration_s: float
    culprit: str | None
    recipe: Recipe = field(repr=False)
    twin: Recipe = field(repr=False)


LOADS = {"low": (0.1, 0.3), "mid": (0.3, 0.55), "high": (0.55, 0.72)}


def generate(number: int, seed: int = 0, kind: str | None = None) -> Case:
    """Return case `number` of a seed.

    Args:
        number: 0, 1, 2, …
        seed: of the whole series; other seeds are other cases throughout.
        kind: this fault (or `healthy`) instead of one drawn.
    """
    rng = random.Random(f"case {seed} {number}")
    drawn = "healthy" if rng.random() < HEALTHY_FRAC else rng.choice(sorted(FAULTS))
    kind = kind or drawn
    fault = FAULTS.get(kind)
    load = rng.choice(fault.loads if fault else tuple(LOADS))
    compared = rng.choice(fault.compared if fault else COMPARED)
    draft, form = draft_case(rng, load, compared)
    twin = copy.deepcopy(draft.table)
    size = 0.0
    if fault is None:
        if compared == "none" and rng.random() < 0.4:
            diurnal(draft)
            twin = copy.deepcopy(draft.table)
    else:
        size = fault.put(draft)
        if kind in TWIN_OF:
            twin = TWIN_OF[kind](draft, twin)
    cause = fault.cause if fault else None
    run_seed = rng.randrange(1, 10**6)
    return Case(
        number=number,
        kind=kind,
        cause=cause,
        accept=fault.accept if fault else (),
        symptom=fault.symptom if fault else None,
        load=load,
        form=form,
        size=round(size, 4),
        compared=compared,
        change_s=draft.change_s if fault and compared == "within" else None,
        duration_s=draft.duration_s,
        culprit=draft.culprit,
        recipe=_recipe(f"g{seed}-{number}", run_seed, draft.table, cause),
        twin=_recipe(f"g{seed}-{number}-twin", run_seed, twin, None),
    )


def _recipe(name: str, seed: int, table: Table, cause: str | None) -> Recipe:
    table = {**table, "truth": {"cause": cause} if cause else {"healthy": True}}
    return Recipe(name=name, shows=name, seed=seed, path=Path("generated"), table=table)


# --- the healthy part --------------------------------------------------------------------------


def draft_case(rng: random.Random, load: str, compared: str) -> tuple[Draft, str]:
    """A healthy case at a load, and the form of its step times."""
    step, form = draw_step(rng)
    prompt_mid = round(2 ** rng.uniform(6.6, 11.0))
    output_mid = round(2 ** rng.uniform(5.3, 8.3))
    prompt = (max(16, round(prompt_mid * 0.6)), round(prompt_mid * 1.4))
    output = (max(8, round(output_mid * 0.7)), round(output_mid * 1.3))
    duration_s = rng.uniform(*DURATION_S)
    share = rng.uniform(*LOADS[load])
    # Each request takes prompt tokens and makes a sequence decode for its output: the share of
    # a step that grows with load, see the fixed point of D = rate · output · T(D).
    context = prompt_mid + output_mid / 2
    prefill_ms = step["b_ms"] * prompt_mid
    decode_ms = (step["c_ms"] + step["d_ms"] * context) * output_mid
    rate = share / (prefill_ms + decode_ms) * 1e3
    rate = min(rate, MAX_REQUESTS / duration_s)
    busy = rate * (prefill_ms + decode_ms) / 1e3
    step_ms = step["a_ms"] / (1.0 - busy)
    batch = rate * output_mid * step_ms / 1e3
    max_seqs = int(max(16, 2 ** round(rng.uniform(0, 1) + 1.5 + math.log2(batch + 4))))
    table: Table = {
        "engine": {
            "max_seqs": max_seqs,
            "max_batch_tokens": max(max_seqs, rng.choice((1024, 2048, 4096, 8192))),
            "kv_tokens": int(max_seqs * (prompt[1] + output[1]) * 1.5) + 4096,
        },
        "step": step,
        "edge": {"network_ms": 1.0, "frontend_ms": rng.choice((1.0, 3.0))},
        "workload": {
            "main": {
                "kind": "poisson",
                "rate_per_s": rate,
                "until_s": duration_s,
                "prompt": list(prompt),
                "output": list(output),
            }
        },
        "horizon_s": duration_s * 1.5,
    }
    change_s = duration_s * rng.uniform(0.4, 0.6)
    draft = Draft(rng, table, duration_s, change_s, compared, rate, prompt, output, step_ms, batch)
    return draft, form


def draw_step(rng: random.Random) -> tuple[Table, str]:
    """A step-time truth; its coefficients span small models on large cards to the opposite."""
    a_ms = 2 ** rng.uniform(2.3, 4.9)
    step: Table = {
        "a_ms": a_ms,
        "b_ms": a_ms * 2 ** rng.uniform(-8.5, -5.5),
        "c_ms": a_ms * 2 ** rng.uniform(-8.0, -5.0),
        "d_ms": a_ms * 2 ** rng.uniform(-19.0, -16.5),
        "noise_sigma": rng.choice((0.005, 0.01, 0.03)),
    }
    form = rng.choice(("line", "line", "knee", "tiles"))
    if form == "knee":
        step |= {"knee_tokens": rng.choice((96.0, 192.0, 320.0)), "knee_width": 40.0}
    elif form == "tiles":
        step |= {"tile_tokens": rng.choice((64, 128)), "tile_seqs": rng.choice((4, 8))}
    if rng.random() < 0.3:
        step["noise_rho"] = 0.95
        form += "-ar"
    return step, form
