"""A reader in a process of its own: `python -m tokenlag.read.worker`.

Standard input carries one JSON line of `Setup`, then jobs: a JSON line each, followed by
`n_payload` bytes where it names them. Standard output answers each with a JSON line of
`Report`; at the end of the input, with one of `Done`. A subprocess and not a fork, so
that a program that uses the library needs no main guard and loses no threads.
"""

from __future__ import annotations

import gc
import sys

import msgspec

from tokenlag.read.jobs import SpanReader
from tokenlag.read.messages import Job, Setup


def main() -> None:
    """Works until the input ends."""
    gc.disable()  # parsed spans have no cycles, and collecting costs a third
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    encode = msgspec.json.encode
    reader = SpanReader(msgspec.json.decode(stdin.readline(), type=Setup))
    decoder = msgspec.json.Decoder(Job)
    while line := stdin.readline():
        job = decoder.decode(line)
        payload = stdin.read(job.n_payload) if job.n_payload else b""
        stdout.write(encode(reader.run(job, payload)) + b"\n")
        stdout.flush()
    stdout.write(encode(reader.finish()) + b"\n")
    stdout.flush()


if __name__ == "__main__":
    main()
