"""The commands that stay: receive spans, watch a sliding window."""

from __future__ import annotations

import dataclasses
import re
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tokenlag import options
from tokenlag.errors import TokenlagError, UsageError
from tokenlag.report.console import say, write_out
from tokenlag.times import parse_duration_ns
from tokenlag.window import EmptyWindowError, LocalZone

if TYPE_CHECKING:
    from tokenlag.pipeline import Request
    from tokenlag.watching import Watch

_UNITS: Final = {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
NS_PER_S: Final = 1_000_000_000
BASELINE_WINDOWS: Final = 4  # how many windows before this one are what is normal


def collect(
    folder: Annotated[Path, typer.Option("--dir", metavar="DIR", help="Where to.")] = Path(
        "traces"
    ),
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="OTLP over HTTP. Port 0 takes a free one.")
    ] = "127.0.0.1:4318",
    grpc: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="OTLP over gRPC, too; needs grpcio.")
    ] = None,
    max_disk: Annotated[
        str, typer.Option(metavar="SIZE", help="The oldest files go beyond it.")
    ] = "10GB",
    max_memory: Annotated[
        str, typer.Option(metavar="SIZE", help="What may wait for the disk; more is put off.")
    ] = "64MB",
) -> int:
    """Receive OTLP traces and write them as Parquet into DIR, until interrupted."""
    from tokenlag.collect.run import Settings, collect

    settings = Settings(
        folder, listen, grpc, _size(max_disk, "--max-disk"), _size(max_memory, "--max-memory")
    )
    collect(settings, lambda line: say(f"diagnose collect: {line}"))
    return 0


def watch(
    paths: options.Paths,
    window: Annotated[
        str, typer.Option(metavar="DURATION", help="How much of the past is looked at.")
    ] = "15m",
    every: Annotated[str, typer.Option(metavar="DURATION", help="How often.")] = "30s",
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="A/B|DURATION", help="What is normal; as much as four windows before, else."
        ),
    ] = None,
    baseline_traces: options.BaselineTraces = None,
    slo: options.Slo = None,
    goodput: options.Goodput = None,
    rules: options.Rules = None,
    count: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="So many times, then end.")
    ] = None,
    workers: options.Workers = None,
    memory_limit: options.MemoryLimit = None,
) -> int:
    """Diagnose the last while again and again; print only what changes."""
    from tokenlag.pipeline import Request
    from tokenlag.watching import Watch

    window_ns, every_s = parse_duration_ns(window), parse_duration_ns(every) / NS_PER_S
    if baseline is None and not baseline_traces:
        baseline = f"{BASELINE_WINDOWS * window_ns // NS_PER_S}s"
    request = Request(
        paths=paths,
        since=window,
        baseline=baseline,
        baseline_traces=baseline_traces or [],
        slo=slo,
        goodput=goodput or [],
        rules_dirs=rules or [],
        n_workers=workers,
        memory_limit=options.checked_memory(memory_limit),
        cache_folder=options.cache_folder(paths, no_cache=False, beside=False),
    )
    seen = Watch()
    n_done = 0
    while True:
        began_s = time.monotonic()
        _look(request, seen)
        n_done += 1
        if n_done == count:
            return 0
        time.sleep(max(every_s - (time.monotonic() - began_s), 0.0))


def _look(request: Request, seen: Watch) -> None:
    """One diagnosis, and a line for each thing that is new in it."""
    from tokenlag import pipeline

    troubles: list[TokenlagError] = []
    diagnosis = None
    # Traces may be too young for what was normal; then there is nothing to compare with yet.
    for asked in (request, dataclasses.replace(request, baseline=None)):
        try:
            outcome = pipeline.diagnose(asked, now_ns=time.time_ns(), tz=LocalZone())
        except EmptyWindowError as error:
            if error.what == "baseline" and asked.baseline is not None:
                continue
            troubles = [error]
        except TokenlagError as error:
            troubles = [error]
        else:
            diagnosis, troubles = outcome.diagnosis, outcome.problems
        break
    at = datetime.now(LocalZone()).strftime("%H:%M:%S")
    for change in seen.changes(diagnosis, troubles):
        write_out(f"{at} {change.sign} {change.text}\n")


def _size(text: str, option: str) -> int:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([KMGT])i?B", text, re.IGNORECASE)
    if match is None:
        raise UsageError(f"{option}: {text!r} is not a size", hint="10GB, 500MB")
    return int(float(match[1]) * _UNITS[match[2].upper()])
