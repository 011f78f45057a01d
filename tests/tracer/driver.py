"""A fake server for the tests: an engine loop that records, in one process or several.

Run as `python -m tests.tracer.driver MODE [SECONDS]`, or with `told` for the seconds: it serves
until its standard input has something to say. It says its writer's process id on its first line,
and counters as JSON on its last.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import select
import sys
import time

import tokenlag_tracer
from tokenlag_tracer import conventions as names
from tokenlag_tracer import link
from tokenlag_tracer.recorder import EngineRecorder

STEP_S = 0.002
BATCH = 4
N_TOKENS = 20
TOLD = math.inf


def is_told() -> bool:
    """Whether somebody wrote to, or closed, the standard input."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


def serve(engine: EngineRecorder, seconds: float, tag: str = "") -> dict[str, float]:
    """Serves made-up requests in real time; returns counters, the slowest call among them."""
    front = tokenlag_tracer.front()
    live: dict[int, list] = {}
    before: list[int] = []
    n_requests, worst_ns = 0, 0
    deadline_s = time.monotonic() + seconds
    is_open = True
    while is_open or live:
        is_open = is_open and time.monotonic() < deadline_s and not (seconds == TOLD and is_told())
        chunks = []
        # One a step: requests that came together would leave together, and nothing be open then.
        if is_open and len(live) < BATCH:
            request_id = f"{tag}req-{os.getpid()}-{n_requests}"
            n_requests += 1
            handle = front.arrived(request_id, model="m", operation="chat")
            index = engine.queued(
                request_id, prompt_tokens=64, traceparent=handle.context.traceparent
            )
            live[index] = [handle, 0]
            chunks.append((index, 64, 0))
        start_ns = time.monotonic_ns()
        time.sleep(STEP_S)
        new = {index for index, _, _ in chunks}
        decode = [index for index in live if index not in new]
        end_ns = time.monotonic_ns()
        if not chunks and decode == before:
            engine.record_same(start_ns, end_ns, len(decode) * 64, len(live), 0)
        else:
            engine.record_step(
                start_ns, end_ns, decode=decode, prefill=chunks,
                context_tokens=len(decode) * 64, running=len(live), waiting=0,
            )  # fmt: skip
        worst_ns = max(worst_ns, time.monotonic_ns() - end_ns)
        before = decode
        for index in list(live):
            live[index][1] += 1
            if live[index][1] == N_TOKENS:
                handle, _ = live.pop(index)
                engine.finished(index, "length", output_tokens=N_TOKENS)
                handle.finished(finish_reasons=["length"])
    front.close()
    return {
        "steps": engine.n_steps,
        "dropped": engine.n_dropped,
        "requests": n_requests,
        "worst_ms": worst_ns / 1e6,
    }


def say(line: object) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def open_engine(engine_id: str | None = None) -> EngineRecorder:
    return tokenlag_tracer.engine(engine_id, resource={names.ENGINE_NAME: "fake"})


def child(engine_id: str | None, seconds: float) -> None:
    engine = open_engine(engine_id)
    serve(engine, seconds)
    engine.close()


def main() -> None:
    mode = sys.argv[1]
    given = sys.argv[2] if len(sys.argv) > 2 else "0.5"
    seconds = TOLD if given == "told" else float(given)
    said: dict[str, object] = {}
    engine = open_engine("e0")
    writer = link.shared_link().writer
    say(writer.pid if writer else 0)
    if mode == "serve":
        said.update(serve(engine, seconds))
    elif mode in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(mode)
        children = [context.Process(target=child, args=(f"c{n}", seconds)) for n in range(2)]
        for process in children:
            process.start()
        said.update(serve(engine, seconds))
        for process in children:
            process.join()
            assert process.exitcode == 0
    elif mode == "fork-used":
        # The child goes on with the recorder that it was forked with: it is another engine.
        serve(engine, 0.2)
        pid = os.fork()
        if pid == 0:
            serve(engine, seconds)
            engine.close()
            os._exit(0)
        said.update(serve(engine, seconds))
        assert os.waitpid(pid, 0)[1] == 0
    elif mode == "engines":
        said.update(serve(engine, seconds))
        others = [open_engine() for _ in range(2)]
        for other in others:
            serve(other, seconds)
        said["ids"] = [other.engine_id for other in others]
    elif mode == "outlive":
        # The process that started the writer ends; its child goes on and must be heard.
        pid = os.fork()
        if pid == 0:
            nowhere = os.open(os.devnull, os.O_RDWR)
            for descriptor in range(3):
                os.dup2(nowhere, descriptor)
            serve(engine, seconds)
            engine.close()
            os._exit(0)
        say(pid)
        serve(engine, 0.2)
    engine.close()
    say(json.dumps(said))


if __name__ == "__main__":
    main()
