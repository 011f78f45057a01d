"""Sends requests to the service at given times, whatever becomes of those before. Run it as

    TOKENLAG_TRACES_DIR=traces python load.py http://127.0.0.1:8000 --rate 5 --seconds 10

The tracer's part: `instrument(client)` and `intended_at`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter

import httpx
import tokenlag_tracer
from tokenlag_tracer.client import intended_at

WORDS = "time step queue token wait batch chunk prompt cache stream"


def prompt_of(rng: random.Random, n_bytes: int, head: str, mark: str) -> str:
    """Returns a prompt of some length: a common head, a mark, and words."""
    text = head + mark
    while len(text) < n_bytes:
        text += rng.choice(WORDS.split()) + " "
    return text[: max(n_bytes, len(head + mark))]


async def send(
    client: httpx.AsyncClient, at_s: float, prompt: str, options: argparse.Namespace
) -> str:
    """Sends one request at its time and reads its answer; returns how it ended."""
    await asyncio.sleep(max(0.0, at_s - time.monotonic()))
    body = {"model": "tiny", "prompt": prompt, "max_tokens": options.max_tokens, "stream": True}
    headers = {"x-tenant": "load"}
    if options.edge_stamp:
        headers["x-request-start"] = f"t={time.time():.6f}"
    with intended_at(round(at_s * 1e9)):
        try:
            async with client.stream(
                "POST", "/v1/completions", json=body, headers=headers
            ) as response:
                async for _ in response.aiter_bytes():
                    pass
                return str(response.status_code)
        except httpx.HTTPError as error:
            return type(error).__name__


async def run(options: argparse.Namespace) -> Counter[str]:
    """Sends all requests; returns how many ended how."""
    rng = random.Random(options.seed)
    head = prompt_of(rng, options.shared_bytes, "", "") if options.shared_bytes else ""
    plan: list[tuple[float, int]] = []
    at_s = 0.0
    while (at_s := at_s + rng.expovariate(options.rate)) < options.seconds:
        n_bytes = round(rng.uniform(0.5, 1.5) * options.prompt_bytes)
        plan.append((at_s, n_bytes + len(head)))
    plan += [(float(at), options.long_bytes) for at in options.long_at]
    prompts = [(at_s, prompt_of(rng, n_bytes, head, options.mark)) for at_s, n_bytes in plan]
    async with httpx.AsyncClient(base_url=options.url, timeout=60) as client:
        if not options.untraced:
            tokenlag_tracer.instrument(client)
        await client.get("/health")
        begin_s = time.monotonic() + 0.1
        sent = (send(client, begin_s + at_s, prompt, options) for at_s, prompt in prompts)
        ends = await asyncio.gather(*sent)
    return Counter(ends)


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--rate", type=float, default=5.0, help="requests a second")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--prompt-bytes", type=int, default=200, help="a byte is a token")
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--long-bytes", type=int, default=6000)
    parser.add_argument("--long-at", type=float, nargs="*", default=[], help="seconds")
    parser.add_argument("--shared-bytes", type=int, default=0, help="a common prompt head")
    parser.add_argument("--mark", default="", help="text that every prompt holds")
    parser.add_argument("--edge-stamp", action="store_true", help="send X-Request-Start")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--untraced", action="store_true", help="without the client's spans")
    ends = asyncio.run(run(parser.parse_args()))
    sys.stdout.write(json.dumps(ends) + "\n")


if __name__ == "__main__":
    main()
