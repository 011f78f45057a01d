"""What is done to a server while it is under load: hogs beside it, pauses, a proxy in front."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from benchmarks.lab.server import free_port

PROXY_START_S: Final = 10.0
_NGINX: Final = """
daemon off;
worker_processes 1;
error_log {folder}/nginx-error.log;
pid {folder}/nginx.pid;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_temp_path {folder}/nginx-body;
    proxy_temp_path {folder}/nginx-proxy;
    fastcgi_temp_path {folder}/nginx-fastcgi;
    uwsgi_temp_path {folder}/nginx-uwsgi;
    scgi_temp_path {folder}/nginx-scgi;
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://127.0.0.1:{upstream};
            proxy_http_version {version};
            proxy_buffering {buffering};
            {more}
            proxy_buffer_size 16k;
            proxy_buffers 8 16k;
            proxy_read_timeout 300s;
        }}
    }}
}}
"""


async def hog(n_hogs: int, from_s: float, to_s: float) -> None:
    """Runs processes that take all the CPU they get, from a moment of the load to another."""
    if not n_hogs:
        return
    await asyncio.sleep(from_s)
    # Each in a session of its own: Linux shares the processor between sessions first.
    hogs = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
        for _ in range(n_hogs)
    ]
    try:
        await asyncio.sleep(to_s - from_s)
    finally:
        for one in hogs:
            one.kill()
            one.wait()


async def pause(group: int, every_s: float, for_s: float, to_s: float) -> None:
    """Stops a server's engine for a while, again and again.

    Args:
        group: the server's process group.
        every_s: seconds from pause to pause; 0: there is none.
        for_s: how long each is.
        to_s: no pause begins later.
    """
    if not every_s:
        return
    pid = engine_of(group)
    ends_s = time.monotonic() + to_s
    while time.monotonic() + every_s < ends_s:
        await asyncio.sleep(every_s - for_s)
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(for_s)
        finally:
            os.kill(pid, signal.SIGCONT)


def engine_of(group: int) -> int:
    """Returns the process id of vLLM's engine core in a process group.

    Raises:
        LookupError: there is none.
    """
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with suppress(OSError):
            name = (folder / "comm").read_text(encoding="utf-8")
            if os.getpgid(int(folder.name)) == group and "EngineCor" in name:
                return int(folder.name)
    raise LookupError(f"no engine core in process group {group}")


@contextmanager
def nginx(program: str, folder: Path, upstream: int, *, is_buffering: bool) -> Iterator[int]:
    """Runs nginx in front of a server's port; yields its own.

    Raises:
        RuntimeError: it is not up in time.
    """
    port = free_port()
    text = _NGINX.format(
        folder=folder,
        port=port,
        upstream=upstream,
        buffering="on" if is_buffering else "off",
        # Of an answer in chunks nginx passes on what is there; by HTTP/1.0, its default, there are
        # none. vLLM says `X-Accel-Buffering: no`, which nginx obeys unless it is told not to.
        version="1.0" if is_buffering else "1.1",
        more="proxy_ignore_headers X-Accel-Buffering;" if is_buffering else "",
    )
    settings = folder / "nginx.conf"
    settings.write_text(text, encoding="utf-8")
    process = subprocess.Popen(
        [program, "-c", str(settings), "-p", str(folder), "-e", str(folder / "nginx-error.log")]
    )
    try:
        deadline_s = time.monotonic() + PROXY_START_S
        while not (folder / "nginx.pid").exists() or not (folder / "nginx.pid").read_text().strip():
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"nginx is not up: see {folder}/nginx-error.log")
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait(10)
