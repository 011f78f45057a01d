"""How fast traces become span rows and canonical tables, against other ways to read them.

    python benchmarks/load.py                      500,000 spans, three repeats
    python benchmarks/load.py --spans 100000 --repeats 1
    python benchmarks/load.py --only ours          without the others' ways
    python benchmarks/load.py --format all --spans 1000000 5000000 --repeats 1

The formats are OTLP JSON (the default), OTLP protobuf, Jaeger JSON and native Parquet;
`load_methods.py` has what they are compared with; the first method is the reference. For
OTLP JSON that is the fastest way that was found to flatten it in SQL: DuckDB takes whole
lines, unnests the spans, casts each with `json_transform`, turns all attributes into a map
and promotes six of them to columns of a Parquet file. It drops resources and scopes, which
ours keep. Every method runs in a process of its own; its memory is the sum of the resident
memory of that process and its children, sampled every 20 ms, which counts shared libraries
once for each process. The processor time, of all cores and with starting Python, says more
than the clock where other things run on the machine.

Two more things are measured for OTLP JSON: reading the same file again out of the cache, which a
process of the same shape has filled before, and what the second worker gains.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
for folder in (ROOT, ROOT / "tracer", ROOT / "analyzer"):
    sys.path.insert(0, str(folder))

from benchmarks.load_methods import REFERENCES, Method  # noqa: E402

REFERENCE_SQL = (Path(__file__).with_name("load_reference.sql")).read_text()
TABLES_SQL = (Path(__file__).with_name("load_reference_tables.sql")).read_text()
OTLP_JSON = "otlp-json"
REFERENCE = "DuckDB SQL to Parquet"
REFERENCE_TABLES = "DuckDB SQL to canonical tables"
OURS_TABLES = "ours, bytes to canonical tables"
FIELDS = {"str": "stringValue", "int": "intValue", "float": "doubleValue", "bool": "boolValue"}
N_BYTES_FOR_KEYS = 64 * 2**20
SAMPLE_S = 0.02
CACHE, CACHE_BYTES = "tokenlag-benchmark-cache", 8 * 2**30
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def duckdb_sql(data: Path, work_dir: Path) -> int:
    """Flattens with SQL alone; returns the number of spans."""
    import duckdb

    connection = duckdb.connect()
    out = work_dir / "reference.parquet"
    connection.execute(REFERENCE_SQL.format(data=data, out=out))
    row = connection.execute(f"select count(*) from '{out}'").fetchone()
    return int(row[0]) if row else 0


def _value(value_type: str) -> str:
    """The SQL of an attribute's value among `attributes` of the reference."""
    if value_type.endswith("[]"):
        field = FIELDS[value_type.removesuffix("[]")]
        return f"list_transform(l, lambda v: v.{field})"
    return {"str": "s", "int": "i", "float": "d", "bool": "b"}[value_type]


def duckdb_tables(data: Path, work_dir: Path) -> int:
    """Flattens with SQL what the canonical tables need, and fills them by the same scripts."""
    import duckdb
    from tokenlag.read.load import load_spans, vocabulary
    from tokenlag.read.spans import RowFiles, span_schema
    from tokenlag.read.vocabulary import RESOURCE_PREFIX
    from tokenlag.store.connection import Store

    known = vocabulary()
    with data.open("rb") as file:
        beginning = file.read(N_BYTES_FOR_KEYS).decode()
    keys = {key for key in known.span if f'"{key}"' in beginning}
    columns = [
        f"any_value({_value(known.span[key])}) filter (key = '{key}') as \"{key}\""
        for key in sorted(keys)
    ]
    resources = [
        f"resource['{key}'].{FIELDS[kind]} as \"{RESOURCE_PREFIX}{key}\""
        for key, kind in known.resource.items()
        if f'"{key}"' in beginning
    ]
    out = work_dir / "reference.parquet"
    connection = duckdb.connect()
    connection.execute(
        TABLES_SQL.format(
            data=data,
            out=out,
            columns=", ".join(columns),
            resources=", ".join(resources),
            wanted=", ".join(f"'{key}'" for key in sorted(keys)),
        )
    )
    row = connection.execute(f"select count(*) from '{out}'").fetchone()
    connection.close()
    every_column = RowFiles(work_dir, "empty", span_schema(known))
    every_column.write_empty()
    with Store() as store:
        load_spans(store, [*every_column.files, out], [])
    return int(row[0]) if row else 0


def span_rows(data: Path, work_dir: Path) -> int:
    """Reads into span rows, keeping all that the contract declares."""
    from tokenlag.read.reading import read_spans
    from tokenlag.read.vocabulary import CONTRACT

    return read_spans([data], work_dir, CONTRACT).n_spans


def rows_by(n_workers: int) -> Method:
    """Returns the method that reads into span rows with so many workers."""

    def run(data: Path, work_dir: Path) -> int:
        from tokenlag.read.reading import read_spans
        from tokenlag.read.vocabulary import CONTRACT

        return read_spans([data], work_dir, CONTRACT, n_workers=n_workers).n_spans

    return run


def kept_rows(data: Path, work_dir: Path) -> int:
    """Reads into span rows out of the cache beside the data; the first run fills it."""
    from tokenlag.read.kept import rows_schema
    from tokenlag.read.reading import read_spans
    from tokenlag.read.vocabulary import CONTRACT
    from tokenlag.store.cache import Cache

    with Cache(data.parent / CACHE, rows_schema(CONTRACT), CACHE_BYTES) as cache:
        return read_spans([data], work_dir, CONTRACT, cache=cache).n_spans


def kept_tables(data: Path, work_dir: Path) -> int:
    """Reads into the canonical tables out of the cache beside the data; the first run fills it."""
    from tokenlag.pipeline import DEFAULT_MEMORY
    from tokenlag.read.kept import rows_schema
    from tokenlag.read.load import load_traces, vocabulary
    from tokenlag.store.cache import Cache
    from tokenlag.store.connection import Store

    with (
        Cache(data.parent / CACHE, rows_schema(vocabulary()), CACHE_BYTES) as cache,
        Store(memory_limit=DEFAULT_MEMORY) as store,
    ):
        return load_traces(store, [data], work_dir=work_dir, cache=cache).n_spans


def canonical(data: Path, work_dir: Path) -> int:
    """Reads into the canonical tables, with the memory that `diagnose` gives them."""
    from tokenlag.pipeline import DEFAULT_MEMORY
    from tokenlag.read.load import load_traces
    from tokenlag.store.connection import Store

    with Store(memory_limit=DEFAULT_MEMORY) as store:
        return load_traces(store, [data], work_dir=work_dir).n_spans


OURS: dict[str, Method] = {"ours, bytes to span rows": span_rows, OURS_TABLES: canonical}
SQL: dict[str, Method] = {REFERENCE: duckdb_sql, REFERENCE_TABLES: duckdb_tables}
KEPT: dict[str, Method] = {
    "ours, cache to span rows": kept_rows,
    "ours, cache to canonical tables": kept_tables,
}
WORKERS: dict[str, Method] = {
    "ours to span rows, one worker": rows_by(1),
    "ours to span rows, two workers": rows_by(2),
}
METHODS: dict[str, dict[str, Method]] = {
    name: (SQL if name == OTLP_JSON else {})
    | references
    | OURS
    | (KEPT | WORKERS if name == OTLP_JSON else {})
    for name, references in REFERENCES.items()
}


def tree_bytes(pid: int) -> int:
    """The resident memory of a process and all its descendants now."""
    total = 0
    try:
        total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                total += tree_bytes(int(child))
    except (OSError, IndexError):
        return total
    return total


def measure(name: str, method: str, data: Path) -> dict[str, float] | None:
    """Runs one method once in its own process: seconds, spans, peak bytes."""
    command = [sys.executable, __file__, "--data", str(data), "--format", name]
    command += ["--method", method]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    peak = 0
    pid, status, usage = 0, 0, None
    while not pid:
        peak = max(peak, tree_bytes(process.pid))
        time.sleep(SAMPLE_S)
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
    process.returncode = os.waitstatus_to_exitcode(status)
    output = process.stdout.read() if process.stdout else ""
    if process.returncode or usage is None:
        said = process.stderr.read().strip().splitlines() if process.stderr else []
        print(f"{method}: failed: {said[-1] if said else status}", file=sys.stderr)
        return None
    cpu_seconds = usage.ru_utime + usage.ru_stime
    run: dict[str, float] = json.loads(output.splitlines()[-1])
    return run | {"peak_bytes": peak, "cpu_seconds": cpu_seconds}


def run_one(name: str, method: str, data: Path) -> None:
    """The measured process: runs a method and prints what it took."""
    with tempfile.TemporaryDirectory(dir=data.parent) as work_dir:
        start = time.perf_counter()
        n_spans = METHODS[name][method](data, Path(work_dir))
        seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "n_spans": n_spans}))


def compare(name: str, data: Path, n_repeats: int, only: str = "") -> None:
    """Runs the methods whose names hold a text in turn, several times; prints the medians."""
    methods = [method for method in METHODS[name] if only in method]
    runs: dict[str, list[dict[str, float]]] = {method: [] for method in methods}
    for method in KEPT:
        if method in runs:
            measure(name, method, data)  # fills the cache
    for _ in range(n_repeats):
        for method in methods:
            run = measure(name, method, data)
            if run:
                runs[method].append(run)
    shutil.rmtree(data.parent / CACHE, ignore_errors=True)
    first = next((results for results in runs.values() if results), None)
    if first is None:
        return
    reference = statistics.median(run["seconds"] for run in first)
    reference_cpu = statistics.median(run["cpu_seconds"] for run in first)
    size = data.stat().st_size / 1e6
    print(f"{name}: {size:.0f} MB, {os.cpu_count()} cores, median of {n_repeats}")
    print(
        f"{'method':34}{'s':>7}{'spans/s':>11}{'MB/s':>7}"
        f"{'peak MB':>9}{'× reference':>13}{'CPU s':>7}{'× by CPU':>10}"
    )
    for method, results in runs.items():
        if not results:
            print(f"{method:34} did not run")
            continue
        seconds = statistics.median(run["seconds"] for run in results)
        n_spans = results[0]["n_spans"]
        peak = max(run["peak_bytes"] for run in results) / 1e6
        cpu_seconds = statistics.median(run["cpu_seconds"] for run in results)
        print(
            f"{method:34}{seconds:7.2f}{n_spans / seconds:11,.0f}{size / seconds:7.0f}"
            f"{peak:9.0f}{reference / seconds:13.2f}{cpu_seconds:7.2f}"
            f"{reference_cpu / cpu_seconds:10.2f}"
        )


def main() -> None:
    """Parses the arguments; makes the data and compares, or runs one method."""
    parser = argparse.ArgumentParser(description="Speed of reading traces.")
    parser.add_argument("--spans", type=int, nargs="+", default=[500_000])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--format", choices=[*METHODS, "all"], default=OTLP_JSON)
    parser.add_argument("--data", type=Path, help="measure this file instead of making one")
    parser.add_argument("--only", default="", metavar="TEXT", help="methods whose names hold it")
    parser.add_argument("--method", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.method:
        run_one(arguments.format, arguments.method, arguments.data)
        return
    if arguments.data:
        compare(arguments.format, arguments.data, arguments.repeats, arguments.only)
        return
    from benchmarks.formats import WRITERS

    names = list(METHODS) if arguments.format == "all" else [arguments.format]
    for name in names:
        for n_spans in arguments.spans:
            with tempfile.TemporaryDirectory() as folder:
                file_name, write = WRITERS[name]
                print(f"{name}: making {n_spans:,} spans …", file=sys.stderr)
                write(Path(folder) / file_name, n_spans)
                compare(name, Path(folder) / file_name, arguments.repeats, arguments.only)


if __name__ == "__main__":
    main()
