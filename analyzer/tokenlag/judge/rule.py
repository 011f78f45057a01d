"""A rule as typed, frozen objects: what one TOML file in `rules/` says.

`CAUSES`, `CAPABILITIES` and the column contract live here because the rulebook, the lint
and the runner must agree on them. Nothing here imports anything heavy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final, Literal, get_args

import msgspec

from tokenlag.errors import RuleError
from tokenlag.judge.diagnosis import Blame, Scalar, Severity, Symptom

Lifecycle = Literal["preview", "stable", "deprecated"]
Expectation = Literal["fires", "silent"]
StepsUse = Literal["required", "helpful", "not used"]
Number = int | float

SYMPTOMS: Final[tuple[str, ...]] = get_args(Symptom)
KINDS: Final[tuple[str, ...]] = get_args(Severity)

# The closed list. A bundled rule's id is one of these, for good; the order is the order of
# the index page and of equal candidates.
CAUSES: Final[dict[str, Severity]] = {
    "queueing-not-prefill": "problem",
    "long-prompt-stalled-streams": "problem",
    "short-behind-long-prompt": "problem",
    "kv-preemption-thrash": "problem",
    "prefix-reuse-lost": "problem",
    "prompts-grew": "problem",
    "outputs-grew": "problem",
    "context-grew": "problem",
    "decode-batch-grew": "problem",
    "steps-run-slow": "problem",
    "slow-replica": "problem",
    "host-starves-steps": "problem",
    "periodic-pauses": "problem",
    "cold-start": "problem",
    "graph-ceiling-crossed": "problem",
    "per-request-step-tax": "problem",
    "speculation-not-paying": "problem",
    "replica-hot-spot": "problem",
    "one-tenant-floods": "problem",
    "ghost-requests": "problem",
    "frontend-wait": "problem",
    "network-before-server": "problem",
    "slow-delivery": "problem",
    "grammar-wait": "problem",
    "pd-handoff-wait": "problem",
    "prefill-runs-slow": "problem",
    "measurement-artefact": "problem",
    "shape-exceeds-budget": "problem",
    "gateway-adds-wait": "problem",
    "prefill-at-compute-bound": "note",
    "decode-at-memory-bound": "note",
    "throughput-without-shape": "note",
    "trace-incomplete": "note",
}

# What a trace can hold, as `needs` may ask for it, and what each word means to a reader.
CAPABILITIES: Final[dict[str, str]] = {
    "queue": "time between arrival at the engine and the first schedule, per request",
    "queue_reasons": "why each request waited (to be scheduled, for a grammar, for KV), told by it",
    "prefill": "prompt processing time, per request",
    "decode": "time between first and last token, per request",
    "steps": "engine steps with what each of them computed",
    "step_model": "a step-time model that could be fitted to the steps",
    "preemptions": "preemptions, per request or per step",
    "cached_tokens": "prompt tokens that were served from the prefix cache, per request",
    "tenant": "a tenant label on requests",
    "network": "time between sender and server",
    "frontend": "time between receipt and the engine's queue",
    "client": "what the client itself measured",
    "finish_reasons": "how each request ended",
    "engines": "which engine served which request",
    "baseline": "an earlier or separate set of requests to compare with",
    "objective": "a latency objective given by the user",
    "sessions": "which requests belong to one conversation",
    "admit_bound": "what kept waiting requests from being scheduled, told by the engine",
    "kv": "how full the KV cache is, per step",
    "drafts": "drafted and accepted tokens of speculative decoding",
    "roles": "prefill and decode engines told apart",
    "gateway": "spans of a gateway or router in front of the server",
    "device": "figures of the accelerator: bandwidth, arithmetic, its time per step",
}

# Of these, what only engine steps tell: without their spans none of it is there.
OF_STEPS: Final = frozenset({"steps", "step_model", "admit_bound", "kv", "drafts"})

# Columns of the detect query: name → the family of types it must have.
CONTRACT_COLUMNS: Final[dict[str, str]] = {
    "subject": "text",
    "from_ns": "integer",
    "to_ns": "integer",
    "effect_ms": "number",
    "n_support": "integer",
    "facts": "facts",
}
OPTIONAL_COLUMNS: Final[dict[str, str]] = {
    "confidence": "number",
    "share": "number",
    "symptom": "text",
    "engines": "texts",
    "request_keys": "integers",
    "exemplar_keys": "integers",
    "blame": "blame",
    "follows_from": "texts",
}
# Columns that a text placeholder may name; the lists have no place in a sentence.
TEXT_COLUMNS: Final[tuple[str, ...]] = (
    "subject",
    "from_ns",
    "to_ns",
    "effect_ms",
    "n_support",
    "confidence",
    "share",
    "symptom",
)
# What an evidence or ruled-out query may bind besides the rule's own parameters.
ROW_PARAMS: Final[tuple[str, ...]] = ("subject", "from_ns", "to_ns")

# Engines in the order in which a page lists their settings, with other spellings of each.
ENGINES: Final[dict[str, tuple[str, ...]]] = {
    "vllm": (),
    "sglang": (),
    "tensorrt-llm": ("trtllm", "trt-llm", "tensorrtllm"),
    "tgi": ("text-generation-inference",),
    "transformers": ("hf",),
    "torch": ("torch-runner",),
}
# What traces may name as the engine though another one runs behind it.
AROUND_AN_ENGINE: Final[tuple[str, ...]] = ("dynamo",)


class Param(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A threshold: its value, unit, the range it may be set within, and why that value."""

    value: Number
    unit: str
    range: tuple[Number, Number]
    why: str


class EvidenceQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A query for one measured number and, as a second column, its baseline."""

    name: str
    unit: str
    sql: str


class RuleText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a person reads: the sentence for a hit, and the page."""

    summary: str
    means: str
    why: str
    wrong_when: str
    without_steps: str = ""
    sources: tuple[str, ...] = ()


class RuledOutQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A query whose one row says why a look-alike is not it; no row, no claim."""

    rule: str
    sql: str


class RemedyTemplate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to do about it, with each engine's own setting, or where it is done."""

    do: str
    cost: str = ""
    when: dict[str, Scalar | tuple[Scalar, ...]] = {}
    setting: dict[str, str] = {}
    where: str | None = None


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fixture on which the rule must fire, or must stay silent."""

    fixture: str
    expect: Expectation
    variant: str | None = None


class Rule(msgspec.Struct, frozen=True):
    """One rule file, parsed. `needs` holds alternatives: every group needs one member."""

    id: str
    title: str
    kind: Severity
    symptom: tuple[Symptom, ...]
    needs: tuple[tuple[str, ...], ...]
    explains: tuple[str, ...]
    status: Lifecycle
    params: dict[str, Param]
    detect_sql: str
    evidence: tuple[EvidenceQuery, ...]
    text: RuleText
    ruled_out: tuple[RuledOutQuery, ...]
    remedies: tuple[RemedyTemplate, ...]
    cases: tuple[Case, ...]
    path: str  # as given on the command line, or `rules/<file>` for bundled ones
    is_bundled: bool
    steps: StepsUse | None = None  # None: the file does not say
    lines: dict[str, int] = {}  # key path → line in the file

    def place(self, key: str) -> str:
        """Where `key` (a dotted path such as `evidence[0].sql`) stands in the file."""
        return place_of(self.path, key, self.lines)

    def error(self, key: str, message: str, *, hint: str | None = None) -> RuleError:
        """A `RuleError` that points at `key` of this file."""
        return RuleError(message, place=self.place(key), hint=hint)

    @property
    def file_stem(self) -> str:
        """The file's name without folder and `.toml`."""
        return self.path.replace("\\", "/").rsplit("/", 1)[-1].removesuffix(".toml")

    @property
    def needs_steps(self) -> bool:
        """Whether some need can be met by engine steps alone."""
        return any(OF_STEPS.issuperset(group) for group in self.needs)

    def param_values(self) -> dict[str, Number]:
        """The parameters' values by name, as the file sets them."""
        return {name: param.value for name, param in self.params.items()}


def place_of(path: str, key: str, lines: dict[str, int]) -> str:
    """`file:line: key`, with the line of the nearest enclosing key that has one."""
    probe = key
    while probe:
        if probe in lines:
            return f"{path}:{lines[probe]}: {key}"
        cut = max(probe.rfind("."), probe.rfind("["))
        probe = probe[:cut] if cut > 0 else ""
    return f"{path}: {key}" if key else path


def canonical_engine(name: str | None) -> str | None:
    """The key in `ENGINES` for an engine's name however spelt; the name itself if unknown.

    None where nothing says which engine it is: no name, or that of what runs one.
    """
    if name is None or not name.strip():
        return None
    plain = name.strip().lower().replace("_", "-").replace(" ", "-")
    if plain in AROUND_AN_ENGINE:
        return None
    for engine, aliases in ENGINES.items():
        if plain == engine or plain in aliases:
            return engine
    return plain


class RuleRow(msgspec.Struct, frozen=True):
    """One row of a detect query, checked and typed."""

    subject: str
    from_ns: int
    to_ns: int
    effect_ms: float | None
    n_support: int
    facts: dict[str, Scalar]
    confidence: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    share: float | None = None
    symptom: Symptom | None = None
    engines: tuple[str, ...] = ()
    request_keys: tuple[int, ...] = ()
    exemplar_keys: tuple[int, ...] = ()
    blame: tuple[Blame, ...] = ()
    follows_from: tuple[str, ...] = ()

    def scalars(self) -> dict[str, Scalar]:
        """What a text placeholder can name: the facts, and the columns that are scalars."""
        columns: dict[str, Scalar] = {name: getattr(self, name) for name in TEXT_COLUMNS}
        return {**self.facts, **columns}


def templates(rule: Rule) -> Iterator[tuple[str, str]]:
    """(key, text) of everything in a rule that may hold placeholders."""
    yield "text.summary", rule.text.summary
    for number, remedy in enumerate(rule.remedies):
        yield f"remedy[{number}].do", remedy.do
        yield f"remedy[{number}].cost", remedy.cost
        if remedy.where:
            yield f"remedy[{number}].where", remedy.where
        for engine, setting in remedy.setting.items():
            yield f"remedy[{number}].setting.{engine}", setting
