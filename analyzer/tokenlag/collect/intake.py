"""What was received and is not yet on disk: bounded, committed in groups, then answered.

An export is answered only after its rows are in a file, so what a sender believes to be stored
survives the process. Senders wait together: whatever arrives within a moment is one commit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

from tokenlag.collect.folder import Folder
from tokenlag.collect.rows import Export, Rows

GATHER_S: Final = 0.05
MAX_PARTS: Final = 64  # that are left alone
TOGETHER_S: Final = 30.0
RETRY_BUSY_S: Final = 1
RETRY_DISK_S: Final = 10


class BusyError(Exception):
    """Not now; the sender may try again.

    Args:
        message: why.
        retry_s: after how long.
    """

    def __init__(self, message: str, retry_s: int) -> None:
        super().__init__(message)
        self.retry_s = retry_s


class DiskError(BusyError):
    """The disk takes nothing now."""


@dataclass
class Counts:
    """Spans and exports by what became of them, since the start."""

    n_exports: int = 0
    n_spans: int = 0
    n_stored: int = 0  # spans that are on disk
    n_unusable: int = 0  # spans of stored exports that became no row: without ids
    n_busy: int = 0  # spans that were put off for want of room
    n_disk: int = 0  # spans that were put off because the disk took nothing
    n_refused: int = 0  # exports that are none
    last_error: str = ""
    started_s: float = field(default_factory=time.time)


class Intake:
    """Takes exports from any thread; one thread of its own commits them.

    Args:
        folder: where to.
        rows: makes frames of them.
        max_bytes: bodies that may wait; more are put off.
    """

    def __init__(self, folder: Folder, rows: Rows, max_bytes: int) -> None:
        self.counts = Counts()
        self._folder = folder
        self._rows = rows
        self._max_bytes = max_bytes
        self._waiting: list[tuple[Export, Future[None]]] = []
        self._n_bytes = 0  # of all that is not on disk, also what is being committed
        self._changed = threading.Condition()
        self._is_closing = False
        self._thread = threading.Thread(target=self._work, name="tokenlag-commit", daemon=True)
        self._thread.start()

    def offer(self, export: Export) -> Future[None]:
        """Takes an export; the future is done when it is on disk, or fails with `BusyError`.

        Raises:
            BusyError: too much waits already, or this is about to end.
        """
        with self._changed:
            self.counts.n_exports += 1
            self.counts.n_spans += export.n_spans
            # One that is larger than the limit by itself is taken when nothing else waits.
            is_full = self._n_bytes and self._n_bytes + len(export.body) > self._max_bytes
            if is_full or self._is_closing:
                self.counts.n_busy += export.n_spans
                raise BusyError("too much is waiting to be written", RETRY_BUSY_S)
            done: Future[None] = Future()
            self._waiting.append((export, done))
            self._n_bytes += len(export.body)
            self._changed.notify()
            return done

    def refuse(self, why: str) -> None:
        """Counts an export that can never be taken."""
        with self._changed:
            self.counts.n_exports += 1
            self.counts.n_refused += 1
            self.counts.last_error = why

    def close(self) -> None:
        """Commits what waits and ends."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        together_s = time.monotonic()
        while True:
            with self._changed:
                while not self._waiting and not self._is_closing:
                    self._changed.wait()
                if not self._waiting:
                    break
            time.sleep(GATHER_S)
            with self._changed:
                group, self._waiting = self._waiting, []
            self._commit(group)
            if time.monotonic() - together_s > TOGETHER_S:
                self._tidy(over=1)
                together_s = time.monotonic()
            else:
                self._tidy(over=MAX_PARTS)
        self._tidy(over=1)

    def _commit(self, group: Sequence[tuple[Export, Future[None]]]) -> None:
        n_spans = sum(export.n_spans for export, _ in group)
        failure: BusyError | None = None
        n_rows = 0
        try:
            for export, _ in group:
                self._rows.add(export)
            spans, events = self._rows.take()
            n_rows = spans.height
            self._folder.commit(spans, events)
        except OSError as error:
            why = error.strerror or str(error) or "the disk takes nothing"
            failure = DiskError(why, RETRY_DISK_S)
        with self._changed:
            self._n_bytes -= sum(len(export.body) for export, _ in group)
            if failure is None:
                self.counts.n_stored += n_rows
                self.counts.n_unusable += n_spans - n_rows
            else:
                self.counts.n_disk += n_spans
                self.counts.last_error = str(failure)
        for _, done in group:
            if failure is None:
                done.set_result(None)
            else:
                done.set_exception(failure)

    def _tidy(self, *, over: int) -> None:
        try:
            self._folder.put_together(over=over)
            self._folder.trim()
        except OSError as error:
            with self._changed:
                self.counts.last_error = error.strerror or str(error)
