"""Throw-away rule files and stores for the tests of the rulebook, the lint and the box."""

from __future__ import annotations

from pathlib import Path

import duckdb
from tokenlag.judge.rule import Rule
from tokenlag.judge.rulebook import Rulebook, parse_rule
from tokenlag.store.box import schema_scripts

GOOD_ID = "waits-pile-up"
GOOD_SQL = """
select r.request_id as subject, min(r.arrival_ns) as from_ns, max(r.end_ns) as to_ns,
       sum(r.e2e_ms) as effect_ms, count(*) as n_support,
       {'limit': 'slots', 'worst_ms': max(r.e2e_ms), 'suggested': 2 * count(*)} as facts
from requests r where r.e2e_ms >= $min_ms group by all
"""
GOOD = f"""
id = "{GOOD_ID}"
title = "Waits pile up"
kind = "problem"
symptom = ["ttft"]
needs = ["queue", ["steps", "preemptions"]]
steps = "helpful"
explains = ["slow-delivery"]
status = "stable"

[params]
min_ms = {{ value = 100, unit = "ms", range = [1, 1000], why = "less is noise" }}

[detect]
sql = '''{GOOD_SQL}'''

[[evidence]]
name = "mean time"
unit = "ms"
sql = "select avg(e2e_ms), 10.0 from requests where request_id = $subject"

[text]
summary = "{{n_support}} waited, the worst {{worst_ms:.1f}} ms ({{limit}})."
means = "They wait."
why = "There is no room."
wrong_when = "There is room."
without_steps = "The same, more roughly."
sources = ["docs/metrics.md"]

[[ruled_out]]
rule = "prefill-runs-slow"
sql = "select 'prefill is flat at ' || count(*) from requests where arrival_ns < $to_ns"

[[remedy]]
do = "Raise the slot cap"
when = {{ limit = "slots" }}
setting.vllm = "--max-num-seqs {{suggested}}"
setting.sglang = "--max-running-requests {{suggested}}"
cost = "more streams share a step"

[[case]]
fixture = "S01"
variant = "fault"
expect = "fires"

[[case]]
fixture = "S01"
variant = "control"
expect = "silent"
"""


def changed(old: str, new: str, text: str = GOOD) -> str:
    """`text` with `old`, which it must contain, replaced by `new`."""
    assert old in text
    return text.replace(old, new)


def with_sql(sql: str, rule_id: str = GOOD_ID) -> str:
    """The good rule's file with another detect query and id."""
    return changed(GOOD_SQL, sql, changed(GOOD_ID, rule_id))


def parsed(text: str, path: str | None = None, *, is_bundled: bool = False) -> Rule:
    """The rule of a file that parses."""
    rule, problems = parse_rule(text, path or f"rules/{GOOD_ID}.toml", is_bundled=is_bundled)
    assert not problems, [str(problem) for problem in problems]
    assert rule is not None
    return rule


def book(*texts: str, is_bundled: bool = False) -> Rulebook:
    """A rulebook of files that parse."""
    return Rulebook([parsed(text, is_bundled=is_bundled) for text in texts])


def make_store(folder: Path) -> Path:
    """A store's file with the empty tables and four requests, of which two are slow."""
    path = folder / "store.duckdb"
    with duckdb.connect(path) as connection:
        for script in schema_scripts():
            connection.execute(script)
        insert = (
            "insert into requests (request_key, dataset, request_id, dialects, arrival_ns, end_ns,"
            " e2e_ms, is_aborted, is_open, is_prefill_only, weight)"
            " values (?, 0, ?, 'contract', ?, ?, ?, false, false, false, 1)"
        )
        for key, (name, e2e_ms) in enumerate(
            {"a": 50.0, "b": 250.5, "c": 400.0, "d": 99.0}.items()
        ):
            connection.execute(insert, [key, name, key * 1000, key * 1000 + 500, e2e_ms])
    return path
