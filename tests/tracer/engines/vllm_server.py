"""A real vLLM server on this machine's CPU, traced, with a tiny random model.

It is started in two ways. `plugin`: vLLM itself loads the tracer by its entry point, a user's own
scheduler class is configured, and a step is scheduled when the one before is done, as vLLM does
on a CPU. `run`: `tokenlag-tracer run`, and steps are scheduled two deep.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.lab import server as lab
from benchmarks.lab.loadgen import Record, Stream, run_load
from tests.tracer.engines.installed import python_with
from tests.tracer.support import REPO, free_port

N_BLOCKS, BLOCK_SIZE, N_SLOTS, BUDGET = 66, 32, 8, 256
MARK = "zxqv-marked-prompt-7731"


def python_with_vllm() -> str:
    """The interpreter that has vLLM; skips without one."""
    return python_with("TOKENLAG_VLLM_PYTHON", "vllm", "torch")


@dataclass
class Served:
    """What was asked of a server, and what its clients saw."""

    way: str
    traces: Path
    logs: list[Path]
    own_steps: Path
    records: dict[str, list[Record]] = field(default_factory=dict)
    marked_outputs: list[str] = field(default_factory=list)
    rejected_status: int = 0

    @property
    def all_records(self) -> list[Record]:
        return [record for records in self.records.values() for record in records]


def _entry_point(folder: Path) -> Path:
    """Writes what an installed tokenlag-tracer has in its metadata."""
    info = folder / "installed" / "tokenlag_tracer-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tokenlag-tracer\nVersion: 0.1.0\n")
    import tomllib

    project = tomllib.loads((REPO / "tracer" / "pyproject.toml").read_text())["project"]
    [(name, target)] = project["entry-points"]["vllm.general_plugins"].items()
    (info / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{name} = {target}\n")
    return info.parent


@contextmanager
def server(way: str, folder: Path, *flags: str) -> Iterator[tuple[int, Served]]:
    """Runs a server; yields its port and where its traces go."""
    python = python_with_vllm()
    port = free_port()
    logs = [folder / "server.log", folder / "writer.log"]
    served = Served(way, folder / "traces", logs, folder / "own-steps")
    variables = lab.environment(
        {
            "TOKENLAG_TRACES_DIR": str(served.traces), "TOKENLAG_LOG": str(logs[1]),
            "TOKENLAG_EXIT_WAIT": "60", "OWN_SCHEDULER_LOG": str(served.own_steps),
        }
    )  # fmt: skip
    limits = [
        "--max-model-len", "2048", "--max-num-seqs", str(N_SLOTS),
        "--max-num-batched-tokens", str(BUDGET), "--block-size", str(BLOCK_SIZE),
        "--num-gpu-blocks-override", str(N_BLOCKS), *flags,
    ]  # fmt: skip
    paths = variables["PYTHONPATH"]
    if way == "plugin":
        variables["PYTHONPATH"] = f"{_entry_point(folder)}:{paths}"
        limits += ["--scheduler-cls", "tests.tracer.engines.own_scheduler.OwnScheduler"]
    else:
        variables["PYTHONPATH"] = f"{lab.ASYNC_ON_CPU}:{paths}"
        limits.append("--async-scheduling")
    command = lab.vllm_command(python, lab.make_model(python, folder), port, limits)
    if way == "run":
        command = [python, "-m", "tokenlag_tracer.cli", "run", "--", *command]
    with lab.serving(command, port, logs[0], variables):
        yield port, served


def load(port: int, name: str, streams: Sequence[Stream], seconds: float = 60.0) -> list[Record]:
    """Plays a mix; its requests are called by a name and a number."""
    return asyncio.run(
        run_load(f"http://127.0.0.1:{port}", streams, seconds=seconds, seed=5, name=name)
    )


def post(port: int, path: str, body: Any, **headers: str) -> tuple[int, str]:
    """Sends one request; returns its status and the whole answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request(
            "POST", path, json.dumps(body), {"Content-Type": "application/json", **headers}
        )
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def marked_chat(port: int, served: Served, number: int, *, stream: bool) -> None:
    """Sends a chat whose text, and whose answer's text, must be found nowhere."""
    status, answer = post(
        port,
        "/v1/chat/completions",
        {
            "model": "tiny", "max_tokens": 24, "ignore_eos": True, "stream": stream,
            "temperature": 0, "user": f"{MARK}-user",
            "messages": [
                {"role": "system", "content": f"{MARK}-system"},
                {"role": "user", "content": f"{MARK} number {number}, what is pathlib?"},
            ],
        },
        **{"X-Request-Id": f"marked{number}"},
    )  # fmt: skip
    assert status == 200, answer
    if stream:
        parts = [
            json.loads(line[6:])["choices"]
            for line in answer.splitlines()
            if line.startswith("data: {")
        ]
        text = "".join(part[0]["delta"].get("content") or "" for part in parts if part)
    else:
        text = json.loads(answer)["choices"][0]["message"]["content"]
    assert len(text) > 12
    served.marked_outputs.append(text)


def drive(port: int, served: Served) -> None:
    """Asks the server for all that the tests look for."""
    records = served.records
    # Long prompts beside streams: they are cut into chunks.
    records["chunk"] = load(
        port, "chunk",
        [Stream(every_s=0.5, prompt=(20, 40), output=(40, 60), to_s=1.6),
         Stream(every_s=0.7, prompt=(600, 900), output=(4, 8), to_s=1.5)],
    )  # fmt: skip
    # The same prompt three times, one after the other: the first one's blocks are there by then.
    records["prefix"] = [
        record
        for number in range(3)
        for record in load(
            port, f"prefix{number}-",
            [Stream(every_s=0.01, prompt=(300, 300), output=(4, 4), to_s=0.015)],
        )
    ]  # fmt: skip
    # More KV than there is: 8 of 350 tokens each, where 2,112 fit.
    records["pressure"] = load(
        port, "pressure", [Stream(every_s=0.01, prompt=(150, 160), output=(200, 200), to_s=0.125)]
    )
    records["several"] = load(
        port, "several", [Stream(every_s=0.2, prompt=(60, 90), output=(10, 20), to_s=0.7, n=2)]
    )
    records["abort"] = load(
        port, "abort",
        [Stream(every_s=0.1, prompt=(60, 90), output=(1800, 1900), to_s=0.35, abort_s=0.8)],
    )  # fmt: skip
    time.sleep(1.0)
    for number in range(2):
        marked_chat(port, served, number, stream=number == 0)
    served.rejected_status, _ = post(
        port, "/v1/completions", {"model": "tiny", "prompt": "x", "max_tokens": -1},
        **{"X-Request-Id": "rejected"},
    )  # fmt: skip
    time.sleep(1.0)
