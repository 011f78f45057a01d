"""One connection of one recorder to the writer: non-blocking, bounded, replaceable.

`Channel.send` is what the hot path calls. It is the socket's own method while there is a
connection, and a function that refuses while there is none, so the hot path has no branch for
it. Connecting is the supervisor's work (see `link`), never the hot path's.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tokenlag_tracer import wire

SEQPACKET: Final = "seqpacket"
STREAM: Final = "stream"
# Room for some thousand records while the writer is busy; the kernel may grant less.
SEND_BUFFER_BYTES: Final = 1 << 20
FOLDER_PREFIX: Final = "tokenlag-tracer-"
SOCKET_NAME: Final = "writer.sock"
# What `sun_path` holds (macOS has four less), without its end, both names, eight letters that
# `mkdtemp` adds, and two slashes.
_MAX_BASE_BYTES: Final = 104 - 1 - len(FOLDER_PREFIX) - len(SOCKET_NAME) - 8 - 2
Bytes = bytes | bytearray | memoryview
Send = Callable[[Bytes], int]
Publish = Callable[[Send], None]

_NOT_BROKEN: Final = (errno.EAGAIN, errno.EMSGSIZE, errno.ENOBUFS, errno.EINTR, errno.ENOMEM)


def has_packets() -> bool:
    """Returns whether this system has packets over local sockets."""
    if not hasattr(socket, "SOCK_SEQPACKET"):
        return False
    try:
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).close()
    except OSError:
        return False
    return True


def split_address(address: str) -> tuple[str, str]:
    """Returns type (`seqpacket` or `stream`) and path of a writer's address.

    Raises:
        ValueError: it is no address.
    """
    kind, colon, path = address.partition(":")
    if not colon or kind not in (SEQPACKET, STREAM) or not path:
        raise ValueError(f"{address!r} is not an address such as seqpacket:PATH")
    return kind, path


def socket_for(kind: str) -> socket.socket:
    """Returns a new local socket of a type."""
    is_packets = kind == SEQPACKET
    return socket.socket(
        socket.AF_UNIX, socket.SOCK_SEQPACKET if is_packets else socket.SOCK_STREAM
    )


def is_stream(connection: socket.socket) -> bool:
    """Returns whether a connection is a byte stream, on which records are framed."""
    return connection.type != getattr(socket, "SOCK_SEQPACKET", None)


def connect(address: str, timeout_s: float = 0.0) -> socket.socket:
    """Returns a connection to a writer, non-blocking unless a timeout is given.

    Raises:
        OSError: nobody listens there.
        ValueError: it is no address.
    """
    kind, path = split_address(address)
    connection = socket_for(kind)
    try:
        connection.settimeout(timeout_s)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        connection.connect(path)
    except BaseException:
        connection.close()
        raise
    return connection


class _StreamSender:
    """Frames records on a byte stream; what did not fit goes first next time.

    Packets keep the records of several threads apart by themselves; frames must not be mixed,
    so of two threads that come at once one is turned away, without waiting.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._rest = b""
        self._lock = threading.Lock()

    def send(self, data: Bytes) -> int:
        if not self._lock.acquire(blocking=False):
            raise BlockingIOError(errno.EAGAIN, "another thread is sending")
        try:
            return self._send(data)
        finally:
            self._lock.release()

    def _send(self, data: Bytes) -> int:
        if self._rest:
            n_sent = self._connection.send(self._rest)
            self._rest = self._rest[n_sent:]
            if self._rest:
                raise BlockingIOError(errno.EAGAIN, "the record before is not out yet")
        view = memoryview(data)
        frame = wire.FRAME.pack(len(view)) + bytes(view)
        self._rest = frame[self._connection.send(frame) :]
        return len(view)


def refuse(_: Bytes) -> int:
    """Stands for a socket's `send` while there is no connection.

    Raises:
        ConnectionRefusedError: always.
    """
    raise ConnectionRefusedError(errno.ECONNREFUSED, "no writer")


class Channel:
    """A recorder's way to the writer.

    Args:
        hello: makes the record that says who is sending; first on each connection.
        publish: is handed `send` whenever it changes, for a hot path that keeps it closer.

    Attributes:
        send: hands one record to the kernel, or raises OSError at once.
        is_broken: there is no connection; the supervisor makes one.
        n_full: how many records found no room.
        n_lost: how many connections were lost.
    """

    __slots__ = (
        "_connection", "_publish", "hello", "is_broken", "n_full", "n_lost", "send",
    )  # fmt: skip

    def __init__(self, hello: Callable[[], bytes], publish: Publish | None = None) -> None:
        self.hello = hello
        self._publish = publish
        self._use(refuse)
        self.is_broken = True
        self.n_lost = 0
        self.n_full = 0
        self._connection: socket.socket | None = None

    def failed(self, error: OSError) -> None:
        """Notes that a record was not taken; tells a full socket from a lost one."""
        if error.errno in _NOT_BROKEN:
            self.n_full += 1
            return
        if not self.is_broken:
            self.n_lost += 1
            self._use(refuse)
            self.is_broken = True

    def open(self, address: str) -> bool:
        """Connects and says hello; returns whether that worked. Not for the hot path."""
        try:
            connection = connect(address)
        except (OSError, ValueError):
            return False
        try:
            sender = _StreamSender(connection).send if is_stream(connection) else connection.send
            sender(self.hello())
        except OSError:
            connection.close()
            return False
        self.close()
        self._connection = connection
        self.is_broken = False
        self._use(sender)
        return True

    def _use(self, send: Send) -> None:
        self.send = send
        if self._publish is not None:
            self._publish(send)

    def close(self) -> None:
        """Ends the connection; what was sent is still delivered."""
        self._use(refuse)
        self.is_broken = True
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def __del__(self) -> None:
        self.close()

    def hears(self) -> bool:
        """Returns whether the other side has said something since last asked."""
        connection, has_heard = self._connection, False
        try:
            while connection is not None and connection.recv(4096):
                has_heard = True
        except OSError:
            pass  # no more for now; or it is lost, which the next send finds out
        return has_heard


def send_record(connection: socket.socket, data: bytes) -> None:
    """Sends one record on a connection of either type, waiting as long as its timeout says.

    Raises:
        OSError: it is not taken.
    """
    if is_stream(connection):
        connection.sendall(wire.FRAME.pack(len(data)) + data)
    else:
        connection.send(data)


def socket_bases() -> list[str]:
    """Returns the folders in which a writer's folder may be, best first.

    A socket's path has 107 bytes, so a long temporary folder cannot be used (that of a batch
    job, say, or of a test); what stands after the user's own folders is short and there on most
    machines.
    """
    own = (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir())
    others = ("/tmp", "/var/tmp", "/dev/shm")
    return [
        base
        for base in dict.fromkeys((*own, *others))
        if base and len(os.fsencode(base)) <= _MAX_BASE_BYTES
    ]


def private_folder() -> Path:
    """Returns a new folder that only this user can enter, short enough for a socket's path.

    Raises:
        OSError: there is no place for one.
    """
    for base in socket_bases():
        with contextlib.suppress(OSError):  # it is not there, or full, or not for writing
            return Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=base))
    raise OSError(errno.ENOENT, "no folder for a socket")
