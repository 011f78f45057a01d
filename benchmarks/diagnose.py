"""What a diagnosis of one busy hour costs, against one scan of the same Parquet.

    python benchmarks/diagnose.py                 300,000 steps, 20,000 requests, five repeats
    python benchmarks/diagnose.py --profile       and where the time goes

The hour is `busy-hour.toml`, in the trace contract. It is read once, so that what is measured
starts from Parquet, as every later diagnosis of the same traces does. The reference is a DuckDB
query over the same files that touches every value of every column once. Both run in processes of
their own, in turn; the start of the interpreter is not counted, importing libraries is.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
for folder in (ROOT, ROOT / "tracer", ROOT / "analyzer"):
    sys.path.insert(0, str(folder))

RECIPE = Path(__file__).with_name("busy-hour.toml")
MAX_RATIO = 20.0
MAX_BYTES = 1.5e9
N_PROFILED = 25


def scan(_data: Path, cache: Path) -> dict[str, Any]:
    """One aggregate over every column."""
    start = time.perf_counter()
    import duckdb

    files = [str(path) for path in cache.glob("*/spans-*.parquet")]
    connection = duckdb.connect()
    source = "read_parquet($1, union_by_name = true)"
    rows = connection.execute(f"describe select * from {source}", [files]).fetchall()
    asked = ", ".join(f'min("{row[0]}"), max("{row[0]}"), count("{row[0]}")' for row in rows)
    found = connection.execute(f"select count(*), {asked} from {source}", [files]).fetchone()
    return {"seconds": time.perf_counter() - start, "n_spans": found[0] if found else 0}


def diagnose(data: Path, cache: Path) -> dict[str, Any]:
    """The whole diagnosis, with the time at which each stage began."""
    start = time.perf_counter()
    from tokenlag import pipeline

    began: dict[str, float] = {}

    def tell(stage: str, _share: float) -> None:
        began.setdefault(stage, time.perf_counter() - start)

    request = pipeline.Request(paths=[str(data)], cache_folder=cache)
    outcome = pipeline.diagnose(request, now_ns=time.time_ns(), tz=UTC, progress=tell)
    return {
        "seconds": time.perf_counter() - start,
        "cause": outcome.diagnosis.verdict.cause,
        "requests": outcome.diagnosis.coverage.requests,
        "stages": began,
    }


METHODS = {"scan": scan, "diagnose": diagnose}


def measure(method: str, data: Path, cache: Path) -> dict[str, Any]:
    """Runs a method in a process of its own; adds its peak memory and that of its children."""
    command = [sys.executable, __file__, "--data", str(data), "--cache", str(cache)]
    output = subprocess.run(
        [*command, "--method", method], stdout=subprocess.PIPE, check=True, text=True
    ).stdout
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


def run_one(method: str, data: Path, cache: Path) -> None:
    """The measured process."""
    found = METHODS[method](data, cache)
    peaks = [resource.getrusage(who).ru_maxrss * 1024 for who in (0, resource.RUSAGE_CHILDREN)]
    print(json.dumps(found | {"peak_bytes": sum(peaks)}))


def compare(data: Path, cache: Path, n_repeats: int) -> int:
    """Prints the medians and the ratio; 1 if a target is missed."""
    first = measure("diagnose", data, cache)  # fills the cache
    runs: dict[str, list[dict[str, Any]]] = {method: [] for method in METHODS}
    for _ in range(n_repeats):
        for method in METHODS:
            runs[method].append(measure(method, data, cache))
    seconds = {
        method: statistics.median(run["seconds"] for run in found) for method, found in runs.items()
    }
    peak = max(run["peak_bytes"] for run in [first, *runs["diagnose"]])
    ratio = seconds["diagnose"] / seconds["scan"]
    last = runs["diagnose"][-1]
    print(
        f"{runs['scan'][-1]['n_spans']:,} spans, {last['requests']:,} requests: {last['cause']}\n"
        f"scan      {seconds['scan']:.2f} s\n"
        f"diagnose  {seconds['diagnose']:.2f} s, {ratio:.1f} × the scan (at most {MAX_RATIO:g})\n"
        f"reading JSON too: {first['seconds']:.2f} s\n"
        f"peak      {peak / 1e6:.0f} MB (at most {MAX_BYTES / 1e6:.0f})\n"
        f"stages    {json.dumps({k: round(v, 2) for k, v in last['stages'].items()})}"
    )
    return int(ratio > MAX_RATIO or peak > MAX_BYTES)


def profile(data: Path, cache: Path) -> None:
    """Prints which functions take the time."""
    profiler = cProfile.Profile()
    profiler.runcall(diagnose, data, cache)
    pstats.Stats(profiler).strip_dirs().sort_stats("cumulative").print_stats(N_PROFILED)


def make(data: Path) -> None:
    """Writes the hour's traces."""
    from tokenlag.simulate.demo import run
    from tokenlag.simulate.recipe import load_recipe
    from tokenlag.simulate.traces import write_traces

    write_traces(run(load_recipe(RECIPE)), data, end_ns=time.time_ns())


def main() -> int:
    """Makes the data and compares, or runs one method."""
    parser = argparse.ArgumentParser(description="Cost of diagnosing a busy hour.")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--data", type=Path, help="traces to use instead of making some")
    parser.add_argument("--cache", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--method", choices=METHODS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.method:
        run_one(arguments.method, arguments.data, arguments.cache)
        return 0
    with tempfile.TemporaryDirectory() as name:
        data = arguments.data or Path(name) / "busy-hour.jsonl"
        if not arguments.data:
            print("simulating an hour …", file=sys.stderr)
            make(data)
        status = compare(data, Path(name) / "cache", arguments.repeats)
        if arguments.profile:
            profile(data, Path(name) / "cache")
    return status


if __name__ == "__main__":
    sys.exit(main())
