"""Trace files → canonical tables: sources, then dialects, then the join."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import numpy as np

from tokenlag.errors import InputError
from tokenlag.read.dialects import (
    DIALECTS,
    PACKAGE,
    event_columns,
    event_names,
    link_names,
    resource_columns,
    script_names,
    span_columns,
)
from tokenlag.read.loadtest.stage import join_load_tests
from tokenlag.read.memberships import Memberships, decode_memberships
from tokenlag.read.reading import ReadResult, read_spans
from tokenlag.read.spans import CORE_SCHEMA, RowFiles, span_schema
from tokenlag.read.stores import is_store
from tokenlag.read.stores.asked import Asked
from tokenlag.read.vocabulary import LINK_SPAN_ID, LINK_TRACE_ID, RESOURCE_PREFIX, Vocabulary
from tokenlag.store.cache import Cache
from tokenlag.store.connection import Store, sql_identifier, sql_literal, sql_string_list

Progress = Callable[[int, int], None]  # bytes done, bytes in all; as read_spans calls it
MAX_NAMES: Final = 3
MAX_NAME_LENGTH: Final = 60

_SIGNED = frozenset({"client_intended_ns", "priority"})
_HANDLES = frozenset({"step_prefill_requests", "step_preempted"})


def vocabulary() -> Vocabulary:
    """Every attribute, resource key and event that some dialect reads."""
    return Vocabulary(
        span=dict(span_columns().values()),
        resource=dict(resource_columns().values()),
        event_names=event_names(),
        event=event_columns(),
        link_names=link_names(),
    )


def load_traces(
    store: Store,
    paths: Sequence[str | Path],
    *,
    dataset: int = 0,
    work_dir: Path,
    n_workers: int | None = None,
    progress: Progress | None = None,
    cache: Cache | None = None,
    needed_ns: tuple[int, int] | None = None,
    asked: Asked | None = None,
) -> ReadResult:
    """Read trace files, and spans out of trace stores, into the store's canonical tables.

    May be called once for each dataset; rows of different datasets are never joined.

    Args:
        store: where the rows go.
        paths: files, folders or globs, as `read_spans` takes them, and addresses of stores.
        dataset: 0 for the traces under diagnosis, 1 for the baseline's.
        work_dir: an existing folder for Parquet files; they stay until the caller removes it.
        n_workers: processes that parse; by the machine if None.
        progress: called with the bytes read and the bytes in all.
        cache: what earlier runs read, and where this one's is kept; open as long as the store.
        needed_ns: the time of interest; what is known to lie outside need not be loaded.
        asked: the times that are wanted of trace stores.

    Returns:
        What was read: files, counts, notes, problems.

    Raises:
        InputError: a path cannot be read as traces, or nothing in it is a request or a step.
    """
    out_dir = work_dir / f"spans-{dataset}"
    out_dir.mkdir(parents=True, exist_ok=True)
    urls = [str(path) for path in paths if is_store(path)]
    result = ReadResult()
    if len(urls) < len(paths) or not urls:
        files = [path for path in paths if not is_store(path)]
        result = read_spans(
            files, out_dir, vocabulary(), n_workers=n_workers, progress=progress,
            cache=cache, needed_ns=needed_ns,
        )  # fmt: skip
    if urls:
        from tokenlag.read.stores.pull import pull_stores

        pull_stores(urls, asked, result, out_dir, vocabulary(), progress)
    _add_load_tests(result, out_dir)
    notes = result.notes
    store.insert(
        "read_notes",
        {
            "dataset": [dataset] * len(notes),
            "kind": [note.kind for note in notes],
            "place": [note.place for note in notes],
            "n": [note.n for note in notes],
            "text": [note.text for note in notes],
        },
    )
    if needed_ns is not None and not _has_any(store, result.span_files, needed_ns):
        needed_ns = None  # the answer has to say what time there is instead
    load_spans(
        store, result.span_files, result.event_files,
        dataset=dataset, only=result.only, needed_ns=needed_ns,
    )  # fmt: skip
    found = "select exists (from {0} where dataset = $1)"
    if not any(store.scalar(found.format(table), [dataset]) for table in ("requests", "epochs")):
        raise _no_requests(store, result, paths)
    return result


def _has_any(store: Store, files: Sequence[Path], needed_ns: tuple[int, int]) -> bool:
    rows = "from read_parquet($1, union_by_name = true) where start_ns between $2 and $3"
    return bool(store.scalar(f"select exists ({rows})", [list(map(str, files)), *needed_ns]))


def _add_load_tests(result: ReadResult, out_dir: Path) -> None:
    """Requests of load tests among the files become client spans beside the others."""
    if not result.load_tests:
        return
    from tokenlag.read.loadtest.rows import frame_of, notes_of, why_not

    rows = RowFiles(out_dir, "load-test", span_schema(vocabulary()))
    for run in result.load_tests:
        frame = frame_of(run)
        if frame is None:
            hint = "`diagnose compare A B` compares two such files"
            problem = InputError(why_not(run), place=run.source, hint=hint)
            if str(problem) not in map(str, result.problems):  # once for a whole sweep
                result.problems.append(problem)
        else:
            rows.add(frame)
            result.notes += notes_of(run)
    rows.flush()
    result.span_files += rows.files
    result.n_spans += rows.n_rows
    if not result.n_spans:
        raise result.problems[0]


def _no_requests(store: Store, result: ReadResult, paths: Sequence[str | Path]) -> InputError:
    """What to say of spans that no dialect knows: how many, and their most frequent names."""
    found = store.fetchall(
        "select coalesce(name, ''), count(*) as n from read_parquet($1, union_by_name = true) "
        "group by all order by n desc, 1",
        [list(map(str, result.span_files))],
    )
    n_spans = sum(n for _, n in found)
    names = ", ".join(f'"{name[:MAX_NAME_LENGTH]}" ({n:,})' for name, n in found[:MAX_NAMES])
    more = f" and {len(found) - MAX_NAMES} other names" if len(found) > MAX_NAMES else ""
    return InputError(
        f"{n_spans:,} spans, most named {names}{more}; none is a request or an engine step",
        place=", ".join(map(str, paths)),
        hint="give the traces of the server or its clients; `diagnose schema` tells what is read",
    )


def load_spans(
    store: Store,
    span_files: Sequence[Path],
    event_files: Sequence[Path],
    *,
    dataset: int = 0,
    only: Mapping[Path, frozenset[str]] | None = None,
    needed_ns: tuple[int, int] | None = None,
) -> None:
    """Turn Parquet span rows into canonical rows; see `load_traces` and `ReadResult.only`."""
    names = script_names() | {"dataset": dataset}

    def run(on: Store, *scripts: str) -> None:
        for script in scripts:
            on.run_script(PACKAGE, script, names)

    def carry(on: Store) -> None:
        run(on, "engines.sql", "steps.sql")
        _carry_memberships(on)

    with store.staging() as beside, ThreadPoolExecutor(1) as thread:

        def both(on_store: Callable[[], None], on_beside: Callable[[], None]) -> None:
            """Few statements keep two cores busy; what does not wait for each other may overlap."""
            future = thread.submit(on_beside)
            try:
                on_store()
            finally:
                future.result()

        _make_views(store, span_files, event_files, only or {}, needed_ns)
        run(store, "staging.sql")
        _set_duplicates_aside(store)
        scripts = _scripts(store)
        both(
            lambda: run(
                store,
                *scripts.pop("genai-client"),
                *scripts.pop("gateway", ()),
                "contract_spans.sql",
            ),
            lambda: run(beside, "contract_steps.sql"),
        )
        contract = scripts.pop("contract")
        others = tuple(itertools.chain(*scripts.values()))
        both(lambda: run(store, *contract), lambda: run(beside, *others))
        join_load_tests(store)
        both(lambda: run(store, "contract_phases.sql", "merge_fields.sql"), lambda: carry(beside))
        run(store, "chunks.sql")
        both(
            lambda: run(store, "derive.sql", "merge_stamps.sql"),
            lambda: run(beside, "merge_sequences.sql", "memberships.sql"),
        )
        both(
            lambda: run(store, "tile.sql"), lambda: run(beside, "merge_requests.sql", "finish.sql")
        )
        store.run_script("tokenlag.store", "quality.sql", names)


def _make_views(
    store: Store,
    span_files: Sequence[Path],
    event_files: Sequence[Path],
    only: Mapping[Path, frozenset[str]],
    needed_ns: tuple[int, int] | None,
) -> None:
    columns = [
        f"{_believed(name, name, 'int')} as {name}" if name.endswith("_ns") else name
        for name in map(str, CORE_SCHEMA)
    ]
    columns += [
        f"{_believed(name, sql_identifier(key), value_type)} as {sql_identifier(name)}"
        for name, (key, value_type) in span_columns().items()
    ]
    columns += [
        f"{sql_identifier(RESOURCE_PREFIX + key)} as {sql_identifier(name)}"
        for name, (key, _) in resource_columns().items()
    ]
    files = sql_string_list(map(str, span_files))
    source = f"read_parquet({files}, file_row_number = true, union_by_name = true)"
    conditions = [
        f"(filename <> {sql_literal(str(path))} or source in {sql_string_list(sorted(sources))})"
        for path, sources in only.items()
    ]
    if needed_ns is not None:  # row groups of other times are not even decompressed
        conditions.append(f"start_ns between {needed_ns[0]} and {needed_ns[1]}")
    where = f" where {' and '.join(conditions)}" if conditions else ""
    store.execute(
        f"create or replace view staging.raw_spans as "
        f"select {', '.join(columns)}, filename, file_row_number from {source}{where}"
    )
    if event_files:
        events = f"read_parquet({sql_string_list(map(str, event_files))}, union_by_name = true)"
        store.execute(f"create or replace view staging.span_events as select * from {events}")
    else:
        store.execute(
            "create or replace view staging.span_events as select null::varchar as trace_id, "
            "null::varchar as span_id, null::bigint as time_ns, null::varchar as name, "
            f"null::varchar as {sql_identifier(LINK_TRACE_ID)}, "
            f"null::varchar as {sql_identifier(LINK_SPAN_ID)}, "
            f"{', '.join(f'null as {sql_identifier(key)}' for key in event_columns())} where false"
        )


def _believed(name: str, value: str, value_type: str) -> str:
    """The SQL of a value, NULL where it cannot be one.

    Several engines write −1 for "not known"; damaged files hold anything, and one sum that
    overflows would cost the whole load.
    """
    is_wide = name.endswith(("_ns", "_epoch", "_index")) or name in _SIGNED
    high = 2**61 if is_wide else 2**50
    low = -high if name in _SIGNED else 0
    if value_type == "int":
        return f"case when {value} between {low} and {high} then {value} end"
    if value_type == "float":
        return f"case when {value} >= 0 and isfinite({value}) then {value} end"
    if value_type == "int[]":
        element = f"case when v between 0 and {2**61 if name in _HANDLES else high} then v end"
        return f"list_transform({value}, lambda v: {element})"
    return value


def _set_duplicates_aside(store: Store) -> None:
    """View `spans`: each span once, however often it was exported."""
    store.run_script(PACKAGE, "duplicates.sql")
    condition = ""
    if store.scalar("select count(*) from duplicate_rows"):
        condition = (
            " where (filename, file_row_number) not in "
            "(select (filename, file_row_number) from duplicate_rows)"
        )
    store.execute(f"create or replace view staging.spans as select * from raw_spans{condition}")


def _scripts(store: Store) -> dict[str, tuple[str, ...]]:
    """The scripts of the dialects whose spans are there, by dialect."""
    patterns = {d.name: d.span_names for d in DIALECTS if d.span_names is not None}
    asked = ", ".join(
        f"coalesce(bool_or(regexp_matches(name, {sql_literal(pattern)})), false)"
        for pattern in patterns.values()
    )
    row = store.fetchone(f"select {asked} from (select distinct name from spans)") or ()
    absent = {name for name, is_there in zip(patterns, row, strict=True) if not is_there}
    return {d.name: () if d.name in absent else d.scripts for d in DIALECTS}


def _carry_memberships(store: Store) -> None:
    """Fill `m_listed` and `m_unknown` from the steps' range lists, lineage by lineage."""
    store.run_script(PACKAGE, "membership_staging.sql")
    steps = store.fetchnumpy(
        "select lineage, step_index, coalesce(decode_count, -1)::bigint as decode_count, "
        "coalesce(joined, left_, members) is not null as has_list "
        "from l_steps order by lineage, step_index"
    )
    lists = store.fetchnumpy(
        "select joined, left_, members from l_steps "
        "where coalesce(joined, left_, members) is not null order by lineage, step_index"
    )
    lineage, has_list = steps["lineage"], steps["has_list"].astype(bool)
    n_lists_before = np.concatenate([[0], np.cumsum(has_list)])
    # tolist() of a masked array has None where the column has NULL.
    texts: dict[str, list[str | None]] = {name: lists[name].tolist() for name in lists}
    bounds = [*np.flatnonzero(np.diff(lineage, prepend=-1)).tolist(), len(lineage)]
    runs: list[tuple[int, Memberships]] = []
    for start, stop in itertools.pairwise(bounds):
        some = slice(int(n_lists_before[start]), int(n_lists_before[stop]))
        found = decode_memberships(
            steps["step_index"][start:stop],
            steps["decode_count"][start:stop],
            np.flatnonzero(has_list[start:stop]),
            texts["joined"][some],
            texts["left_"][some],
            texts["members"][some],
        )
        runs.append((int(lineage[start]), found))
    _keep_memberships(store, runs)


def _keep_memberships(store: Store, runs: Sequence[tuple[int, Memberships]]) -> None:
    if not runs:
        return
    keys = np.array([key for key, _ in runs])
    found = [memberships for _, memberships in runs]
    store.insert(
        "m_listed",
        {
            "lineage": np.repeat(keys, [len(part.request_index) for part in found]),
            "request_index": np.concatenate([part.request_index for part in found]),
            "first_step": np.concatenate([part.first_step for part in found]),
            "last_step": np.concatenate([part.last_step for part in found]),
        },
    )
    store.insert(
        "m_unknown",
        {
            "lineage": np.repeat(keys, [len(part.unknown_first) for part in found]),
            "first_step": np.concatenate([part.unknown_first for part in found]),
            "last_step": np.concatenate([part.unknown_last for part in found]),
        },
    )
    n_mismatches = sum(part.n_mismatches for part in found)
    if n_mismatches:
        text = f"{n_mismatches} step records contradict the members carried from earlier ones"
        store.insert(
            "st_notes",
            {
                "kind": ["membership_mismatch"],
                "place": ["contract"],
                "n": [n_mismatches],
                "text": [text],
            },
        )
