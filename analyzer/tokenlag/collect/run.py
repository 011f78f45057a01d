"""The receiver from start to end: listens until a signal, then writes what waits."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

from tokenlag.collect.folder import Folder
from tokenlag.collect.http import Receiver
from tokenlag.collect.intake import Counts, Intake
from tokenlag.collect.rows import Rows
from tokenlag.errors import UsageError
from tokenlag.read.load import vocabulary

TELL_EVERY_S: Final = 60.0
_POLL_S: Final = 0.2
_GRACE_S: Final = 5.0


@dataclass(frozen=True)
class Settings:
    """What the command line asks for."""

    folder: Path
    listen: str
    grpc: str | None
    max_disk_bytes: int
    max_memory_bytes: int


def collect(settings: Settings, tell: Callable[[str], None]) -> Counts:
    """Receives until SIGINT or SIGTERM; returns what became of everything.

    Args:
        settings: where to listen and to write.
        tell: gets a line when it listens, and one a minute while spans come.

    Raises:
        UsageError: an address cannot be had.
        InputError: the folder cannot be written.
    """
    host, port = _address(settings.listen)
    stop = threading.Event()
    with ExitStack() as stack:
        folder = Folder(settings.folder, settings.max_disk_bytes)
        stack.callback(folder.close)
        intake = Intake(folder, Rows(vocabulary()), settings.max_memory_bytes)
        stack.callback(intake.close)
        receiver = Receiver(host, port, intake)
        serving = threading.Thread(target=receiver.serve_forever, args=(_POLL_S,), daemon=True)
        serving.start()
        stack.callback(receiver.server_close)
        stack.callback(receiver.shutdown)
        shown = f"[{host}]" if ":" in host else host
        where = f"http://{shown}:{receiver.server_address[1]}"
        if settings.grpc is not None:
            from tokenlag.collect.grpc import serve

            grpc_host, _ = _address(settings.grpc)
            server, grpc_port = serve(settings.grpc, intake)
            stack.callback(lambda: server.stop(_GRACE_S).wait())
            where += f" and gRPC on {grpc_host}:{grpc_port}"
        _on_signals(stop)
        tell(f"listening on {where}, writing to {settings.folder}/")
        n_told, told_s = 0, time.monotonic()
        while not stop.wait(_POLL_S):
            if time.monotonic() - told_s > TELL_EVERY_S:
                told_s = time.monotonic()
                if intake.counts.n_spans != n_told:
                    n_told = intake.counts.n_spans
                    tell(summary(intake.counts, folder.n_removed))
    tell(summary(intake.counts, folder.n_removed))
    return intake.counts


def summary(counts: Counts, n_removed: int) -> str:
    """One line: how many spans came, and what became of them."""
    parts = [
        f"{counts.n_spans:,} spans in {counts.n_exports:,} exports: {counts.n_stored:,} stored"
    ]
    for n, what in (
        (counts.n_busy, "put off for want of room"),
        (counts.n_disk, "put off because the disk took nothing"),
        (counts.n_unusable, "without ids"),
    ):
        if n:
            parts.append(f"{n:,} {what}")
    if counts.n_refused:
        parts.append(f"{counts.n_refused:,} exports refused")
    if n_removed:
        parts.append(f"{n_removed:,} old files removed")
    if counts.last_error:
        parts.append(f"last trouble: {counts.last_error}")
    return ", ".join(parts)


def _address(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`, `[::1]:PORT` or `:PORT`.

    Raises:
        UsageError: it is none of them.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65_535:
        raise UsageError(f"{text!r} is no address", hint="HOST:PORT, such as 127.0.0.1:4318")
    return host.strip("[]") or "127.0.0.1", int(port)


def _on_signals(stop: threading.Event) -> None:
    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
