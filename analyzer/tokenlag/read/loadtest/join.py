"""Which server's request each request of a load test became: by its id, else by time.

Clocks of two hosts differ, and some tools stamp with a counter of their own. So the offset is
found first: of all pairs of a send and an arrival with equal numbers of output tokens, the
true ones agree on one difference while the others scatter. Only an offset on which most of
the requests agree is believed. A tool that counts chunks as tokens tells no output's length;
then prompts' lengths serve, which differ by what the server's template adds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

MOMENT_NS: Final = 5_000_000  # sends within it are of one moment
BIN_NS: Final = 25_000_000  # how far a way in varies, mostly
LATE_NS: Final = 2_000_000_000  # how much later than the fastest an arrival may be
SKEW_NS: Final = 120_000_000_000  # between two wall clocks; a counter of its own may be anywhere
MAX_SAMPLE: Final = 300  # requests whose pairs vote
MAX_PAIRS: Final = 4_000_000
MIN_AGREE_FRAC: Final = 0.5
CLEAR: Final = 1.5  # times as many votes as for any other offset
MIN_VOTES: Final = 5
MAX_ADDED: Final = 2048  # tokens of a chat's template and system prompt


@dataclass(frozen=True)
class Side:
    """Requests of one side.

    Args:
        at_ns: when it was sent, or arrived.
        end_ns: when it was answered; what tells those apart that were sent at one moment.
        length: in tokens, of the output or of the prompt; -1 is unknown.
    """

    at_ns: Ints
    end_ns: Ints
    length: Ints


@dataclass(frozen=True)
class Joined:
    """Indexes of pairs, and what has to be added to the client's stamps."""

    client: Ints
    server: Ints
    offset_ns: int


def join_by_time(client: Side, server: Side, *, has_wall_clock: bool) -> Joined | None:
    """Pairs each send with an arrival, or None where no offset stands out.

    Args:
        client: the load test's.
        server: the traces', any number more.
        has_wall_clock: the client's stamps are unix time, right but for skew.
    """
    offset_ns = _offset(client, server, has_wall_clock=has_wall_clock)
    if offset_ns is None:
        return None
    shifted = Side(client.at_ns + offset_ns, client.end_ns + offset_ns, client.length)
    pairs = _pairs(shifted, server)
    if len(pairs[0]) < MIN_AGREE_FRAC * min(len(client.at_ns), len(server.at_ns)):
        return None
    return Joined(pairs[0], pairs[1], offset_ns)


def added_tokens(client: Ints, server: Ints) -> int:
    """Returns by how many tokens the server's prompts are longer: what most pairs differ by.

    Args:
        client: prompt tokens as the load test counts them; -1 is unknown.
        server: as the server does.
    """
    some = client[client >= 0][:MAX_SAMPLE]
    others = server[server >= 0][: MAX_PAIRS // MAX_SAMPLE]
    if not len(some) or not len(others):
        return 0
    apart = (others[None, :] - some[:, None]).ravel()
    apart = apart[np.abs(apart) <= MAX_ADDED]
    if not len(apart):
        return 0
    votes = np.bincount(apart + MAX_ADDED, minlength=2 * MAX_ADDED + 1)
    return int(np.argmax(votes)) - MAX_ADDED


def _offset(client: Side, server: Side, *, has_wall_clock: bool) -> int | None:
    """The difference arrival − send on which most pairs agree; the least of them."""
    n_of = dict(zip(*np.unique(server.length, return_counts=True), strict=True))
    # Requests with rare lengths say most.
    rarity = np.array([n_of.get(n, 0) for n in client.length.tolist()])
    known = np.flatnonzero(rarity > 0)
    chosen = known[np.argsort(rarity[known], kind="stable")][:MAX_SAMPLE]
    differences = []
    n_pairs = 0
    for i in chosen.tolist():
        arrivals = server.at_ns[server.length == client.length[i]]
        n_pairs += len(arrivals)
        if n_pairs > MAX_PAIRS:
            break
        differences.append(arrivals - client.at_ns[i])
    if not differences:
        return None
    every = np.sort(np.concatenate(differences))
    if has_wall_clock:
        every = every[np.abs(every) <= SKEW_NS]
    n_voters = len(differences)
    # Votes within a bin's width after each difference.
    votes = np.searchsorted(every, every + BIN_NS, side="right") - np.arange(len(every))
    if not len(votes):
        return None
    best = int(np.argmax(votes))
    is_other = np.abs(every - every[best]) > 2 * BIN_NS
    others = int(votes[is_other].max()) if is_other.any() else 0
    if votes[best] < max(MIN_VOTES, MIN_AGREE_FRAC * n_voters) or votes[best] < CLEAR * others:
        return None
    within = every[best : best + int(votes[best])]
    return 0 if has_wall_clock and abs(int(within[0])) < LATE_NS else int(within[0])


def _pairs(client: Side, server: Side) -> tuple[Ints, Ints]:
    """One-to-one pairs of equal length, in order of time: the first arrival after each send."""
    by_length: dict[int, list[int]] = {}
    for j in _order(server):
        by_length.setdefault(int(server.length[j]), []).append(j)
    next_of = dict.fromkeys(by_length, 0)
    found: list[tuple[int, int]] = []
    for i in _order(client):
        length = int(client.length[i])
        waiting = by_length.get(length, [])
        at = next_of.get(length, 0)
        earliest = client.at_ns[i] - BIN_NS
        while at < len(waiting) and server.at_ns[waiting[at]] < earliest:
            at += 1
        if at < len(waiting) and server.at_ns[waiting[at]] <= client.at_ns[i] + LATE_NS:
            found.append((i, waiting[at]))
            at += 1
        if length in next_of:
            next_of[length] = at
    pairs = np.array(found, dtype=np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def _order(side: Side) -> list[int]:
    """Indexes by the moment of the send, within a moment by the end."""
    order = np.argsort(side.at_ns, kind="stable")
    moments = np.zeros(len(order), dtype=np.int64)
    began: int | None = None
    for place, at in enumerate(side.at_ns[order].tolist()):
        if began is None or at - began > MOMENT_NS:
            began = at
        moments[place] = began
    return [int(i) for i in order[np.lexsort((side.end_ns[order], moments))]]
