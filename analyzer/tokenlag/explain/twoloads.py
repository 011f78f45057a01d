"""Two load tests, or two sets of traces: which is slower, in what, and why.

The questions, in the order in which they are answered: which has the higher time to first
token and end-to-end time, did the time per token move, and is it the shape of the requests,
the load they came in, or the speed of the server (docs/load-tests.md).
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from tokenlag.explain.comparison import Cause, Change, Comparison, Moved, Part, SideText
from tokenlag.explain.loads import Load, in_flight_at_send, in_flight_during, load_of
from tokenlag.explain.loadsplit import SAME_FRAC, Rows, Split, split
from tokenlag.read.loadtest.run import Requests, Run, Spread

MOVED_FRAC: Final = 0.05  # a mean or median that differs by less has not moved
Z95: Final = 1.96

LATENCIES: Final = ("ttft", "e2e", "tpot")


def compare(a: Run, b: Run) -> Comparison:
    """Compares two runs."""
    load_a, load_b = load_of(a), load_of(b)
    changes = [
        change
        for metric, name in (
            ("ttft", "ttft_ms"), ("e2e", "e2e_ms"), ("tpot", "tpot_ms"),
            ("input_tokens", "n_prompt"), ("output_tokens", "n_output"),
        )
        if (change := _change(metric, a.metrics.get(name), b.metrics.get(name))) is not None
    ]  # fmt: skip
    known = {change.metric: change for change in changes}
    load_moved = _load_moved(load_a, load_b)
    judge = _Judge(a, b, known, load_a, load_b, load_moved)
    parts = judge.parts()
    why: dict[str, Cause] = {
        metric: _largest(parts, metric, known[metric])
        for metric in LATENCIES
        if metric in known and known[metric].moved in ("higher", "lower")
    }
    notes = [
        f"{run.source}: {text}" for run in (a, b) for text in run.translations
    ] + judge.notes  # fmt: skip
    return Comparison(
        a=_side(a, load_a), b=_side(b, load_b), changes=changes, parts=parts, why=why,
        verdict=_verdict(known, parts, why, load_a, load_b, load_moved), notes=_once(notes),
    )  # fmt: skip


def _change(metric: str, a: Spread | None, b: Spread | None) -> Change | None:
    if a is None or b is None:
        return None
    if a.mean is not None and b.mean is not None:
        half = None
        if a.sd is not None and b.sd is not None and a.n and b.n:
            half = Z95 * math.sqrt(a.sd**2 / a.n + b.sd**2 / b.n)
        return _moved(metric, "mean", a.mean, b.mean, half)
    if a.p50 is not None and b.p50 is not None:
        return _moved(metric, "median", a.p50, b.p50, None)
    return None


def _moved(metric: str, figure: str, a: float, b: float, half: float | None) -> Change:
    delta = b - a
    # A file without spreads does not say by how much chance moves its mean length.
    is_exact = metric.endswith("tokens") and half is not None
    least = (SAME_FRAC if is_exact else MOVED_FRAC) * max(abs(a), 1e-9)
    moved: Moved = "same"
    if abs(delta) > least and (half is None or abs(delta) > half):
        moved = "higher" if delta > 0 else "lower"
    return Change(
        metric, figure, a, b,
        None if half is None else delta - half, None if half is None else delta + half, moved,
    )  # fmt: skip


def _load_moved(a: Load, b: Load) -> Moved:
    """Whether more was asked of B's server at once; what is in flight of itself is a result."""
    if a.loop is not None and a.loop == b.loop and a.offered and b.offered:
        return _more(a.offered, b.offered, MOVED_FRAC)
    if a.in_flight is not None and b.in_flight is not None:
        return _more(a.in_flight, b.in_flight, MOVED_FRAC)
    return "unknown"


def _more(a: float, b: float, least: float) -> Moved:
    if abs(b - a) <= least * a:
        return "same"
    return "higher" if b > a else "lower"


class _Judge:
    """Takes the changes apart, by requests where both sides have them, else by figures."""

    def __init__(
        self, a: Run, b: Run, known: dict[str, Change], load_a: Load, load_b: Load, moved: Moved
    ) -> None:
        self.a, self.b, self.known = a, b, known
        self.load_a, self.load_b, self.load_moved = load_a, load_b, moved
        self.notes: list[str] = []

    def parts(self) -> list[Part]:
        """The parts of ttft, tpot and e2e."""
        ttft, tpot = self._of("ttft", "input_tokens"), self._of("tpot", None)
        found = [*ttft, *tpot]
        outputs, e2e = self.known.get("output_tokens"), self.known.get("e2e")
        if e2e is None or outputs is None:
            return found
        rate = self.known.get("tpot")
        if rate is None:
            return found
        later = (outputs.a + outputs.b) / 2 - 1
        price = (rate.a + rate.b) / 2
        whole = [replace(part, "e2e", 1.0) for part in ttft]
        whole += [replace(part, "e2e", later) for part in tpot]
        if abs(outputs.ms) > 0:
            text = f"output tokens {_count(outputs.a)} → {_count(outputs.b)}"
            whole.append(Part("e2e", "shape", outputs.ms * price, None, text))
        rest = e2e.ms - sum(part.ms for part in whole)
        if abs(rest) > 0.2 * max(abs(e2e.ms), 1e-9) and e2e.moved != "same":
            self.notes.append(
                f"{rest:+.0f} ms of the end-to-end change is not explained by these means: "
                "lengths and times go together in one of them"
            )
        return found + whole

    def _of(self, metric: str, tokens: str | None) -> list[Part]:
        change = self.known.get(metric)
        if change is None:
            return []
        found = self._by_requests(metric)
        if found is not None and found.is_identified:
            return self._named(metric, found)
        if change.moved == "same":
            return []
        if found is not None:
            self.notes.append(
                f"{_NAMES[metric]}: load and shape hardly vary within each side, so that what "
                "lies between the two sides cannot be told apart from the requests alone"
            )
        return self._by_figures(metric, change, self.known.get(tokens or ""))

    def _by_requests(self, metric: str) -> Split | None:
        a, b = self.a.requests, self.b.requests
        if a is None or b is None or a.sent_ns is None or b.sent_ns is None:
            return None
        return split(
            _rows(a, metric), _rows(b, metric), has_same_load=self.load_moved == "same"
        )  # fmt: skip

    def _named(self, metric: str, found: Split) -> list[Part]:
        tokens = self.known.get("input_tokens")
        flights = f"load {self.load_a.text} → {self.load_b.text}"
        speed = "the same request in the same load"
        if self.load_moved == "same":
            speed += ", with what follows from it in flight"
        texts = {
            "speed": speed,
            "load": flights,
            "shape": "" if tokens is None else f"input {_count(tokens.a)} → {_count(tokens.b)}",
        }
        terms = (("speed", found.speed), ("load", found.load), ("shape", found.shape))
        return [
            Part(metric, cause, term.ms, term.half_ms, texts[cause])  # type: ignore[arg-type]
            for cause, term in terms
            if term.ms != 0
        ]

    def _by_figures(self, metric: str, change: Change, tokens: Change | None) -> list[Part]:
        """What two means allow: a factor that did not move is no cause."""
        shape_moved = tokens is not None and tokens.moved != "same"
        load_text = f"load {self.load_a.text} → {self.load_b.text}"
        if metric == "ttft" and shape_moved and tokens is not None:
            text = f"input tokens {_count(tokens.a)} → {_count(tokens.b)}"
            expected = change.a * (tokens.b / tokens.a - 1) if tokens.a else 0.0
            if self.load_moved == "same" and not self._tpot_moved():
                return [Part(metric, "shape", change.ms, None, text)]
            if expected * change.ms <= 0:
                return [Part(metric, self._rest(), change.ms, None, load_text)]
            shape = math.copysign(min(abs(expected), abs(change.ms)), change.ms)
            parts = [Part(metric, "shape", shape, None, f"{text}, if it grows in proportion")]
            if change.ms != shape:
                parts.append(Part(metric, self._rest(), change.ms - shape, None, load_text))
            return parts
        inputs = self.known.get("input_tokens")
        if metric == "tpot" and inputs is not None and inputs.moved != "same":
            text = f"{load_text}, input tokens {_count(inputs.a)} → {_count(inputs.b)}"
            cause: Cause = "shape or speed" if self.load_moved == "same" else "load, shape or speed"
            self.notes.append("longer prompts are read again for every token: shape, too")
            return [Part(metric, cause, change.ms, None, text)]
        if self.load_moved == "same":
            return [Part(metric, "speed", change.ms, None, "the same load and shape")]
        return [Part(metric, self._rest(), change.ms, None, load_text)]

    def _tpot_moved(self) -> bool:
        return "tpot" in self.known and self.known["tpot"].moved != "same"

    def _rest(self) -> Cause:
        if self.load_moved == "same":
            return "speed"
        self.notes.append(
            "one load on each side, and they differ: whether the server is slower too, only a "
            "run of B at the load of A can tell"
        )
        return "load or speed"


_NAMES: Final = {
    "ttft": "time to first token",
    "e2e": "end-to-end time",
    "tpot": "time per token",
}


def replace(part: Part, metric: str, factor: float) -> Part:
    """The part as one of another metric, scaled."""
    half = None if part.half_ms is None else part.half_ms * abs(factor)
    return Part(metric, part.cause, part.ms * factor, half, part.text)


def _rows(requests: Requests, metric: str) -> Rows:
    good = requests.is_good
    if metric == "ttft":
        values, flight = requests.ttft_ms, in_flight_at_send(requests)
        tokens = requests.n_prompt
    else:
        values, flight = requests.tpot_ms, in_flight_during(requests)
        tokens = requests.n_prompt + requests.n_output / 2
    assert requests.sent_ns is not None
    order = np.argsort(requests.sent_ns, kind="stable")
    order = order[good[order]]
    return Rows(values[order], flight[order], tokens[order])


def _largest(parts: list[Part], metric: str, change: Change) -> Cause:
    """The cause that made most of the change, of those that pull its way."""
    sums: dict[Cause, float] = {}
    for part in parts:
        if part.metric == metric and part.ms * change.ms > 0:
            sums[part.cause] = sums.get(part.cause, 0.0) + abs(part.ms)
    return max(sums, key=lambda cause: sums[cause]) if sums else "unknown"


def _verdict(
    known: dict[str, Change],
    parts: list[Part],
    why: dict[str, Cause],
    load_a: Load,
    load_b: Load,
    load_moved: Moved,
) -> list[str]:
    told = [
        f"{_NAMES[m].capitalize()} {_moved_text(known[m])}."
        if m in known
        else f"{_NAMES[m].capitalize()}: not in both."
        for m in LATENCIES
    ]
    causes = {cause for metric, cause in why.items() if known[metric].moved == "higher"}
    better = {cause for metric, cause in why.items() if known[metric].moved == "lower"}
    first = "B and A do not differ in latency."
    if causes:
        first = f"B is slower: {_causes_text(causes)}."
    elif better:
        first = f"B is faster: {_causes_text(better)}."
    shape = [
        f"{name} {_count(known[m].a)} → {_count(known[m].b)}"
        for m, name in (("input_tokens", "input"), ("output_tokens", "output"))
        if m in known and known[m].moved != "same"
    ]
    told.append("Shape: " + (", ".join(shape) if shape else "the same lengths") + ".")
    same = {"same": "the same load", "unknown": "the load is not known on both sides"}
    text = same.get(load_moved, f"{load_a.text} → {load_b.text}")
    told.append(f"Load: {text}.")
    for metric, cause in why.items():
        of = [part for part in parts if part.metric == metric and part.cause == cause]
        if of:
            total, text = sum(p.ms for p in of), max(of, key=lambda p: abs(p.ms)).text
            told.append(
                f"Of the change in {_NAMES[metric]}, {_ms(total, '+')} are {cause} ({text})."
            )
    if shape:
        told.append(
            "Tokens per second of the two cannot be compared: their requests have other lengths."
        )
    return [first, *told]


def _causes_text(causes: set[Cause]) -> str:
    texts: dict[Cause, str] = {
        "shape": "its requests are of another shape",
        "load": "it carries another load",
        "speed": "the same work takes another time",
        "shape or speed": "another shape, another speed or both; these files cannot tell",
        "load or speed": "another load, another speed or both; these files cannot tell",
        "load, shape or speed": "another load, shape or speed; these files cannot tell which",
        "unknown": "why, these files cannot tell",
    }
    clear: list[Cause] = ["speed", "load", "shape"]
    mixed: list[Cause] = ["load, shape or speed", "shape or speed", "load or speed", "unknown"]
    chosen = [cause for cause in clear if cause in causes]
    chosen += [cause for cause in mixed if cause in causes][:1]  # the widest says the others
    return "; ".join(texts[cause] for cause in chosen)


def _moved_text(change: Change) -> str:
    if change.moved == "same":
        return f"did not move ({change.figure} {_ms(change.a)} → {_ms(change.b)})"
    factor = change.b / change.a if change.a else math.inf
    return f"is {change.moved} ({change.figure} {_ms(change.a)} → {_ms(change.b)}, × {factor:.3g})"


def _ms(ms: float, sign: str = "") -> str:
    if abs(ms) >= 10_000:
        return f"{ms / 1e3:{sign}.4g} s"
    return f"{ms:{sign}.4g} ms"


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.3g}"


def _side(run: Run, load: Load) -> SideText:
    return SideText(
        name=run.source, tool=run.tool, level=run.level, model=run.model, requests=run.n_done,
        failed=run.n_failed, load=load.text, in_flight=load.in_flight,
    )  # fmt: skip


def _once(texts: list[str]) -> list[str]:
    return list(dict.fromkeys(texts))
