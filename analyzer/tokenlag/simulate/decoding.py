"""The sequences that decode, advanced all at once by counting decode steps.

A member that enters at step `k` with `n` tokens in KV has `n + (k' - k)` at step `k'`, needs a
block when that is a multiple of the block, and ends at a step that is known when it enters.
"""

from __future__ import annotations

from tokenlag.simulate.log import Request

BLOCK_TOKENS = 16


def blocks_for(n_tokens: int) -> int:
    """Return how many KV blocks hold `n_tokens`."""
    return -(-n_tokens // BLOCK_TOKENS)


class DecodeBatch:
    """The decoding sequences of an engine.

    Attributes:
        members: the decoding sequences.
        n_context: tokens in KV of all members, before the next step.
        step: how many decode steps there have been.
    """

    def __init__(self) -> None:
        self.members: dict[Request, None] = {}
        self.n_context = 0
        self.step = 0
        self._phase_blocks = [0] * BLOCK_TOKENS
        self._ends: dict[int, list[Request]] = {}
        self._joined: dict[Request, None] = {}
        self._left: dict[Request, None] = {}
        self._was_decoding = False

    def enter(self, request: Request) -> None:
        """Let a sequence whose prefill is done decode from the next step on."""
        self.members[request] = None
        request.is_decoding = True
        request.k_start = self.step
        request.n_at_start = request.n_computed
        request.k_end = self.step + (request.n_output - request.n_generated)
        self._phase_blocks[self._phase(request)] += 1
        self.n_context += request.n_computed
        if not request.is_ghost:
            self._ends.setdefault(request.k_end, []).append(request)
        self._joined[request] = None

    def leave(self, request: Request) -> None:
        """Take a sequence out and bring its own counts up to date."""
        del self.members[request]
        request.is_decoding = False
        n_tokens = self.step - request.k_start
        request.decodes.append((request.k_start, self.step))
        request.n_generated += n_tokens
        request.n_computed += n_tokens
        request.n_blocks = blocks_for(request.n_computed)
        self._phase_blocks[self._phase(request)] -= 1
        self.n_context -= request.n_computed
        if request in self._joined:
            del self._joined[request]  # it never was in a step
        else:
            self._left[request] = None

    def n_blocks_needed(self) -> int:
        """Return how many new blocks the next decode step needs."""
        return self._phase_blocks[self.step % BLOCK_TOKENS]

    def needs_block(self, request: Request) -> bool:
        """Return whether a member needs a new block in the next decode step."""
        return self._phase(request) == self.step % BLOCK_TOKENS

    def advance(self) -> list[Request]:
        """Count one decode step; return the members that it was the last for, taken out."""
        self.step += 1
        self.n_context += len(self.members)
        done: list[Request] = []
        for request in self._ends.pop(self.step, ()):
            if request.is_decoding and request.k_end == self.step:
                self.leave(request)
                done.append(request)
        return done

    def membership_change(self, is_decoding: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return who began and who stopped decoding between the step before and this one."""
        joined: tuple[int, ...] = ()
        left: tuple[int, ...] = ()
        if is_decoding and self._was_decoding:
            joined = tuple(sorted(request.index for request in self._joined))
            left = tuple(sorted(request.index for request in self._left))
        elif is_decoding:
            joined = tuple(sorted(request.index for request in self.members))
        elif self._was_decoding:
            stayed = [request.index for request in self.members if request not in self._joined]
            left = tuple(sorted([*stayed, *(request.index for request in self._left)]))
        self._joined.clear()
        self._left.clear()
        self._was_decoding = is_decoding
        return joined, left

    def _phase(self, request: Request) -> int:
        return (request.k_start - request.n_at_start) % BLOCK_TOKENS
