"""Healthy windows as services have them: from two minutes to an hour, of several kinds of load.

Nothing is wrong in any of them: arrivals stay within what the engine takes (at most 0.76 of it
at the mean, 0.85 in a burst), limits are meant to leave room, and mean prompts of sources that
share an engine are within a factor of six. Chance may still fill a queue: `is_strained` tells so
by what happened in the run and in its twin without limits, never by a diagnosis. All is drawn
from one seed.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tokenlag.simulate.faults import Table
from tokenlag.simulate.generate import LOADS, draw_step
from tokenlag.simulate.recipe import Recipe
from tokenlag.simulate.run import Run, run

# Length of a window in seconds and how often windows of it come: most hours lie in long ones.
LENGTHS_S: tuple[tuple[tuple[float, float], float], ...] = (
    ((120.0, 300.0), 0.1),
    ((300.0, 900.0), 0.15),
    ((900.0, 2400.0), 0.2),
    ((2400.0, 3600.0), 0.55),
)
SHAPES = ("steady", "steady", "diurnal", "bursts", "mixed", "mixed", "agents", "shared", "groups")
COMPARED = ("none", "apart", "apart", "earlier")
LONG_S = 600.0
MAX_SHORT_REQUESTS = 900
BURST_LOAD = 0.85
# Most requests a second of a service in long windows, as powers of two; where its load asks for
# more, requests are larger instead, up to so many times.
LOG2_RATE = (-1.2, 1.8)
MAX_SIZE = 3.0
# An empty step in long windows, in ms, as powers of two: larger models.
LOG2_LONG_STEP_MS = (4.3, 5.8)
# By how much one day's arrivals differ from another's.
DRIFT = 0.05

NOTABLE_WAIT_S = 1.0
NOTABLE_SHARE = 0.10
NOTABLE_PART = 0.5
NOTABLE_RISE = 0.20
# A stream stands still where one of its gaps is so long, and so many times its usual one.
NOTABLE_STALL_S = 1.0
NOTABLE_STALL_TIMES = 5.0
MIN_TOKENS = 4


@dataclass(frozen=True)
class HealthyWindow:
    """One window, and what it is compared with.

    Attributes:
        number: with the seed, its name.
        shape: kind of load, one of `SHAPES`.
        load: share of a step that the requests make, at the mean of the busiest part.
        form: the truth of the step time, as of `generate.Case`.
        engines: how many share the load.
        length_s: of the window.
        compared: `none`, `apart` (`before` is the baseline, and a window of its own), or
            `earlier` (the run is twice as long, its second half is the window, its first half
            the baseline and a window of its own).
        recipe: the run.
        before: another day of the same service: another seed, a few more or fewer arrivals.
        drop: what is not recorded; see `traces.DROPS`.
        is_vllm: spans are those of vLLM itself, without steps.
    """

    number: int
    shape: str
    load: float
    form: str
    engines: int
    length_s: float
    compared: str
    recipe: Recipe = field(repr=False)
    before: Recipe | None = field(repr=False)
    drop: frozenset[str]
    is_vllm: bool


@dataclass(frozen=True)
class _Source:
    """A source of requests: its share of all arrivals, and mean costs."""

    name: str
    weight: float
    table: Table
    n_prefill: float
    n_context: float
    n_output: float


def healthy_window(number: int, seed: int = 0) -> HealthyWindow:
    """Return window `number` of a seed; the same for the same pair."""
    rng = random.Random(f"healthy {seed} {number}")
    between, _ = rng.choices(LENGTHS_S, [often for _, often in LENGTHS_S])[0]
    length_s = rng.uniform(*between)
    shape, compared = rng.choice(SHAPES), rng.choice(COMPARED)
    run_s = 2 * length_s if compared == "earlier" else length_s
    step, form = draw_step(rng)
    if run_s > LONG_S:  # a long run of a small model is millions of steps
        slower = 2 ** rng.uniform(*LOG2_LONG_STEP_MS) / step["a_ms"]
        step |= {name: step[name] * slower for name in ("a_ms", "b_ms", "c_ms", "d_ms")}
    engines = rng.choice((2, 3)) if run_s <= LONG_S and rng.random() < 0.15 else 1
    aim = rng.uniform(*LOADS[rng.choice(tuple(LOADS))])
    sources, rate = _at_load(rng, shape, step, aim, _max_rate(rng, run_s))
    cost_ms = sum(s.weight * _cost_ms(step, s) for s in sources)
    load = rate * cost_ms / 1e3
    token_ms = step["a_ms"] / (1 - load)
    batch = rate * sum(s.weight * s.n_output for s in sources) * token_ms / 1e3
    sources = [_under_way(source, token_ms) for source in sources]
    table: Table = {
        "engine": _engine(rng, sources, batch),
        "step": step,
        "edge": {
            "network_ms": rng.choice((0.5, 1.0, 5.0, 20.0)),
            "network_spread": rng.choice((0.0, 0.0, 0.3)),
            "frontend_ms": rng.choice((0.5, 1.0, 3.0)),
            "frontend_us_per_token": rng.choice((0.0, 1.0)),
        },
        "horizon_s": run_s + 60.0,
    }
    if engines > 1:
        router = rng.choice(("least-loaded", "round-robin"))
        table["fleet"] = {"engines": engines, "router": router}
    pattern = _pattern(rng, shape, run_s, load)
    run_seed, drift = rng.randrange(1, 10**6), rng.uniform(1 - DRIFT, 1 + DRIFT)
    drop, is_vllm = _drop(rng)
    before = None
    if compared == "apart":
        filled = _filled(table, sources, rate * engines * drift, pattern, run_s)
        before = _recipe(f"h{seed}-{number}-before", run_seed + 1, filled)
    return HealthyWindow(
        number=number,
        shape=shape,
        load=round(load, 3),
        form=form,
        engines=engines,
        length_s=length_s,
        compared=compared,
        recipe=_recipe(
            f"h{seed}-{number}", run_seed, _filled(table, sources, rate * engines, pattern, run_s)
        ),
        before=before,
        drop=drop,
        is_vllm=is_vllm,
    )


def _recipe(name: str, seed: int, table: Table) -> Recipe:
    table = {**table, "truth": {"healthy": True}}
    return Recipe(name=name, shows=name, seed=seed, path=Path("generated"), table=table)


def _max_rate(rng: random.Random, run_s: float) -> float:
    if run_s <= LONG_S:
        return MAX_SHORT_REQUESTS / run_s
    return float(2 ** rng.uniform(*LOG2_RATE))


def _drop(rng: random.Random) -> tuple[frozenset[str], bool]:
    """What is not recorded: most services have no spans of clients, some no steps."""
    drop = {
        name
        for name, share in (("client", 0.6), ("admit_bound", 0.2), ("steps", 0.06))
        if rng.random() < share
    }
    return frozenset(drop), rng.random() < 0.06


# --- the load ----------------------------------------------------------------------------------


def _at_load(
    rng: random.Random, shape: str, step: Table, aim: float, max_rate: float
) -> tuple[list[_Source], float]:
    """Sources and requests a second at a load: larger requests where more are too many."""
    state = rng.getstate()
    sources = _sources(rng, shape, 1.0)
    rate = aim * 1e3 / sum(s.weight * _cost_ms(step, s) for s in sources)
    if rate <= max_rate:
        return sources, rate
    rng.setstate(state)
    sources = _sources(rng, shape, min(rate / max_rate, MAX_SIZE))
    rate = aim * 1e3 / sum(s.weight * _cost_ms(step, s) for s in sources)
    return sources, min(rate, max_rate)


def _sources(rng: random.Random, shape: str, size: float) -> list[_Source]:
    """The sources of a shape; weights sum to 1.

    Args:
        rng: for lengths and weights.
        shape: one of `SHAPES`.
        size: prompts and outputs are so many times as long.
    """
    prompt, output = size * 2 ** rng.uniform(7.0, 11.2), size * 2 ** rng.uniform(5.3, 8.6)
    if shape == "mixed":
        parts = [(1.0, 1.0), (0.35, 0.3), (rng.uniform(1.2, 2.0), 0.6)][: rng.choice((2, 3))]
        weights = [rng.uniform(0.3, 1.0) for _ in parts]
        total = sum(weights)
        has_tenants = rng.random() < 0.5
        return [
            _plain(
                f"part-{n}", w / total, prompt * p, output * o,
                **({"tenant": f"tenant-{n}"} if has_tenants else {}),
            )
            for n, ((p, o), w) in enumerate(zip(parts, weights, strict=True))
        ]  # fmt: skip
    if shape == "groups":
        weight = rng.uniform(0.3, 0.6)
        return [
            _plain("main", 1 - weight, prompt, output),
            _plain("batch", weight, prompt * 0.4, output * 0.3, n=rng.choice((3, 4, 6))),
        ]
    if shape == "agents":
        return [_agents(rng, output, size)]
    if shape == "shared":
        n_shared, share = rng.choice((512, 1024, 2048)), rng.uniform(0.6, 0.95)
        own = _plain(
            "main", 1.0, prompt * 0.5, output,
            shared_frac=share, shared_tokens=n_shared, shared_prefix="system",
        )  # fmt: skip
        return [replace(own, n_context=own.n_context + share * n_shared)]
    return [_plain("main", 1.0, prompt, output)]


def _plain(name: str, weight: float, prompt: float, output: float, **more: Any) -> _Source:
    table: Table = {
        "kind": "poisson",
        "prompt": [max(16, round(prompt * 0.5)), max(32, round(prompt * 1.5))],
        "output": [max(4, round(output * 0.5)), max(8, round(output * 1.5))],
        **more,
    }
    return _Source(name, weight, table, prompt, prompt, output)


def _agents(rng: random.Random, output: float, size: float) -> _Source:
    """Sessions whose turns find what came before in the cache."""
    prompt_step, turns = round(size * rng.choice((300, 600, 1000))), rng.choice((4, 6, 10))
    first, n_output = round(size * rng.choice((1000, 2000))), max(8, round(output * 0.7))
    table: Table = {
        "kind": "sessions", "turns": turns, "first_prompt": first, "prompt_step": prompt_step,
        "pause_s": rng.uniform(4.0, 20.0), "output": n_output, "reuse": "good", "prefix": "system",
    }  # fmt: skip
    computed = (first + (turns - 1) * prompt_step) / turns
    context = first + prompt_step * (turns - 1) / 2
    return _Source("main", 1.0, table, computed, context, n_output)


def _under_way(source: _Source, token_ms: float) -> _Source:
    """Conversations are under way when the window begins, as in any hour but a service's first."""
    if source.table["kind"] != "sessions":
        return source
    every_s = source.table["pause_s"] + source.table["output"] * token_ms / 1e3
    return replace(source, table={**source.table, "turn_every_s": every_s})


def _cost_ms(step: Table, source: _Source) -> float:
    """What a request adds to steps: its prompt, and its sequence in the steps of its output."""
    context = source.n_context + source.n_output / 2
    decode_ms = (step["c_ms"] + step["d_ms"] * context) * source.n_output
    return float(step["b_ms"] * source.n_prefill + decode_ms)


def _engine(rng: random.Random, sources: list[_Source], batch: float) -> Table:
    """Limits with room: about three to six times what runs on average."""
    max_seqs = int(max(16, 2 ** round(rng.uniform(0, 1) + 1.5 + math.log2(batch + 4))))
    largest = max(1.5 * (s.n_context + s.n_output) for s in sources)
    if any(s.table["kind"] == "sessions" for s in sources):
        largest = max(s.n_context * 2 + s.n_output for s in sources)
    n_kv = (batch + 4) * largest * rng.uniform(2.5, 6.0)
    return {
        "max_seqs": max_seqs,
        "max_batch_tokens": max(max_seqs, rng.choice((1024, 2048, 4096, 8192))),
        "kv_tokens": int(max(n_kv, 6 * largest)) + 4096,
        "kv_test": rng.choice(("first-chunk", "first-chunk", "full-prompt")),
        "policy": "prefill-first" if rng.random() < 0.08 else "mixed",
        "pipeline_depth": 2 if rng.random() < 0.2 else 1,
    }


def _pattern(rng: random.Random, shape: str, run_s: float, load: float) -> list[list[float]] | None:
    """How arrivals go with time, as `[[s, share of the rate], …]`; None if they are even."""
    if shape == "diurnal":
        # An hour of the day comes slowly: what doubles within minutes is a surge.
        at = [quarter + rng.uniform(-0.05, 0.05) for quarter in (0.25, 0.5, 0.75)]
        shares = [rng.uniform(0.3, 0.8), 1.0, rng.uniform(0.4, 0.9)]
        rng.shuffle(shares)
        points = [(0.0, rng.uniform(0.3, 0.8)), *zip(at, shares, strict=True), (1.0, 0.5)]
        return [[share * run_s, level] for share, level in points]
    if shape != "bursts":
        return None
    low = rng.uniform(0.4, 0.7)
    high = min(rng.uniform(1.2, 2.0), BURST_LOAD / load)
    made, at_s = [[0.0, low]], rng.uniform(10.0, 60.0)
    while at_s < run_s:
        long_s = rng.uniform(5.0, 25.0)
        made += [[at_s, low], [at_s + 1, high], [at_s + long_s, high], [at_s + long_s + 1, low]]
        at_s += long_s + 2 + rng.expovariate(1 / 90.0)
    return [*made, [max(run_s, made[-1][0] + 1), low]]


def _filled(
    table: Table,
    sources: list[_Source],
    rate: float,
    pattern: list[list[float]] | None,
    run_s: float,
) -> Table:
    """The table with its sources at a rate of requests a second in all."""
    workload: Table = {}
    for source in sources:
        own = {**source.table, "until_s": run_s}
        own_rate = source.weight * rate
        if own["kind"] == "sessions":
            turns = own["turns"]
            n = max(2, round(own_rate * run_s / turns))
            own |= {"sessions": n, "start_over_s": run_s}
            del own["until_s"]
        elif "n" in own:
            every_s = own["n"] / own_rate
            own |= {
                "kind": "at", "times_s": [every_s / 2], "every_s": every_s,
                "n_times": max(1, int(run_s / every_s)),
            }  # fmt: skip
        else:
            own["rate_per_s"] = (
                own_rate if pattern is None else [[at_s, own_rate * f] for at_s, f in pattern]
            )
        workload[source.name] = own
    return {**table, "workload": workload}


# --- the truth ---------------------------------------------------------------------------------


def is_strained(recipe: Recipe, made: Run) -> bool:
    """Whether requests truly wait, so that a diagnosis that says so is right.

    Either limits on slots or KV lengthen a mean (first token, or end) by a fifth over the same
    run without them; or one request in ten waits a second and more for admission, and waits are
    half of all time to first token; or one stream in ten stands still for a second and more.

    Args:
        recipe: what was run.
        made: its run.
    """
    waits = [r.scheduled_s - r.engine_s for r in made.requests if r.scheduled_s is not None]
    first = [r.first_token_s - r.engine_s for r in made.requests if r.first_token_s is not None]
    n_notable = sum(wait_s >= NOTABLE_WAIT_S for wait_s in waits)
    if (
        waits
        and n_notable >= NOTABLE_SHARE * len(waits)
        and sum(waits) >= NOTABLE_PART * sum(first)
    ):
        return True
    if _stand_still(made) >= NOTABLE_SHARE:
        return True
    is_kept_out = any(
        step.admit_bound in ("slots", "kv") and step.n_waiting
        for log in made.epochs
        for step in log.steps
    )
    if not is_kept_out:
        return False
    roomy = run(replace(recipe, table={**recipe.table, "engine": _roomy(made)}), seed=made.seed)
    pairs = zip(_means_s(made), _means_s(roomy), strict=True)
    return any(with_limits > (1 + NOTABLE_RISE) * without for with_limits, without in pairs)


def _stand_still(made: Run) -> float:
    """Share of the streams that stand still at least once, by when their tokens came out."""
    longest_s = 0.0
    for log in made.epochs:
        ends_s = [step.end_s for step in log.steps if step.n_decode]
        longest_s = max([longest_s, *(b - a for a, b in itertools.pairwise(ends_s))])
    if longest_s < NOTABLE_STALL_S:
        return 0.0
    n_still = n_streams = 0
    for request in made.requests:
        times_s = made.epochs[request.epoch].token_times_s(request)
        if len(times_s) < MIN_TOKENS:
            continue
        gaps_s = [b - a for a, b in itertools.pairwise(times_s)]
        usual_s = statistics.median(gaps_s)
        n_streams += 1
        n_still += max(gaps_s) >= max(NOTABLE_STALL_S, NOTABLE_STALL_TIMES * usual_s)
    return n_still / max(n_streams, 1)


def _roomy(made: Run) -> Table:
    """The engine of a run with slots and KV for everything."""
    engine = asdict(made.variant.engine)
    n_tokens = sum(r.n_prompt + r.n_output for r in made.requests)
    return engine | {"max_seqs": engine["max_batch_tokens"], "kv_tokens": 2 * n_tokens + 4096}


def _means_s(made: Run) -> tuple[float, float]:
    done = [r for r in made.requests if r.done_s is not None and r.first_token_s is not None]
    n = max(len(done), 1)
    first_s = sum((r.first_token_s or 0.0) - r.sent_s for r in done) / n
    return first_s, sum((r.done_s or 0.0) - r.sent_s for r in done) / n
