"""The diagnosis as JSON, key by key, as the trace contract states it (tokenlag.diagnosis/1).

Within version 1 keys are only ever added: those of the contract must be there, others may.
"""

from __future__ import annotations

from typing import Any

NUMBER, TEXT, COUNT = (float, int), (str,), (int,)
NONE = (type(None),)


class Maybe:
    """A value or null."""

    def __init__(self, of: Any) -> None:
        self.of = of


class Each:
    """A list of such values, or an object with such values under any key."""

    def __init__(self, of: Any, keys: set[str] | None = None) -> None:
        self.of, self.keys = of, keys


class OneOf:
    """One of these."""

    def __init__(self, *values: Any) -> None:
        self.values = values


INTERVAL = {"start": TEXT, "end": TEXT}
FIGURES = {"p50": Maybe(NUMBER), "p90": Maybe(NUMBER), "p99": Maybe(NUMBER), "mean": Maybe(NUMBER)}
STAT = FIGURES | {"n": COUNT, "baseline": Maybe(FIGURES | {"n": COUNT})}
LATENCIES = {
    "ttft", "tpot", "itl", "e2e", "queue", "prefill", "decode", "network", "frontend", "delivery",
}  # fmt: skip
SCALAR = (str, int, float, bool, type(None))

FINDING = {
    "rule": TEXT,
    "severity": OneOf("problem", "note"),
    "symptom": Maybe(OneOf("ttft", "itl", "e2e", "errors")),
    "confidence": NUMBER,
    "share": Maybe(NUMBER),
    "affected_requests": COUNT,
    "engines": Each(TEXT),
    "window": INTERVAL,
    "summary": TEXT,
    "evidence": Each(
        {"name": TEXT, "value": Maybe(NUMBER), "baseline": Maybe(NUMBER), "unit": TEXT}
    ),
    "facts": Each(SCALAR, set()),
    "blame": Each({"culprit": TEXT, "victims": COUNT, "ms": NUMBER}),
    "ruled_out": Each({"rule": TEXT, "because": TEXT}),
    "exemplars": Each(
        {"trace_id": Maybe(TEXT), "request_id": Maybe(TEXT), "ttft_ms": Maybe(NUMBER)}
    ),
    "remedies": Each(
        {"do": TEXT, "engine": Maybe(TEXT), "setting": Maybe(TEXT),
         "expected": Maybe(Each(SCALAR, set()))}
    ),
}  # fmt: skip

DIAGNOSIS = {
    "schema": OneOf("tokenlag.diagnosis/1"),
    "window": INTERVAL,
    "baseline": Maybe(INTERVAL),
    "coverage": {
        "requests": COUNT, "steps": COUNT, "engines": Each(TEXT), "sources": Each(COUNT, set()),
        "sees": Each(TEXT), "blind": Each(TEXT), "notes": Each(TEXT),
    },
    "verdict": {
        "status": OneOf("problem", "healthy", "inconclusive"),
        "symptom": Maybe(OneOf("ttft", "itl", "e2e", "errors")),
        "cause": Maybe(TEXT),
        "missing": Each(TEXT),
        "dimension": Maybe(Each(TEXT, set())),
        "summary": TEXT,
    },
    "latency": Each(STAT, LATENCIES),
    "throughput": {
        "prompt_tokens_per_s": Maybe(NUMBER), "output_tokens_per_s": Maybe(NUMBER),
        "per_stream_tokens_per_s": Maybe(NUMBER), "input_tokens_p50": Maybe(NUMBER),
        "output_tokens_p50": Maybe(NUMBER),
    },
    "not_evaluated": Each({"rule": TEXT, "needs": TEXT}),
    "findings": Each(FINDING),
}  # fmt: skip


def faults(value: Any, shape: Any, at: str = "$") -> list[str]:
    """What of a value is not as the shape says; empty if all is."""
    if isinstance(shape, Maybe):
        return [] if value is None else faults(value, shape.of, at)
    if isinstance(shape, OneOf):
        return [] if value in shape.values else [f"{at}: {value!r}"]
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return [f"{at}: no object"]
        out = [f"{at}.{key}: missing" for key in shape if key not in value]
        return out + [
            f
            for key in shape
            if key in value
            for f in faults(value[key], shape[key], f"{at}.{key}")
        ]
    if isinstance(shape, Each):
        if shape.keys is None:
            items = list(enumerate(value)) if isinstance(value, list) else None
        else:
            items = list(value.items()) if isinstance(value, dict) else None
        if items is None:
            return [f"{at}: {type(value).__name__}"]
        lacking = sorted((shape.keys or set()) - {str(key) for key, _ in items})
        return [f"{at}.{key}: missing" for key in lacking] + [
            f for key, item in items for f in faults(item, shape.of, f"{at}.{key}")
        ]
    is_wrong_bool = isinstance(value, bool) and bool not in shape
    return [] if isinstance(value, shape) and not is_wrong_bool else [f"{at}: {value!r}"]
