"""Faults made for real: a server's flags, a load, what is done to it, and what is then true."""

from __future__ import annotations

from dataclasses import dataclass, field
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
    told: dict[str, str] = field(default_factory=dict)


_ROOMY: Final = (
    "--max-model-len", "16384", "--max-num-seqs", "32", "--max-num-batched-tokens", "2048",
)  # fmt: skip
_CHAT: Final = (Stream(rate=2.5, prompt=(100, 400), output=(20, 40)),)

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
)  # fmt: skip


def fault(name: str) -> Fault:
    """Returns a fault by its name.

    Raises:
        KeyError: there is none of this name.
    """
    return {one.name: one for one in FAULTS}[name]
