"""Smaller commands of the command line; `cli` registers them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from tokenlag import options
from tokenlag.errors import UsageError
from tokenlag.report.console import Progress, say, write_file, write_out
from tokenlag.window import LocalZone


def blame(
    paths: Annotated[list[str], typer.Argument(metavar="PATH…", help="Traces.")],
    since: options.Since = None,
    until: options.Until = None,
    since_end: options.SinceEnd = None,
    no_cache: options.NoCache = False,
    workers: options.Workers = None,
    memory_limit: options.MemoryLimit = None,
) -> int:
    """Show who held up whom for how long, and where the time between tokens went."""
    from tokenlag import ask
    from tokenlag.pipeline import Request
    from tokenlag.report.pages import grid

    request = Request(
        paths=paths,
        since=since,
        until=until,
        since_end=since_end,
        n_workers=workers,
        memory_limit=options.checked_memory(memory_limit),
        cache_folder=options.cache_folder(paths, no_cache=no_cache, beside=False),
    )
    with Progress() as progress:
        results, problems = ask.blame(
            request, now_ns=time.time_ns(), tz=LocalZone(), progress=progress
        )
    if not results[0].rows:
        write_out("No prompt held up a stream or another request.\n")
    for result in results:
        if result.rows:
            write_out(grid([name for name, _ in result.columns], result.rows) + "\n")
    for problem in problems:
        say(f"diagnose: {problem}")
    return 2 if problems else 0


def overhead(
    requests: Annotated[int, typer.Option(help="Requests in a step.")] = 64,
    steps: Annotated[int, typer.Option(help="Steps to measure.")] = 400,
    step_ms: Annotated[float, typer.Option(help="Time between steps.")] = 10.0,
) -> int:
    """Measure what the tracer costs on this machine, in the engine and in its writer."""
    from tokenlag.overhead import measure
    from tokenlag.report.overhead import overhead_text

    write_out(overhead_text(measure(requests, steps, step_ms), step_ms))
    return 0


def compare_load_tests(
    a: str, b: str, form: options.OutputFormat, output: Path | None, *, ascii_only: bool
) -> int:
    """Show which of two load tests is slower, in what and why."""
    from tokenlag.comparing import compare_files
    from tokenlag.report.comparison import render_comparisons

    if form is options.OutputFormat.HTML:
        raise UsageError("two load tests are compared as text, md or json")
    text = render_comparisons(compare_files(a, b), form.value, ascii_only=ascii_only)
    if output is None:
        write_out(text, is_json=form is options.OutputFormat.JSON)
    else:
        write_file(output, text)
    return 0


def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Remove it all.")] = False,
    folder: Annotated[
        Path | None, typer.Option("--dir", metavar="DIR", help="Another than the usual.")
    ] = None,
) -> int:
    """List what was read from traces and is kept, or remove it."""
    from tokenlag.report.cached import cache_text
    from tokenlag.store.cache import Cache
    from tokenlag.store.cachefolder import default_folder, max_bytes

    kept = Cache(folder or default_folder(), "", max_bytes())
    if clear:
        n_gone, n_left = kept.clear()
        in_use = f", {n_left} in use stay" if n_left else ""
        write_out(f"{kept.folder}: {n_gone} segments removed{in_use}\n")
        return 0
    write_out(cache_text(kept.folder, kept.segments(), kept.max_bytes, now_s=time.time()))
    return 0
