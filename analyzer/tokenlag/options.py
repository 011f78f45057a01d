"""The command line's words and options, shared by the commands that take them."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from tokenlag.errors import UsageError

COMMANDS: Final = {
    "demo": "write example traces that end now",
    "compare": "which of two load tests or traces is slower, and why",
    "rules": "list the causes that are looked for",
    "explain": "one cause: what it means, its limits, what to do",
    "schema": "the tables that rules and `sql` read",
    "sql": "ask those tables yourself",
    "blame": "who held up whom, for how long",
    "overhead": "what the tracer costs on this machine",
    "cache": "what was read from traces and is kept",
    "collect": "receive OTLP and write it as Parquet",
    "watch": "diagnose again and again, print changes",
}
NOT_YET: Final = (
    "what-if", "capacity", "export", "mcp",
)  # fmt: skip


class OutputFormat(StrEnum):
    """How the diagnosis is printed."""

    TEXT = "text"
    JSON = "json"
    MD = "md"
    HTML = "html"


class Dimension(StrEnum):
    """What to split requests by."""

    ENGINE = "engine"
    TENANT = "tenant"
    SHAPE = "shape"


_TIME = "T: 15m, 1h30m, 2d (ago), 2026-07-26T14:00:00Z, 2026-07-26, @unix, today, yesterday, now"

Paths = Annotated[
    list[str],
    typer.Argument(
        metavar="PATH",
        help="Trace files, folders, globs; clickhouse://user@host/db.",
        show_default=False,
    ),
]
With = Annotated[
    list[str] | None,
    typer.Option(
        "--with", metavar="PATH", help="More of the same time: a load test's server's traces."
    ),
]
Since = Annotated[str | None, typer.Option(metavar="T", help=f"Start of the window. {_TIME}.")]
Until = Annotated[str | None, typer.Option(metavar="T", help="End of the window.")]
SinceEnd = Annotated[
    str | None,
    typer.Option(metavar="DURATION", help="The last so much of the data, whenever it ended."),
]
Baseline = Annotated[
    str | None,
    typer.Option(
        metavar="A/B|DURATION",
        help="What was normal: two times, or that long before the window. Without it: the "
        "earlier part of the traces, where there is enough of it.",
    ),
]
BaselineTraces = Annotated[
    list[str] | None,
    typer.Option(metavar="PATH", help="Traces of a normal time. May be repeated."),
]
Slo = Annotated[
    str | None,
    typer.Option(
        metavar="OBJECTIVES",
        help="e2e_p90=300ms,ttft_p90=500ms,itl_p99=50ms; without a percentile p90.",
    ),
]
Goodput = Annotated[
    list[str] | None,
    typer.Option(metavar="LIMIT…", help="Limits on each request: ttft:500 itl:50 (ms)."),
]
By = Annotated[Dimension | None, typer.Option(help="Split requests by this.")]
Rules = Annotated[
    list[Path] | None,
    typer.Option(metavar="DIR", help="Rules of your own, added or put in place. May be repeated."),
]
Form = Annotated[OutputFormat, typer.Option("--format", help="How to print the diagnosis.")]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write it to a file.")
]
FailOn = Annotated[
    list[str] | None,
    typer.Option(
        metavar="VERDICT",
        help="Exit 1 on a `problem`, 3 on `inconclusive`. May be repeated.",
    ),
]
NoCache = Annotated[
    bool, typer.Option("--no-cache", help="Read the traces anew, and keep nothing of them.")
]
CacheBeside = Annotated[
    bool,
    typer.Option("--cache-beside", help="Keep what was read in .tokenlag-cache beside the traces."),
]
Workers = Annotated[int | None, typer.Option(metavar="N", min=1, help="Processes that read.")]
MemoryLimit = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Memory for the tables, such as 2GB.")
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Everything that is known.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="The verdict line only.")]


def cache_folder(paths: Sequence[str], *, no_cache: bool, beside: bool) -> Path | None:
    """Where what is read is kept; None: nowhere.

    Raises:
        UsageError: both options are given.
    """
    from tokenlag.store.cachefolder import beside_traces, default_folder

    if no_cache and beside:
        raise UsageError("--no-cache and --cache-beside exclude each other")
    if no_cache:
        return None
    return beside_traces(paths[0]) if beside else default_folder()


def verbosity(verbose: bool, quiet: bool) -> int:
    """1, 0 or -1.

    Raises:
        UsageError: both are given.
    """
    if verbose and quiet:
        raise UsageError("-v and -q exclude each other")
    return verbose - quiet


def fail_statuses(words: Sequence[str]) -> dict[str, int]:
    """Which verdict gives which exit status, of `--fail-on problem,inconclusive`.

    Raises:
        UsageError: a word that is neither.
    """
    known = {"problem": 1, "inconclusive": 3}
    chosen = [word.strip() for text in words for word in text.split(",")]
    for word in chosen:
        if word not in known:
            close = difflib.get_close_matches(word, known, 1)
            hint = f"did you mean {close[0]}?" if close else "problem or inconclusive"
            raise UsageError(f"--fail-on: unknown verdict {word!r}", hint=hint)
    return {word: known[word] for word in chosen}


def checked_memory(text: str | None) -> str | None:
    """A size as DuckDB reads it.

    Raises:
        UsageError: it is none.
    """
    size = re.compile(r"[0-9]+(\.[0-9]+)? ?([KMGT]i?)?B", re.IGNORECASE)
    if text is not None and not size.fullmatch(text):
        raise UsageError(f"--memory-limit: {text!r} is not a size", hint="2GB, 512MB")
    return text


def joined_goodput(argv: Sequence[str]) -> list[str]:
    """The arguments with `--goodput ttft:500 itl:50` as one option each.

    The limits after the first look like paths to a parser; a path may be given as `./ttft:500`.
    """
    joined: list[str] = []
    is_open = False
    for at, word in enumerate(argv):
        if word == "--":
            return [*joined, *argv[at:]]
        is_limit = re.fullmatch(r"[a-z0-9]+:[0-9][0-9a-z.]*", word) is not None
        is_first = at > 0 and argv[at - 1] == "--goodput"
        if is_open and is_limit and not is_first:
            joined.append("--goodput")
        is_open = word == "--goodput" or (is_open and is_limit) or word.startswith("--goodput=")
        joined.append(word)
    return joined


def check_first_word(word: str) -> None:
    """Say so where the first word is neither an option, a path nor a command.

    Raises:
        UsageError: with "did you mean", or that the command is not in this version.
    """
    if word.startswith("-") or any(c in word for c in "*?[/\\.") or Path(word).exists():
        return
    if word in NOT_YET:
        raise UsageError(
            f"'{word}' is not in this version", hint="diagnose --help lists what there is"
        )
    close = difflib.get_close_matches(word.lower(), [*COMMANDS, *NOT_YET], 1)
    hint = f"did you mean '{close[0]}'?" if close else "diagnose --help lists the commands"
    raise UsageError(f"{word!r} is neither a path nor a command", hint=hint)


def with_flags(argv: Sequence[str], flags: Sequence[str], drop: Sequence[str]) -> str:
    """The same command with some options replaced, ready to copy."""
    kept: list[str] = []
    skip_next = False
    for word in argv:
        if skip_next:
            skip_next = False
        elif word in drop:
            skip_next = True
        elif not word.startswith(tuple(f"{name}=" for name in drop)):
            kept.append(word)
    return shlex.join(["diagnose", *kept, *flags])
