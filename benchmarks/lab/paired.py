"""What the tracer costs a real server: the same loads on two vLLM servers, with and without it.

    python -m benchmarks.lab.paired --python VENV/bin/python --out lab/ --pairs 20

Both servers are up all the time and are loaded in turn, in short blocks of random order, so that
whatever else the machine does falls on both alike; both blocks of a pair get the same plan. The
figure is the median over pairs of the ratio with to without, with a bootstrap interval of it.
`--same` traces neither server: what the method itself makes of no difference.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from collections.abc import Sequence
from contextlib import ExitStack
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
FIGURES: Final = ("chunks_per_s", "itl_p50_ms", "itl_p99_ms", "ttft_p50_ms")
N_BOOTSTRAP: Final = 4000


def interval(ratios: Sequence[float], share: float = 0.95) -> tuple[float, float, float]:
    """Returns the median of ratios and a bootstrap interval of it."""
    draw = random.Random(0)
    medians = sorted(median(draw.choices(ratios, k=len(ratios))) for _ in range(N_BOOTSTRAP))
    cut = int(N_BOOTSTRAP * (1 - share) / 2)
    return median(ratios), medians[cut], medians[-1 - cut]


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
    with ExitStack() as stack:
        for name in ("without", "with"):
            port = ports[name] = free_port()
            variables = environment({"TOKENLAG_TRACES_DIR": str(options.out / "paired-traces")})
            variables["PYTHONPATH"] = f"{ASYNC_ON_CPU}:{variables['PYTHONPATH']}"
            command = vllm_command(options.python, model, port, FLAGS)
            if name == "with" and not options.same:
                command = [options.python, "-m", "tokenlag_tracer.cli", "run", "--", *command]
            log = options.out / f"paired-{name}.log"
            stack.enter_context(serving(command, port, log, variables))
        blocks = _blocks(ports, options.pairs, options.seconds)
    (options.out / "paired.json").write_text(json.dumps(blocks) + "\n", encoding="utf-8")
    for kind in ("saturating", "steady"):
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


def _blocks(ports: dict[str, int], n_pairs: int, seconds: float) -> list[dict[str, Any]]:
    draw = random.Random(1)
    found: list[dict[str, Any]] = []
    for number in range(-1, n_pairs):  # the first warms both up
        for kind, load in (("saturating", SATURATING), ("steady", STEADY)):
            order = list(ports)
            draw.shuffle(order)
            pair: dict[str, Any] = {"kind": kind}
            for name in order:
                done = asyncio.run(
                    run_load(
                        f"http://127.0.0.1:{ports[name]}", load, seconds=seconds, seed=number + 2
                    )
                )
                pair[name] = dict(summary(done))
            if number >= 0:
                found.append(pair)
    return found


if __name__ == "__main__":
    raise SystemExit(main())
