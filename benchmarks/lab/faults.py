"""Faults made for real: a server's flags, a load, what is done to it, and what is then true."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from benchmarks.lab.loadgen import Stream


@dataclass(frozen=True)
class Fault:
    """One run of the lab.

    Attributes:
        name: of the run and its folder.
        shows: what is done, in one line.
        flags: of the server.
        load: the mix.
        truth: what a diagnosis must say, by the names of a recipe's `[truth]`.
        seconds: how long requests are sent.
        seed: draws the load.
        n_hogs: processes that take all the CPU they get, from `hog_from_s` on.
        pause_every_s: the engine is stopped so often, for `pause_s`; 0: never.
        proxy: an nginx in front: `buffering`, or `plain`, which hands on what comes.
        is_cold: the load begins with the server's first request.
        has_client_spans: the clients write their own spans.
        baseline: another run that it is to be compared with.
    """

    name: str
    shows: str
    flags: tuple[str, ...]
    load: tuple[Stream, ...]
    truth: dict[str, Any]
    seconds: float = 40.0
    seed: int = 1
    n_hogs: int = 0
    hog_from_s: float = 0.0
    pause_every_s: float = 0.0
    pause_s: float = 0.0
    proxy: str = ""
    is_cold: bool = False
    has_client_spans: bool = False
    baseline: str = ""


_ROOMY: Final = (
    "--max-model-len", "16384", "--max-num-seqs", "32", "--max-num-batched-tokens", "2048",
)  # fmt: skip
_CHAT: Final = (Stream(rate=2.5, prompt=(100, 400), output=(20, 40)),)
_LONGER: Final = (Stream(rate=1.2, prompt=(100, 300), output=(60, 100)),)
_SHARED: Final = (Stream(rate=2.0, prompt=(1800, 1900), prefix=1760, output=(10, 20)),)

FAULTS: Final = (
    Fault(
        "healthy",
        "chats that the server has room for",
        _ROOMY,
        _CHAT,
        {"healthy": True},
    ),
    Fault(
        "queue-slots",
        "twice the chats on two slots",
        ("--max-model-len", "16384", "--max-num-seqs", "2", "--max-num-batched-tokens", "2048"),
        (Stream(rate=5.0, prompt=(100, 400), output=(20, 40)),),
        {"cause": "queueing-not-prefill", "symptom": "ttft", "limit": "slots"},
    ),
    Fault(
        "long-prompt",
        "a prompt of 8,000 tokens in one step every 7 s, beside long answers",
        ("--max-model-len", "16384", "--max-num-seqs", "32", "--max-num-batched-tokens", "8192"),
        (
            Stream(rate=0.8, prompt=(50, 150), output=(300, 450), tenant="chat"),
            Stream(every_s=7.0, prompt=(8000, 8000), output=(4, 8), tenant="docs"),
        ),
        {
            "cause": "long-prompt-stalled-streams", "symptom": "itl", "mode": "mixed",
            "culprit": "docs", "notes": ["short-behind-long-prompt"],
        },
        seconds=30.0,
    ),
    Fault(
        "long-prompt-chunked",
        "a prompt of 3,000 tokens in steps of 512 every 5 s, beside long answers",
        ("--max-model-len", "16384", "--max-num-seqs", "32", "--max-num-batched-tokens", "512"),
        (
            Stream(rate=1.2, prompt=(50, 150), output=(150, 250), tenant="chat"),
            Stream(every_s=5.0, prompt=(3000, 3000), output=(4, 8), tenant="docs"),
        ),
        {
            "cause": "long-prompt-stalled-streams", "symptom": "itl", "mode": "mixed",
            "culprit": "docs", "notes": ["short-behind-long-prompt"],
        },
        seconds=30.0,
        has_client_spans=True,
    ),
    Fault(
        "prefix-cached",
        "prompts that have 1,760 of 1,900 tokens in common, which are cached",
        _ROOMY,
        _SHARED,
        {"healthy": True},
    ),
    Fault(
        "prefix-uncached",
        "the same without prefix caching",
        (*_ROOMY, "--no-enable-prefix-caching"),
        _SHARED,
        {"cause": "prefix-reuse-lost", "symptom": "ttft"},
        baseline="prefix-cached",
    ),
    Fault(
        "kv-small",
        "room for 2,240 tokens, which eight answers outgrow",
        (
            "--max-model-len", "2048", "--max-num-seqs", "32", "--max-num-batched-tokens", "2048",
            "--block-size", "32", "--num-gpu-blocks-override", "70", "--no-enable-prefix-caching",
        ),
        (Stream(rate=3.0, prompt=(100, 200), output=(200, 300)),),
        # Space that runs out shows as a queue and as preemptions; both name it.
        {
            "cause": "queueing-not-prefill", "symptom": "ttft", "limit": "kv",
            "notes": ["kv-preemption-thrash"],
        },
        seconds=25.0,
    ),
    Fault(
        "cpu-hog",
        "eight busy loops beside the engine, in the second half",
        _ROOMY,
        (Stream(rate=2.0, prompt=(100, 300), output=(100, 150)),),
        # Loops that take the processor away for a while at a time stop the engine as well.
        {"cause": "steps-run-slow", "symptom": "itl", "notes": ["periodic-pauses"]},
        seconds=50.0,
        n_hogs=8,
        hog_from_s=25.0,
    ),
    Fault(
        "pauses",
        "the engine is stopped for 0.5 s every 3 s",
        _ROOMY,
        (Stream(rate=3.0, prompt=(100, 300), output=(100, 150)),),
        {"cause": "periodic-pauses", "symptom": "itl"},
        pause_every_s=3.0,
        pause_s=0.5,
    ),
    Fault(
        "proxy-plain",
        "nginx in front, which hands on what comes",
        _ROOMY,
        _LONGER,
        {"healthy": True},
        proxy="plain",
        has_client_spans=True,
    ),
    Fault(
        "proxy-buffering",
        "nginx in front that buffers, whatever the server says",
        _ROOMY,
        _LONGER,
        {"cause": "slow-delivery"},
        proxy="buffering",
        has_client_spans=True,
    ),
    Fault(
        "slow-reader",
        "clients that read a token every 60 ms",
        _ROOMY,
        (Stream(rate=1.2, prompt=(100, 300), output=(60, 100), read_s=0.06),),
        {"cause": "slow-delivery"},
        has_client_spans=True,
    ),
    Fault(
        "disconnects",
        "a third of the clients leave a second after sending",
        _ROOMY,
        (*_CHAT, Stream(rate=1.2, prompt=(100, 300), output=(800, 900), abort_s=1.0)),
        {"healthy": True},  # vLLM notices, and nobody waits for what it did for them
        seconds=30.0,
    ),
    Fault(
        "cold-start",
        "the load begins with the server's first request",
        _ROOMY,
        _CHAT,
        {"healthy": True},  # vLLM warms up before it listens: there is nothing left to be cold
        is_cold=True,
    ),
)  # fmt: skip


def fault(name: str) -> Fault:
    """Returns a fault by its name.

    Raises:
        KeyError: there is none of this name.
    """
    return {one.name: one for one in FAULTS}[name]
