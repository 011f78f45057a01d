"""A real vLLM server on this machine's CPU for the lab: started, traced or not, and ended."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

REPO: Final = Path(__file__).resolve().parent.parent.parent
HERE: Final = Path(__file__).resolve().parent
# A folder with a `sitecustomize` that lets vLLM schedule two deep on a CPU.
ASYNC_ON_CPU: Final = HERE / "async_on_cpu"
START_S: Final = 400.0  # on a machine with much else to do
STOP_S: Final = 90.0


def free_port() -> int:
    """Returns a port of the loopback address that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def make_model(python: str, folder: Path, n_layers: int = 2, n_heads: int = 2) -> Path:
    """Makes a tiny model with random weights; returns its folder."""
    model = folder / "model"
    if not (model / "config.json").exists():
        subprocess.run(
            [python, str(HERE / "tiny_model.py"), str(model), str(n_layers), str(n_heads)],
            check=True,
            capture_output=True,
            timeout=300,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )
    return model


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """Returns a server's environment: one thread for each, no hub, none of this one's tracing."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("TOKENLAG_", "OTEL_"))
    }
    return kept | {
        "PYTHONPATH": os.pathsep.join(str(REPO / part) for part in ("tracer", "analyzer", ".")),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        **more,
    }


def vllm_command(python: str, model: Path, port: int, flags: Sequence[str]) -> list[str]:
    """Returns the command of a vLLM server that listens on the loopback address."""
    return [
        python, "-m", "vllm.entrypoints.cli.main", "serve", str(model),
        "--served-model-name", "tiny", "--load-format", "dummy", "--dtype", "float32",
        "--host", "127.0.0.1", "--port", str(port), "--enforce-eager", *flags,
    ]  # fmt: skip


@contextmanager
def serving(
    command: Sequence[str], port: int, log: Path, variables: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a server; it is up when the block begins and gone, with its children, after it.

    Raises:
        RuntimeError: it ended, or was not up in time.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            list(command),
            env=dict(variables),
            cwd=REPO,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            _wait_until_up(process, port, log)
            yield process
        finally:
            stop(process)


def _wait_until_up(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s and process.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        with suppress(OSError):
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                connection.close()
                return
        connection.close()
        time.sleep(0.5)
    raise RuntimeError(f"the server is not up: {log.read_text(errors='replace')[-3000:]}")


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ends a server by SIGTERM, and what is left of its processes after that."""
    process.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_S)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)
