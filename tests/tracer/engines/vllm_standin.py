"""A scheduler with the fields and the order of events of vLLM's own (0.32), without vLLM.

It schedules as vLLM does, running requests first, then waiting ones, by one token budget; it
counts computed tokens when a step is scheduled; it puts back the last running request when KV
runs out; and it drops results of requests that have gone since.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


class RequestStatus(enum.IntEnum):
    WAITING = 1
    WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR = 2
    WAITING_FOR_REMOTE_KVS = 3
    WAITING_FOR_STREAMING_REQ = 4
    RUNNING = 5
    PREEMPTED = 6
    FINISHED_STOPPED = 7
    FINISHED_LENGTH_CAPPED = 8
    FINISHED_ABORTED = 9
    FINISHED_ERROR = 10


REASONS = {7: "stop", 8: "length", 9: "abort", 10: "error"}


@dataclass(eq=False)
class Request:
    request_id: str
    num_prompt_tokens: int
    max_tokens: int
    status: RequestStatus = RequestStatus.WAITING
    num_computed_tokens: int = 0
    num_output_tokens: int = 0
    num_preemptions: int = 0
    trace_headers: dict[str, str] | None = None
    lora_request: Any = None
    priority: int = 0
    use_structured_output: bool = False
    has_encoder_inputs: bool = False
    sampling_params: Any = field(
        default_factory=lambda: SimpleNamespace(
            logprobs=None, prompt_logprobs=None, presence_penalty=0.0, frequency_penalty=0.0,
            repetition_penalty=1.0,
        )
    )  # fmt: skip

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens

    def get_finished_reason(self) -> str | None:
        return REASONS.get(int(self.status))


@dataclass
class SchedulerOutput:
    num_scheduled_tokens: dict[str, int]
    total_num_scheduled_tokens: int
    scheduled_new_reqs: list[Any]
    preempted_req_ids: set[str]
    finished_req_ids: set[str]
    scheduled_spec_decode_tokens: dict[str, list[int]]
    yields: set[str]  # not vLLM's: whose known tokens are all computed by this step


class Scheduler:
    """`n_blocks` tokens of KV, `slots` running requests, `budget` tokens a step."""

    def __init__(self, budget: int = 64, slots: int = 4, n_blocks: int = 10_000, n_spec: int = 0):
        self.max_num_scheduled_tokens = budget
        self.max_num_running_reqs = self.max_num_active_reqs = slots
        self.n_blocks = n_blocks
        self.n_spec = n_spec
        self.requests: dict[str, Request] = {}
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.deferred_waiting: set[Request] = set()
        self.finished_req_ids: set[str] = set()
        self.reset_preempted_req_ids: set[str] = set()
        self.placeholders: dict[str, int] = {}
        self.pause_state = SimpleNamespace(name="UNPAUSED")
        self.scheduler_config = SimpleNamespace(enable_chunked_prefill=True)
        self.kv_cache_manager = self
        self.stops: dict[str, int] = {}  # requests that stop by themselves, after so many tokens
        self.cached: dict[str, int] = {}  # prompt tokens that are in the prefix cache

    @property
    def usage(self) -> float:
        return sum(r.num_computed_tokens for r in self.running) / self.n_blocks

    def get_request_counts(self) -> tuple[int, int]:
        return len(self.running), len(self.waiting)

    def add_request(self, request: Request) -> None:
        self.requests[request.request_id] = request
        self.waiting.append(request)
        if request.status is not RequestStatus.WAITING:
            self.deferred_waiting.add(request)

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        budget = self.max_num_scheduled_tokens
        scheduled: dict[str, int] = {}
        drafts: dict[str, list[int]] = {}
        new: list[Any] = []
        for request in list(self.running):
            if request not in self.running or not budget:
                continue
            ahead = self.placeholders.get(request.request_id, 0)
            if ahead and request.num_output_tokens + ahead >= request.max_tokens:
                continue  # the step in flight is its last
            n_known = request.num_tokens + ahead
            n_tokens = min(n_known - request.num_computed_tokens, budget)
            if request.num_computed_tokens >= request.num_prompt_tokens and self.n_spec:
                drafts[request.request_id] = [-1] * self.n_spec
                n_tokens += self.n_spec
            while not self._fits(n_tokens, scheduled) and self._preempt_last(request):
                pass
            if request not in self.running:
                continue
            scheduled[request.request_id] = n_tokens
            budget -= n_tokens
        if not self.reset_preempted_req_ids:
            self._admit(budget, scheduled, new)
        yields: set[str] = set()
        for request_id, n_tokens in scheduled.items():
            request = self.requests[request_id]
            request.num_computed_tokens += n_tokens
            n_known = request.num_tokens + self.placeholders.get(request_id, 0)
            if request.num_computed_tokens >= n_known:
                yields.add(request_id)
                self.placeholders[request_id] = self.placeholders.get(request_id, 0) + 1
        output = SchedulerOutput(
            scheduled, sum(scheduled.values()), new, self.reset_preempted_req_ids,
            self.finished_req_ids, drafts, yields,
        )  # fmt: skip
        self.finished_req_ids, self.reset_preempted_req_ids = set(), set()
        return output

    def _fits(self, n_tokens: int, scheduled: dict[str, int]) -> bool:
        n_held = sum(r.num_computed_tokens + scheduled.get(r.request_id, 0) for r in self.running)
        return n_held + n_tokens <= self.n_blocks

    def _preempt_last(self, request: Request) -> bool:
        victim = self.running.pop()
        victim.status = RequestStatus.PREEMPTED
        victim.num_computed_tokens = 0
        victim.num_preemptions += 1
        self.placeholders.pop(victim.request_id, None)
        self.waiting.insert(0, victim)
        self.reset_preempted_req_ids.add(victim.request_id)
        return victim is not request

    def _admit(self, budget: int, scheduled: dict[str, int], new: list[Any]) -> None:
        for request in list(self.waiting):
            if not budget or len(self.running) >= self.max_num_active_reqs:
                return
            if request in self.deferred_waiting:
                continue
            n_cached = self.cached.get(request.request_id, 0)
            n_tokens = min(request.num_tokens - n_cached, budget)
            if not self._fits(n_tokens, scheduled):
                return
            self.waiting.remove(request)
            self.running.append(request)
            new.append(SimpleNamespace(req_id=request.request_id))
            request.status = RequestStatus.RUNNING
            request.num_computed_tokens = n_cached
            scheduled[request.request_id] = n_tokens
            budget -= n_tokens

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: Any
    ) -> Any:
        outputs = []
        for request_id in scheduler_output.num_scheduled_tokens:
            request = self.requests.get(request_id)
            if request is None:
                continue
            row = model_runner_output.req_id_to_index[request_id]
            tokens = model_runner_output.sampled_token_ids[row]
            if request_id in scheduler_output.scheduled_spec_decode_tokens:
                request.num_computed_tokens -= 1 + self.n_spec - len(tokens)
            if not tokens:
                continue
            request.num_output_tokens += len(tokens)
            if self.placeholders.get(request_id):
                self.placeholders[request_id] -= 1
            limit = self.stops.get(request_id, 1 << 30)
            if request.num_output_tokens >= min(limit, request.max_tokens):
                is_stop = request.num_output_tokens >= limit
                self._free(
                    request,
                    RequestStatus.FINISHED_STOPPED
                    if is_stop
                    else RequestStatus.FINISHED_LENGTH_CAPPED,
                )
            outputs.append(SimpleNamespace(request_id=request_id, new_token_ids=list(tokens)))
        return {0: SimpleNamespace(outputs=outputs)} if outputs else {}

    def finish_requests(
        self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus
    ) -> list[Request]:
        if isinstance(request_ids, str):
            request_ids = (request_ids,)
        found = [
            self.requests[request_id]
            for request_id in (list(self.requests) if request_ids is None else request_ids)
            if request_id in self.requests
        ]
        for request in found:
            self._free(request, finished_status)
        return found

    def _free(self, request: Request, status: RequestStatus) -> None:
        request.status = status
        for queue in (self.running, self.waiting):
            if request in queue:
                queue.remove(request)
        self.deferred_waiting.discard(request)
        self.finished_req_ids.add(request.request_id)
        self.placeholders.pop(request.request_id, None)
        del self.requests[request.request_id]


def results_of(output: SchedulerOutput, n_accepted: int = 0) -> Any:
    """What a model runner gives back for a step: one token where the known tokens are computed."""
    rows, sampled = {}, []
    for request_id in output.num_scheduled_tokens:
        rows[request_id] = len(sampled)
        n_drafts = len(output.scheduled_spec_decode_tokens.get(request_id, ()))
        n_new = 1 + min(n_accepted, n_drafts) if request_id in output.yields else 0
        sampled.append([7] * n_new)
    return SimpleNamespace(req_id_to_index=rows, sampled_token_ids=sampled, cudagraph_stats=None)
