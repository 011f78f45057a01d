"""Decoding with drafts: each sequence yields one token a step and as many drafts as are accepted.

Drafts are accepted one after another, each with the rate of the time, until one is not. Unlike
plain decoding, members advance at their own pace, so that each is visited in each step.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from tokenlag.errors import InputError
from tokenlag.simulate.decoding import BLOCK_TOKENS, DecodeBatch, blocks_for
from tokenlag.simulate.log import Request


@dataclass(frozen=True, slots=True)
class SpeculationConfig:
    """How an engine drafts.

    Attributes:
        drafted: draft tokens for each sequence and step.
        accept_rate: chance of a draft to be accepted, given that those before it were.
        change_s: from then on it is `accept_rate_after`.
        accept_rate_after: see `change_s`.
    """

    drafted: int
    accept_rate: float
    change_s: float = float("inf")
    accept_rate_after: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.drafted < BLOCK_TOKENS:
            raise InputError(f"drafted must be 1 to {BLOCK_TOKENS - 1}")

    def rate(self, now_s: float) -> float:
        """Return the chance at a time of the run."""
        return self.accept_rate if now_s < self.change_s else self.accept_rate_after


class SpeculatingBatch(DecodeBatch):
    """The decoding sequences of an engine that drafts.

    Attributes:
        new_tokens: what each sequence of the last step yielded, by request index.
        n_drafted: drafts of the last step; `n_accepted`: those of them that were accepted.
    """

    def __init__(self, config: SpeculationConfig, chance: random.Random) -> None:
        super().__init__()
        self._config = config
        self._chance = chance
        self.now_s = 0.0
        self.new_tokens: tuple[int, ...] = ()
        self.n_drafted = 0
        self.n_accepted = 0

    def enter(self, request: Request) -> None:
        """Let a sequence whose prefill is done decode from the next step on."""
        self.members[request] = None
        request.is_decoding = True
        request.k_start = self.step
        self.n_context += request.n_computed
        self._joined[request] = None

    def leave(self, request: Request) -> None:
        """Take a sequence out; its counts are up to date."""
        del self.members[request]
        request.is_decoding = False
        request.decodes.append((request.k_start, self.step))
        self.n_context -= request.n_computed
        if request in self._joined:
            del self._joined[request]
        else:
            self._left[request] = None

    def n_blocks_needed(self) -> int:
        """Return how many new blocks the next decode step needs."""
        return sum(self.needs_block(request) for request in self.members)

    def needs_block(self, request: Request) -> bool:
        """Return whether a member needs a new block for its token and its drafts."""
        n_tokens = request.n_computed + self._config.drafted + 1
        return blocks_for(n_tokens) > request.n_blocks

    def advance(self) -> list[Request]:
        """Count one decode step; return the members that it was the last for, taken out."""
        self.step += 1
        drafted, rate = self._config.drafted, self._config.rate(self.now_s)
        self.n_drafted = self.n_accepted = 0
        yields: list[tuple[int, int]] = []
        done: list[Request] = []
        for request in list(self.members):
            n_accepted = 0
            while n_accepted < drafted and self._chance.random() < rate:
                n_accepted += 1
            request.n_blocks += int(self.needs_block(request))
            left = request.n_output - request.n_generated
            n_tokens = n_accepted + 1 if request.is_ghost else min(n_accepted + 1, left)
            request.n_generated += n_tokens
            request.n_computed += n_tokens
            request.yields.append(n_tokens)
            self.n_context += n_tokens
            self.n_drafted += drafted
            self.n_accepted += n_accepted
            yields.append((request.index, n_tokens))
            if n_tokens == left and not request.is_ghost:
                self.leave(request)
                done.append(request)
        self.new_tokens = tuple(n_tokens for _, n_tokens in sorted(yields))
        return done
