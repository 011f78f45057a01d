"""The command line: two plain typer apps and a dispatch on the first word.

`diagnose PATH…` is the main job, so that `diagnose traces/ --since 1h` reads well; the
other words are sub-commands when they come first. Whatever takes long to import is
imported by the command that needs it: `diagnose --help` is quick.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokenlag import __version__, commands, live, options
from tokenlag.errors import TokenlagError, UsageError
from tokenlag.options import OutputFormat
from tokenlag.report.console import (
    DEFAULT_WIDTH,
    Progress,
    ReaderLeftError,
    Terminal,
    say,
    terminal_of,
    write_file,
    write_out,
)
from tokenlag.window import NS_PER_S, EmptyWindowError, LocalZone, format_time

if TYPE_CHECKING:
    from tokenlag.pipeline import Request

_SETTINGS: dict[str, Any] = {
    "add_completion": False,
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
}
_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_COMMAND_HELP = "\n".join(f"  {name:8} {text}" for name, text in options.COMMANDS.items())
_EPILOG = f"""\b
Commands, as the first word (a path of that name is ./demo):
{_COMMAND_HELP}

\b
Exit status: 0 done, 1 a problem (with --fail-on problem), 2 the command or its
input could not be used, 3 inconclusive (with --fail-on inconclusive).

\b
Examples:
  diagnose traces/ --since 1h
  diagnose traces/ --since-end 1h --slo ttft_p90=500ms,itl_p99=50ms
  diagnose today.jsonl.zst --baseline-traces yesterday.jsonl.zst --format md"""

_DEMO_MARK = ".tokenlag-demo"

main_app = typer.Typer(**_SETTINGS)
command_app = typer.Typer(**_SETTINGS, context_settings=_CONTEXT, no_args_is_help=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit status. Nothing but a status comes out of it."""
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(args)
    except EmptyWindowError as error:
        drop = ["--since", "--until", "--since-end"]
        drop += ["--baseline"] if error.what == "baseline" else []
        command = options.with_flags(args, error.flags, drop)
        say(f"diagnose: {UsageError(error.message, hint=command)}")
        return 2
    except TokenlagError as error:
        say(f"diagnose: {error}")
        return 2
    except KeyboardInterrupt:
        return 130
    except ReaderLeftError:
        # nobody reads: keep the interpreter's own last flush from complaining
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        return _unexpected(error)


def _dispatch(args: list[str]) -> int:
    if not args:
        raise UsageError("nothing to diagnose", hint="diagnose traces/ --since 1h, or --help")
    is_command = args[0] in options.COMMANDS
    if not is_command:
        options.check_first_word(args[0])
    command = typer.main.get_command(command_app if is_command else main_app)
    try:
        status = command.main(
            options.joined_goodput(args), prog_name="diagnose", standalone_mode=False
        )
    except typer.Abort:
        return 130
    except Exception as error:
        # typer carries its own copy of click, or uses click, by version: known by what it can do
        if (message := getattr(error, "format_message", None)) is None:
            raise
        raise UsageError(" ".join(message().split()).rstrip("."), hint=_help_hint(args)) from None
    return int(status or 0)


def _help_hint(args: Sequence[str]) -> str:
    return f"diagnose {args[0]} --help" if args[0] in options.COMMANDS else "diagnose --help"


def _unexpected(error: Exception) -> int:
    if os.environ.get("TOKENLAG_DEBUG"):
        traceback.print_exc()
    else:
        say(
            f"diagnose: unexpected {type(error).__name__}: {error} "
            "(please report it; TOKENLAG_DEBUG=1 shows where)"
        )
    return 2


def _print_version(value: bool) -> None:
    if value:
        write_out(f"tokenlag {__version__}\n")
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version."),
]


@main_app.command(context_settings=_CONTEXT, epilog=_EPILOG)
def diagnose(
    paths: options.Paths,
    with_traces: options.With = None,
    since: options.Since = None,
    until: options.Until = None,
    since_end: options.SinceEnd = None,
    baseline: options.Baseline = None,
    baseline_traces: options.BaselineTraces = None,
    slo: options.Slo = None,
    goodput: options.Goodput = None,
    by: options.By = None,
    rules: options.Rules = None,
    form: options.Form = OutputFormat.TEXT,
    output: options.Output = None,
    fail_on: options.FailOn = None,
    no_cache: options.NoCache = False,
    cache_beside: options.CacheBeside = False,
    workers: options.Workers = None,
    memory_limit: options.MemoryLimit = None,
    verbose: options.Verbose = False,
    quiet: options.Quiet = False,
    version: Version = False,  # noqa: ARG001  (its callback does it)
) -> int:
    """Say why an LLM server is slow, from its traces."""
    from tokenlag.pipeline import Request

    request = Request(
        paths=paths + (with_traces or []),
        since=since,
        until=until,
        since_end=since_end,
        baseline=baseline,
        baseline_traces=baseline_traces or [],
        slo=slo,
        goodput=goodput or [],
        by=by.value if by else None,
        rules_dirs=rules or [],
        n_workers=workers,
        memory_limit=options.checked_memory(memory_limit),
        cache_folder=options.cache_folder(paths, no_cache=no_cache, beside=cache_beside),
    )
    return _diagnose_and_print(request, form, output, fail_on, options.verbosity(verbose, quiet))


@command_app.command()
def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="Traces or a load test: the normal time.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The same of the slow time.")],
    slo: options.Slo = None,
    goodput: options.Goodput = None,
    by: options.By = None,
    rules: options.Rules = None,
    form: options.Form = OutputFormat.TEXT,
    output: options.Output = None,
    fail_on: options.FailOn = None,
    no_cache: options.NoCache = False,
    workers: options.Workers = None,
    memory_limit: options.MemoryLimit = None,
    verbose: options.Verbose = False,
    quiet: options.Quiet = False,
) -> int:
    """Say which of two load tests, or of two sets of traces, is slower, in what and why.

    A and B are result files of load tests, or both traces: then B is also diagnosed with A
    as its baseline, as `diagnose B --baseline-traces A` does.
    """
    from tokenlag.comparing import are_load_tests

    if are_load_tests(a, b):
        is_ascii = output is None and terminal_of(sys.stdout).ascii_only
        return commands.compare_load_tests(a, b, form, output, ascii_only=is_ascii)
    from tokenlag.pipeline import Request

    request = Request(
        paths=[b],
        baseline_traces=[a],
        slo=slo,
        goodput=goodput or [],
        by=by.value if by else None,
        rules_dirs=rules or [],
        n_workers=workers,
        memory_limit=options.checked_memory(memory_limit),
        cache_folder=options.cache_folder([a], no_cache=no_cache, beside=False),
        is_comparison=True,
    )
    return _diagnose_and_print(request, form, output, fail_on, options.verbosity(verbose, quiet))


def _diagnose_and_print(
    request: Request,
    form: OutputFormat,
    output: Path | None,
    fail_on: list[str] | None,
    verbosity: int,
) -> int:
    from tokenlag import pipeline
    from tokenlag.report import render

    statuses = options.fail_statuses(fail_on or [])
    with Progress() as progress:
        outcome = pipeline.diagnose(
            request, now_ns=time.time_ns(), tz=LocalZone(), progress=progress
        )
    target = Terminal(DEFAULT_WIDTH, color=False, ascii_only=False)
    if output is None:
        target = terminal_of(sys.stdout)
    text = render(
        outcome.diagnosis,
        form.value,
        width=target.width,
        color=target.color,
        ascii_only=target.ascii_only,
        verbosity=verbosity,
    )
    if output is None:
        write_out(text, is_json=form is OutputFormat.JSON)
    else:
        write_file(output, text)
    for problem in outcome.problems:
        say(f"diagnose: {problem}")
    return 2 if outcome.problems else statuses.get(outcome.diagnosis.verdict.status, 0)


@command_app.command()
def demo(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to.")] = Path("traces"),
    healthy: Annotated[bool, typer.Option("--healthy", help="The same load, no fault.")] = False,
) -> int:
    """Write example traces into DIR; their fault ends now, so that `--since 1h` finds it."""
    from tokenlag.simulate.demo import write_demo

    try:
        before = _clear_demo(folder)
        info = write_demo(folder, healthy=healthy, end_ns=time.time_ns())
        made = sorted(file.name for file in folder.iterdir() if file.name not in before)
        (folder / _DEMO_MARK).write_text("\n".join(made) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write: {error.strerror}", place=str(folder)) from None
    fault = "no fault"
    if info.change_ns is not None:
        fault = (
            f"the fault begins at {format_time(info.change_ns // NS_PER_S * NS_PER_S, LocalZone())}"
        )
    write_out(
        f"{info.path}: {info.n_requests:,} requests, {info.n_spans:,} spans, {fault}\n"
        f"Next:\n  {shlex.join(['diagnose', _as_path(folder), '--since', '1h'])}\n"
    )
    return 0


def _clear_demo(folder: Path) -> set[str]:
    """Take away what an earlier demo wrote there, and nothing else; the names that stay."""
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / _DEMO_MARK
    if not mark.is_file() and any(folder.iterdir()):
        raise UsageError(
            "the folder has files that are no demo",
            place=str(folder),
            hint="diagnose demo ANOTHER-DIR",
        )
    for name in mark.read_text(encoding="utf-8").split() if mark.is_file() else []:
        file = folder / Path(name).name
        if file.is_file():
            file.unlink()
    mark.touch()
    return {file.name for file in folder.iterdir()}


def _as_path(folder: Path) -> str:
    text = str(folder)
    return f"./{text}" if text in options.COMMANDS or text in options.NOT_YET else f"{text}/"


@command_app.command(name="rules")
def list_rules(rules: options.Rules = None) -> int:
    """List the causes that are looked for, and what each needs to be in the traces.

    With --rules DIR your own are checked, too: each fault is a line that names file and key.
    """
    from tokenlag.judge.rulebook import load_rules
    from tokenlag.report.pages import rules_list

    rulebook = load_rules(rules or [])
    write_out(rules_list(rulebook, ascii_only=terminal_of(sys.stdout).ascii_only))
    faults = [str(problem) for problem in rulebook.problems]
    if rules:
        from tokenlag.judge.lint import lint_rules

        own = {rule.id for rule in rulebook if not rule.is_bundled}
        faults += [str(issue) for issue in lint_rules(rulebook) if issue.rule in own]
    for fault in faults:
        say(f"diagnose: {fault}")
    return 2 if faults else 0


@command_app.command()
def explain(
    rule: Annotated[str, typer.Argument(metavar="RULE", help="A cause, as `rules` lists them.")],
    rules: options.Rules = None,
) -> int:
    """Show one cause: what it means, how it is told apart, when it is wrong, what to do."""
    from tokenlag.judge.page import rule_page
    from tokenlag.judge.rulebook import load_rules
    from tokenlag.report.pages import page

    rulebook = load_rules(rules or [])
    found = rulebook.get(rule)
    if found is None:
        close = rulebook.suggest(rule)
        hint = f"did you mean {close}?" if close else "diagnose rules lists them"
        raise UsageError(f"no rule {rule!r}", hint=hint)
    target = terminal_of(sys.stdout)
    text = page(
        rule_page(found),
        width=target.width,
        color=target.color,
        is_terminal=sys.stdout.isatty(),
        ascii_only=target.ascii_only,
    )
    write_out(text)
    return 0


@command_app.command()
def schema() -> int:
    """Print the tables that rules and `sql` read, every column with its unit."""
    from tokenlag.store.box import schema_scripts

    write_out("\n".join(script.rstrip() + "\n" for script in schema_scripts()))
    return 0


@command_app.command()
def sql(
    path: Annotated[str, typer.Argument(metavar="PATH", help="Traces.")],
    query: Annotated[str, typer.Argument(metavar="SELECT", help="One SELECT.")],
    since: options.Since = None,
    until: options.Until = None,
    since_end: options.SinceEnd = None,
    baseline_traces: options.BaselineTraces = None,
    no_cache: options.NoCache = False,
    workers: options.Workers = None,
    memory_limit: options.MemoryLimit = None,
) -> int:
    """Ask the canonical and derived tables of PATH; `diagnose schema` tells their columns.

    The query runs where rules run: read-only, without access to files or the network.
    """
    from tokenlag.ask import ask
    from tokenlag.pipeline import Request
    from tokenlag.report.pages import grid

    request = Request(
        paths=[path],
        since=since,
        until=until,
        since_end=since_end,
        baseline_traces=baseline_traces or [],
        n_workers=workers,
        memory_limit=options.checked_memory(memory_limit),
        cache_folder=options.cache_folder([path], no_cache=no_cache, beside=False),
    )
    with Progress() as progress:
        result, problems = ask(
            request, query, now_ns=time.time_ns(), tz=LocalZone(), progress=progress
        )
    write_out(grid([name for name, _ in result.columns], result.rows))
    if result.is_cut:
        say(f"diagnose: only the first {len(result.rows):,} rows are shown")
    for problem in problems:
        say(f"diagnose: {problem}")
    return 2 if problems else 0


for _command in (
    commands.blame, commands.overhead, commands.cache, live.collect, live.watch,
):  # fmt: skip
    command_app.command()(_command)
