"""Runs a fault on a real vLLM server with the tracer in it, and keeps what it wrote.

    python -m benchmarks.lab.run healthy queue-slots --python VENV/bin/python --out lab/

Runs with a proxy in front need nginx, on the path or given by `--nginx`, and are left out, with a
word, where there is none.

Each run leaves a folder: `traces/` as the tracer wrote them, `traces.jsonl.gz` all in one file,
`client.jsonl` what the clients saw, `truth.json` what is true of it.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import tokenlag_tracer
from tokenlag_tracer import link

from benchmarks.lab.faults import FAULTS, Fault, fault
from benchmarks.lab.inject import hog, nginx, pause
from benchmarks.lab.loadgen import Record, Stream, run_load, summary
from benchmarks.lab.server import (
    ASYNC_ON_CPU,
    environment,
    free_port,
    make_model,
    serving,
    vllm_command,
)

WARM_UP = (Stream(rate=4, prompt=(50, 1500), output=(4, 8)),)


@contextmanager
def traced_vllm(
    python: str, one: Fault, folder: Path, model: Path
) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """Runs a traced server with a fault's flags, two steps deep; yields its port and process."""
    port = free_port()
    variables = environment(
        {
            "TOKENLAG_TRACES_DIR": str(folder / "traces"),
            "TOKENLAG_LOG": str(folder / "writer.log"),
            "TOKENLAG_TENANT_HEADER": "x-tenant",
            "TOKENLAG_ENGINE_ID": "vllm-0",
        }
    )
    variables["PYTHONPATH"] = f"{ASYNC_ON_CPU}:{variables['PYTHONPATH']}"
    command = [python, "-m", "tokenlag_tracer.cli", "run", "--"]
    command += vllm_command(python, model, port, (*one.flags, "--async-scheduling"))
    with serving(command, port, folder / "server.log", variables) as process:
        yield port, process


async def _load(url: str, one: Fault, group: int, folder: Path) -> list[Record]:
    """Sends a fault's load and does what it does to the server meanwhile."""
    recorder = tokenlag_tracer.front() if one.has_client_spans else None
    with (folder / "client.jsonl").open("w", encoding="utf-8") as records:
        done, *_ = await asyncio.gather(
            run_load(
                url, one.load, seconds=one.seconds, seed=one.seed, out=records, recorder=recorder
            ),
            hog(one.n_hogs, one.hog_from_s, one.seconds),
            pause(group, one.pause_every_s, one.pause_s, one.seconds),
        )
    if recorder is not None:
        recorder.close()
        link.close_shared_link()
    return done


def play(python: str, one: Fault, out: Path, nginx_program: str = "") -> Mapping[str, Any]:
    """Runs one fault; returns what its clients saw, and how busy the machine was."""
    folder = out / one.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    model = make_model(python, out, 4, 4)
    os.environ["TOKENLAG_TRACES_DIR"] = str(folder / "client-traces")
    with ExitStack() as stack:
        port, process = stack.enter_context(traced_vllm(python, one, folder, model))
        if one.proxy:
            is_buffering = one.proxy == "buffering"
            port = stack.enter_context(
                nginx(nginx_program, folder.resolve(), port, is_buffering=is_buffering)
            )
        url = f"http://127.0.0.1:{port}"
        if not one.is_cold:
            asyncio.run(run_load(url, WARM_UP, seconds=4, seed=9, name="warm"))
            time.sleep(11)  # the warm-up's steps are in other engine traces
        from_ns = time.time_ns()
        done = asyncio.run(_load(url, one, process.pid, folder))
        to_ns = time.time_ns()
        time.sleep(3)
    seen = dict(summary(done))
    both = [folder / "traces", folder / "client-traces"]
    kept = merge(both, folder / "traces.jsonl.gz", from_ns)
    load_1m = Path("/proc/loadavg").read_text(encoding="utf-8").split()[0]
    truth = {
        "name": one.name, "shows": one.shows, "engine": "vllm", "flags": list(one.flags),
        "truth": one.truth, "baseline": one.baseline, "from_ns": from_ns, "to_ns": to_ns,
        "client": seen, "load_average_after": float(load_1m), "spans": kept,
    }  # fmt: skip
    (folder / "truth.json").write_text(json.dumps(truth, indent=2) + "\n", encoding="utf-8")
    return truth


def merge(folders: Sequence[Path], into: Path, from_ns: int) -> int:
    """Puts folders' spans that begin after a moment into one file; returns how many."""
    n_spans = 0
    with gzip.open(into, "wt", encoding="utf-8", compresslevel=9) as out:
        for path in (path for one in folders for path in sorted(one.glob("*.jsonl.gz"))):
            with gzip.open(path, "rt", encoding="utf-8") as lines:
                for line in lines:
                    message = json.loads(line)
                    n_line = 0
                    for resource in message["resourceSpans"]:
                        for scope in resource["scopeSpans"]:
                            scope["spans"] = [
                                span
                                for span in scope["spans"]
                                if int(span["startTimeUnixNano"]) >= from_ns
                            ]
                            n_line += len(scope["spans"])
                    if n_line:
                        out.write(json.dumps(message, separators=(",", ":")) + "\n")
                        n_spans += n_line
    return n_spans


def main() -> int:
    """Runs the named faults, or all."""
    parser = argparse.ArgumentParser(description="Real faults on a real vLLM.")
    parser.add_argument("names", nargs="*", help=", ".join(one.name for one in FAULTS))
    parser.add_argument("--python", default=sys.executable, help="that has vLLM")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--nginx", default=shutil.which("nginx") or "", help="its program")
    options = parser.parse_args()
    for name in options.names or [one.name for one in FAULTS]:
        one = fault(name)
        if one.proxy and not options.nginx:
            sys.stderr.write(f"{name}: left out, there is no nginx here\n")
            continue
        done = play(options.python, one, options.out, options.nginx)
        sys.stdout.write(json.dumps(done) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
