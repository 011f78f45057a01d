"""From paths to a diagnosis, in one readable function."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tokenlag.errors import TokenlagError, UsageError
from tokenlag.judge.diagnosis import Diagnosis, Group
from tokenlag.window import (
    Objective,
    Window,
    format_offset,
    format_time,
    needed_time,
    no_data,
    parse_goodput,
    parse_slo,
    resolve_baseline,
    resolve_window,
)

if TYPE_CHECKING:
    from tokenlag.explain.comparison import Comparison
    from tokenlag.explain.run import WindowRow
    from tokenlag.judge.judging import Brief
    from tokenlag.read.reading import ReadResult
    from tokenlag.store.connection import Store

Progress = Callable[[str, float], None]

MIN_BASELINE_REQUESTS = 20
DEFAULT_MEMORY = "1GB"


@dataclass(frozen=True)
class Request:
    """What the command line asks for; options as they were written."""

    paths: list[str]
    since: str | None = None
    until: str | None = None
    since_end: str | None = None
    baseline: str | None = None
    baseline_traces: list[str] = field(default_factory=list)
    slo: str | None = None
    goodput: list[str] = field(default_factory=list)
    by: str | None = None
    rules_dirs: list[Path] = field(default_factory=list)
    n_workers: int | None = None
    memory_limit: str | None = None
    cache_folder: Path | None = None
    is_comparison: bool = False


@dataclass(frozen=True)
class Outcome:
    """A diagnosis, and what could not be used on the way to it."""

    diagnosis: Diagnosis
    problems: list[TokenlagError]


@dataclass(frozen=True)
class Choice:
    """The windows that are compared, and how the baseline was found."""

    current: Window
    rows: list[WindowRow]
    baseline_origin: str | None


def diagnose(
    request: Request, *, now_ns: int, tz: tzinfo, progress: Progress | None = None
) -> Outcome:
    """Reads the traces, explains the window and judges it.

    Args:
        request: paths and options.
        now_ns: the present, unix nanoseconds, for `--since`.
        tz: the zone of dates in options and of times in the report.
        progress: called with a stage and the share of it that is done.

    Raises:
        InputError: no path could be read as traces.
        UsageError: an option cannot be carried out, or the window holds no request.
    """
    # Imported here: `diagnose --help` must not load a database.
    from tokenlag.explain.run import explain, group_values, prepare
    from tokenlag.judge.judging import Brief, judge_store
    from tokenlag.judge.rulebook import load_rules
    from tokenlag.store.connection import Store

    tell = progress or (lambda _stage, _share: None)
    objectives = _objectives(request)
    rulebook = load_rules(request.rules_dirs)
    with (
        tempfile.TemporaryDirectory(prefix="tokenlag-") as work,
        Store(memory_limit=request.memory_limit or DEFAULT_MEMORY) as store,
    ):
        read = read_traces(store, request, Path(work), tell, now_ns=now_ns, tz=tz)
        tell("explain", 0.0)
        prepare(store)
        choice = choose_windows(store, request, now_ns=now_ns, tz=tz)
        explain(store, choice.rows, objectives)
        comparison = _compared(store, request)
        groups = group_values(store, request.by) if request.by else []
        tell("judge", 0.0)
        brief = Brief(
            rows=choice.rows,
            objectives=objectives,
            limits=parse_goodput(request.goodput),
            rulebook=rulebook,
            notes=[note.text for result in read for note in result.notes],
            baseline_origin=choice.baseline_origin,
            utc_offset=_utc_offset(choice.current.start_ns, tz),
            rfc3339=lambda ns: format_time(ns, tz),
        )
        judged = judge_store(store, brief)
        parts = _judge_groups(store, request, brief, groups, tell)
        store.discard()
    problems: list[TokenlagError] = [p for r in read for p in r.problems]
    diagnosis = msgspec.structs.replace(
        judged.diagnosis, groups=parts, comparison=comparison, fleet=read[0].fleet
    )
    return Outcome(diagnosis, problems + judged.problems)


def _compared(store: Store, request: Request) -> Comparison | None:
    """The two windows as two loads, for `compare`."""
    if not request.is_comparison:
        return None
    from tokenlag.explain.twoloads import compare
    from tokenlag.explain.windowrun import run_of_window

    a = run_of_window(store, "baseline", ", ".join(request.baseline_traces))
    return compare(a, run_of_window(store, "current", ", ".join(request.paths)))


def _utc_offset(ns: int, tz: tzinfo) -> str:
    return format_offset(datetime.fromtimestamp(ns // 1_000_000_000, tz))


def _judge_groups(
    store: Store, request: Request, brief: Brief, groups: Sequence[str], tell: Progress
) -> list[Group]:
    """Each group of `--by` explained and judged by itself, on the same tables."""
    from tokenlag.explain.run import explain, reset
    from tokenlag.judge.judging import judge_store
    from tokenlag.store.connection import Store as Reopened

    parts = []
    for number, value in enumerate(groups):
        tell("groups", number / len(groups))
        again = Reopened(store.path, memory_limit=request.memory_limit or DEFAULT_MEMORY)
        reset(again)
        explain(again, brief.rows, brief.objectives, only=(request.by or "", value))
        judged = judge_store(again, brief)
        part = judged.diagnosis
        excess_ms = judged.excess_ms.get(part.verdict.symptom or "e2e", math.nan)
        parts.append(
            Group(
                by=request.by or "",
                value=value,
                requests=part.coverage.requests,
                verdict=part.verdict,
                latency=part.latency,
                throughput=part.throughput,
                findings=part.findings,
                excess_ms=excess_ms if math.isfinite(excess_ms) else None,
            )
        )
    return parts


def _objectives(request: Request) -> list[Objective]:
    """Those of `--slo`; a limit of `--goodput` is one that nine requests in ten must meet."""
    objectives = parse_slo(request.slo) if request.slo else []
    limits = parse_goodput(request.goodput)
    known = {o.metric for o in objectives}
    return objectives + [
        Objective(metric, 90.0, limit) for metric, limit in limits.items() if metric not in known
    ]


def read_traces(
    store: Store, request: Request, work: Path, tell: Progress, *, now_ns: int, tz: tzinfo
) -> list[ReadResult]:
    """Loads the traces and those of `--baseline-traces` into the store."""
    from tokenlag.read.kept import rows_schema
    from tokenlag.read.load import load_traces, vocabulary
    from tokenlag.read.stores import any_store
    from tokenlag.read.stores.asked import Asked
    from tokenlag.store.cache import Cache
    from tokenlag.store.cachefolder import max_bytes

    def share(done: int, total: int) -> None:
        tell("read", done / total if total else 0.0)

    needed_ns = None
    if request.since_end is None:
        needed_ns = needed_time(
            request.since, request.until, request.baseline,
            has_baseline_traces=bool(request.baseline_traces), now_ns=now_ns, tz=tz,
        )  # fmt: skip
    if any_store(request.baseline_traces):
        raise UsageError(
            "a trace store cannot be a baseline of its own, or be compared",
            hint="name two times of one store: --since 1h --baseline 1h",
        )
    asked = Asked(
        request.since, request.until, request.since_end, request.baseline,
        now_ns=now_ns, tz=tz, by_engine=request.by == "engine",
    )  # fmt: skip
    with ExitStack() as stack:
        cache = None
        if request.cache_folder is not None:
            schema = rows_schema(vocabulary())
            cache = stack.enter_context(Cache(request.cache_folder, schema, max_bytes()))

        def load(paths: list[str], dataset: int, needed: tuple[int, int] | None) -> ReadResult:
            return load_traces(
                store, paths, dataset=dataset, work_dir=work,
                n_workers=request.n_workers, progress=share, cache=cache, needed_ns=needed,
                asked=asked if dataset == 0 else None,
            )  # fmt: skip

        results = [load(request.paths, 0, needed_ns)]
        if request.baseline_traces:
            results.append(load(request.baseline_traces, 1, None))
    return results


def choose_windows(store: Store, request: Request, *, now_ns: int, tz: tzinfo) -> Choice:
    """The window, and what it is compared with.

    In this order: `--baseline-traces`, `--baseline`, the traces before the window if there
    are enough requests in them, the part of the window before its make-up changed.

    Raises:
        UsageError: the window (or the baseline that was asked for) holds no request.
    """
    from tokenlag.explain.run import WindowRow, find_change
    from tokenlag.read.stores import any_store

    span = _span(store, 0)
    if span is None:
        raise _no_request(store, 0, request.paths)
    start_ns, end_ns = span
    if request.baseline and request.baseline_traces:
        raise UsageError("--baseline and --baseline-traces exclude each other")
    window = resolve_window(
        request.since, request.until, request.since_end,
        now_ns=now_ns, tz=tz, data_start_ns=start_ns, data_end_ns=end_ns,
    )  # fmt: skip
    if _count(store, 0, window.start_ns, window.end_ns) == 0:
        raise no_data("window", request.since, start_ns, end_ns, tz)
    current = WindowRow("current", 0, window.start_ns, window.end_ns, window.origin)
    if request.baseline_traces:
        other = _span(store, 1)
        if other is None:
            raise _no_request(store, 1, request.baseline_traces)
        row = WindowRow("baseline", 1, other[0], other[1] + 1, "traces")
        return Choice(window, [current, row], "--baseline-traces")
    earlier = None
    if request.baseline or not any_store(request.paths):
        # What came from a store from before the window is only what was still under way in it.
        earlier = resolve_baseline(
            request.baseline, window,
            now_ns=now_ns, tz=tz, data_start_ns=start_ns, data_end_ns=end_ns,
        )  # fmt: skip
    if earlier is not None:
        n = _count(store, 0, earlier.start_ns, earlier.end_ns)
        if request.baseline and n == 0:
            raise no_data("baseline", None, start_ns, end_ns, tz)
        if request.baseline or n >= MIN_BASELINE_REQUESTS:
            origin = "given" if request.baseline else "earlier"
            row = WindowRow("baseline", 0, earlier.start_ns, earlier.end_ns, origin)
            return Choice(window, [current, row], earlier.origin)
    change_ns = find_change(store, current)
    if change_ns is not None:
        before = WindowRow("baseline", 0, window.start_ns, change_ns, "change")
        after = WindowRow("current", 0, change_ns, window.end_ns, window.origin)
        narrowed = Window(
            change_ns, window.end_ns, window.origin, window.asked_start_ns, window.asked_end_ns
        )
        return Choice(
            narrowed,
            [after, before],
            f"the window before {format_time(change_ns, tz)}, when the requests' make-up changed",
        )
    return Choice(window, [current], None)


def _no_request(store: Store, dataset: int, paths: Sequence[str]) -> UsageError:
    """That these paths hold no request, and what they hold instead."""
    ((n_steps, engines),) = store.fetchall(
        "select count(*), string_agg(distinct e.engine_id, ', ' order by e.engine_id) "
        "from steps s join epochs e using (epoch_key) where e.dataset = ?",
        [dataset],
    )
    hint = "the spans are none that a dialect knows; see `diagnose schema`"
    if n_steps:
        hint = (
            f"there are {n_steps} engine steps of {engines}, and nothing that says what a request "
            "saw: name the file or folder of the request spans too, if they went elsewhere"
        )
    return UsageError(f"no request in {', '.join(paths)}", hint=hint)


def _span(store: Store, dataset: int) -> tuple[int, int] | None:
    """First arrival and latest time of a dataset's requests and steps."""
    row = store.fetchone(
        "select min(arrival_ns), max(greatest(arrival_ns, coalesce(end_ns, arrival_ns))) "
        "from requests where dataset = ?",
        [dataset],
    )
    if row is None or row[0] is None:
        return None
    last = store.scalar(
        "select max(end_ns) from epochs where dataset = ? and end_ns is not null", [dataset]
    )
    return int(row[0]), max(int(row[1]), int(last or 0))


def _count(store: Store, dataset: int, from_ns: int, to_ns: int) -> int:
    return int(
        store.scalar(
            "select count(*) from requests "
            "where dataset = ? and arrival_ns >= ? and arrival_ns < ?",
            [dataset, from_ns, to_ns],
        )
        or 0
    )
