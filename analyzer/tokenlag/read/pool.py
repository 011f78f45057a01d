"""Hands jobs to a reader in process or to several in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Protocol, TypeVar

import msgspec

from tokenlag.errors import TokenlagError
from tokenlag.read.messages import Done, Job, Report, Setup
from tokenlag.read.vocabulary import Vocabulary


class Task(Protocol):
    """A job, what it needs, and whatever its owner wants to find again."""

    @property
    def job(self) -> Job:
        """What to read."""
        ...

    @property
    def payload(self) -> bytes:
        """The bytes that go with the job, if it names any."""
        ...


TaskT = TypeVar("TaskT", bound=Task)


class Readers(Protocol):
    """Something that does jobs."""

    def run(self, tasks: Iterable[TaskT]) -> Iterator[tuple[TaskT, Report]]:
        """Yields each task with its report; in the order of the tasks."""
        ...

    def finish(self) -> Done:
        """Returns the files."""
        ...

    def close(self) -> None:
        """Ends what is still running."""
        ...


class InProcess:
    """One reader, here."""

    def __init__(self, out_dir: Path, vocabulary: Vocabulary) -> None:
        from tokenlag.read.jobs import SpanReader  # brings polars, which workers have to themselves

        self._reader = SpanReader(Setup.of(out_dir, "0", vocabulary))

    def run(self, tasks: Iterable[TaskT]) -> Iterator[tuple[TaskT, Report]]:
        """Yields each task with its report."""
        for task in tasks:
            yield task, self._reader.run(task.job, task.payload)

    def finish(self) -> Done:
        """Returns the files."""
        return self._reader.finish()

    def close(self) -> None:
        """Nothing runs on."""


class Processes:
    """Several readers, each in a process; tasks are taken from the iterable as they free up.

    Args:
        n: how many.
        out_dir: where they write.
        vocabulary: which keys they keep.
    """

    def __init__(self, n: int, out_dir: Path, vocabulary: Vocabulary) -> None:
        self._workers = [_Worker(out_dir, str(index), vocabulary) for index in range(n)]
        self._free: SimpleQueue[_Worker] = SimpleQueue()
        for worker in self._workers:
            self._free.put(worker)
        self._threads = ThreadPoolExecutor(n, thread_name_prefix="tokenlag-read")

    def run(self, tasks: Iterable[TaskT]) -> Iterator[tuple[TaskT, Report]]:
        """Yields each task with its report.

        Raises:
            TokenlagError: a worker ended before its work was done.
        """
        running: deque[tuple[TaskT, Future[Report]]] = deque()
        for task in tasks:
            running.append((task, self._threads.submit(self._run, task.job, task.payload)))
            if len(running) > len(self._workers):  # one waits, so that no worker does
                first, future = running.popleft()
                yield first, future.result()
        for task, future in running:
            yield task, future.result()

    def _run(self, job: Job, payload: bytes) -> Report:
        worker = self._free.get()
        try:
            return worker.run(job, payload)
        finally:
            self._free.put(worker)

    def finish(self) -> Done:
        """Returns the files."""
        all_done = Done([], [])
        for done in self._threads.map(_Worker.finish, self._workers):
            all_done.span_files += done.span_files
            all_done.event_files += done.event_files
        return all_done

    def close(self) -> None:
        """Ends what is still running."""
        for worker in self._workers:
            worker.close()
        self._threads.shutdown(wait=True)


class _Worker:
    def __init__(self, out_dir: Path, prefix: str, vocabulary: Vocabulary) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "POLARS_MAX_THREADS": "1",  # each worker has a core; more threads only contend
        }
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tokenlag.read.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self._reports = msgspec.json.Decoder(Report)
        self._setup = msgspec.json.encode(Setup.of(out_dir, prefix, vocabulary)) + b"\n"

    def run(self, job: Job, payload: bytes) -> Report:
        self._send(msgspec.json.encode(job) + b"\n", payload)
        return self._reports.decode(self._receive())

    def finish(self) -> Done:
        self._send()
        self._stdin.close()
        return msgspec.json.decode(self._receive(), type=Done)

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for stream in (self._stdin, self._stdout, self._errors):
            try:
                stream.close()
            except BrokenPipeError:
                continue

    def _send(self, *parts: bytes) -> None:
        setup, self._setup = self._setup, b""  # goes with the first message
        try:
            for part in (setup, *parts):
                self._stdin.write(part)
            self._stdin.flush()
        except BrokenPipeError:
            raise self._death() from None

    def _receive(self) -> bytes:
        line = self._stdout.readline()
        if not line.endswith(b"\n"):
            raise self._death()
        return line

    def _death(self) -> TokenlagError:
        status = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        why = f": {said[-1]}" if said else ""
        return TokenlagError(
            f"a reading process ended early (status {status}){why}",
            hint="free memory or disk space, or give fewer files at a time",
        )
