"""The lab's load generator against a server of the test's own; its faults are well-formed."""

from __future__ import annotations

import asyncio
import json

import pytest

from benchmarks.lab.faults import FAULTS
from benchmarks.lab.loadgen import Record, Stream, run_load

TOKENS = 5


def _body() -> bytes:
    events = [{"choices": [{"text": f"w{n}"}]} for n in range(TOKENS)]
    texts = [f"data: {json.dumps(event)}\n\n" for event in events]
    return "".join([*texts, "data: [DONE]\n\n"]).encode()


def _play(cut: int, is_chunked: bool) -> list[Record]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        [length] = [
            int(line.split(b":")[1])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length")
        ]
        await reader.readexactly(length)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n")
        writer.write(b"Transfer-Encoding: chunked\r\n\r\n" if is_chunked else b"\r\n")
        body = _body()
        for at in range(0, len(body), cut):
            part = body[at : at + cut]
            writer.write(b"%x\r\n%s\r\n" % (len(part), part) if is_chunked else part)
            await writer.drain()
        if is_chunked:
            writer.write(b"0\r\n\r\n")
        writer.close()

    async def run() -> list[Record]:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        mix = [Stream(every_s=0.01, prompt=(3, 3), output=(TOKENS, TOKENS), to_s=0.025)]
        async with server:
            return await run_load(f"http://127.0.0.1:{port}", mix, seconds=1, seed=1)

    return asyncio.run(run())


@pytest.mark.parametrize("is_chunked", [True, False])
@pytest.mark.parametrize("cut", [1, 7, 64, 10_000])
def test_answers_are_read_however_they_are_cut(cut: int, is_chunked: bool) -> None:
    records = _play(cut, is_chunked)
    assert len(records) == 2
    for record in records:
        assert (record.status, record.error) == (200, None)
        assert len(record.chunks) == TOKENS


def test_faults_are_told_apart_and_say_what_is_true() -> None:
    names = [one.name for one in FAULTS]
    assert len(set(names)) == len(names)
    for one in FAULTS:
        assert one.truth.get("healthy") or one.truth["cause"]
        assert not one.baseline or one.baseline in names
        assert one.proxy in ("", "plain", "buffering")
