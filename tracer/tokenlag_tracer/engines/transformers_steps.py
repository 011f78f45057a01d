"""What a transformers batch processor does, step by step, as records.

A batch's facts are copied when it is scheduled (its states go on changing) and its record is
sent when its tokens are known. With asynchronous batching the next batch is scheduled before
that; a request that ended meanwhile is then computed once more and thrown away, and one that
was put back to the queue loses the token in flight.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from tokenlag_tracer.recorder import EngineRecorder

MAX_IN_FLIGHT: Final = 16
_CHILD: Final = re.compile(r"(.+)__child#(\d+)")
# Status names of a request that takes no more tokens from a batch in flight.
_GONE: Final = ("FINISHED", "FAILED", "PENDING")


class Entry:
    """One request: the recorder's index, transformers' state, its prefill's end, its wait."""

    __slots__ = ("index", "n_waiting", "since_ns", "state", "target")

    def __init__(self, index: int, state: Any) -> None:
        self.index = index
        self.state = state
        self.target = 0
        self.since_ns = 0
        self.n_waiting = 0


class Note:
    """A batch that was scheduled and whose tokens are not known yet."""

    __slots__ = (
        "batch", "chunks", "context", "end_ns", "members", "new_tokens", "preempted", "start_ns",
        "told",
    )  # fmt: skip

    def __init__(self, batch: Sequence[Any]) -> None:
        self.batch = batch
        self.start_ns = self.end_ns = 0
        self.chunks: list[tuple[int, int, int]] = []
        self.members: dict[int, Any] = {}
        self.context = 0
        self.preempted: Sequence[int] = ()
        self.new_tokens: list[int] | None = None
        self.told: dict[str, Any] = {}


def external_id(request_id: str) -> tuple[str, int]:
    """Returns what the outside calls a request, and which of its sequences this is."""
    match = _CHILD.fullmatch(request_id)
    return (match[1], int(match[2]) + 1) if match is not None else (request_id, 0)


def _prompt_tokens(state: Any) -> int:
    """Returns the tokens of the prompt proper, also of one that was put back with its output."""
    return int(state._true_initial_tokens or len(state.initial_tokens))


class ProcessorTracker:
    """Follows one batch processor. All methods are called in its thread.

    Args:
        processor: transformers' own.
        recorder: of this engine.
    """

    def __init__(self, processor: Any, recorder: EngineRecorder) -> None:
        self._scheduler = processor.scheduler
        self._cache = processor.cache
        self._recorder = recorder
        self._entries: dict[str, Entry] = {}
        self._waiting: dict[str, Entry] = {}
        self._waiting_tokens = 0
        self._preempted: list[int] = []
        self._members: Mapping[int, Any] = {}
        self._notes: deque[Note] = deque()
        self._done: Note | None = None
        # perf_counter, which transformers stamps with, and the recorder's clock.
        self._offset_ns = time.monotonic_ns() - time.perf_counter_ns()
        self._usage()  # fails here, not in the first step, if this release has no such method

    def close(self) -> None:
        """Ends the recording."""
        self._recorder.close()

    # --- requests -----------------------------------------------------------------------------

    def added(self, state: Any) -> None:
        """The scheduler put a request into its queue: a new one, or one that it took back."""
        now_ns = time.monotonic_ns()
        entry = self._entries.get(state.request_id)
        if entry is None:
            created_ns = round(state.created_time * 1e9) + self._offset_ns
            self._adopt(state, min(now_ns, created_ns))
            return
        entry.state = state
        if not entry.since_ns:
            self._preempted.append(entry.index)
            self._wait(entry, now_ns)

    def _adopt(self, state: Any, at_ns: int) -> Entry:
        outside, sequence = external_id(state.request_id)
        index = self._recorder.queued(
            outside,
            at_ns=at_ns,
            prompt_tokens=_prompt_tokens(state),
            max_tokens=state.max_new_tokens,
            sequence=sequence,
        )
        entry = Entry(index, state)
        self._entries[state.request_id] = entry
        self._wait(entry, at_ns)
        return entry

    def _wait(self, entry: Entry, at_ns: int) -> None:
        entry.since_ns = at_ns or 1
        entry.n_waiting = len(entry.state.remaining_prefill_tokens)
        self._waiting_tokens += entry.n_waiting
        self._waiting[entry.state.request_id] = entry

    def _started(self, entry: Entry) -> None:
        if self._waiting.pop(entry.state.request_id, None) is not None:
            self._waiting_tokens -= entry.n_waiting
        entry.since_ns = 0

    def ended(self, state: Any, reason: str, error: BaseException | None = None) -> None:
        """A request is over: finished, cancelled, or failed."""
        entry = self._entries.get(state.request_id)
        if entry is None or entry.state is not state:
            return  # its state was replaced when it was put back to the queue: it goes on
        del self._entries[state.request_id]
        self._started(entry)
        n_prompt = _prompt_tokens(state)
        n_again = len(state.initial_tokens) - n_prompt
        self._recorder.finished(
            entry.index,
            reason,
            input_tokens=n_prompt,
            output_tokens=n_again + len(state.generated_tokens),
            error_type=type(error).__name__ if error is not None else None,
        )

    def cancelled(self, states: Iterable[Any]) -> None:
        """The scheduler dropped requests that were cancelled."""
        for state in states:
            self.ended(state, "abort")

    # --- a batch is scheduled -----------------------------------------------------------------

    def scheduled(self, batch: Sequence[Any] | None, token_budget: int, was_held: bool) -> None:
        """The scheduler decided on a batch.

        Args:
            batch: transformers' FutureRequestStates; None if nothing fits.
            token_budget: most tokens that it could take.
            was_held: new requests were kept out altogether, since KV had run out.
        """
        if not batch:
            return
        now_ns = time.monotonic_ns()
        note = Note(batch)
        n_tokens = 0
        for future in batch:
            state, n_query = future.state, future.query_length
            entry = self._entries.get(state.request_id) or self._adopt(state, now_ns)
            n_before = state.position_offset
            n_tokens += n_query
            if entry.since_ns:
                self._started(entry)
                entry.target = n_before + n_query + len(state.remaining_prefill_tokens)
            if n_before < entry.target:
                note.chunks.append((entry.index, n_query, n_before))
            else:
                note.members[entry.index] = state
                note.context += n_before + n_query
        oldest = next(iter(self._waiting.values()), None)
        n_waiting = len(self._scheduler.waiting_requests)
        note.told = {
            "running": len(self._scheduler.active_requests),
            "waiting": n_waiting,
            "waiting_tokens": self._waiting_tokens,
            "oldest_wait_ns": max(0, now_ns - oldest.since_ns) if oldest is not None else 0,
            "kv_usage": self._usage(),
            "admit_bound": self._admit_bound(len(batch), n_tokens, token_budget, was_held)
            if n_waiting
            else "none",
        }
        self._notes.append(note)
        if len(self._notes) > MAX_IN_FLIGHT:
            self._notes.popleft()

    def _usage(self) -> float:
        return 1.0 - float(self._cache.compute_free_capacity())

    def _admit_bound(
        self, n_requests: int, n_tokens: int, token_budget: int, was_held: bool
    ) -> str:
        """Returns what kept the queue's head out; empty where it cannot be told."""
        scheduler = self._scheduler
        if n_requests >= scheduler.max_requests_per_batch:
            return "slots"
        if n_tokens >= token_budget:
            return "tokens"
        if was_held or scheduler.starved_requests:
            return "kv"
        if self._cache.compute_free_capacity() < scheduler.safety_margin:
            return "kv"
        return ""  # the room to read KV in one batch, or a request larger than what is free

    def launched(self) -> None:
        """The last batch is handed to the model."""
        if self._notes:
            note = self._notes[-1]
            note.start_ns = time.monotonic_ns()
            note.preempted, self._preempted = self._preempted, []

    # --- its tokens are known -----------------------------------------------------------------

    def received(self, batch: Sequence[Any]) -> None:
        """A batch's tokens are on the host; its states are about to take them.

        Args:
            batch: its FutureRequestStates, the objects that were scheduled.
        """
        end_ns = time.monotonic_ns()
        self._done = None
        while self._notes and batch:
            note = self._notes.popleft()
            if note.batch[0] is batch[0]:
                note.end_ns = end_ns
                counts = [
                    0 if note.members[index].status.name in _GONE else 1
                    for index in sorted(note.members)
                ]
                note.new_tokens = None if all(counts) else counts
                self._done = note
                return

    def updated(self) -> None:
        """The states have taken their tokens."""
        note, self._done = self._done, None
        if note is None:
            return
        members = note.members
        told = {
            key: value for key, value in note.told.items() if value is not None
        }  # fmt: skip
        self._recorder.record_step(
            note.start_ns or note.end_ns,
            note.end_ns,
            joined=list(members.keys() - self._members.keys()),
            left=list(self._members.keys() - members.keys()),
            prefill=note.chunks,
            preempted=note.preempted,
            new_tokens=note.new_tokens,
            context_tokens=note.context,
            **told,
        )
        self._members = members
        for future in note.batch:
            state = future.state
            if state.status.name == "FINISHED":
                self.ended(state, _finish_reason(state))


def _finish_reason(state: Any) -> str:
    """Returns why a request stopped: at its limit, or at an end token."""
    tokens = state.generated_tokens
    return "stop" if tokens and tokens[-1] in state._eos_token_ids else "length"
