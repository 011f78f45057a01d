"""The hot path: one short record and one non-blocking send for each engine step.

An engine opens one `EngineRecorder` and calls `record_step` when a step's tokens are known.
Nothing here blocks, locks, logs, or raises into the engine: a record that cannot be sent is
dropped and counted, and the next one carries everything a reader needs to go on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from tokenlag_tracer import conventions as names
from tokenlag_tracer import identity, wire
from tokenlag_tracer.channel import Channel, Send, refuse
from tokenlag_tracer.config import is_disabled
from tokenlag_tracer.events import RequestEvents
from tokenlag_tracer.link import shared_link

_FULL_MASK: Final = names.FULL_LIST_EVERY_STEPS - 1
_HEAD_SIZE: Final = wire.STEP_HEAD.size
_EXTRA_SIZE: Final = wire.STEP_EXTRA.size
_KIND_STEP: Final = wire.KIND_STEP
_LISTS_FLAG: Final = wire.HAS_LISTS << 8
_FULL_FLAG: Final = wire.HAS_FULL << 8
_NEW_TOKENS_FLAG: Final = wire.HAS_NEW_TOKENS << 8
_EXTRA_FLAG: Final = wire.HAS_EXTRA << 8
_pack_head = wire.STEP_HEAD.pack_into
_pack_extra = wire.STEP_EXTRA.pack_into
_numbers = wire.numbers
_admit_code = wire.ADMIT_CODES.get
_graph_code = wire.GRAPH_CODES.get


class EngineRecorder(RequestEvents):
    """Records one engine's steps and what it does with its requests. Not thread-safe.

    Make it with `engine()`. All times are `time.monotonic_ns()` (the same clock in every
    process of the machine). Requests are known by an index that `queued` returns.

    Args:
        engine_id: what the engine is called; by default `host:pid:rank`.
        rank: which of this process's engines it is.
        resource: what it is, by the contract's resource keys; others are not exported.
        device_lag: device times come with one of the next so many steps; 0: they do not come.

    Attributes:
        is_enabled: records go somewhere; False for the one that does nothing.
        n_steps: steps so far; the next one's index.
        n_dropped: step records lost so far.
    """

    __slots__ = (
        "__weakref__", "_beat_at_ns", "_buffer", "_device_lag", "_given_id", "_head_view",
        "_is_full_due", "_members", "_rank",
        "_resource", "_send", "_view", "_word", "engine_id", "epoch_ns", "n_dropped",
        "n_steps",
    )  # fmt: skip

    is_enabled = True

    def __init__(
        self,
        engine_id: str | None = None,
        *,
        rank: int = 0,
        resource: Mapping[str, str | int | float | bool] | None = None,
        device_lag: int = 0,
    ) -> None:
        self._given_id = engine_id
        self._rank = rank
        self._resource = dict(resource or {})
        self._device_lag = device_lag
        self._send: Send = refuse
        self.channel = Channel(self._hello, self._take_send)
        self._buffer = bytearray(1 << 14)
        self._view = memoryview(self._buffer)
        self._head_view = self._view[:_HEAD_SIZE]
        self._begin()

    def _begin(self) -> None:
        self.engine_id = self._given_id or identity.default_engine_id(self._rank)
        self.epoch_ns = time.time_ns()
        self.n_steps = 0
        self.n_dropped = 0
        self._n_open = 0
        self._n_requests = 0
        self._members: set[int] = set()
        self._word = 0
        self._is_full_due = True
        self._last_end_ns = time.monotonic_ns()
        self._beat_at_ns = self._last_end_ns

    def _take_send(self, send: Send) -> None:
        self._send = send

    def _hello(self) -> bytes:
        self._is_full_due = True
        return wire.pack_json(
            wire.KIND_HELLO,
            {
                "wire": wire.VERSION,
                "role": "engine",
                "pid": os.getpid(),
                "engine_id": self.engine_id,
                "epoch_ns": self.epoch_ns,
                "resource": self._resource,
                "device_lag": self._device_lag,
                "monotonic_ns": time.monotonic_ns(),
                "wall_ns": time.time_ns(),
            },
        )

    # --- steps --------------------------------------------------------------------------------

    def record_same(
        self,
        start_ns: int,
        end_ns: int,
        context_tokens: int = -1,
        running: int = -1,
        waiting: int = -1,
        waiting_tokens: int = -1,
        oldest_wait_ns: int = -1,
        kv_usage: float = -1.0,
        admit_bound: str = "",
        graph: str = "",
    ) -> None:
        """Records a step in which the same requests decode as in the one before, and no more.

        `record_step` without its rarer arguments. Three steps in four are such, so this is
        the path that counts; given by position its arguments are cheapest. They are as in
        `record_step`.
        """
        index = self.n_steps
        if self._is_full_due or not index & _FULL_MASK:
            self.record_step(
                start_ns, end_ns, context_tokens=context_tokens, running=running, waiting=waiting,
                waiting_tokens=waiting_tokens, oldest_wait_ns=oldest_wait_ns, kv_usage=kv_usage,
                admit_bound=admit_bound, graph=graph,
            )  # fmt: skip
            return
        self.n_steps = index + 1
        try:
            _pack_head(
                self._buffer, 0, self._word | _admit_code(admit_bound, 0) | _graph_code(graph, 0),
                index, start_ns, end_ns, context_tokens, waiting_tokens, oldest_wait_ns,
                running + 1 << 32 | waiting + 1, self.n_dropped, kv_usage,
            )  # fmt: skip
            self._send(self._head_view)
            self._last_end_ns = end_ns
        except OSError as error:
            self._drop(error)
        except Exception:
            self._drop(None)

    def record_step(
        self,
        start_ns: int,
        end_ns: int,
        *,
        decode: Iterable[int] | None = None,
        joined: Sequence[int] = (),
        left: Sequence[int] = (),
        prefill: Sequence[tuple[int, int, int]] = (),
        preempted: Sequence[int] = (),
        new_tokens: Sequence[int] | None = None,
        context_tokens: int = -1,
        running: int = -1,
        waiting: int = -1,
        waiting_tokens: int = -1,
        oldest_wait_ns: int = -1,
        kv_usage: float = -1.0,
        kv_reserved: float = -1.0,
        admit_bound: str = "",
        graph: str = "",
        drafted: int = -1,
        accepted: int = -1,
        device_step: int = -1,
        device_ns: int = -1,
    ) -> None:
        """Records one step; what is not given is not measured.

        Say who decodes in one of three ways, cheapest first: nothing, where the same requests
        decode as in the step before; `joined` and `left`; or `decode`, all of them. A step
        that has nothing but `record_same`'s arguments is best told by that.

        Args:
            start_ns: when its batch was handed to the model runner.
            end_ns: when its tokens were known to the host.
            decode: indexes of all requests that decode in it.
            joined: of those that decode in it and did not in the step before.
            left: of those that did and no longer do.
            prefill: for each prompt chunk, index, tokens, and tokens in KV before it.
            preempted: indexes of requests put back to the queue when it was scheduled.
            new_tokens: of each decoding request in index order, if one is not 1.
            context_tokens: KV tokens that the decoding requests attend to, summed.
            running: requests running after scheduling it.
            waiting: requests waiting after scheduling it.
            waiting_tokens: their prompt tokens.
            oldest_wait_ns: how long the first of them has waited.
            kv_usage: share of KV in use, 0 to 1.
            kv_reserved: share of KV promised.
            admit_bound: what kept the queue's head out; see `wire.ADMIT_BOUNDS`.
            graph: how it was launched; see `wire.GRAPHS`.
            drafted: tokens drafted over the batch.
            accepted: of these, accepted.
            device_step: index of a step, this or an earlier one, whose device time is known now.
            device_ns: that time.
        """
        index = self.n_steps
        self.n_steps = index + 1
        try:
            if decode is not None:
                joined, left = self._replace(decode)
            elif joined or left:
                self._members.difference_update(left)
                self._members.update(joined)
            word = _KIND_STEP | len(self._members) << 32
            self._word = word
            at = _HEAD_SIZE
            if drafted >= 0 or device_step >= 0 or kv_reserved >= 0:
                _pack_extra(
                    self._buffer, at, float(kv_reserved), drafted, accepted, device_step, device_ns
                )
                word |= _EXTRA_FLAG
                at += _EXTRA_SIZE
            is_full = self._is_full_due or not index & _FULL_MASK
            if joined or left or prefill or preempted or is_full or new_tokens is not None:
                flags, view = self._pack_lists(
                    at, joined, left, prefill, preempted, new_tokens, is_full
                )
                word |= flags
            else:
                view = self._view[:at]
            _pack_head(
                self._buffer, 0, word | _admit_code(admit_bound, 0) | _graph_code(graph, 0),
                index, start_ns, end_ns, context_tokens, waiting_tokens, oldest_wait_ns,
                running + 1 << 32 | waiting + 1, self.n_dropped, kv_usage,
            )  # fmt: skip
            self._send(view)
            self._last_end_ns = end_ns
        except OSError as error:
            self._drop(error)
        except Exception:
            self._drop(None)
            self._forget_nonsense()

    def _forget_nonsense(self) -> None:
        """Takes out of the members what cannot be an index, or no record could be sent again."""
        self._members = {m for m in self._members if isinstance(m, int) and 0 <= m < 1 << 32}
        if len(self._members) > wire.MAX_MEMBERS:
            self._members = set()
        self._word = _KIND_STEP | len(self._members) << 32

    def _replace(self, decode: Iterable[int]) -> tuple[list[int], list[int]]:
        """Takes all members; returns who joined and who left."""
        before, members = self._members, set(decode)
        if members == before:
            return [], []
        self._members = members
        return list(members - before), list(before - members)

    def _pack_lists(
        self,
        at: int,
        joined: Sequence[int],
        left: Sequence[int],
        prefill: Sequence[tuple[int, int, int]],
        preempted: Sequence[int],
        new_tokens: Sequence[int] | None,
        is_full: bool,
    ) -> tuple[int, memoryview]:
        """Writes a step's lists at a place; returns flags and the whole record's bytes."""
        flags = _LISTS_FLAG
        full: Sequence[int] = ()
        if is_full:
            flags |= _FULL_FLAG
            full = sorted(self._members)
            self._is_full_due = False
        if new_tokens is None:
            new_tokens = ()
        else:
            flags |= _NEW_TOKENS_FLAG
        chunks = [number for chunk in prefill for number in chunk]
        if len(chunks) != 3 * len(prefill):
            raise ValueError("a prompt chunk is an index, its tokens, and tokens before it")
        # One array for all: each further object would cost a cold caller as much again.
        data = _numbers(
            (
                len(joined), len(left), len(full), len(prefill), len(preempted), len(new_tokens),
                *joined, *left, *full, *chunks,
                *preempted, *new_tokens,
            )
        )  # fmt: skip
        end = at + len(data)
        if end > len(self._buffer):
            if end > wire.MAX_RECORD_BYTES:
                raise OverflowError("a step's lists are longer than a record may be")
            head = bytes(self._view[:at])
            self._buffer = bytearray(wire.MAX_RECORD_BYTES)
            self._view = memoryview(self._buffer)
            self._head_view = self._view[:_HEAD_SIZE]
            self._view[:at] = head
        self._view[at:end] = data
        return flags, self._view[:end]

    def _drop(self, error: OSError | None) -> None:
        self.n_dropped += 1
        self._is_full_due = True
        if error is not None:
            self._failed(error)

    def beat(self, now_ns: int) -> None:
        """Gives a sign of life if the engine is idle; the link's thread calls it each second."""
        if self._n_open > 0 or now_ns - self._last_end_ns < names.HEARTBEAT_NS:
            return
        if now_ns - self._beat_at_ns < names.HEARTBEAT_NS or not self.n_steps:
            return
        self._beat_at_ns = now_ns
        try:
            self.channel.send(
                wire.BEAT.pack(wire.KIND_BEAT, self.n_steps - 1, now_ns, self.n_dropped)
            )
        except OSError as error:
            self._failed(error)

    # --- its end ------------------------------------------------------------------------------

    def forked(self) -> None:
        """Becomes another engine: this process is a child now and its parent goes on."""
        self._begin()

    def close(self) -> None:
        """Ends the connection; steps recorded afterwards count as dropped."""
        shared_link().leave(self)


class DisabledEngine(EngineRecorder):
    """Does nothing: what `engine()` returns when the kill switch is on."""

    is_enabled = False

    def __init__(self) -> None:
        self.engine_id = ""
        self.epoch_ns = self.n_steps = self.n_dropped = self._n_requests = 0

    def record_step(self, start_ns: int, end_ns: int, **_: Any) -> None:
        """Does nothing."""

    def record_same(self, start_ns: int, end_ns: int, *_: Any, **__: Any) -> None:
        """Does nothing."""

    def queued(self, request_id: str | None = None, **_: Any) -> int:  # noqa: ARG002
        """Returns an index, which callers may have books by."""
        self._n_requests += 1
        return self._n_requests - 1

    def waiting(self, index: int, reason: str, **_: Any) -> None:
        """Does nothing."""

    def finished(self, index: int, reason: str | None = None, **_: Any) -> None:
        """Does nothing."""

    def aborted(self, index: int, **_: Any) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""


_n_engines = 0


def engine(
    engine_id: str | None = None,
    *,
    rank: int | None = None,
    resource: Mapping[str, str | int | float | bool | None] | None = None,
    device_lag: int = 0,
) -> EngineRecorder:
    """Returns a recorder for an engine of this process, joined to the pod's writer.

    Args:
        engine_id: what the engine is called; by default `TOKENLAG_ENGINE_ID` (with `:rank` from
            the second on), or `host:pid:rank`.
        rank: which engine of this process, or data-parallel rank; by default they are counted.
        resource: what it is, by the contract's resource keys (`conventions`); None is unknown.
        device_lag: if device times come with `record_step`, within how many steps.
    """
    global _n_engines
    if is_disabled():
        return DisabledEngine()
    if rank is None:
        rank = _n_engines
    _n_engines += 1
    link = shared_link()
    if engine_id is None and link.settings.engine_id:
        engine_id = link.settings.engine_id + (f":{rank}" if rank else "")
    known = {key: value for key, value in (resource or {}).items() if value is not None}
    recorder = EngineRecorder(engine_id, rank=rank, resource=known, device_lag=device_lag)
    link.join(recorder)
    return recorder
