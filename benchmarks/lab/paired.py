"""What the tracer costs a real server: the same loads on two vLLM servers, with and without it.

    python -m benchmarks.lab.paired --python VENV/bin/python --out lab/ --pairs 20

Both servers are up all the time and are loaded in turn, in short blocks of random order, so that
whatever else the machine does falls on both alike; both blocks of a pair get the same plan. The
figure is the median over pairs of the ratio with to without, with a bootstrap interval of it.
Beside what clients see it is the processor time that the server's own processes took for each
token, which a busy machine disturbs less, and what the tracer's writer took.
`--same` traces neither server: what the method itself makes of no difference.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.lab.loadgen import Stream, run_load, summary
from benchmarks.lab.server import (
    ASYNC_ON_CPU,
    environment,
    free_port,
    make_model,
    serving,
    vllm_command,
)

FLAGS: Final = (
    "--max-model-len", "4096", "--max-num-seqs", "16", "--max-num-batched-tokens", "512",
    "--async-scheduling",
)  # fmt: skip
# As much as the server can do: what the tracer takes is missing from the throughput.
SATURATING: Final = (Stream(every_s=0.02, prompt=(40, 120), output=(60, 90), to_s=0.7),)
# Half of what it can do: what the tracer takes is seen in the gaps.
STEADY: Final = (Stream(rate=2.0, prompt=(40, 300), output=(40, 60)),)
FIGURES: Final = (
    "chunks_per_s", "itl_p50_ms", "itl_p99_ms", "ttft_p50_ms", "front_cpu_us", "engine_cpu_us",
    "worker_cpu_us",
)  # fmt: skip
_TICK_US: Final = 1e6 / os.sysconf("SC_CLK_TCK")
N_BOOTSTRAP: Final = 4000
_ROLES: Final = (
    ("VLLM::EngineCore", "engine"), ("VLLM::Worker", "worker"),
    ("tokenlag_tracer.writer", "writer"),
)  # fmt: skip


def interval(ratios: Sequence[float], share: float = 0.95) -> tuple[float, float, float]:
    """Returns the median of ratios and a bootstrap interval of it."""
    draw = random.Random(0)
    medians = sorted(median(draw.choices(ratios, k=len(ratios))) for _ in range(N_BOOTSTRAP))
    cut = int(N_BOOTSTRAP * (1 - share) / 2)
    return median(ratios), medians[cut], medians[-1 - cut]


def cpu_us(root: int) -> dict[str, float]:
    """Returns processor time so far of a server's processes by what they are, in microseconds."""
    found = dict.fromkeys(("front", "engine", "worker", "writer"), 0.0)
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError):
            fields = (path / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            parents[int(path.name)] = int(fields[1])
    for pid in parents:
        above = pid
        while above not in (root, 0, 1):
            above = parents.get(above, 0)
        if above != root:
            continue
        with suppress(OSError, ValueError, IndexError):
            fields = (
                Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            )
            command = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8")
            role = next(
                (role for mark, role in _ROLES if mark in command), "front"
            )  # fmt: skip
            found[role] += (int(fields[11]) + int(fields[12])) * _TICK_US
    return found


def main() -> int:
    """Prints the ratios as JSON, and keeps every block's figures."""
    parser = argparse.ArgumentParser(description="Paired runs with and without the tracer.")
    parser.add_argument("--python", default=sys.executable, help="that has vLLM")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=8.0, help="of a steady block")
    parser.add_argument("--same", action="store_true", help="trace neither")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    model = make_model(options.python, options.out, 4, 4)
    ports: dict[str, int] = {}
    roots: dict[str, int] = {}
    with ExitStack() as stack:
        for name in ("without", "with"):
            port = ports[name] = free_port()
            variables = environment({"TOKENLAG_TRACES_DIR": str(options.out / "paired-traces")})
            variables["PYTHONPATH"] = f"{ASYNC_ON_CPU}:{variables['PYTHONPATH']}"
            command = vllm_command(options.python, model, port, FLAGS)
            if name == "with" and not options.same:
                command = [options.python, "-m", "tokenlag_tracer.cli", "run", "--", *command]
            log = options.out / f"paired-{name}.log"
            roots[name] = stack.enter_context(serving(command, port, log, variables)).pid
        blocks = _blocks(ports, roots, options.pairs, options.seconds)
    (options.out / "paired.json").write_text(json.dumps(blocks) + "\n", encoding="utf-8")
    for kind in ("saturating", "steady"):
        writer = median(one["with"]["writer_cpu_us"] for one in blocks if one["kind"] == kind)
        sys.stdout.write(json.dumps({"load": kind, "writer_cpu_us_per_token": writer}) + "\n")
        pairs = [pair for pair in blocks if pair["kind"] == kind]
        for figure in FIGURES:
            ratios = [pair["with"][figure] / pair["without"][figure] for pair in pairs]
            middle, low, high = interval(ratios)
            sys.stdout.write(
                json.dumps(
                    {
                        "load": kind, "figure": figure, "pairs": len(ratios),
                        "with_to_without": round(middle, 4),
                        "low": round(low, 4), "high": round(high, 4),
                    }
                )
                + "\n"
            )  # fmt: skip
    return 0


def _blocks(
    ports: dict[str, int], roots: dict[str, int], n_pairs: int, seconds: float
) -> list[dict[str, Any]]:
    """Returns the pairs that were measured: fewer if a server ends before its time."""
    draw = random.Random(1)
    found: list[dict[str, Any]] = []
    for number in range(-1, n_pairs):  # the first warms both up
        for kind, load in (("saturating", SATURATING), ("steady", STEADY)):
            order = list(ports)
            draw.shuffle(order)
            pair: dict[str, Any] = {"kind": kind}
            for name in order:
                figures = _block(ports[name], roots[name], load, seconds, seed=number + 2)
                if figures is None:
                    sys.stderr.write(f"the server {name} the tracer failed requests\n")
                    return found
                pair[name] = figures
            if number >= 0:
                found.append(pair)
    return found


def _block(
    port: int, root: int, load: Sequence[Stream], seconds: float, seed: int
) -> dict[str, Any] | None:
    """Returns one block's figures; None if a request failed."""
    before = cpu_us(root)
    url = f"http://127.0.0.1:{port}"
    done = asyncio.run(run_load(url, load, seconds=seconds, seed=seed))
    if any(record.error or record.status != 200 for record in done):
        return None
    time.sleep(1)  # what is done after the last token counts, too
    after = cpu_us(root)
    n_tokens = sum(record.n_output for record in done)
    taken = {f"{role}_cpu_us": (after[role] - before[role]) / n_tokens for role in after}
    return dict(summary(done)) | taken


if __name__ == "__main__":
    raise SystemExit(main())
