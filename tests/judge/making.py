"""Requests, hits and findings by hand, for the tests of the judging."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from tokenlag.explain.arrays import Columns
from tokenlag.explain.run import prepare
from tokenlag.judge.diagnosis import Blame, Finding, Interval
from tokenlag.judge.figures import Requests, requests_of
from tokenlag.judge.rule import RuleRow
from tokenlag.judge.run import RuleHit
from tokenlag.judge.sql import query
from tokenlag.store.connection import Store

from tests.explain.tables import add
from tests.judge.rules import GOOD, parsed


@contextmanager
def a_store() -> Iterator[Store]:
    with Store() as store:
        prepare(store)
        yield store


def requests(store: Store, rows: Sequence[Mapping[str, Any]], window: str = "current") -> Requests:
    """Rows of `request_facts`; keys are given in order."""
    ((first,),) = store.fetchall("select count(*) from request_facts")
    full = [
        {"request_key": first + i, "arrival_ns": i, "window_name": window, **row}
        for i, row in enumerate(rows)
    ]
    add(store, "request_facts", *full)
    return all_of(store, window)


def all_of(store: Store, window: str = "current") -> Requests:
    return requests_of(Columns(store, query("request_columns")), window)


def hit(
    rule: str,
    effect_ms: float | None,
    confidence: float | None = 0.9,
    explains: list[str] | None = None,
    kind: str = "problem",
    symptom: str = "ttft",
    share: float | None = None,
    culprits: tuple[str, ...] = (),
    follows_from: tuple[str, ...] = (),
) -> RuleHit:
    template = parsed(GOOD)
    of = msgspec.structs.replace(
        template, id=rule, kind=kind, explains=tuple(explains or ()), symptom=(symptom,)
    )
    row = RuleRow(
        subject="x", from_ns=0, to_ns=10, effect_ms=effect_ms, n_support=3, facts={},
        confidence=confidence, share=share,
        blame=tuple(Blame(c, 2, 10.0) for c in culprits), follows_from=follows_from,
    )  # fmt: skip
    return RuleHit(of, row, f"{rule} happened", [], [], [])


def finding(rule: str, confidence: float = 0.9, **more: Any) -> Finding:
    told: dict[str, Any] = {
        "rule": rule, "severity": "problem", "symptom": "ttft", "confidence": confidence,
        "share": 0.8, "affected_requests": 10, "engines": [], "window": Interval("a", "b"),
        "summary": f"{rule} happened", "evidence": [], "facts": {}, "blame": [], "ruled_out": [],
        "exemplars": [], "remedies": [],
    }  # fmt: skip
    return Finding(**told | more)
