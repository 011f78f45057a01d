"""`tokenlag-tracer`: run a server traced, ask the writer how it is, have it export its ring."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from tokenlag_tracer import ask, config, link
from tokenlag_tracer.config import is_disabled

_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR2)
PLUGIN = "tokenlag"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tokenlag-tracer",
        description="Trace an LLM server's engine steps and requests.",
        epilog="Settings are environment variables; see docs/tracing.md.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run a server with the tracer in it")
    run.add_argument("--traces-dir", metavar="DIR", help="write files here instead of OTLP")
    run.add_argument("program", nargs=argparse.REMAINDER, metavar="-- CMD …")
    for name, text in (
        ("status", "say how the writer is"),
        ("dump", "export what the ring holds (TOKENLAG_RING)"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument(
            "--socket", metavar="ADDRESS", help="which writer; by default the only one there is"
        )
    return parser


def child_environment(traces_dir: str | None) -> dict[str, str]:
    """Returns the environment in which a server finds the tracer by itself."""
    environment = dict(os.environ)
    here = Path(__file__).resolve().parent
    paths = [str(here / "site"), str(here.parent)]
    if environment.get("PYTHONPATH"):
        paths.append(environment["PYTHONPATH"])
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    if traces_dir:
        environment[config.TRACES_DIR] = str(Path(traces_dir).absolute())
    # Engines load all plugins, unless these name those that they may load.
    for name in ("VLLM_PLUGINS", "SGLANG_PLUGINS"):
        allowed = environment.get(name)
        if allowed is not None and PLUGIN not in allowed.split(","):
            environment[name] = ",".join(filter(None, [*allowed.split(","), PLUGIN]))
    return environment


def run(program: Sequence[str], traces_dir: str | None) -> int:
    """Runs a program with the tracer in its environment; returns its exit status.

    This process owns the writer, passes signals on, and gives the writer time to export what
    the program's last moments left.
    """
    if traces_dir:
        os.environ[config.TRACES_DIR] = str(Path(traces_dir).absolute())
    tie: link.Link | None = None
    if not is_disabled():
        os.environ.setdefault(config.EXIT_WAIT, "12")
        tie = link.shared_link()
        tie.start_writer()
    try:
        child = subprocess.Popen(list(program), env=child_environment(traces_dir))
    except OSError as error:
        sys.stderr.write(f"tokenlag-tracer: cannot run {program[0]}: {error.strerror}\n")
        link.close_shared_link()
        return 127

    def forward(number: int, _: FrameType | None) -> None:
        with contextlib.suppress(OSError):
            child.send_signal(number)

    for number in _FORWARDED:
        signal.signal(number, forward)
    status = child.wait()
    link.close_shared_link()
    # As a shell says it: a program that was ended by a signal.
    return 128 - status if status < 0 else status


def _writer_address(given: str | None) -> str:
    """Returns the address of the writer that is meant.

    Raises:
        ValueError: there is none, or more than one.
    """
    if given:
        return given if ":" in given else f"seqpacket:{given}"
    if os.environ.get(config.SOCKET):
        return os.environ[config.SOCKET]
    found = ask.find_writers()
    if not found:
        raise ValueError("no writer is running; is a traced server up, as the same user?")
    if len(found) > 1:
        raise ValueError("several writers are running; give one by --socket:\n" + "\n".join(found))
    return found[0]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit status."""
    options = _parser().parse_args(arguments)
    if options.command == "run":
        program = options.program[1:] if options.program[:1] == ["--"] else options.program
        if not program:
            sys.stderr.write("tokenlag-tracer: give the server's command: run -- CMD …\n")
            return 2
        return run(program, options.traces_dir)
    try:
        answer = ask.ask(_writer_address(options.socket), options.command)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"tokenlag-tracer: {error}\n")
        return 2
    sys.stdout.write(json.dumps(answer, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
