"""What every human-readable form shows: rows of strings, made from a diagnosis.

Pure functions. Text, Markdown and HTML only differ in how they set these rows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from tokenlag.judge.diagnosis import (
    Budget,
    Diagnosis,
    Finding,
    NotEvaluated,
    Remedy,
    Scalar,
    Stat,
    StepModel,
)
from tokenlag.report import format as fmt
from tokenlag.report import objectives

MAX_FINDINGS: Final = 3
MAX_CONSEQUENCES: Final = 3
MAX_BLAME: Final = 3
MAX_FACTS: Final = 8
MAX_MODELS: Final = 4
MAIN_METRICS: Final = ("ttft", "tpot", "itl", "e2e")
OVER: Final = "<-- over budget"
ABOVE_ALONE: Final = "<-- most above alone"
_RATES: Final = {
    "requests_per_s": "requests/s",
    "prompt_tokens_per_s": "prompt tokens/s",
    "output_tokens_per_s": "output tokens/s",
    "per_stream_tokens_per_s": "tokens/s in a stream",
}
_LENGTHS: Final = {
    "input_tokens_p50": "prompt tokens p50",
    "output_tokens_p50": "output tokens p50",
}
_BUDGET_NAMES: Final = {
    "network": "network, in",
    "requeue": "requeue (preempted)",
    "decode": "decode (n × ITL)",
    "uncovered": "not covered by a phase",
}


@dataclass(frozen=True)
class Rows:
    """A table: a title, the headings, the rows, which rows to mark, blanks between columns."""

    title: str
    head: list[str]
    body: list[list[str]]
    marked: set[int] = field(default_factory=set)
    faint: set[int] = field(default_factory=set)
    strong: set[int] = field(default_factory=set)
    gap: int = 3


def status_word(diagnosis: Diagnosis) -> str:
    """`PROBLEM`, `HEALTHY` or `INCONCLUSIVE`."""
    return diagnosis.verdict.status.upper()


def verdict_sentence(diagnosis: Diagnosis) -> str:
    """The sentence for the ticket; an inconclusive one always names what is missing."""
    verdict = diagnosis.verdict
    sentence = fmt.clean(" ".join(verdict.summary.split()))
    absent = [m for m in verdict.missing if m not in sentence]
    if verdict.status == "inconclusive" and absent:
        sentence += f" (not recorded: {', '.join(map(fmt.clean, absent))})"
    if verdict.dimension and verdict.cause is None:
        pairs = ", ".join(f"{key} {value}" for key, value in verdict.dimension.items())
        if not all(value in sentence for value in verdict.dimension.values()):
            sentence += f" (slow requests differ most in: {fmt.clean(pairs)})"
    return sentence


def bound(diagnosis: Diagnosis) -> str | None:
    """Within what the healthy verdict holds; None for the other verdicts."""
    if diagnosis.verdict.status != "healthy":
        return None
    parts = [
        f"{o.metric} p{o.percentile:g} is {fmt.milliseconds(o.actual_ms)}, "
        f"within its objective of {fmt.milliseconds(o.limit_ms)}"
        for o in diagnosis.objectives
        if o.is_met and o.actual_ms is not None
    ]
    for metric in MAIN_METRICS:
        stat = diagnosis.latency.get(metric)
        if stat and stat.baseline and stat.p90 is not None and stat.baseline.p90 is not None:
            parts.append(
                f"{metric} p90 {fmt.milliseconds(stat.p90)} "
                f"against {fmt.milliseconds(stat.baseline.p90)} in the baseline"
            )
    if not parts:
        untold = (
            "an objective that something recorded tells" if diagnosis.objectives else "an objective"
        )
        return (
            f"judged against this workload's own cost only: without a baseline or {untold} "
            "(--slo) a fault that was there all along cannot be seen"
        )
    return "; ".join(parts)


def about_window(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Window, baseline, size and rates of what was looked at."""
    cover = diagnosis.coverage
    engines = ", ".join(map(fmt.clean, cover.engines[:4]))
    if len(cover.engines) > 4:
        engines += f" and {len(cover.engines) - 4} more"
    size = f"{fmt.plural(cover.requests, 'request')}, {fmt.plural(cover.steps, 'engine step')}"
    rows = [("window", fmt.interval(diagnosis.window, diagnosis.utc_offset))]
    if diagnosis.baseline is None:
        rows.append(("baseline", fmt.clean(diagnosis.baseline_origin or "none")))
    else:
        origin = f": {fmt.clean(diagnosis.baseline_origin)}" if diagnosis.baseline_origin else ""
        rows.append(("baseline", fmt.interval(diagnosis.baseline, diagnosis.utc_offset) + origin))
    rows.append(("traffic", f"{size}, engines {engines}" if engines else size))
    for label, names in (("rates", _RATES), ("lengths", _LENGTHS)):
        if text := _throughput(diagnosis, names):
            rows.append((label, text))
    return rows + objectives.rows(diagnosis)


def _throughput(diagnosis: Diagnosis, names: dict[str, str]) -> str:
    shown = []
    for field_name, name in names.items():
        value = getattr(diagnosis.throughput, field_name)
        was = getattr(diagnosis.throughput.baseline, field_name, None)
        if value is not None:
            old = f" (was {fmt.rounded(was)})" if was is not None else ""
            shown.append(f"{fmt.rounded(value)} {name}{old}")
    return ", ".join(shown)


def latency_rows(diagnosis: Diagnosis, *, every: bool) -> Rows:
    """TTFT, TPOT, ITL, E2E (with `every`, the phases too), each with its baseline below."""
    names: list[str] = [m for m in MAIN_METRICS if m in diagnosis.latency]
    if every:
        names += [m for m in diagnosis.latency if m not in MAIN_METRICS]
    rows = Rows("Latency", ["", "p50", "p90", "p99", "mean", "n", "p90 ratio"], [])
    has_baseline = False
    for name in names:
        stat = diagnosis.latency[name]
        ratio = fmt.factor(stat.p90, stat.baseline.p90) if stat.baseline else ""
        derived = " (derived)" if stat.origin == "derived" else ""
        rows.body.append([fmt.clean(name) + derived, *_stat(stat), ratio])
        if stat.baseline is not None and stat.baseline.n:
            has_baseline = True
            rows.faint.add(len(rows.body))
            rows.body.append(["  baseline", *_stat(stat.baseline), ""])
    if not has_baseline:
        rows.head.pop()
        for row in rows.body:
            row.pop()
    return rows


def _stat(stat: Stat) -> list[str]:
    return [*map(fmt.milliseconds, (stat.p50, stat.p90, stat.p99, stat.mean)), f"{stat.n:,}"]


def budget_rows(budget: Budget) -> Rows:
    """The budget table: lines that add up, against objective, baseline and alone cost."""
    metric = f"{budget.metric} {budget.percentile}"
    has_baseline = any(line.baseline_ms is not None for line in budget.lines)
    has_alone = any(line.alone_ms is not None for line in budget.lines)
    head = ["", "time", "share"]
    head += ["baseline"] if has_baseline else []
    head += ["alone"] if has_alone else []
    rows = Rows(f"Where {metric} goes", [*head, ""], [])

    def add(name: str, ms: float | None, share: str, others: tuple[str, str], mark: str) -> None:
        row = [name, fmt.milliseconds(ms), share]
        row += [others[0]] if has_baseline else []
        row += [others[1]] if has_alone else []
        rows.body.append([*row, mark])

    known = [line.ms for line in budget.lines if line.ms is not None]
    total = sum(known) if known else None
    over = OVER if budget.objective_ms is not None else ABOVE_ALONE
    for line in budget.lines:
        is_over = line.line == budget.over_line or line.is_over
        share = fmt.percent(line.ms / total) if line.ms is not None and total else ""
        detail = fmt.clean(line.detail) if line.detail else ""
        mark = "  ".join(filter(None, [over if is_over else "", detail]))
        if is_over:
            rows.marked.add(len(rows.body))
        others = (fmt.milliseconds(line.baseline_ms), fmt.milliseconds(line.alone_ms))
        add(_BUDGET_NAMES.get(line.line, fmt.clean(line.line)), line.ms, share, others, mark)
    sums = (
        _sum([(line.ms, line.baseline_ms) for line in budget.lines]),
        _sum([(line.ms, line.alone_ms) for line in budget.lines]),
    )
    rows.strong.add(len(rows.body))
    add("together", total, "", sums, "mean of the requests around it" if total else "")
    rows.strong.add(len(rows.body))
    add(metric, budget.actual_ms, "", ("", ""), "")
    if budget.objective_ms is not None:
        verdict = ""
        if budget.actual_ms is not None:
            excess = budget.actual_ms - budget.objective_ms
            word = "over" if excess > 0 else "to spare"
            verdict = f"{fmt.milliseconds(abs(excess))} {word}"
        add("objective", budget.objective_ms, "", ("", ""), verdict)
    return rows


def _sum(pairs: Sequence[tuple[float | None, float | None]]) -> str:
    """The sum of a column, marked as a lower bound where a line of the window has no partner."""
    known = [value for _, value in pairs if value is not None]
    if not known:
        return fmt.NOT_MEASURED
    is_partial = any(ms is not None and value is None for ms, value in pairs)
    return ("≥ " if is_partial else "") + fmt.milliseconds(sum(known))


def split_findings(
    findings: Sequence[Finding], limit: int | None = MAX_FINDINGS
) -> tuple[list[tuple[Finding, list[Finding]]], int]:
    """Causes with their consequences, in order, and how many causes were left out.

    A consequence whose cause is not among the findings stands for itself.
    """
    rules = {finding.rule for finding in findings}
    tops = [f for f in findings if f.consequence_of not in rules or f.consequence_of == f.rule]
    shown = tops if limit is None else tops[:limit]
    children = {
        id(top): [f for f in findings if f.consequence_of == top.rule and f is not top]
        for top in shown
    }
    first_of: dict[str, Finding] = {}
    for top in shown:
        first_of.setdefault(top.rule, top)
    return (
        [(top, children[id(top)] if first_of[top.rule] is top else []) for top in shown],
        len(tops) - len(shown),
    )


def title(finding: Finding) -> str:
    """The finding's title, or its rule's name."""
    return fmt.clean(finding.title or finding.rule)


def tag(finding: Finding) -> str:
    """The rule's name behind a title that does not say it."""
    return f"  [{fmt.clean(finding.rule)}]" if finding.title else ""


def sureness(finding: Finding) -> str:
    """How sure, how much of the excess, how many requests, where: one line."""
    parts = [f"{fmt.how_sure(finding.confidence)} ({finding.confidence:.2f})"]
    if finding.share is not None:
        parts.append(f"explains {fmt.percent(finding.share)} of the excess")
    elif finding.effect_ms is not None:
        parts.append(f"{fmt.milliseconds(finding.effect_ms)} in all")
    if finding.affected_requests:
        parts.append(f"{fmt.plural(finding.affected_requests, 'request')} affected")
    if finding.engines:
        more = f" and {len(finding.engines) - 3} more" if len(finding.engines) > 3 else ""
        parts.append("on " + ", ".join(map(fmt.clean, finding.engines[:3])) + more)
    return ", ".join(parts)


def evidence_rows(finding: Finding) -> list[list[str]]:
    """Name, value, baseline and ratio of each number."""
    rows = []
    for item in finding.evidence:
        was = "" if item.baseline is None else f"was {fmt.quantity(item.baseline, item.unit)}"
        ratio = fmt.factor(item.value, item.baseline)
        rows.append([fmt.clean(item.name), fmt.quantity(item.value, item.unit), was, ratio])
    return rows


def facts(finding: Finding, *, every: bool) -> str:
    """The finding's facts on one line."""
    shown = []
    for key, value in finding.facts.items():
        if value is None:
            continue
        shown.append(_pair(key, value))
    cut = shown if every else shown[:MAX_FACTS]
    return ", ".join(cut)


def _pair(key: str, value: Scalar) -> str:
    name, unit = key, "frac" if key.endswith("_share") else ""
    for suffix in ("ms", "ns", "frac"):
        if key.endswith(f"_{suffix}"):
            name, unit = key.removesuffix(f"_{suffix}"), suffix
    name = fmt.clean(name.removeprefix("n_").replace("_", " "))
    if unit and isinstance(value, int | float) and not isinstance(value, bool):
        return f"{name} {fmt.quantity(value, unit)}"
    return f"{name} {fmt.scalar(value)}"


def blame_lines(finding: Finding, *, every: bool) -> list[str]:
    """Who held up how many, for how long."""
    cut = finding.blame if every else finding.blame[:MAX_BLAME]
    lines = [
        f"{fmt.clean(item.culprit)} → {fmt.plural(item.victims, 'request')} held up, "
        f"{fmt.milliseconds(item.ms)} in all"
        for item in cut
    ]
    rest = finding.blame[len(cut) :]
    if rest:
        total = fmt.milliseconds(sum(item.ms for item in rest))
        lines.append(f"and {fmt.plural(len(rest), 'more culprit')}, {total} in all")
    return lines


def remedy_lines(remedy: Remedy) -> list[str]:
    """What to do, the engine's own setting, what it should bring, what it costs."""
    what = fmt.clean(remedy.do)
    if remedy.setting:
        engine = f"{fmt.clean(remedy.engine)}: " if remedy.engine else ""
        what += f": {engine}{fmt.clean(remedy.setting)}"
    lines = [what]
    if remedy.expected:
        pairs = [_pair(key, value) for key, value in remedy.expected.items()]
        lines.append(f"expected: {', '.join(pairs)}")
    if remedy.cost:
        lines.append(f"costs: {fmt.clean(remedy.cost)}")
    return lines


def ruled_out_lines(finding: Finding) -> list[str]:
    """The look-alikes, each with what refutes it."""
    return [f"{fmt.clean(r.rule)}: {fmt.clean(r.because)}" for r in finding.ruled_out]


def exemplar_lines(finding: Finding) -> list[str]:
    """Requests to look at."""
    lines = []
    for item in finding.exemplars:
        parts = [fmt.clean(item.request_id or "request")]
        parts += [f"trace {fmt.clean(item.trace_id)}"] if item.trace_id else []
        for name, ms in (("ttft", item.ttft_ms), ("e2e", item.e2e_ms), ("lost", item.effect_ms)):
            parts += [f"{name} {fmt.milliseconds(ms)}"] if ms is not None else []
        lines.append(", ".join(parts))
    return lines


HOW_TO_GET_STEPS = (
    "steps come from tokenlag-tracer beside the engine, or from its own records of iterations "
    "(docs/tracing.md, docs/producers.md); diagnose explain RULE says what is left without them"
)


def not_evaluated_lines(items: Sequence[NotEvaluated]) -> list[str]:
    """What could not be checked, grouped by what that would need; and how to get steps."""
    by_need: dict[str, list[str]] = {}
    for item in items:
        by_need.setdefault(fmt.clean(item.needs), []).append(fmt.clean(item.rule))
    lines = [f"needs {need}: {', '.join(rules)}" for need, rules in by_need.items()]
    if any(re.search(r"\bsteps\b", need) for need in by_need):
        lines.append(HOW_TO_GET_STEPS)
    return lines


def coverage_lines(diagnosis: Diagnosis) -> list[str]:
    """What the traces show, what they cannot, and what was odd about them."""
    cover = diagnosis.coverage
    lines = []
    if cover.sources:
        pairs = [f"{fmt.clean(name)} ({n:,})" for name, n in cover.sources.items()]
        lines.append(f"requests told by: {', '.join(pairs)}")
    if cover.sees:
        lines.append(f"sees: {', '.join(map(fmt.clean, cover.sees))}")
    if cover.blind:
        lines.append(f"blind to: {', '.join(map(fmt.clean, cover.blind))}")
    return lines + [fmt.clean(note) for note in cover.notes]


def model_lines(models: Sequence[StepModel], *, every: bool) -> list[str]:
    """How far the step model may be believed, engine by engine."""
    shown = models if every else models[:MAX_MODELS]
    lines = []
    for model in shown:
        engine = fmt.clean(model.engine)
        if model.error_decode_frac is None and model.error_mixed_frac is None:
            reason = fmt.clean(model.reason) if model.reason else "its error is not known"
            lines.append(f"{engine}: no step model: {reason}")
            continue
        mixed = (
            f"{fmt.percent(model.error_mixed_frac)} on {fmt.plural(model.n_mixed, 'mixed step')}"
            if model.error_mixed_frac is not None
            else f"not to be used on mixed steps ({model.n_mixed:,} seen)"
        )
        mixed += f" ({fmt.clean(model.reason)})" if model.reason else ""
        lines.append(
            f"{engine}: off by {fmt.percent(model.error_decode_frac)} on decode steps, {mixed}; "
            f"fitted on {fmt.plural(model.n_steps, 'step')}"
        )
        if every:
            lines.append(f"{engine}: {_coefficients(model)}")
    if len(shown) < len(models):
        lines.append(f"and {fmt.plural(len(models) - len(shown), 'more engine')} (-v)")
    return lines


def _coefficients(model: StepModel) -> str:
    terms = [
        ("a step", model.base_ms),
        ("+ for each sequence", model.per_sequence_ms),
        ("+ for each prefill token", model.per_prefill_token_ms),
        ("+ for each 1,000 context tokens", model.per_context_ktoken_ms),
    ]
    text = " ".join(f"{name} {fmt.milliseconds(ms)}" for name, ms in terms if ms is not None)
    knee = model.knee_tokens
    return text + (f", knee at {fmt.rounded(knee)} tokens" if knee is not None else "")
