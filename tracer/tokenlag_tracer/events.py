"""What an engine tells of its requests: taken in, waiting for what, done."""

from __future__ import annotations

import time
from typing import Any

from tokenlag_tracer import wire
from tokenlag_tracer.channel import Channel
from tokenlag_tracer.link import nudge


class RequestEvents:
    """The half of an engine's recorder that is called once or twice for each request."""

    __slots__ = ("_last_end_ns", "_n_open", "_n_requests", "channel")

    channel: Channel
    _n_open: int
    _n_requests: int
    _last_end_ns: int

    def queued(
        self,
        request_id: str | None = None,
        *,
        at_ns: int | None = None,
        prompt_tokens: int | None = None,
        max_tokens: int | None = None,
        sequence: int = 0,
        reason: str = "arrival",
        traceparent: str | None = None,
        model: str | None = None,
        role: str | None = None,
        **labels: str | int | float | bool | None,
    ) -> int:
        """Notes that the engine took a request in; returns the index that steps know it by.

        Args:
            request_id: the request's id as the front end and the client know it.
            at_ns: when; now by default.
            prompt_tokens: length of its prompt; 0 is unknown.
            max_tokens: most tokens it may generate.
            sequence: which of its sequences, where `n > 1`.
            reason: why it waits: `arrival`, `kv_transfer`, `grammar`, `adapter`.
            traceparent: the caller's context, where the engine is handed it.
            model: the model's name.
            role: `prefill` or `decode` where an engine does only one of them.
            labels: `tenant`, `prefix_id`, `features`, `adapter`, `priority`, `operation`,
                `conversation_id`: for servers whose front end is not traced.
        """
        index = self._n_requests
        self._n_requests = index + 1
        self._n_open += 1
        told = {
            "index": index,
            "request_id": request_id,
            "reason": reason,
            "input_tokens": prompt_tokens or None,
            "max_tokens": max_tokens,
            "sequence": sequence,
            "traceparent": traceparent,
            "model": model,
            "role": role,
            **labels,
        }
        fields = {key: value for key, value in told.items() if value is not None}
        self._event(wire.QUEUED, at_ns, fields)
        return index

    def waiting(self, index: int, reason: str, *, at_ns: int | None = None) -> None:
        """Notes that a waiting request now waits for something else.

        Args:
            index: the request.
            reason: `kv_transfer`, `grammar`, `adapter` or `arrival`.
            at_ns: since when; now by default.
        """
        self._event(wire.WAITING, at_ns, {"index": index, "reason": reason})

    def finished(
        self,
        index: int,
        reason: str | None = None,
        *,
        at_ns: int | None = None,
        input_tokens: int | None = None,
        output_tokens: int | None = None,
        cached_tokens: int | None = None,
        error_type: str | None = None,
    ) -> None:
        """Notes that the engine is done with a request: finished, or its abort was noticed.

        Args:
            index: the request.
            reason: `stop`, `length`, `abort`, …
            at_ns: when; by default the end of the last step (now, for an abort).
            input_tokens: prompt tokens.
            output_tokens: tokens generated; 0 for prefill-only requests.
            cached_tokens: prompt tokens not computed since their KV was there; by default the
                first chunk's context.
            error_type: what failed, where it did.
        """
        self._n_open -= 1
        if at_ns is None:
            at_ns = time.monotonic_ns() if reason == "abort" else self._last_end_ns
        told = {
            "index": index,
            "finish_reason": reason,
            "input_tokens": input_tokens,
            "output_tokens": output_tokens,
            "cached_tokens": cached_tokens,
            "error_type": error_type,
        }
        fields = {key: value for key, value in told.items() if value is not None}
        self._event(wire.ENDED, at_ns, fields)

    def aborted(self, index: int, *, at_ns: int | None = None) -> None:
        """Notes that the engine noticed a request's abort."""
        self.finished(index, "abort", at_ns=at_ns)

    def _event(self, name: str, at_ns: int | None, fields: dict[str, Any]) -> None:
        try:
            at_ns = time.monotonic_ns() if at_ns is None else at_ns
            self.channel.send(wire.pack_event(name, at_ns, fields))
        except OSError as error:
            self._failed(error)
        except Exception:
            return  # a value that JSON cannot hold: the trace lacks it, the server goes on

    def _failed(self, error: OSError) -> None:
        self.channel.failed(error)
        if self.channel.is_broken:
            nudge()
