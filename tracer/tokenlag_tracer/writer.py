"""The pod's one writer: takes records from every process and exports spans.

Started by `link`, which hands it the listening socket. It ignores SIGTERM and
SIGINT, so that what the server still says while it shuts down is recorded, and leaves when
all senders are gone. SIGUSR1 exports the ring.

It looks at its sockets a few times a second instead of waiting on them: a sender's write then
wakes nobody, which is the dearer half of a send.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Final

from tokenlag_tracer import channel as channels
from tokenlag_tracer import config as configs
from tokenlag_tracer import conventions as names
from tokenlag_tracer import identity, wire
from tokenlag_tracer.clock import Clock
from tokenlag_tracer.collector import Collector, Connection
from tokenlag_tracer.config import Config, read_config
from tokenlag_tracer.export import ExportQueue, targets_of
from tokenlag_tracer.spans import Attributes

NAP_S: Final = (0.01, 0.1)
FIRST_SENDER_S: Final = 60.0
LINGER_S: Final = 2.0
FOLLOW_CLOCK_S: Final = 10.0
MAX_RECORDS_AT_ONCE: Final = 4096


class _Peer:
    """A connection: its socket and, on a byte stream, what has come of the next record."""

    def __init__(self, connection: socket.socket, state: Connection) -> None:
        self.socket = connection
        self.state = state
        self.is_packets = not channels.is_stream(connection)
        self._rest = bytearray()

    def frames(self, data: memoryview) -> list[bytes]:
        """Returns the records that are whole now. Raises WireError where none can be."""
        rest = self._rest
        rest += data
        found: list[bytes] = []
        at = 0
        while len(rest) - at >= wire.FRAME.size:
            (size,) = wire.FRAME.unpack_from(rest, at)
            if size > wire.MAX_RECORD_BYTES:
                raise wire.WireError("a frame that is too long")
            if len(rest) - at < wire.FRAME.size + size:
                break
            at += wire.FRAME.size
            found.append(bytes(rest[at : at + size]))
            at += size
        del rest[:at]
        return found


class Writer:
    """The loop over sockets.

    Args:
        listening: the bound socket.
        config: the settings.
        collector: makes spans of records.
        queue: exports them.
        clock: the pod's.
    """

    def __init__(
        self,
        listening: socket.socket,
        config: Config,
        collector: Collector,
        queue: ExportQueue,
        clock: Clock,
    ) -> None:
        self._listening = listening
        self._config = config
        self._collector = collector
        self._queue = queue
        self._clock = clock
        self._peers: list[_Peer] = []
        self._buffer = memoryview(bytearray(wire.MAX_RECORD_BYTES))
        self._linger_s = LINGER_S
        self._started_s = time.monotonic()
        self._next_follow_s = self._started_s + FOLLOW_CLOCK_S
        self._has_served = False
        self._leavers: list[_Peer] = []
        self.is_dump_wanted = False
        listening.setblocking(False)

    def run(self) -> None:
        """Serves until all senders are gone, then exports what is left."""
        nap_s = NAP_S[0]
        alone_since_s = self._started_s
        while True:
            now_s = time.monotonic()
            n_taken = self._accept() + self._drain()
            if self._leavers and not n_taken:
                self._see_off()
            self._tick(now_s)
            if self._peers:
                alone_since_s = now_s
            elif now_s - alone_since_s > (self._linger_s if self._has_served else FIRST_SENDER_S):
                break
            nap_s = NAP_S[0] if n_taken else min(nap_s * 1.5, NAP_S[1])
            time.sleep(nap_s)
        self._collector.finish(time.monotonic_ns())
        self._queue.close(self._config.flush_wait_s)

    def _tick(self, now_s: float) -> None:
        now_ns = time.monotonic_ns()
        self._collector.tick(now_ns, [peer.state for peer in self._peers])
        if self.is_dump_wanted:
            self.is_dump_wanted = False
            self._collector.dump(now_ns)
        if now_s >= self._next_follow_s:
            self._next_follow_s = now_s + FOLLOW_CLOCK_S
            before_ns = self._clock.offset_ns
            if self._clock.follow_steps():
                self._collector.clock_stepped(before_ns, [peer.state for peer in self._peers])

    def _accept(self) -> int:
        n_new = 0
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return n_new
            connection.setblocking(False)
            self._peers.append(_Peer(connection, self._collector.connected()))
            self._has_served = True
            n_new += 1

    def _drain(self) -> int:
        n_taken = 0
        for peer in list(self._peers):
            for _ in range(MAX_RECORDS_AT_ONCE):
                try:
                    n_bytes = peer.socket.recv_into(self._buffer)
                except BlockingIOError:
                    break
                except OSError:
                    n_bytes = 0
                if not n_bytes:
                    self._drop(peer)
                    break
                n_taken += 1
                if not self._take(peer, self._buffer[:n_bytes]):
                    self._drop(peer)
                    break
        return n_taken

    def _drop(self, peer: _Peer) -> None:
        self._peers.remove(peer)
        if peer in self._leavers:
            self._leavers.remove(peer)
        peer.socket.close()
        self._collector.disconnected(peer.state, time.monotonic_ns())

    def _take(self, peer: _Peer, data: memoryview) -> bool:
        """Takes what a peer sent; returns whether the peer still makes sense."""
        now_ns = time.monotonic_ns()
        if peer.is_packets:
            self._record(peer, data, now_ns)
            return True
        try:
            for frame in peer.frames(data):
                self._record(peer, memoryview(frame), now_ns)
        except wire.WireError:
            self._collector.n_bad += 1
            return False
        return True

    def _record(self, peer: _Peer, data: memoryview, now_ns: int) -> None:
        kind = data[0] if data else -1
        if kind == wire.KIND_PING:
            with contextlib.suppress(OSError):
                peer.socket.send(b"\0")
        elif kind == wire.KIND_ASK:
            with contextlib.suppress(wire.WireError, OSError, AttributeError):
                self._answer(peer, wire.unpack_json(data).get("ask"), now_ns)
        else:
            self._collector.take(peer.state, data, now_ns)

    def _answer(self, peer: _Peer, ask: object, now_ns: int) -> None:
        answer: dict[str, object] = {}
        if ask == wire.ASK_BYE:
            self._linger_s = 0.0
            self._leavers.append(peer)
            return
        if ask == wire.ASK_DUMP:
            answer["spans"] = self._collector.dump(now_ns)
            answer["is_out"] = self._push_out(5.0)
        elif ask == wire.ASK_FLUSH:
            answer["is_out"] = self._queue.flush(5.0)
        elif ask == wire.ASK_STATUS:
            answer = self._status()
        self._reply(peer, answer)

    def _reply(self, peer: _Peer, answer: dict[str, object]) -> None:
        with contextlib.suppress(OSError):
            peer.socket.settimeout(1.0)
            channels.send_record(peer.socket, json.dumps(answer).encode())
            peer.socket.setblocking(False)

    def _see_off(self) -> None:
        """Tells those who leave how many stay; called when nothing is left unread."""
        for peer in self._leavers:
            self._reply(peer, {"senders": len(self._peers) - len(self._leavers)})
        self._leavers.clear()

    def _push_out(self, timeout_s: float) -> bool:
        """Exports what the ring gave up; returns whether all of it went out in time."""
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            self._collector.tick(time.monotonic_ns())
            if self._queue.flush(0.1) and not self._collector.is_dumping:
                return True
        return False

    def _status(self) -> dict[str, object]:
        usage = os.times()
        return {
            "pid": os.getpid(),
            "up_s": round(time.monotonic() - self._started_s, 3),
            "cpu_s": round(usage.user + usage.system, 3),
            "memory_bytes": _memory_bytes(),
            "senders": len(self._peers) - 1,  # without the one that asks
            "spans_waiting": len(self._queue),
            "spans_exported": self._queue.n_exported,
            "spans_failed": self._queue.n_failed,
            "spans_refused": self._queue.n_refused,
            "problems": list(self._config.problems),
            **self._collector.status(),
        }


def _memory_bytes() -> int | None:
    """Returns this process's resident memory, None where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def own_resource() -> Attributes:
    """Returns what the standard variables say of this service, and its host."""
    from opentelemetry.sdk.resources import OTELResourceDetector

    found: Attributes = {names.HOST_NAME: identity.host_name()}
    for key, value in OTELResourceDetector().detect().attributes.items():
        if isinstance(value, (str, int, float, bool)):
            found[key] = value
    return found


def _be_modest() -> None:
    """Yields the processor to the server, and is the first to go when memory runs out."""
    with contextlib.suppress(OSError):
        os.nice(5)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500", encoding="ascii")


def main(arguments: list[str] | None = None) -> int:
    """Runs the writer; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tokenlag_tracer.writer")
    parser.add_argument("--listen-fd", type=int, required=True)
    options = parser.parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    config = read_config()
    log = None
    if config.log_path:
        with contextlib.suppress(OSError):
            log = open(config.log_path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115, PTH123
            sys.stderr = log

    def report(line: str) -> None:
        if log is not None:
            log.write(f"tokenlag writer {os.getpid()}: {line}\n")

    _be_modest()
    for problem in config.problems:
        report(problem)
    listening = socket.socket(fileno=options.listen_fd)
    resources: dict[int, Attributes] = {}
    clock = Clock()
    queue = ExportQueue(targets_of(config, report), config.queue_spans, resources)
    collector = Collector(config, queue, clock, resources, own_resource())
    writer = Writer(listening, config, collector, queue, clock)

    def on_dump(*_: object) -> None:
        writer.is_dump_wanted = True

    signal.signal(signal.SIGUSR1, on_dump)
    writer.run()
    _remove_socket(os.environ.get(configs.SOCKET, ""))
    return 0


def _remove_socket(address: str) -> None:
    """Removes the socket's folder, if it is one that `link` made."""
    with contextlib.suppress(OSError, ValueError):
        path = Path(channels.split_address(address)[1])
        if path.parent.name.startswith("tokenlag-tracer-"):
            path.unlink(missing_ok=True)
            (path.parent / "lock").unlink(missing_ok=True)
            path.parent.rmdir()


def run_and_leave() -> None:
    """Runs the writer and ends the process at once.

    An exporter that hangs in its thread must not keep a finished writer alive.
    """
    os._exit(main())


if __name__ == "__main__":
    run_and_leave()
