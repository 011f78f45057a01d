"""What lies between the engine's tokens and the client's chunks: a buffer, or a slow reader.

Both are applied to a run that is over: they delay what the client sees and nothing on the
server. A buffer forwards only when so many bytes are collected or the stream ends. A slow
reader is one process of the client that takes every chunk of every stream in turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tokenlag.errors import InputError
from tokenlag.simulate.log import EpochLog, Request

KINDS = ("direct", "buffer", "reader")


@dataclass(frozen=True, slots=True)
class DeliveryConfig:
    """How tokens reach the client.

    Attributes:
        kind: `direct`, `buffer` or `reader`.
        tokens_per_event: the server puts so many tokens into one event (speculation, an
            interval); they reach the client at once, as so many tokens of the same time.
        event_bytes: size of an event.
        buffer_bytes: a buffer forwards when it holds so many bytes, or the stream ends.
        drain_ms: chunks of a forwarded buffer are so far apart at the client.
        reader_ms: what a slow reader takes for one chunk.
        has_chunk_list: the client span tells the offset of every chunk.
    """

    kind: str = "direct"
    tokens_per_event: int = 1
    event_bytes: int = 247
    buffer_bytes: int = 16_384
    drain_ms: float = 0.0
    reader_ms: float = 0.0
    has_chunk_list: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"delivery kind {self.kind!r} is none of {', '.join(KINDS)}")

    @property
    def events_per_buffer(self) -> int:
        """How many events fill the buffer."""
        return -(-self.buffer_bytes // self.event_bytes)


def received(
    config: DeliveryConfig, logs: Sequence[EpochLog], requests: Iterable[Request], way_s: float
) -> dict[int, list[float]]:
    """Return when each token of each finished request reached its client.

    Args:
        config: the stage.
        logs: of all engine epochs, in the order that requests name them.
        requests: of the run.
        way_s: from the engine to the client without the stage, in seconds.

    Returns:
        By request number, times in seconds of the run, one for each token.
    """
    sent: dict[int, list[float]] = {}
    for request in requests:
        if request.epoch < 0 or request.is_ghost or request.done_s is None:
            continue
        tokens_s = [t + way_s for t in logs[request.epoch].token_times_s(request)]
        sent[request.number] = _grouped(tokens_s, config.tokens_per_event)
    if config.kind == "buffer":
        return {number: _buffered(config, times) for number, times in sent.items()}
    if config.kind == "reader":
        return _read_in_turn(sent, config.reader_ms / 1e3)
    return sent


def _grouped(tokens_s: list[float], n: int) -> list[float]:
    """Tokens of one event leave together, with the last of them; the first is alone."""
    if n <= 1 or len(tokens_s) <= 1:
        return tokens_s
    grouped = tokens_s[:1]
    for begin in range(1, len(tokens_s), n):
        event = tokens_s[begin : begin + n]
        grouped += [event[-1]] * len(event)
    return grouped


def _buffered(config: DeliveryConfig, tokens_s: list[float]) -> list[float]:
    """Each buffer's content comes when it is full; the rest when the stream ends.

    Full means `buffer_bytes` are there: what does not fit stays for the next one.
    """
    got: list[float] = []
    held: list[float] = []
    n_bytes = 0
    last_s = 0.0
    for position, token_s in enumerate(tokens_s):
        is_event_end = position == 0 or token_s != tokens_s[position - 1]
        n_bytes += config.event_bytes if is_event_end else 0
        held.append(token_s)
        if n_bytes >= config.buffer_bytes or position == len(tokens_s) - 1:
            begin_s = max(token_s, last_s)
            for i in range(len(held)):
                last_s = begin_s + i * config.drain_ms / 1e3
                got.append(last_s)
            n_bytes = max(n_bytes - config.buffer_bytes, 0)
            held = []
    return got


def _read_in_turn(sent: dict[int, list[float]], per_chunk_s: float) -> dict[int, list[float]]:
    """One reader, first come first served over all streams."""
    chunks = sorted((t, number, i) for number, times in sent.items() for i, t in enumerate(times))
    got = {number: [0.0] * len(times) for number, times in sent.items()}
    free_s = 0.0
    for time_s, number, position in chunks:
        free_s = max(free_s, time_s) + per_chunk_s
        got[number][position] = free_s
    return got
