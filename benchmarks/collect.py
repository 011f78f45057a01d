"""What `diagnose collect` takes: as much as several senders can give it, for a while.

    python benchmarks/collect.py                       a minute, four senders, 512 spans an export
    python benchmarks/collect.py --seconds 10 --kill   and the receiver killed in the middle
    python benchmarks/collect.py --senders 8 --spans 2048 --max-memory 1MB   some is put off

Each sender is a process that sends one export after the other, as an SDK does, and counts what was
acknowledged and what it was told to send again. At the end the spans on disk are counted, and what
the receiver says of them; all sides must agree. With `--kill` the receiver dies by signal 9 half
way and is started again: what was acknowledged must be there.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
for folder in (ROOT, ROOT / "tracer", ROOT / "analyzer"):
    sys.path.insert(0, str(folder))

HEADERS = {"Content-Type": "application/x-protobuf"}
IDS_PER_SENDER = 10**9


def told(words: str) -> tuple[int, int, int]:
    """Returns the spans that the receiver's last line says came, were stored and were put off."""
    came, kept, busy = (
        re.search(pattern, words)
        for pattern in (r"([\d,]+) spans in", r"([\d,]+) stored", r"([\d,]+) put off for want")
    )
    if came is None or kept is None:
        raise ValueError(f"no counts in {words!r}")
    n_came, n_stored = (int(found[1].replace(",", "")) for found in (came, kept))
    return n_came, n_stored, int(busy[1].replace(",", "")) if busy else 0


def send(sender: int, url: str, n_spans: int, seconds: float, results: Any) -> None:
    """Sends until the time is up; puts (sent, acknowledged ids' ranges, put off) into results."""
    import httpx

    from tests.collect.served import request

    acknowledged: list[int] = []
    n_sent = n_put_off = n_failed = 0
    first = sender * IDS_PER_SENDER
    end = time.monotonic() + seconds
    with httpx.Client(base_url=url, timeout=30) as client:
        while time.monotonic() < end:
            body = request(first, n_spans).SerializeToString()
            try:
                status = client.post("/v1/traces", content=body, headers=HEADERS).status_code
            except httpx.HTTPError:
                n_failed += 1
                time.sleep(0.1)
                first += n_spans  # maybe stored, never acknowledged
                continue
            n_sent += n_spans
            if status == 200:
                acknowledged.append(first)
            else:
                n_put_off += n_spans
            first += n_spans
    results.put((n_sent, acknowledged, n_put_off, n_failed))


def main() -> int:
    """Runs the senders and compares the counts; 1 if they disagree."""
    parser = argparse.ArgumentParser(description="Load on the receiver.")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--senders", type=int, default=4)
    parser.add_argument("--spans", type=int, default=512, help="in an export")
    parser.add_argument("--max-memory", default="64MB")
    parser.add_argument("--kill", action="store_true")
    arguments = parser.parse_args()
    from tests.collect.served import serve, stored

    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "traces"
        halves = 2 if arguments.kill else 1
        sent = put_off = failed = 0
        acknowledged: set[int] = set()
        peak = 0
        said = (0, 0, 0)
        for half in range(halves):
            with serve(folder, "--max-memory", arguments.max_memory) as served:
                results = context.Queue()
                senders = [
                    context.Process(
                        target=send,
                        args=(
                            half * arguments.senders + n, served.url, arguments.spans,
                            arguments.seconds / halves, results,
                        ),
                    )
                    for n in range(arguments.senders)
                ]  # fmt: skip
                for sender in senders:
                    sender.start()
                if arguments.kill and half == 0:
                    time.sleep(arguments.seconds / 4 + 2)
                    served.kill()
                for _ in senders:
                    n_sent, firsts, n_put_off, n_failed = results.get()
                    sent, put_off, failed = sent + n_sent, put_off + n_put_off, failed + n_failed
                    acknowledged.update(firsts)
                for sender in senders:
                    sender.join()
                if served.process.poll() is None:
                    status = Path(f"/proc/{served.process.pid}/status").read_text()
                    peak = int(status.split("VmHWM:")[1].split()[0]) * 1024
                    words = served.stop().strip().splitlines()[-1]
                    print(words)
                    said = told(words)
        found = stored(folder)
        kept = {number - number % IDS_PER_SENDER % arguments.spans for number in found}
        lost = len(acknowledged - kept) * arguments.spans
        n_acknowledged = len(acknowledged) * arguments.spans
        rate = n_acknowledged / arguments.seconds
        print(
            f"{sent:,} spans sent: {n_acknowledged:,} acknowledged ({rate:,.0f}/s), "
            f"{put_off:,} put off, {failed} exports without an answer\n"
            f"{len(found):,} on disk, {lost:,} acknowledged and lost; peak {peak / 1e6:.0f} MB; "
            f"load average {os.getloadavg()[0]:.1f}"
        )
        agree = lost == 0 and sent == n_acknowledged + put_off
        if not arguments.kill:
            agree = agree and len(found) == n_acknowledged
            agree = agree and said == (sent, n_acknowledged, put_off)
        print("all sides agree" if agree else "they disagree")
    return int(not agree)


if __name__ == "__main__":
    sys.exit(main())
