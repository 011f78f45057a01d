"""Open-loop load on an OpenAI-compatible server of this machine: what was meant, sent and got.

A plan is fixed before the first request is sent: arrivals are drawn from the mix's rates and do
not wait for answers, so a server that falls behind gets no relief, and how late each request was
really sent is recorded. Prompts are random token ids, drawn from a seed; none is kept.

    python -m benchmarks.lab.loadgen http://127.0.0.1:8000 mix.json client.jsonl --seconds 60
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, TextIO
from urllib.parse import urlsplit

from tokenlag_tracer.client import Call
from tokenlag_tracer.front_recorder import FrontRecorder

# Token ids that even the smallest model of the lab has.
VOCABULARY: Final = (100, 1000)
MAX_PREFIX: Final = 20_000
# What a slow reader's socket holds, asked of the system, which doubles it and more.
SLOW_BUFFER_BYTES: Final = 2048
READ_BYTES: Final = 1 << 16


@dataclass(frozen=True)
class Stream:
    """One kind of request in a mix.

    Attributes:
        rate: arrivals a second, drawn as a Poisson process; 0 if `every_s` is given.
        every_s: seconds between arrivals, if they are regular.
        prompt: fewest and most prompt tokens.
        output: fewest and most output tokens; the server must yield exactly what is drawn.
        from_s: when it begins, seconds into the load.
        to_s: when it ends; the load's end by default.
        tenant: a label that is sent as a header and recorded.
        prefix: so many first tokens are the same in all of the stream's prompts.
        n: sequences for each request.
        abort_s: the client goes away so long after sending; 0: it stays.
        read_s: the client reads so seldom, a few hundred bytes at a time; 0: as they come.
    """

    rate: float = 0.0
    every_s: float = 0.0
    prompt: tuple[int, int] = (32, 128)
    output: tuple[int, int] = (32, 64)
    from_s: float = 0.0
    to_s: float = 0.0
    tenant: str = "default"
    prefix: int = 0
    n: int = 1
    abort_s: float = 0.0
    read_s: float = 0.0


@dataclass
class Record:
    """One request, as its client saw it; times are unix seconds, offsets seconds after the send.

    Attributes:
        sent_late_s: how long after the planned moment it was sent: the generator's own lateness.
        chunks: when each chunk with content came.
    """

    index: int
    request_id: str
    tenant: str
    n_prompt: int
    n_output: int
    n: int
    planned: float
    traceparent: str
    sent: float = 0.0
    sent_late_s: float = 0.0
    status: int = 0
    chunks: list[float] = field(default_factory=list)
    ended: float = 0.0
    error: str | None = None


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Planned = tuple[float, Stream, Record, list[int]]


def read_mix(text: str) -> list[Stream]:
    """Returns the streams of a mix: a JSON list of objects with `Stream`'s fields.

    Raises:
        ValueError: it is none.
    """
    listed = json.loads(text)
    if not isinstance(listed, list) or not listed:
        raise ValueError("a mix is a list of streams")
    streams = []
    for item in listed:
        pairs = {key: tuple(item[key]) for key in ("prompt", "output") if key in item}
        streams.append(Stream(**{**item, **pairs}))
    return streams


def plan(streams: Sequence[Stream], seconds: float, seed: int, name: str = "r") -> list[Planned]:
    """Returns moment, stream, empty record and prompt of each request, in order of time."""
    draw = random.Random(seed)
    shared = [draw.randrange(*VOCABULARY) for _ in range(MAX_PREFIX)]
    moments: list[tuple[float, Stream]] = []
    for stream in streams:
        at_s = stream.from_s
        while True:
            at_s += stream.every_s or draw.expovariate(stream.rate)
            if at_s >= (stream.to_s or seconds):
                break
            moments.append((at_s, stream))
    moments.sort(key=lambda moment: moment[0])
    planned = []
    for index, (at_s, stream) in enumerate(moments):
        n_prompt, n_output = draw.randint(*stream.prompt), draw.randint(*stream.output)
        own = max(1, n_prompt - stream.prefix)
        prompt = shared[: stream.prefix] + [draw.randrange(*VOCABULARY) for _ in range(own)]
        traceparent = f"00-{draw.getrandbits(128):032x}-{draw.getrandbits(64):016x}-01"
        record = Record(
            index,
            f"{name}{index}",
            stream.tenant,
            len(prompt),
            n_output,
            stream.n,
            at_s,
            traceparent,
        )
        planned.append((at_s, stream, record, prompt))
    return planned


async def _lines(reader: asyncio.StreamReader, is_chunked: bool) -> AsyncIterator[bytes]:
    """Yields the lines of an answer's body; a proxy may cut its chunks anywhere."""
    rest = b""
    while True:
        size = int(await reader.readline() or b"0", 16) if is_chunked else READ_BYTES
        part = b""
        if size and is_chunked:
            part = (await reader.readexactly(size + 2))[:-2]
        elif size:
            part = await reader.read(size)
        if not part:
            break
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            yield line
    if rest:
        yield rest


async def _connect(host: str, port: int, is_slow: bool) -> Connection:
    """Returns a connection of its own; a slow reader's holds little on the way."""
    connection = socket.socket()
    if is_slow:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SLOW_BUFFER_BYTES)
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, (host, port))
    limit = SLOW_BUFFER_BYTES if is_slow else 1 << 20
    return await asyncio.open_connection(sock=connection, limit=limit)


async def _exchange(
    base: tuple[str, int],
    model: str,
    stream: Stream,
    record: Record,
    prompt: Sequence[int],
    call: Call | None,
) -> None:
    """Sends one request and notes what comes back."""
    host, port = base
    body = json.dumps(
        {
            "model": model, "prompt": prompt, "max_tokens": record.n_output,
            "min_tokens": record.n_output, "ignore_eos": True, "stream": True,
            "n": record.n, "temperature": 0 if record.n == 1 else 1,
        }
    ).encode()  # fmt: skip
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        f"X-Request-Id: {record.request_id}\r\nX-Tenant: {record.tenant}\r\n"
        f"X-Request-Start: t={time.time():.6f}\r\ntraceparent: {record.traceparent}\r\n\r\n"
    ).encode()
    reader, writer = await _connect(host, port, stream.read_s > 0)
    try:
        writer.write(head + body)
        status = await reader.readline()
        record.status = int(status.split()[1])
        is_chunked = False
        while header := (await reader.readline()).strip().lower():
            is_chunked = is_chunked or header == b"transfer-encoding: chunked"
        async for line in _lines(reader, is_chunked):
            if not line.startswith(b"data:") or b"[DONE]" in line:
                continue
            event = json.loads(line[5:])
            if "error" in event:  # vLLM says so in a stream whose status was 200
                record.error = "server"
            choices = event.get("choices") or ()
            if any(choice.get("text") for choice in choices):
                record.chunks.append(round(time.time() - record.sent, 6))
                if call is not None:
                    call.chunk()
            if stream.read_s:
                await asyncio.sleep(stream.read_s)
    finally:
        writer.close()


async def _one(
    base: tuple[str, int],
    model: str,
    start: float,
    planned: tuple[float, Stream, Record, list[int]],
    recorder: FrontRecorder | None,
) -> Record:
    at_s, stream, record, prompt = planned
    record.planned = start + at_s
    await asyncio.sleep(max(0.0, record.planned - time.time()))
    record.sent = time.time()
    record.sent_late_s = round(record.sent - record.planned, 6)
    call = None
    if recorder is not None:
        intended_ns = time.monotonic_ns() - round(record.sent_late_s * 1e9)
        call = Call(
            recorder, operation="text_completion", model=model, stream=True, intended_ns=intended_ns
        )
        call.told(request_id=record.request_id)
        record.traceparent = call.context.traceparent
    try:
        async with asyncio.timeout(stream.abort_s or None):
            await _exchange(base, model, stream, record, prompt, call)
    except TimeoutError:
        record.error = "aborted"
    except (OSError, ValueError, IndexError, asyncio.IncompleteReadError) as error:
        record.error = type(error).__name__
    record.ended = time.time()
    if call is not None:
        call.end("cancelled" if record.error == "aborted" else record.error)
    return record


async def run_load(
    url: str,
    streams: Sequence[Stream],
    *,
    seconds: float,
    seed: int,
    model: str = "tiny",
    name: str = "r",
    out: TextIO | None = None,
    recorder: FrontRecorder | None = None,
) -> list[Record]:
    """Plays a mix against a server and returns what its clients saw.

    Args:
        url: of the server; it must be this machine's loopback address.
        streams: the mix.
        seconds: no request is planned later.
        seed: draws the plan.
        model: name of the model.
        name: requests are called this and their number.
        out: records are written here, one JSON line each.
        recorder: the clients' own spans go here.

    Raises:
        ValueError: the server is another machine.
    """
    parts = urlsplit(url)
    if parts.hostname not in ("127.0.0.1", "localhost"):
        raise ValueError(f"{url}: the lab loads servers of this machine only")
    base = parts.hostname, parts.port or 80
    start = time.time() + 0.5
    plans = plan(streams, seconds, seed, name)
    tasks = [_one(base, model, start, planned, recorder) for planned in plans]
    records = await asyncio.gather(*tasks)
    if out is not None:
        for record in records:
            out.write(json.dumps(asdict(record)) + "\n")
    return records


def quantile(values: Sequence[float], share: float) -> float:
    """Returns a quantile by nearest rank; NaN of nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def summary(records: Sequence[Record]) -> Mapping[str, Any]:
    """Returns what a load came to: counts, ms of TTFT and of gaps, and output tokens a second."""
    served = [record for record in records if record.chunks and not record.error]
    first = [record.chunks[0] * 1e3 for record in served]
    gaps = [
        (after - before) * 1e3
        for record in served
        for before, after in zip(record.chunks, record.chunks[1:], strict=False)
    ]
    span_s = max((r.ended for r in served), default=0) - min((r.sent for r in served), default=0)
    n_tokens = sum(len(record.chunks) for record in served)
    return {
        "requests": len(records),
        "served": len(served),
        "aborted": sum(record.error == "aborted" for record in records),
        "failed": sum(record.error not in (None, "aborted") for record in records),
        "sent_late_p99_ms": round(quantile([r.sent_late_s * 1e3 for r in records], 0.99), 1),
        "ttft_p50_ms": round(quantile(first, 0.5), 2),
        "ttft_p90_ms": round(quantile(first, 0.9), 2),
        "itl_p50_ms": round(quantile(gaps, 0.5), 3),
        "itl_p99_ms": round(quantile(gaps, 0.99), 3),
        "itl_max_ms": round(max(gaps, default=float("nan")), 2),
        "chunks_per_s": round(n_tokens / span_s, 2) if span_s > 0 else None,
    }


def main() -> int:
    """Runs one load from the command line."""
    parser = argparse.ArgumentParser(description="Open-loop load on a server of this machine.")
    parser.add_argument("url")
    parser.add_argument("mix", help="a file, or the JSON itself")
    parser.add_argument("out", help="client records, JSON lines")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", default="tiny")
    options = parser.parse_args()
    text = options.mix if options.mix.lstrip()[:1] == "[" else Path(options.mix).read_text()
    with Path(options.out).open("w", encoding="utf-8") as out:
        records = asyncio.run(
            run_load(
                options.url,
                read_mix(text),
                seconds=options.seconds,
                seed=options.seed,
                model=options.model,
                out=out,
            )
        )
    sys.stdout.write(json.dumps(summary(records), indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
