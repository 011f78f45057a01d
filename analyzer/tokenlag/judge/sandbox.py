"""Runs a rule's SQL: bundled rules in the box in this process, others in a process of their own.

The outcome is raw columns and rows; `run.py` checks and words them. A rule that breaks,
hangs or eats memory becomes one RuleError and nothing more.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tokenlag.errors import RuleError
from tokenlag.judge.rule import Number, Rule

if TYPE_CHECKING:
    from tokenlag.store.box import Box, BoxLimits

# Importing DuckDB takes this much address space before any query (0.8 GB measured on Linux).
BASE_ADDRESS_SPACE_MB = 1024
# What the worker gets beyond the rule's own time: start, import, opening the file.
GRACE_S = 10.0
MAX_ANSWER_BYTES = 32 << 20


class Job(msgspec.Struct, frozen=True):
    """What the worker is asked: run a rule on a store's file, or bind queries on empty tables."""

    limits: dict[str, Number]
    db_path: str | None = None
    queries: Queries | None = None
    bind: list[BindQuery] = []


class Queries(msgspec.Struct, frozen=True):
    """A rule's SQL, with the values of its parameters."""

    detect: str
    evidence: list[str]
    ruled_out: list[str]
    params: dict[str, Number]


class BindQuery(msgspec.Struct, frozen=True):
    """One SELECT to bind on the empty tables."""

    sql: str
    params: dict[str, str | int | float]


class Table(msgspec.Struct, frozen=True):
    """What a query returned, as plain values."""

    columns: list[tuple[str, str]]
    rows: list[list[Any]]
    is_cut: bool = False


class Bound(msgspec.Struct, frozen=True):
    """What binding a query told: its columns, the `$names` it uses, the functions it calls."""

    columns: list[tuple[str, str]]
    parameters: list[str]
    functions: list[str]


class Fault(msgspec.Struct, frozen=True):
    """What is wrong with the query under `key`."""

    key: str
    message: str
    hint: str | None = None


class Outcome(msgspec.Struct, frozen=True):
    """What a rule's SQL gave. `evidence[r][q]` is query `q` for row `r` of `detect`."""

    detect: Table | None = None
    evidence: list[list[Table | None]] = []
    ruled_out: list[list[Table | None]] = []
    bound: list[Bound | None] = []
    faults: list[Fault] = []


def queries_of(rule: Rule, params: dict[str, Number]) -> Queries:
    """The SQL of `rule` with `params` in force."""
    return Queries(
        detect=rule.detect_sql,
        evidence=[query.sql for query in rule.evidence],
        ruled_out=[query.sql for query in rule.ruled_out],
        params=params,
    )


def evaluate(box: Box, queries: Queries, time_s: float) -> Outcome:
    """Run a rule's SQL in an open box; `time_s` is for all of its queries together."""
    deadline_s = time.monotonic() + time_s
    faults: list[Fault] = []

    def ask(key: str, sql: str, values: dict[str, Any]) -> Table | None:
        try:
            result = box.query(sql, values, deadline_s=deadline_s)
        except RuleError as error:
            faults.append(Fault(key, error.message, error.hint))
            return None
        rows = [[plain(value) for value in row] for row in result.rows]
        return Table(result.columns, rows, result.is_cut)

    detect = ask("detect.sql", queries.detect, dict(queries.params))
    evidence: list[list[Table | None]] = []
    ruled_out: list[list[Table | None]] = []
    names = [name.lower() for name, _ in detect.columns] if detect else []
    for row in detect.rows if detect else []:
        values = dict(queries.params) | {
            name: row[names.index(name)]
            for name in ("subject", "from_ns", "to_ns")
            if name in names
        }
        evidence.append(
            [ask(f"evidence[{n}].sql", q, values) for n, q in enumerate(queries.evidence)]
        )
        ruled_out.append(
            [ask(f"ruled_out[{n}].sql", q, values) for n, q in enumerate(queries.ruled_out)]
        )
    return Outcome(detect, evidence, ruled_out, faults=_once(faults))


def bind(box: Box, queries: list[BindQuery]) -> Outcome:
    """Bind each query on the box's tables; None and a fault keyed by its number where it fails."""
    bound: list[Bound | None] = []
    faults: list[Fault] = []
    for number, query in enumerate(queries):
        try:
            columns = box.describe(query.sql, query.params)
            names = sorted(box.parameters(query.sql))
            functions = sorted(box.references(query.sql).functions)
            bound.append(Bound(columns, names, functions))
        except RuleError as error:
            bound.append(None)
            faults.append(Fault(str(number), error.message, error.hint))
    return Outcome(bound=bound, faults=faults)


def run_in_child(job: Job, limits: BoxLimits) -> Outcome:
    """Do `job` in a process with an address-space and CPU limit; kill it when it hangs.

    Raises:
        RuleError: without a place, when the process died or had to be killed.
    """
    command = [sys.executable, "-P", "-m", "tokenlag.judge.sandbox_worker"]
    environment = dict(os.environ)
    paths = [str(Path(entry).resolve()) for entry in sys.path if entry]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    with tempfile.TemporaryDirectory(prefix="tokenlag-rule-") as folder:
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env=environment,
        )
        try:
            answer, noise = child.communicate(
                msgspec.json.encode(job), timeout=limits.time_s + GRACE_S
            )
        except subprocess.TimeoutExpired:
            raise RuleError(f"took longer than {limits.time_s:g} s and was stopped") from None
        finally:
            if child.poll() is None:
                child.kill()
                child.communicate()
    if child.returncode != 0:
        raise RuleError(_last_words(child.returncode, noise, limits))
    return msgspec.json.decode(answer, type=Outcome)


def plain(value: Any) -> Any:
    """A DuckDB value as JSON can carry it; NaN and infinity are "not measured"."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return value if abs(value) < 1 << 63 else float(value)  # a HUGEINT beyond 64 bits
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "as_tuple"):  # Decimal
        return plain(float(value))
    if hasattr(value, "tolist"):  # what DuckDB hands over as numpy
        return plain(value.tolist())
    return str(value)


def _once(faults: list[Fault]) -> list[Fault]:
    """A query that fails on every row is one fault."""
    return list({(fault.key, fault.message): fault for fault in faults}.values())


def _last_words(returncode: int, noise: bytes, limits: BoxLimits) -> str:
    lines = noise.decode(errors="replace").strip().splitlines()
    last = lines[-1][:200] if lines else ""
    if "MemoryError" in last or "bad_alloc" in last:
        return "needs more memory than a rule may use"
    if returncode < 0:
        return (
            f"its process was ended by signal {-returncode}"
            f" (limits: {limits.memory_mb} MB, {limits.time_s:g} s)"
        )
    return f"its process failed: {last or f'status {returncode}'}"
