"""What a vLLM scheduler does, step by step, as records.

vLLM schedules a step before the results of the one before are in, so a step's facts are copied
when it is scheduled and its record is sent when its results are processed: by then a request of
it may be gone. In a step in which the same requests decode as before, nothing is gathered but
counts: one comparison of the scheduler's own key views tells that it is such a step.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

from tokenlag_tracer.engines.vllm_requests import Entry, Layout, Note, external_id, labels_of
from tokenlag_tracer.recorder import EngineRecorder

# vLLM may lose a step's results only when it fails; more in flight than this is not the case.
MAX_IN_FLIGHT: Final = 256
# How many blocked requests are asked, at each step, what they wait for.
MAX_ASKED: Final = 16

# Names of RequestStatus, of several releases → why a request waits.
_REASONS: Final = {
    "WAITING_FOR_FSM": "grammar",
    "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR": "grammar",
    "WAITING_FOR_REMOTE_KVS": "kv_transfer",
}
_BOUND_OF_REASON: Final = {"grammar": "grammar", "kv_transfer": "remote_kv", "adapter": "adapters"}
_GRAPHS: Final = {"FULL": "full", "PIECEWISE": "piecewise", "NONE": "eager"}


class SchedulerTracker:
    """Follows one scheduler. All methods are called in the engine's thread.

    Args:
        scheduler: vLLM's.
        recorder: of this engine.
        layout: names in this release.
        model: name of the model as clients know it.
        is_eager: no graphs are used at all.
    """

    def __init__(
        self,
        scheduler: Any,
        recorder: EngineRecorder,
        layout: Layout,
        *,
        model: str | None = None,
        is_eager: bool = False,
    ) -> None:
        self._scheduler = scheduler
        self._recorder = recorder
        self._layout = layout
        self._model = model
        self._graph = "eager" if is_eager else ""
        self._entries: dict[str, Entry] = {}
        self._waiting: dict[str, Entry] = {}  # in the order in which they began to wait
        self._blocked: dict[str, Entry] = {}
        self._waiting_tokens = 0
        self._members: dict[int, str] = {}
        self._keys: Any = None
        self._is_pure = False
        self._context = 0
        self._preempted: list[int] = []
        self._n_changes = 0
        self._notes: deque[Note] = deque()
        self._note: Note | None = None
        self._is_lost = True
        # Fails here, and not in the first step, if this release has no such attributes.
        self._is_probed = self._look() is not None

    def close(self) -> None:
        """Ends the recording."""
        self._recorder.close()

    # --- requests -----------------------------------------------------------------------------

    def added(self, request: Any, at_ns: int) -> None:
        """The scheduler took a request in."""
        request_id = request.request_id
        known = self._entries.get(request_id)
        own = self._scheduler.requests.get(request_id)
        if known is not None:
            # More input for a session that goes on: it waits again, if its turn was over.
            if own is not None and own.status.name != "RUNNING" and not known.since_ns:
                self._wait(known, own.num_tokens, at_ns)
            return
        if own is request:
            arrived_ns = getattr(request, "_tokenlag_arrived_ns", at_ns)
            self._adopt(request, min(arrived_ns, at_ns))

    def _adopt(self, request: Any, at_ns: int) -> Entry:
        outside, sequence = external_id(request.request_id)
        reason = _REASONS.get(request.status.name, "arrival")
        index = self._recorder.queued(
            outside,
            at_ns=at_ns,
            prompt_tokens=request.num_prompt_tokens,
            max_tokens=request.max_tokens,
            sequence=sequence,
            reason=reason,
            traceparent=(request.trace_headers or {}).get("traceparent"),
            model=self._model,
            **labels_of(request),
        )
        entry = Entry(index, request, reason)
        self._entries[request.request_id] = entry
        if reason != "arrival":
            self._blocked[request.request_id] = entry
        self._wait(entry, request.num_prompt_tokens, at_ns)
        return entry

    def _wait(self, entry: Entry, n_tokens: int, at_ns: int) -> None:
        entry.since_ns = at_ns or 1
        entry.n_waiting = n_tokens
        self._waiting_tokens += n_tokens
        self._waiting[entry.request.request_id] = entry

    def _started(self, entry: Entry) -> None:
        request_id = entry.request.request_id
        if self._waiting.pop(request_id, None) is not None:
            self._waiting_tokens -= entry.n_waiting
        self._blocked.pop(request_id, None)
        entry.since_ns = 0

    def collect(self) -> None:
        """Tells of requests that have ended since it was last asked."""
        for request_id in self._scheduler.finished_req_ids:
            entry = self._entries.pop(request_id, None)
            if entry is None:
                continue
            self._started(entry)
            self._n_changes += 1
            request = entry.request
            found = request.get_finished_reason()
            reason = None if found is None else str(found).lower()
            self._recorder.finished(
                entry.index,
                reason,
                input_tokens=request.num_prompt_tokens,
                output_tokens=request.num_output_tokens,
                error_type="engine_error" if reason == "error" else None,
            )

    # --- a step is scheduled ------------------------------------------------------------------

    def scheduled(self, output: Any, is_throttled: bool = False) -> None:
        """The scheduler decided on a step; it is handed to the model runner now.

        Args:
            output: vLLM's SchedulerOutput.
            is_throttled: it was told to hold prompts back.
        """
        start_ns = time.monotonic_ns()
        scheduled = output.num_scheduled_tokens
        if output.preempted_req_ids:
            self._preempt(output.preempted_req_ids, start_ns)
        if not scheduled:
            return
        if self._blocked or getattr(self._scheduler, self._layout.blocked):
            self._ask_blocked(start_ns)
        n_members = len(scheduled)
        if (
            self._is_pure
            and not self._preempted
            and output.total_num_scheduled_tokens == n_members
            and not output.scheduled_new_reqs
            and scheduled.keys() == self._keys
        ):
            self._context += n_members
            note = Note(output, start_ns, self._members)
        else:
            note = self._compose(output, start_ns)
        self._describe(note, is_throttled)
        self._notes.append(note)
        if len(self._notes) > MAX_IN_FLIGHT:
            self._notes.popleft()
            self._is_lost = True

    def _preempt(self, request_ids: Iterable[str], at_ns: int) -> None:
        self._is_pure = False
        self._n_changes += 1
        for request_id in request_ids:
            entry = self._entries.get(request_id)
            if entry is not None and not entry.since_ns:
                self._preempted.append(entry.index)
                entry.reason = "preempted"
                self._wait(entry, entry.request.num_tokens, at_ns)

    def _compose(self, output: Any, start_ns: int) -> Note:
        """Finds out who decodes, who is in prefill, and what changed since the step before."""
        members: dict[int, str] = {}
        note = Note(output, start_ns, members)
        entries, context = self._entries, 0
        for request_id, n_tokens in output.num_scheduled_tokens.items():
            entry = entries.get(request_id)
            if entry is None:
                entry = self._adopt(self._scheduler.requests[request_id], start_ns)
            request = entry.request
            if entry.since_ns:
                self._started(entry)
                entry.target = request.num_tokens
            n_after = request.num_computed_tokens  # already counts this step
            n_before = n_after - n_tokens
            if n_before < entry.target:
                n_chunk = min(n_tokens, entry.target - n_before)
                note.chunks.append((entry.index, n_chunk, max(n_before, 0)))
            else:
                members[entry.index] = request_id
                context += n_after
        self._context = context
        note.is_same = False
        note.joined = members.keys() - self._members.keys()
        note.left = self._members.keys() - members.keys()
        note.preempted, self._preempted = self._preempted, []
        self._members = members
        self._keys = output.num_scheduled_tokens.keys()
        self._is_pure = not note.chunks and output.total_num_scheduled_tokens == len(members)
        return note

    def _look(self) -> tuple[int, int, float]:
        scheduler = self._scheduler
        running, waiting = scheduler.get_request_counts()
        return running, waiting, scheduler.kv_cache_manager.usage

    def _describe(self, note: Note, is_throttled: bool) -> None:
        note.context = self._context
        note.running, note.waiting, note.kv_usage = self._look()
        note.waiting_tokens = self._waiting_tokens
        note.oldest_ns = 0
        for entry in self._waiting.values():
            note.oldest_ns = max(0, note.start_ns - entry.since_ns)
            break
        note.n_changes = self._n_changes
        note.admit_bound = self._admit_bound(note, is_throttled) if note.waiting else "none"

    def _admit_bound(self, note: Note, is_throttled: bool) -> str:
        """Returns what kept the queue's head out; empty where vLLM does not tell."""
        scheduler = self._scheduler
        if is_throttled or getattr(scheduler.pause_state, "name", "UNPAUSED") != "UNPAUSED":
            return ""
        if note.preempted:
            return "kv"
        n_taken = note.running + getattr(scheduler, "num_waiting_for_streaming_input", 0)
        if n_taken >= getattr(scheduler, self._layout.slots):
            return "slots"
        n_tokens = note.output.total_num_scheduled_tokens
        if n_tokens >= scheduler.max_num_scheduled_tokens:
            return "tokens"
        n_blocked = len(getattr(scheduler, self._layout.blocked))
        if n_blocked >= note.waiting:
            for entry in self._blocked.values():
                return _BOUND_OF_REASON.get(entry.reason, "")
            return ""
        head = next(iter(self._waiting.values()), None)
        if head is None or head.request.has_encoder_inputs:
            return ""
        n_left = scheduler.max_num_scheduled_tokens - n_tokens
        if not scheduler.scheduler_config.enable_chunked_prefill and head.n_waiting > n_left:
            return "tokens"
        if getattr(scheduler, "need_mamba_block_aligned_split", False):
            return ""
        return "kv"

    def _ask_blocked(self, at_ns: int) -> None:
        """Tells of waiting requests that now wait for something else than before."""
        n_asked = 0
        for request in getattr(self._scheduler, self._layout.blocked):
            entry = self._waiting.get(request.request_id)
            if entry is None:
                continue
            n_asked += 1
            if n_asked > MAX_ASKED:
                break
            reason = _REASONS.get(request.status.name)
            if reason is None and request.lora_request is not None:
                reason = "adapter"
            if reason is not None and reason != entry.reason:
                self._turn(entry, reason, at_ns)
        for entry in list(self._blocked.values())[:MAX_ASKED]:
            request = entry.request
            if request.status.name == "WAITING" and not self._is_held(entry):
                self._turn(entry, "arrival", at_ns)

    def _is_held(self, entry: Entry) -> bool:
        """Whether a request that could run is held back for its adapter."""
        return entry.reason == "adapter" and entry.request in getattr(
            self._scheduler, self._layout.blocked
        )

    def _turn(self, entry: Entry, reason: str, at_ns: int) -> None:
        entry.reason = reason
        self._recorder.waiting(entry.index, reason, at_ns=at_ns)
        if reason == "arrival":
            self._blocked.pop(entry.request.request_id, None)
        else:
            self._blocked[entry.request.request_id] = entry

    # --- its results are in -------------------------------------------------------------------

    def received(self, output: Any, model_output: Any) -> None:
        """A step's tokens are known to the host; the scheduler is about to process them."""
        end_ns = time.monotonic_ns()
        self._note = None
        if not output.num_scheduled_tokens:
            return
        if not any(note.output is output for note in self._notes):
            return  # scheduled before tracing began
        note = self._notes.popleft()
        while note.output is not output:
            self._is_lost = True  # its results never came
            note = self._notes.popleft()
        note.end_ns = end_ns
        note.graph = self._graph
        stats = getattr(model_output, "cudagraph_stats", None)
        if stats is not None:
            note.graph = _GRAPHS.get(str(stats.runtime_mode).rpartition(".")[2], "")
        drafts = output.scheduled_spec_decode_tokens
        if drafts:
            rows, sampled = model_output.req_id_to_index, model_output.sampled_token_ids
            note.drafted, note.accepted = 0, 0
            for request_id, tokens in drafts.items():
                note.drafted += len(tokens)
                row = rows.get(request_id)
                if row is not None and sampled:
                    note.accepted += max(0, len(sampled[row]) - 1)
        self._note = note

    def updated(self, results: Any) -> None:
        """The scheduler has processed a step's results.

        Args:
            results: what it returned: outputs by client.
        """
        note, self._note = self._note, None
        if note is not None:
            self._record(note, results)
        if self._scheduler.finished_req_ids:
            self.collect()

    def _record(self, note: Note, results: Any) -> None:
        new_tokens: list[int] | None = None
        # One token each, unless some were drafted, or somebody left or was put back meanwhile.
        if note.drafted >= 0 or note.n_changes != self._n_changes:
            new_tokens = _count_tokens(note.members, results)
        if note.is_same and new_tokens is None and not self._is_lost:
            self._recorder.record_same(
                note.start_ns, note.end_ns, note.context, note.running, note.waiting,
                note.waiting_tokens, note.oldest_ns, note.kv_usage, note.admit_bound, note.graph,
            )  # fmt: skip
            return
        who: dict[str, Any] = {}
        if self._is_lost:
            who["decode"] = note.members.keys()
            self._is_lost = False
        elif not note.is_same:
            who["joined"], who["left"] = list(note.joined), list(note.left)
        self._recorder.record_step(
            note.start_ns, note.end_ns, prefill=note.chunks, preempted=note.preempted,
            new_tokens=new_tokens, context_tokens=note.context, running=note.running,
            waiting=note.waiting, waiting_tokens=note.waiting_tokens,
            oldest_wait_ns=note.oldest_ns, kv_usage=note.kv_usage, admit_bound=note.admit_bound,
            graph=note.graph, drafted=note.drafted, accepted=note.accepted, **who,
        )  # fmt: skip


def _count_tokens(members: Mapping[int, str], results: Any) -> list[int] | None:
    """Returns the tokens that each decoding request got, in index order; None if one each."""
    counts: dict[str, int] = {}
    for outputs in results.values():
        for output in outputs.outputs:
            counts[output.request_id] = len(output.new_token_ids)
    found = [counts.get(members[index], 0) for index in sorted(members)]
    return None if all(count == 1 for count in found) else found
