"""The example service, started, loaded, and read back: a real server of one's own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.tracer.engines.installed import python_with
from tests.tracer.support import REPO, environment, free_port

EXAMPLE = REPO / "docs" / "examples" / "service"


def service_python() -> str:
    """The interpreter that runs the service and its load; skips if there is none."""
    return python_with("TOKENLAG_SERVICE_PYTHON", "torch", "fastapi", "uvicorn", "httpx")


@dataclass
class Service:
    """A running service. `out` is what it printed; `answers` what clients got."""

    url: str
    folder: Path
    environment: dict[str, str]
    process: subprocess.Popen[bytes]

    @property
    def traces(self) -> Path:
        return self.folder / "traces"

    def load(self, *arguments: str) -> dict[str, int]:
        """Runs the load script; returns how many requests ended how."""
        out = subprocess.run(
            [service_python(), str(EXAMPLE / "load.py"), self.url, *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert out.returncode == 0, out.stderr
        assert out.stderr == ""
        counts: dict[str, int] = json.loads(out.stdout)
        return counts

    def post(self, body: bytes, path: str = "/v1/completions", **headers: str) -> tuple[int, bytes]:
        """Sends one request by hand; returns status and answer."""
        request = urllib.request.Request(
            self.url + path,
            body,
            {"content-type": "application/json"}
            | {name.replace("_", "-"): value for name, value in headers.items()},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()


@contextlib.contextmanager
def serve(folder: Path, **settings: str) -> Iterator[Service]:
    """Runs the service until the end of the `with`; its traces are complete then."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    env = environment(folder / "traces", **settings)
    with (folder / "out.txt").open("wb") as out:
        process = subprocess.Popen(
            [service_python(), "-m", "uvicorn", "app:app", "--app-dir", str(EXAMPLE),
             "--port", str(port), "--log-level", "warning"],
            env=env, stdout=out, stderr=subprocess.STDOUT,
        )  # fmt: skip
        service = Service(f"http://127.0.0.1:{port}", folder, env, process)
        try:
            _wait(service)
            yield service
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            process.wait(30)


def _wait(service: Service) -> None:
    deadline_s = time.monotonic() + 90
    while True:
        assert service.process.poll() is None, (service.folder / "out.txt").read_text()
        assert time.monotonic() < deadline_s, "the service did not start"
        with contextlib.suppress(OSError):
            urllib.request.urlopen(service.url + "/health", timeout=5).close()
            return
        time.sleep(0.1)


def diagnose(traces: Path) -> dict[str, Any]:
    """Runs `diagnose` on a folder; returns its JSON."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("TOKENLAG_")}
    out = subprocess.run(
        [sys.executable, "-m", "tokenlag", str(traces), "--no-cache", "--format", "json"],
        env=kept | {"PYTHONPATH": os.pathsep.join([str(REPO / "tracer"), str(REPO / "analyzer")])},
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert out.returncode == 0, out.stderr
    found: dict[str, Any] = json.loads(out.stdout)
    return found
