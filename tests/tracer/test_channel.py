"""Connections: frames on a byte stream stay whole, addresses, and who is told of a new socket."""

from __future__ import annotations

import random
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenlag_tracer import channel, wire
from tokenlag_tracer.channel import Channel
from tokenlag_tracer.collector import Connection
from tokenlag_tracer.writer import _Peer


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    left.setblocking(False)
    left.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    yield left, right
    left.close()
    right.close()


@pytest.mark.parametrize("seed", range(5))
def test_frames_are_whole_or_not_at_all(
    pair: tuple[socket.socket, socket.socket], seed: int
) -> None:
    left, right = pair
    chance = random.Random(seed)
    sender, peer = channel._StreamSender(left), _Peer(right, Connection(0))
    sent: list[bytes] = []
    got: list[bytes] = []
    for number in range(400):
        data = bytes([number % 256]) * chance.randrange(1, 3000)
        try:
            sender.send(data)
            sent.append(data)
        except BlockingIOError:
            got += peer.frames(memoryview(right.recv(chance.randrange(1, 9000))))
    right.setblocking(False)
    while len(got) < len(sent):
        try:
            got += peer.frames(memoryview(right.recv(65536)))
        except BlockingIOError:
            sender._rest = sender._rest[left.send(sender._rest) :]
    assert got == sent
    assert 0 < len(sent) < 400


def test_threads_do_not_mix_frames(pair: tuple[socket.socket, socket.socket]) -> None:
    left, right = pair
    sender, peer = channel._StreamSender(left), _Peer(right, Connection(0))
    got: list[bytes] = []
    n_sent = [0] * 4

    def send(number: int) -> None:
        for _ in range(300):
            try:
                sender.send(bytes([number]) * 500)
                n_sent[number] += 1
            except BlockingIOError:
                continue

    threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    right.settimeout(0.3)
    while any(thread.is_alive() for thread in threads):
        try:
            got += peer.frames(memoryview(right.recv(65536)))
        except TimeoutError:
            continue
    for thread in threads:
        thread.join()
    while sender._rest:
        sender._rest = sender._rest[left.send(sender._rest) :]
    left.close()
    while data := right.recv(65536):
        got += peer.frames(memoryview(data))
    assert all(len(frame) == 500 and len(set(frame)) == 1 for frame in got)
    assert [sum(frame[0] == number for frame in got) for number in range(4)] == n_sent


def test_a_frame_that_cannot_be_is_refused(pair: tuple[socket.socket, socket.socket]) -> None:
    peer = _Peer(pair[1], Connection(0))
    with pytest.raises(wire.WireError):
        peer.frames(memoryview(b"\xff" * 8))


@pytest.mark.parametrize("address", ["", "x", "x:y", "seqpacket:", ":p", "tcp:1"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(ValueError, match="not an address"):
        channel.split_address(address)


@pytest.mark.parametrize("kind", ["seqpacket", "stream"])
def test_a_channel_says_hello_first_and_tells_its_user(kind: str, tmp_path: Path) -> None:
    published: list[object] = []
    made = Channel(lambda: b"\x01hello", published.append)
    assert not made.open(f"{kind}:{tmp_path / 's'}")
    with channel.socket_for(kind) as listening:
        listening.bind(str(tmp_path / "s"))
        listening.listen()
        assert made.open(f"{kind}:{tmp_path / 's'}")
        assert published[-1] == made.send
        made.send(b"\x02step")
        accepted, _ = listening.accept()
        with accepted:
            if kind == "seqpacket":
                assert [accepted.recv(100), accepted.recv(100)] == [b"\x01hello", b"\x02step"]
            else:
                peer = _Peer(accepted, Connection(0))
                got: list[bytes] = []
                while len(got) < 2:
                    got += peer.frames(memoryview(accepted.recv(100)))
                assert got == [b"\x01hello", b"\x02step"]
    with pytest.raises(OSError) as failed:  # noqa: PT012 - the first may still be taken
        for _ in range(3):
            made.send(b"more")
    made.failed(failed.value)
    assert made.is_broken
    assert published[-1] is made.send is channel.refuse
    made.close()


def test_a_sockets_folder_is_private() -> None:
    folder = channel.private_folder()
    try:
        assert folder.stat().st_mode & 0o777 == 0o700
        assert len(str(folder / "writer.sock")) < 104, "what a socket's address can hold"
    finally:
        folder.rmdir()


def test_a_long_temporary_folder_is_no_place_for_a_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("d" * 90)
    long.mkdir()
    for given in (long, tmp_path / "not-there"):
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(given))
        monkeypatch.setattr(tempfile, "tempdir", str(given))
        folder = channel.private_folder()
        try:
            assert folder.parent not in (long, given)
            with socket.socket(socket.AF_UNIX) as listening:
                listening.bind(str(folder / channel.SOCKET_NAME))
        finally:
            shutil.rmtree(folder)


def test_the_longest_folder_that_is_taken_holds_a_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        base = Path(short) / ("d" * (channel._MAX_BASE_BYTES - len(short) - 1))
        base.mkdir()
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
        folder = channel.private_folder()
        assert folder.parent == base
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(folder / channel.SOCKET_NAME))
