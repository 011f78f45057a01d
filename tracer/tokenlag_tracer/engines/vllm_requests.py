"""What is kept of vLLM's requests and of steps whose results are not in yet."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

# `cmpl-…-0` is known to the engine as `cmpl-…-0-1a2b3c4d`, with `2_` before it where n > 1.
_INTERNAL_ID: Final = re.compile(r"(?:(\d+)_)?(.+)-[0-9a-f]{8}")


@dataclass(frozen=True, slots=True)
class Layout:
    """Names of a scheduler's attributes that differ between releases.

    Attributes:
        blocked: requests that wait for something else than room.
        slots: how many may run.
    """

    blocked: str
    slots: str


class Entry:
    """One request in the engine.

    Attributes:
        index: what the recorder calls it.
        request: vLLM's own.
        target: tokens of it that are known when its prefill starts: fewer computed is prefill.
        since_ns: since when it waits; 0 while it runs.
        n_waiting: the tokens that it adds to those waiting.
        reason: what it waits for.
    """

    __slots__ = ("index", "n_waiting", "reason", "request", "since_ns", "target")

    def __init__(self, index: int, request: Any, reason: str) -> None:
        self.index = index
        self.request = request
        self.target = 0
        self.since_ns = 0
        self.n_waiting = 0
        self.reason = reason


class Note:
    """A step that was scheduled and whose results are not in yet."""

    __slots__ = (
        "accepted", "admit_bound", "chunks", "context", "drafted", "end_ns", "graph", "is_same",
        "joined", "kv_usage", "left", "members", "n_changes", "oldest_ns", "output", "preempted",
        "running", "start_ns", "waiting", "waiting_tokens",
    )  # fmt: skip

    def __init__(self, output: Any, start_ns: int, members: Mapping[int, str]) -> None:
        self.output = output
        self.start_ns = start_ns
        self.members = members
        self.end_ns = 0
        self.is_same = True
        self.context = self.running = self.waiting = self.waiting_tokens = self.oldest_ns = -1
        self.kv_usage = -1.0
        self.admit_bound = ""
        self.n_changes = 0
        self.chunks: list[tuple[int, int, int]] = []
        self.joined: Iterable[int] = ()
        self.left: Iterable[int] = ()
        self.preempted: list[int] = []
        self.drafted = self.accepted = -1
        self.graph = ""


def external_id(request_id: str) -> tuple[str, int]:
    """Returns what the outside calls a request, and which of its sequences this is."""
    match = _INTERNAL_ID.fullmatch(request_id)
    if match is None:
        return request_id, 0
    return match[2], int(match[1] or 0)


def labels_of(request: Any) -> dict[str, Any]:
    """Returns what makes a request's steps dearer, its adapter and its priority, where set."""
    labels: dict[str, Any] = {}
    features: list[str] = []
    params = request.sampling_params
    if params is not None:
        if params.logprobs is not None or params.prompt_logprobs is not None:
            features.append("logprobs")
        if params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1:
            features.append("penalties")
    if request.use_structured_output:
        features.append("grammar")
    if request.has_encoder_inputs:
        features.append("images")
    if features:
        labels["features"] = ",".join(features)
    if request.lora_request is not None:
        labels["adapter"] = str(request.lora_request.lora_name)
    if request.priority:
        labels["priority"] = request.priority
    return labels
