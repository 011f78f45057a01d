"""Faults that are put into a generated case; see `generate`."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from tokenlag.simulate.config import StepModel

Table = dict[str, Any]

COMPARED = ("apart", "within", "none")


@dataclass
class Draft:
    """A healthy case that a fault is put into."""

    rng: random.Random
    table: Table
    duration_s: float
    change_s: float
    compared: str
    rate: float
    prompt: tuple[int, int]
    output: tuple[int, int]
    step_ms: float
    batch: float
    culprit: str | None = None

    @property
    def from_s(self) -> float:
        """When the fault begins."""
        return self.change_s if self.compared == "within" else 0.0


@dataclass(frozen=True)
class Fault:
    """A kind of fault: what it makes true, how it is put in, and where it can be seen."""

    cause: str
    symptom: str
    put: Callable[[Draft], float]
    compared: tuple[str, ...]
    accept: tuple[str, ...] = ()
    loads: tuple[str, ...] = ("low", "mid", "high")


def diurnal(draft: Draft) -> None:
    """A day in a minute or two: arrivals climb and fall, never over what the engine takes."""
    points = [[0.0, 0.5], [0.5, 1.2], [1.0, 0.4]]
    draft.table["workload"]["main"]["rate_per_s"] = [
        [share * draft.duration_s, factor * draft.rate] for share, factor in points
    ]


def _main(draft: Draft) -> Table:
    main: Table = draft.table["workload"]["main"]
    return main


def _after(draft: Draft, **changes: Any) -> None:
    """From the change on (or from the start) the workload is another one."""
    main = _main(draft)
    if draft.compared != "within":
        main.update(changes)
        return
    after = {**main, **changes, "from_s": draft.change_s}
    main["until_s"] = draft.change_s
    draft.table["workload"]["after"] = after


def _slots(draft: Draft) -> float:
    """Fewer slots than run on average."""
    share = draft.rng.uniform(0.7, 0.9)
    draft.table["engine"]["max_seqs"] = max(2, int(draft.batch * share))
    return share


def _surge(draft: Draft) -> float:
    """More arrivals than the engine can take at any batch."""
    factor = draft.rng.uniform(1.05, 1.25)
    mid = sum(draft.output) / 2
    slots = draft.table["engine"]["max_seqs"]
    # With `max_seqs` running, `slots / mid` of them leave each step and as many come in.
    step_ms = full_step_ms(draft.table["step"], slots, slots / mid, draft)
    most = slots * 1e3 / (mid * step_ms)
    draft.table["engine"]["kv_tokens"] *= 2
    _after(draft, rate_per_s=most * factor)
    return factor


def full_step_ms(step: Table, n_decode: int, joining: float, draft: Draft) -> float:
    """What a step of a full engine costs on average, by the truth of its own form.

    Args:
        step: the table of the step times.
        n_decode: how many decode.
        joining: how many prompts come into a step on average, at their own times.
        draft: for the lengths.
    """
    known = {f.name for f in fields(StepModel)} - {"changes", "effects"}
    model = StepModel(**{name: value for name, value in step.items() if name in known})
    prompt, context = sum(draft.prompt) / 2, sum(draft.prompt) / 2 + sum(draft.output) / 4
    total, chance = 0.0, math.exp(-joining)
    for n in range(round(joining + 8 * math.sqrt(joining) + 8)):
        total += chance * model.cost_ms(round(n * prompt), n_decode, round(n_decode * context))
        chance *= joining / (n + 1)
    return total


def _long_prompts(draft: Draft) -> float:
    """A few very long prompts among the rest."""
    rng = draft.rng
    n_prompt = rng.choice((16_000, 24_000, 40_000))
    every_s = rng.uniform(12.0, 25.0)
    first_s = draft.from_s + rng.uniform(4.0, 8.0)
    draft.table["engine"]["max_batch_tokens"] = max(
        draft.table["engine"]["max_seqs"], rng.choice((4096, 8192))
    )
    draft.table["engine"]["kv_tokens"] += 4 * n_prompt
    n_times = int((draft.duration_s - first_s) / every_s) + 1
    draft.table["workload"]["long"] = {
        "kind": "at", "times_s": [first_s], "every_s": every_s, "n_times": n_times,
        "prompt": n_prompt, "output": 32,
    }  # fmt: skip
    draft.culprit = "long"
    return float(n_prompt)


def _preempt(draft: Draft) -> float:
    """A closed loop of long prompts that are let in by their first chunk into too little KV."""
    rng = draft.rng
    n_prompt, clients = rng.choice((8_000, 16_000, 32_000)), rng.choice((6, 8, 12))
    n_output = rng.choice((200, 400))
    share = rng.uniform(0.45, 0.65)
    step, engine = draft.table["step"], draft.table["engine"]
    engine["max_seqs"] = max(engine["max_seqs"], 2 * clients)
    engine["max_batch_tokens"] = max(engine["max_seqs"], rng.choice((2048, 4096)))
    engine["kv_tokens"] = int(clients * (n_prompt + n_output) * share)
    engine["kv_test"] = "first-chunk"
    a_prompt_s = n_prompt * step["b_ms"] / 1e3
    draft.table["workload"] = {
        "main": {
            "kind": "closed", "clients": clients, "prompt": n_prompt,
            "output": [n_output // 2, n_output * 3 // 2], "until_s": 30 * a_prompt_s + 60,
        }
    }  # fmt: skip
    draft.table["horizon_s"] = 40 * a_prompt_s + 80
    return share


def _prompts(draft: Draft) -> float:
    factor = draft.rng.uniform(2.0, 3.5)
    _after(draft, prompt=[round(n * factor) for n in draft.prompt])
    draft.table["engine"]["kv_tokens"] = round(draft.table["engine"]["kv_tokens"] * factor)
    return factor


def _outputs(draft: Draft) -> float:
    factor = draft.rng.uniform(1.6, 2.6)
    _after(draft, output=[round(n * factor) for n in draft.output])
    draft.table["engine"]["kv_tokens"] = round(draft.table["engine"]["kv_tokens"] * factor)
    return factor


def _batch(draft: Draft) -> float:
    """More arrivals below every limit, on an engine whose steps grow with the batch."""
    factor = draft.rng.uniform(1.9, 2.4)
    step, engine, n_output = draft.table["step"], draft.table["engine"], sum(draft.output) / 2
    # Most of what a request takes is its decoding; together the requests take `busy` of a step.
    step["b_ms"] = min(step["b_ms"], step["c_ms"] * n_output / sum(draft.prompt))
    context = sum(draft.prompt) / 2 + n_output / 2
    a_request_ms = (
        step["b_ms"] * sum(draft.prompt) / 2 + (step["c_ms"] + step["d_ms"] * context) * n_output
    )
    busy = draft.rng.uniform(0.5, 0.62)
    rate = busy * 1e3 / a_request_ms / factor
    _main(draft)["rate_per_s"] = rate
    batch = factor * rate * n_output * step["a_ms"] / (1 - busy) / 1e3
    engine["max_seqs"] = max(64, round(4 * batch))
    # What comes in during a step of the full load fits into it with room, too.
    step_s = step["a_ms"] / (1 - busy) / 1e3
    joining = round(4 * factor * rate * sum(draft.prompt) / 2 * step_s)
    engine["max_batch_tokens"] = max(engine["max_batch_tokens"], 2 * engine["max_seqs"], joining)
    engine["kv_tokens"] = 2 * engine["max_seqs"] * (draft.prompt[1] + draft.output[1])
    _after(draft, rate_per_s=rate * factor)
    draft.rate = rate
    return factor


def _twin_batch(draft: Draft, _twin: Table) -> Table:
    table = copy.deepcopy(draft.table)
    table["workload"].pop("after", None)
    table["workload"]["main"].update(rate_per_s=draft.rate, until_s=draft.duration_s)
    return table


def _factor(draft: Draft) -> float:
    factor = draft.rng.uniform(1.2, 1.6)
    _change(draft, factor=factor)
    return factor


def _constant(draft: Draft) -> float:
    share = draft.rng.uniform(0.3, 1.0)
    _change(draft, add_ms=share * draft.table["step"]["a_ms"])
    return share


def _change(draft: Draft, **change: Any) -> None:
    draft.table["step"].setdefault("changes", []).append({"from_s": draft.from_s, **change})


def _effect(draft: Draft, **effect: Any) -> None:
    draft.table["step"].setdefault("effects", []).append(effect)


def _prefill_price(draft: Draft) -> float:
    factor = draft.rng.uniform(1.5, 2.2)
    _effect(draft, kind="part", part="prefill", factor=factor, from_s=draft.from_s)
    return factor


def _pauses(draft: Draft) -> float:
    rng = draft.rng
    add_ms = max(rng.uniform(120, 400), 6 * draft.step_ms)
    every_s = rng.uniform(1.2, 4.0)
    _effect(draft, kind="pauses", every_s=every_s, add_ms=add_ms, from_s=draft.from_s)
    return add_ms


def _compile(draft: Draft) -> float:
    add_ms = max(draft.rng.uniform(500, 2000), 10 * draft.step_ms)
    _effect(draft, kind="first-use", add_ms=add_ms)
    return add_ms


def _ceiling(draft: Draft) -> float:
    above = max(2, round(draft.batch * draft.rng.uniform(0.8, 1.1)))
    add_ms = draft.rng.uniform(0.6, 1.6) * draft.step_ms
    _effect(draft, kind="ceiling", above=above, add_ms=add_ms)
    return float(above)


def _tax(draft: Draft) -> float:
    add_ms = draft.rng.uniform(0.5, 1.2) * draft.step_ms
    share = min(0.25, 0.7 / max(draft.batch, 1.0))
    for source in draft.table["workload"].values():
        source.update(features="grammar", features_frac=share)
    _effect(draft, kind="tax", feature="grammar", add_ms=add_ms, from_s=draft.from_s)
    return add_ms


def _ghosts(draft: Draft) -> float:
    """Sequences whose client is gone hold most of the slots."""
    slots = max(6, int(draft.batch * 2.5))
    n = max(4, round(slots * draft.rng.uniform(0.75, 0.85)))
    draft.table["engine"]["max_seqs"] = slots
    draft.table["engine"]["kv_tokens"] *= 3
    draft.table["workload"]["ghosts"] = {
        "kind": "ghosts", "n": n, "prompt": draft.prompt[0], "output": 1,
    }  # fmt: skip
    draft.table["horizon_s"] = draft.duration_s
    return float(n)


def _burst(draft: Draft) -> float:
    """Clients in a closed loop that all start at once, whose prompts crowd the start."""
    rng = draft.rng
    n_clients = rng.choice((16, 24, 32, 48))
    step, n_prompt = draft.table["step"], rng.choice((1500, 3000, 5000))
    n_output = rng.choice((100, 200, 300))
    a_step_ms = step["a_ms"] + n_clients * (step["c_ms"] + step["d_ms"] * n_prompt)
    round_s = (n_output * a_step_ms + n_clients * step["b_ms"] * n_prompt) / 1e3
    engine = draft.table["engine"]
    engine["max_seqs"] = max(engine["max_seqs"], 2 * n_clients)
    engine["max_batch_tokens"] = max(engine["max_batch_tokens"], engine["max_seqs"])
    engine["kv_tokens"] = 2 * n_clients * (n_prompt + n_output)
    draft.table["workload"] = {
        "main": {
            "kind": "closed", "clients": n_clients, "prompt": n_prompt,
            "output": [n_output // 2, n_output * 3 // 2],
            "requests_each": max(6, min(10, int(120 / round_s))),
        }
    }  # fmt: skip
    draft.table["horizon_s"] = 600.0
    return float(n_clients)


def _sessions(draft: Draft, reuse: Any) -> Table:
    rng = random.Random(f"sessions {draft.rate}")
    step = draft.table["step"]
    prompt_step = rng.choice((600, 1000, 1500))
    n_sessions, turns = rng.choice((12, 16, 24)), 8
    # A turn's whole prompt every pause and session must stay below what the engine takes.
    mean_prompt = 2000 + prompt_step * turns / 2
    pause_s = max(5.0, n_sessions * mean_prompt * step["b_ms"] / 1e3 / 0.6)
    table = copy.deepcopy(draft.table)
    table["engine"]["max_seqs"] = max(table["engine"]["max_seqs"], 64)
    table["engine"]["max_batch_tokens"] = 8192
    table["engine"]["kv_tokens"] = 2_000_000
    table["workload"] = {
        "main": {
            "kind": "sessions", "sessions": n_sessions, "turns": turns, "start_over_s": pause_s,
            "pause_s": pause_s, "first_prompt": 2000, "prompt_step": prompt_step,
            "output": draft.output[0], "reuse": reuse, "prefix": "system",
        }
    }  # fmt: skip
    table["horizon_s"] = 2000.0
    return table


def _reuse(draft: Draft) -> float:
    reuse = draft.rng.choice(("none", 1024))
    draft.table = _sessions(draft, reuse)
    return float(reuse if isinstance(reuse, int) else 0)


def _context(draft: Draft) -> float:
    """Longer contexts that are cached: prompts cost nothing more, decode reads more."""
    factor = draft.rng.uniform(3.0, 5.0)
    before, tail = 3000, 200
    step = draft.table["step"]
    # The context term must be a real part of the step, as it is on large models.
    step["d_ms"] = max(step["d_ms"], 0.3 * step["a_ms"] / (max(draft.batch, 1.0) * before))
    busy = (step["c_ms"] + step["d_ms"] * before * factor) * sum(draft.output) / 2
    rate = min(draft.rate, 0.6e3 / (busy + step["b_ms"] * tail))
    main = _main(draft)
    main.update(rate_per_s=rate, prompt=[before, before + tail], cached=before - 40)
    draft.table["engine"]["kv_tokens"] *= 40
    after = round(before * factor)
    _after(draft, prompt=[after, after + tail], cached=after - 40)
    return factor


def _twin_context(draft: Draft, _twin: Table) -> Table:
    table = copy.deepcopy(draft.table)
    main = table["workload"]["main"]
    main.update(prompt=[3000, 3200], cached=2960, until_s=draft.duration_s)
    table["workload"].pop("after", None)
    return table


def _twin_burst(draft: Draft, _twin: Table) -> Table:
    """The same clients without the burst: their starts spread over a round."""
    table = copy.deepcopy(draft.table)
    table["workload"]["main"]["start_over_s"] = 60.0
    return table


def _twin_preempt(draft: Draft, _twin: Table) -> Table:
    """The same KV, admitted by the whole request: what is left is what preemption itself adds."""
    table = copy.deepcopy(draft.table)
    table["engine"]["kv_test"] = "reserve-max"
    return table


def _twin_engine(draft: Draft, twin: Table) -> Table:
    """The healthy workload on the engine of the case."""
    table = copy.deepcopy(twin)
    table["engine"] = copy.deepcopy(draft.table["engine"])
    return table


TWIN_OF: Mapping[str, Callable[[Draft, Table], Table]] = {
    "prefix": lambda draft, _twin: _sessions(draft, "good"),
    "context": _twin_context,
    "burst": _twin_burst,
    "preempt": _twin_preempt,
    "surge": _twin_engine,
    "prompts": _twin_engine,
    "outputs": _twin_engine,
    "batch": _twin_batch,
}

FAULTS: Mapping[str, Fault] = {
    "slots": Fault(
        "queueing-not-prefill", "ttft", _slots, ("apart", "none"), loads=("mid", "high")
    ),
    "surge": Fault("queueing-not-prefill", "ttft", _surge, COMPARED, loads=("mid", "high")),
    "long": Fault(
        "long-prompt-stalled-streams", "itl", _long_prompts, COMPARED,
        accept=("short-behind-long-prompt",), loads=("low", "mid"),
    ),
    "preempt": Fault(
        "kv-preemption-thrash", "e2e", _preempt, ("apart", "none"), loads=("mid", "high")
    ),
    "prefix": Fault("prefix-reuse-lost", "ttft", _reuse, ("apart", "none")),
    "prompts": Fault("prompts-grew", "ttft", _prompts, ("apart", "within"), loads=("low",)),
    "outputs": Fault("outputs-grew", "e2e", _outputs, ("apart", "within"), loads=("low",)),
    "context": Fault("context-grew", "itl", _context, ("apart", "within"), loads=("low", "mid")),
    "batch": Fault("decode-batch-grew", "itl", _batch, ("apart", "within"), loads=("mid",)),
    "factor": Fault("steps-run-slow", "itl", _factor, ("apart", "within"), loads=("low", "mid")),
    "constant": Fault(
        "host-starves-steps", "itl", _constant, ("apart", "within"), loads=("low", "mid")
    ),
    "prefill": Fault(
        "prefill-runs-slow", "ttft", _prefill_price, ("apart", "within"), loads=("low", "mid")
    ),
    "pauses": Fault("periodic-pauses", "itl", _pauses, COMPARED),
    "compile": Fault("cold-start", "ttft", _compile, ("apart", "none")),
    "ceiling": Fault(
        "graph-ceiling-crossed", "itl", _ceiling, ("apart", "none"), loads=("mid", "high")
    ),
    "tax": Fault("per-request-step-tax", "itl", _tax, COMPARED, loads=("low", "mid")),
    "ghosts": Fault("ghost-requests", "ttft", _ghosts, ("apart", "none"), loads=("mid", "high")),
    "burst": Fault("measurement-artefact", "ttft", _burst, ("none",)),
}  # fmt: skip
