"""Asks a running writer: how it is, to export its ring, to flush."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenlag_tracer import channel, wire


def ask(address: str, what: str, timeout_s: float = 10.0) -> dict[str, Any]:
    """Returns a writer's answer.

    Args:
        address: where it listens.
        what: `status`, `dump` or `flush`.
        timeout_s: how long to wait for it.

    Raises:
        OSError: nobody answers there.
        ValueError: the address or the answer makes no sense.
    """
    connection = channel.connect(address, timeout_s=timeout_s)
    try:
        channel.send_record(connection, wire.pack_json(wire.KIND_ASK, {"ask": what}))
        data = connection.recv(wire.MAX_RECORD_BYTES)
        if channel.is_stream(connection):
            while len(data) < wire.FRAME.size or len(data) < (
                wire.FRAME.size + wire.FRAME.unpack_from(data)[0]
            ):
                more = connection.recv(wire.MAX_RECORD_BYTES)
                if not more:
                    break
                data += more
            data = data[wire.FRAME.size :]
    finally:
        connection.close()
    if not data:
        raise ConnectionResetError("the writer went away")
    answer = json.loads(data)
    if not isinstance(answer, dict):
        raise ValueError("the writer's answer makes no sense")
    return answer


def find_writers() -> list[str]:
    """Returns the addresses of this user's writers, newest first.

    They are found by their sockets' folders; of a stream socket the type is not known from
    outside, so both are tried.
    """
    sockets: list[tuple[float, str]] = []
    for base in channel.socket_bases():
        for path in Path(base).glob(f"{channel.FOLDER_PREFIX}*/{channel.SOCKET_NAME}"):
            try:
                sockets.append((path.stat().st_mtime, str(path)))
            except OSError:
                continue  # another user's, or gone
    found: list[str] = []
    for _, path_ in sorted(sockets, reverse=True):
        for kind in (channel.SEQPACKET, channel.STREAM):
            try:
                channel.connect(f"{kind}:{path_}", timeout_s=1.0).close()
            except (OSError, ValueError):
                continue
            found.append(f"{kind}:{path_}")
            break
    return found
