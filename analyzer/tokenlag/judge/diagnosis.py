"""A diagnosis as data: what `--format json` prints and every renderer reads.

The fields are the trace contract's JSON output (schema `tokenlag.diagnosis/1`); within
version 1 keys are only ever added. Times are RFC 3339 strings, durations milliseconds,
shares 0 to 1. `None` is "not measured".
"""

from __future__ import annotations

from typing import Literal

import msgspec

from tokenlag.explain.comparison import Comparison
from tokenlag.read.stores.summary import Fleet

SCHEMA = "tokenlag.diagnosis/1"

Status = Literal["problem", "healthy", "inconclusive"]
Symptom = Literal["ttft", "itl", "e2e", "errors"]
Severity = Literal["problem", "note"]
Scalar = str | int | float | bool | None


class Interval(msgspec.Struct, frozen=True):
    """A half-open span of time."""

    start: str
    end: str


class Coverage(msgspec.Struct, frozen=True):
    """What the traces hold, and what they cannot show."""

    requests: int
    steps: int
    engines: list[str]
    sources: dict[str, int]
    sees: list[str]
    blind: list[str]
    notes: list[str]


class Verdict(msgspec.Struct, frozen=True):
    """One of the three honest endings."""

    status: Status
    symptom: Symptom | None
    cause: str | None
    missing: list[str]
    dimension: dict[str, str] | None
    summary: str


class Stat(msgspec.Struct, frozen=True):
    """A latency over the requests of a window, in milliseconds (`n` is a count)."""

    p50: float | None
    p90: float | None
    p99: float | None
    mean: float | None
    n: int
    max: float | None = None
    origin: str | None = None
    baseline: Stat | None = None


class Throughput(msgspec.Struct, frozen=True):
    """Rates of the window. Prompt and output tokens are never mixed."""

    prompt_tokens_per_s: float | None
    output_tokens_per_s: float | None
    per_stream_tokens_per_s: float | None
    input_tokens_p50: float | None
    output_tokens_p50: float | None
    requests_per_s: float | None = None
    baseline: Throughput | None = None


class NotEvaluated(msgspec.Struct, frozen=True):
    """A rule that could not look, and what it would have needed."""

    rule: str
    needs: str


class Evidence(msgspec.Struct, frozen=True):
    """One measured number behind a finding."""

    name: str
    value: float | None
    unit: str
    baseline: float | None = None


class Blame(msgspec.Struct, frozen=True):
    """Who held up how many for how long (ms summed over victims)."""

    culprit: str
    victims: int
    ms: float


class RuledOut(msgspec.Struct, frozen=True):
    """A look-alike, and the number that refutes it."""

    rule: str
    because: str


class Exemplar(msgspec.Struct, frozen=True):
    """A request to look at."""

    trace_id: str | None
    request_id: str | None
    ttft_ms: float | None = None
    e2e_ms: float | None = None
    effect_ms: float | None = None


class Remedy(msgspec.Struct, frozen=True):
    """What to do, with the engine's own flag, and what it costs."""

    do: str
    engine: str | None
    setting: str | None
    expected: dict[str, Scalar] | None = None
    cost: str | None = None


class Finding(msgspec.Struct, frozen=True):
    """A cause from the closed list, with what it explains and how sure that is."""

    rule: str
    severity: Severity
    symptom: Symptom | None
    confidence: float
    share: float | None
    affected_requests: int
    engines: list[str]
    window: Interval
    summary: str
    evidence: list[Evidence]
    facts: dict[str, Scalar]
    blame: list[Blame]
    ruled_out: list[RuledOut]
    exemplars: list[Exemplar]
    remedies: list[Remedy]
    effect_ms: float | None = None
    title: str | None = None
    means: str | None = None
    consequence_of: str | None = None


class BudgetLine(msgspec.Struct, frozen=True):
    """One line of the budget table: network + frontend + queue + prefill + n × ITL + delivery.

    `ms` is the line at the objective's percentile set of requests (the mean over the slow
    ones that the percentile names, so that lines add up to `total`).
    """

    line: str
    ms: float | None
    baseline_ms: float | None
    alone_ms: float | None
    is_over: bool
    detail: str | None = None


class Budget(msgspec.Struct, frozen=True):
    """The table people think in: each line against objective, baseline and alone cost."""

    metric: str
    objective_ms: float | None
    actual_ms: float | None
    percentile: str
    lines: list[BudgetLine]
    over_line: str | None


class StepModel(msgspec.Struct, frozen=True):
    """The fitted step model of one engine epoch, or why there is none."""

    engine: str
    n_steps: int
    n_mixed: int
    error_decode_frac: float | None
    error_mixed_frac: float | None
    base_ms: float | None
    per_sequence_ms: float | None
    per_prefill_token_ms: float | None
    per_context_ktoken_ms: float | None
    knee_tokens: float | None
    reason: str | None


class ObjectiveOutcome(msgspec.Struct, frozen=True):
    """A limit of `--slo` and what was measured; None where nothing was that could tell it."""

    metric: str
    percentile: float
    limit_ms: float
    actual_ms: float | None
    is_met: bool | None


class Goodput(msgspec.Struct, frozen=True):
    """Requests that met every limit of `--goodput`; what was given up or not measured missed.

    `share` and `requests_per_s` are None where no request tells one of the figures.
    """

    limits_ms: dict[str, float]
    share: float | None
    requests_per_s: float | None


class Group(msgspec.Struct, frozen=True):
    """One tenant, engine or shape, explained and judged by itself.

    `excess_ms`: its requests' time above the baseline, or without a rise above the alone cost,
    summed; of the verdict's symptom, or of E2E where it has none.
    """

    by: str
    value: str
    requests: int
    verdict: Verdict
    latency: dict[str, Stat]
    throughput: Throughput
    findings: list[Finding]
    excess_ms: float | None = None


class Diagnosis(msgspec.Struct, frozen=True):
    """Everything one run found out."""

    window: Interval
    baseline: Interval | None
    coverage: Coverage
    verdict: Verdict
    latency: dict[str, Stat]
    throughput: Throughput
    not_evaluated: list[NotEvaluated]
    findings: list[Finding]
    schema: str = SCHEMA
    budget: Budget | None = None
    checked: list[str] = []
    models: list[StepModel] = []
    baseline_origin: str | None = None
    utc_offset: str | None = None
    objectives: list[ObjectiveOutcome] = []
    goodput: Goodput | None = None
    groups: list[Group] = []
    comparison: Comparison | None = None
    fleet: Fleet | None = None


def to_json(diagnosis: Diagnosis) -> bytes:
    """The diagnosis as one indented JSON object, `schema` first."""
    fields = msgspec.to_builtins(diagnosis)
    if diagnosis.comparison is None:  # a key of `compare` alone
        del fields["comparison"]
    if diagnosis.fleet is None:  # a key of trace stores with many engines alone
        del fields["fleet"]
    ordered = {"schema": fields.pop("schema"), **fields}
    return msgspec.json.format(msgspec.json.encode(ordered), indent=2)
