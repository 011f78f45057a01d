"""What a diagnosis out of ClickHouse moves and takes, against pulling all spans of its window.

    TOKENLAG_CHDB_PYTHON=…/python python benchmarks/clickhouse.py           20 M spans, 50 engines
    … python benchmarks/clickhouse.py --engines 10 --hours 2

One hour of two engines is simulated (`fleet-hour.toml`), written as OpenTelemetry's exporter for
ClickHouse does, and copied in ClickHouse: the first engine to all but one of the fleet, the second,
whose steps take longer, to one; and all of them to the hours before, where none is slow. The
engine is chDB behind the loopback front of the tests; a networked server is not run. Every
command is a process of its own, and its bytes are those of all answers of the front.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
for folder in (ROOT, ROOT / "tracer", ROOT / "analyzer"):
    sys.path.insert(0, str(folder))

from tests.read.stores.clickhouse import (  # noqa: E402
    MAPS,
    Front,
    lines_of,
    rows_of_otlp,
    running_front,
)

RECIPE = Path(__file__).with_name("fleet-hour.toml")
END_NS = 1_795_996_800_000_000_000
HOUR_NS = 3_600_000_000_000
USUAL, SLOW = "sim-0", "sim-1"
# Ids and times are made anew, so that copies are no easier to compress than another engine's.
COPY = """
INSERT INTO fleet.otel_traces SELECT * REPLACE (
    lower(hex(MD5(concat(TraceId, '-{engine}-{hour}')))) AS TraceId,
    lower(hex(sipHash64(SpanId, {engine}, {hour}))) AS SpanId,
    if(ParentSpanId = '', '', lower(hex(sipHash64(ParentSpanId, {engine}, {hour}))))
        AS ParentSpanId,
    fromUnixTimestamp64Nano(toUnixTimestamp64Nano(Timestamp)
        - {hour} * 3600000000000 - {engine} * 7000003) AS Timestamp,
    mapApply((k, v) -> (k, multiIf(
        k = 'tokenlag.engine.id', 'engine-{engine}',
        k = 'gen_ai.request.id', concat(v, '-{engine}-{hour}'), v)), SpanAttributes)
        AS SpanAttributes,
    mapApply((k, v) -> (k, if(k = 'service.instance.id', 'engine-{engine}', v)),
        ResourceAttributes) AS ResourceAttributes)
FROM hour.of_{of}
"""
PART = """
CREATE TABLE hour.of_{of} ENGINE = Memory AS SELECT * FROM hour.otel_traces WHERE TraceId IN (
    SELECT TraceId FROM hour.otel_traces
    WHERE SpanName IN ('llm.engine_request', 'llm.engine_step')
        AND SpanAttributes['tokenlag.engine.id'] = '{engine}')
"""


def fill(front: Front, engines: int, hours: int, work: Path) -> int:
    """Makes the table and returns its spans."""
    from tokenlag.simulate.recipe import load_recipe
    from tokenlag.simulate.run import run
    from tokenlag.simulate.traces import write_traces

    path = work / "hour.jsonl"
    write_traces(run(load_recipe(RECIPE)), path, end_ns=END_NS)
    front.create("hour")
    front.insert("hour", rows_of_otlp(lines_of(path), MAPS))
    for of, engine in (("usual", USUAL), ("slow", SLOW)):
        front.send(PART.format(of=of, engine=engine))
    front.create("fleet")
    for hour in range(hours):
        for engine in range(engines):
            of = "slow" if engine == engines - 1 and hour == 0 else "usual"
            front.send(COPY.format(hour=hour, engine=engine, of=of))
    return int(front.send("SELECT count() FROM fleet.otel_traces"))


def measured(front: Front, name: str, *command: str) -> dict[str, object]:
    """Runs a command and says what it took."""
    front.log()
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    paths = os.pathsep.join(str(ROOT / part) for part in (".", "tracer", "analyzer"))
    ran = subprocess.run(
        [sys.executable, *command],
        env=os.environ | {"PYTHONPATH": paths, "TZ": "UTC"},
        capture_output=True,
        text=True,
        check=False,
    )
    wall_s, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    log = front.log()
    if ran.returncode:
        sys.exit(f"{name}: {ran.stderr[-2000:]}")
    return {
        "what": name,
        "statements": len(log),
        "MB": round(sum(one["bytes"] for one in log) / 1e6, 2),
        "wall s": round(wall_s, 1),
        "in ClickHouse s": round(sum(one["s"] for one in log), 1),
        "ours CPU s": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
        **told(ran.stdout),
    }


def told(output: str) -> dict[str, object]:
    """What a diagnosis says, or the rows that were pulled."""
    if not output.startswith("{"):
        return {"rows": int(output.strip())}
    diagnosis = json.loads(output)
    notes = " ".join(diagnosis["coverage"]["notes"])
    found = re.search(r"([0-9,]+) spans came", notes)
    return {
        "rows": int(found[1].replace(",", "")) if found else None,
        "engines": len(diagnosis["coverage"]["engines"]),
        "cause": diagnosis["verdict"]["cause"],
        "on": diagnosis["findings"][0]["engines"] if diagnosis["findings"] else [],
    }


PULL = """
import sys
from pathlib import Path
from tokenlag.read.stores.address import parse_address
from tokenlag.read.stores.client import Client
from tokenlag.read.stores.credentials import Credentials
client = Client(parse_address(sys.argv[1]), Credentials("default", "", ""))
statement = (
    "select * from fleet.otel_traces where Timestamp >= fromUnixTimestamp64Nano({from_ns:Int64}) "
    "and Timestamp < fromUnixTimestamp64Nano({to_ns:Int64})"
)
path = Path(sys.argv[2])
client.parquet(statement, path, {"from_ns": int(sys.argv[3]), "to_ns": int(sys.argv[4])})
import polars as pl
print(pl.scan_parquet(path).select(pl.len()).collect().item())
"""


def main() -> None:
    """Fills a table, and measures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engines", type=int, default=50)
    parser.add_argument("--hours", type=int, default=8)
    parser.add_argument("--skip-whole", action="store_true", help="no diagnosis of all engines")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        with running_front(work / "chdb") as front:
            started = time.perf_counter()
            n_spans = fill(front, options.engines, options.hours, work)
            made_s = time.perf_counter() - started
            print(f"{n_spans:,} spans of {options.engines} engines, made in {made_s:.0f} s")
            url = front.url("fleet")
            bounds = [
                datetime.fromtimestamp(ns / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
                for ns in (END_NS - HOUR_NS, END_NS)
            ]
            window = ["--since", bounds[0], "--until", bounds[1]]
            diagnose = ["-m", "tokenlag", url, *window, "--format", "json"]
            ways = [("by engine: suspects in full", [*diagnose, "--by", "engine"])]
            if not options.skip_whole:
                ways.append(("every engine in full", diagnose))
            pull = ["-c", PULL, url, str(work / "all.parquet")]
            pull += [str(END_NS - HOUR_NS), str(END_NS)]
            ways.append(("pulling all spans of the window, not reading them", pull))
            for title, command in ways:
                print(json.dumps(measured(front, title, *command)), flush=True)


if __name__ == "__main__":
    main()
