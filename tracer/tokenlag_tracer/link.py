"""Keeps a process joined to the pod's one writer: starts it, joins it, starts it anew.

The first process makes a folder with the socket, starts the writer with the listening socket
as a file descriptor (a new program, never a fork of this one: the accelerator's state must not
be copied), and puts the address into the environment, so that children join. It holds a lock;
if it is gone, another process that finds no writer takes the lock and starts one.

All of it happens in one sleepy thread for each process, never in the engine's.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import os
import socket
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Final, Protocol

from tokenlag_tracer import channel as channels
from tokenlag_tracer import config as configs
from tokenlag_tracer import wire
from tokenlag_tracer.ask import ask
from tokenlag_tracer.channel import Channel
from tokenlag_tracer.config import Config, read_config

PERIOD_S: Final = 1.0
PERIOD_BROKEN_S: Final = 0.1
BACK_OFF_S: Final = (0.2, 60.0)
STEADY_S: Final = 60.0
ORPHANED_S: Final = 2.0

# The writer is a plain Python: `-I` keeps PYTHONPATH's `sitecustomize` out, by which both this
# package and `opentelemetry-instrument` would instrument the writer itself. Modules are found
# where this process finds them, after the standard library; this package where it is now.
_BOOT: Final = """
import json, sys
package, *others = json.loads(sys.argv.pop(1))
at = next((n for n, path in enumerate(sys.path) if "site-packages" in path), len(sys.path))
sys.path.insert(at, package)
sys.path += [path for path in others if path not in sys.path]
from tokenlag_tracer.writer import run_and_leave
run_and_leave()
"""


class Sender(Protocol):
    """A recorder, as the supervisor sees it."""

    channel: Channel

    def beat(self, now_ns: int) -> None:
        """Gives a sign of life if it has been idle."""

    def forked(self) -> None:
        """Becomes somebody else: this is a child process now."""


class WriterProcess:
    """The writer as this process started it.

    Args:
        address: where it listens.
        listening: its listening socket, kept here so that a new writer takes over its backlog.
        settings: of this process.
    """

    def __init__(self, address: str, listening: socket.socket, settings: Config) -> None:
        self.address = address
        self._listening = listening
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._started_s = 0.0
        self._next_s = 0.0
        self._back_off_s = BACK_OFF_S[0]
        self.n_starts = 0

    @property
    def pid(self) -> int:
        """Its process id, 0 if it does not run."""
        return self._process.pid if self._process is not None else 0

    def keep_running(self, now_s: float) -> None:
        """Starts it if it does not run and its back-off has passed."""
        process = self._process
        if process is not None:
            if process.poll() is None:
                if now_s - self._started_s > STEADY_S:
                    self._back_off_s = BACK_OFF_S[0]
                return
            self._process = None
            self._next_s = now_s + self._back_off_s
            self._back_off_s = min(self._back_off_s * 2, BACK_OFF_S[1])
        if now_s < self._next_s:
            return
        self._started_s = now_s
        try:
            self._process = self._start()
        except (OSError, ValueError, subprocess.SubprocessError):
            self._next_s = now_s + self._back_off_s
            self._back_off_s = min(self._back_off_s * 2, BACK_OFF_S[1])
        else:
            self.n_starts += 1

    def _start(self) -> subprocess.Popen[bytes]:
        environment = dict(os.environ)
        environment[configs.IS_WRITER] = "1"
        environment[configs.SOCKET] = self.address
        # Threads of numeric libraries and devices are nothing a writer needs.
        environment.update(CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")
        python = environment.get(configs.PYTHON) or sys.executable or "python3"
        descriptor = self._listening.fileno()
        package = str(Path(__file__).resolve().parent.parent)
        paths = json.dumps([package, *(path for path in sys.path if path)])
        return subprocess.Popen(
            [python, "-I", "-c", _BOOT, paths, "--listen-fd", str(descriptor)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(descriptor,),
            start_new_session=True,
            env=environment,
        )

    def kill(self) -> None:
        """Ends it at once: it hangs."""
        if self._process is not None:
            with contextlib.suppress(OSError):
                self._process.kill()

    def wait(self, timeout_s: float) -> bool:
        """Returns whether it ended within a time."""
        if self._process is None:
            return True
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def forget(self) -> None:
        """Leaves it to itself: it is another process's now, or goes on without this one."""
        if self._process is not None and self._process.returncode is None:
            self._process.returncode = 0  # or its destructor warns
        self._process = None
        with contextlib.suppress(OSError):
            self._listening.close()


class Link:
    """This process's tie to the writer.

    Args:
        settings: of this process.
    """

    def __init__(self, settings: Config) -> None:
        self.settings = settings
        self.address = settings.address
        self.writer: WriterProcess | None = None
        self._senders: weakref.WeakSet[Sender] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._lock_file: int | None = None
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._is_closed = False
        self._missing_since_s = 0.0
        self._heard_s = time.monotonic()
        self._pid = os.getpid()
        # Holds the writer for as long as this process lives, recorders or not.
        self._tie = Channel(lambda: wire.pack_json(wire.KIND_HELLO, {"role": "tie"}))

    def join(self, sender: Sender) -> None:
        """Connects a recorder now, if there is a way, and from then on keeps it connected."""
        with self._lock:
            self._senders.add(sender)
            try:
                if not self.address:
                    self._become_owner(None)
                if not sender.channel.open(self.address):
                    self._wake.set()
            except OSError:
                pass  # no socket can be had here; the thread goes on trying
            self._start_thread()

    def start_writer(self) -> None:
        """Starts the writer now, for processes that will join; does nothing if there is one."""
        with self._lock, contextlib.suppress(OSError):
            if not self.address:
                self._become_owner(None)
            self._start_thread()

    def leave(self, sender: Sender) -> None:
        """Ends a recorder's connection."""
        with self._lock:
            self._senders.discard(sender)
            sender.channel.close()

    def nudge(self) -> None:
        """Has the thread look now; starts it if there is none, as after a fork."""
        if self._thread is None and not self._is_closed:
            self._start_thread()

    def _start_thread(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="tokenlag-link", daemon=True)
            self._thread.start()

    def _become_owner(self, address: str | None) -> None:
        """Takes the lock, listens and starts the writer.

        Raises:
            OSError: the lock is another's, or no socket can be had.
        """
        if address is None:
            kind = channels.STREAM
            if not self.settings.is_stream and channels.has_packets():
                kind = channels.SEQPACKET
            address = f"{kind}:{channels.private_folder() / channels.SOCKET_NAME}"
        kind, path = channels.split_address(address)
        folder = Path(path).parent
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            listening = channels.socket_for(kind)
            with contextlib.suppress(FileNotFoundError):
                Path(path).unlink()
            listening.bind(path)
            listening.listen(128)
        except BaseException:
            os.close(lock)
            raise
        self._lock_file = lock
        self.address = address
        self.writer = WriterProcess(address, listening, self.settings)
        now_s = time.monotonic()
        self.writer.keep_running(now_s)
        self._hold(now_s)
        os.environ[configs.SOCKET] = address

    # --- the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_closed:
            is_whole = True
            with self._lock, contextlib.suppress(Exception):
                is_whole = self._is_closed or self._tick(time.monotonic())
            self._wake.wait(PERIOD_S if is_whole else PERIOD_BROKEN_S)
            self._wake.clear()

    def _tick(self, now_s: float) -> bool:
        """Does what is due; returns whether every recorder is connected."""
        if self.writer is not None:
            self.writer.keep_running(now_s)
            self._hold(now_s)
        is_whole = True
        now_ns = time.monotonic_ns()
        for sender in list(self._senders):
            if sender.channel.is_broken and not (
                self.address and sender.channel.open(self.address)
            ):
                is_whole = False
                continue
            sender.beat(now_ns)
        self._watch_address(is_whole, now_s)
        return is_whole

    def _hold(self, now_s: float) -> None:
        """Holds the writer, and kills it if it has not answered for too long."""
        tie = self._tie
        if tie.is_broken and tie.open(self.address):
            self._heard_s = now_s
        if tie.hears():
            self._heard_s = now_s
        elif now_s - self._heard_s > self.settings.hang_s and self.writer is not None:
            self._heard_s = now_s
            self.writer.kill()
        try:
            tie.send(bytes((wire.KIND_PING,)))
        except OSError as error:
            tie.failed(error)

    def _watch_address(self, is_whole: bool, now_s: float) -> None:
        """Takes the writer over if the process that started it is gone and it too."""
        if is_whole:
            self._missing_since_s = 0.0
            return
        if self.writer is not None:
            return
        if not self._missing_since_s:
            self._missing_since_s = now_s
        elif now_s - self._missing_since_s > ORPHANED_S:
            self._missing_since_s = now_s
            with contextlib.suppress(OSError, ValueError):
                self._become_owner(self.address if self._has_folder() else None)

    def _has_folder(self) -> bool:
        try:
            return Path(channels.split_address(self.address)[1]).parent.is_dir()
        except ValueError:
            return False

    # --- the end ------------------------------------------------------------------------------

    def close(self) -> None:
        """Says good-bye and gives the writer a moment to export what it holds."""
        with self._lock:
            self._is_closed = True
            self._wake.set()
            for sender in list(self._senders):
                sender.channel.close()
            self._tie.close()
            writer = self.writer
            if writer is None or self._pid != os.getpid():
                return
            deadline_s = time.monotonic() + self.settings.exit_wait_s
            if not self._others_stay():
                writer.wait(max(0.0, deadline_s - time.monotonic()))
            writer.forget()

    def _others_stay(self) -> bool:
        """Says good-bye to the writer; returns whether other processes keep it."""
        try:
            answer = ask(self.address, wire.ASK_BYE, timeout_s=self.settings.exit_wait_s)
        except (OSError, ValueError):
            return False
        return bool(answer.get("senders"))

    def forked(self) -> None:
        """Makes this the link of a child process: no thread, no writer, no connection yet."""
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread = None
        self._pid = os.getpid()
        self._missing_since_s = 0.0
        if self.writer is not None:
            self.writer.forget()
            self.writer = None
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None
        self._tie.close()
        for sender in list(self._senders):
            sender.channel.close()
            sender.forked()


_link: Link | None = None
_link_lock = threading.Lock()


def shared_link() -> Link:
    """Returns this process's link; the first call reads the settings."""
    global _link
    with _link_lock:
        if _link is None or _link._is_closed:
            _link = Link(read_config())
        return _link


def nudge() -> None:
    """Tells the link that a connection is gone; cheap, takes no lock while the thread lives."""
    if _link is not None:
        _link.nudge()


def close_shared_link() -> None:
    """Ends this process's link, as its exit does; a later recorder makes a new one."""
    global _link
    with _link_lock:
        link, _link = _link, None
    if link is not None:
        is_own = link.writer is not None
        link.close()
        if is_own and os.environ.get(configs.SOCKET) == link.address:
            del os.environ[configs.SOCKET]


def _after_fork() -> None:
    global _link_lock
    _link_lock = threading.Lock()
    if _link is not None:
        _link.forked()


atexit.register(close_shared_link)
os.register_at_fork(after_in_child=_after_fork)
