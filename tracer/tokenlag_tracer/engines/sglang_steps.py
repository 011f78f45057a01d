"""SGLang's steps and requests, from what its scheduler hands to the hooks in `sglang`.

In the loop with overlap a batch is launched before the one before it is handled, and the result
comes with a copy of the batch that has lost what was added to it: so steps are matched by the
batch's `forward_iter`, and by order where it has none.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final

from tokenlag_tracer import conventions as names
from tokenlag_tracer.recorder import EngineRecorder, engine

HEALTH_CHECK: Final = "HEALTH_CHECK"
MAX_PENDING: Final = 64
MAX_KNOWN: Final = 65_536


@dataclass(slots=True)
class Known:
    """A request as it is followed."""

    index: int
    req: Any
    n_retractions: int = 0
    is_waiting: bool = True


@dataclass(slots=True)
class Launched:
    """A batch that was launched and whose result has not come."""

    start_ns: int
    decoding: list[Any]
    prefill: list[tuple[int, int, int]] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)
    told: dict[str, Any] = field(default_factory=dict)


def _n_retractions(req: Any) -> int:
    count = getattr(req, "retraction_count", None)
    return count if isinstance(count, int) else int(bool(getattr(req, "is_retracted", False)))


def _n_output(req: Any) -> int:
    return len(req.output_ids)


def _ids(parts: Iterable[Any] | None) -> set[int]:
    return {id(part) for part in parts or ()}


class SchedulerTracer:
    """Follows one scheduler.

    Args:
        scheduler: SGLang's `Scheduler`.
        recorder: by default a new one.
    """

    def __init__(self, scheduler: Any, recorder: EngineRecorder | None = None) -> None:
        if recorder is None:
            recorder = engine(
                rank=getattr(scheduler, "dp_rank", None), resource=resource_of(scheduler)
            )
        self.recorder = recorder
        self._known: OrderedDict[str, Known] = OrderedDict()
        self._pending: OrderedDict[Any, Launched] = OrderedDict()
        self._decoding: dict[str, Known] = {}
        self._n_launched = 0

    # --- requests -----------------------------------------------------------------------------

    def arrived(self, req: Any, at_ns: int | None = None) -> Known | None:
        """Notes a request, if it is new and somebody's; returns what is known of it."""
        rid = str(req.rid)
        known = self._known.get(rid)
        if known is not None or rid.startswith(HEALTH_CHECK):
            return known
        params = getattr(req, "sampling_params", None)
        index = self.recorder.queued(
            rid,
            at_ns=at_ns,
            prompt_tokens=len(req.origin_input_ids),
            max_tokens=getattr(params, "max_new_tokens", None),
            priority=getattr(req, "priority", None),
            adapter=getattr(req, "lora_id", None),
        )
        known = self._known[rid] = Known(index, req, _n_retractions(req))
        while len(self._known) > MAX_KNOWN:
            _, oldest = self._known.popitem(last=False)
            self.recorder.finished(oldest.index)
        return known

    def look_at_queue(self, scheduler: Any) -> None:
        """Notes who came since the last look; new ones stand at the queue's end."""
        new: list[Any] = []
        for req in reversed(getattr(scheduler, "waiting_queue", None) or ()):
            if str(req.rid) in self._known:
                break
            new.append(req)
        for req in reversed(new):
            self.arrived(req)

    def aborted(self, told: Any, waiting: Iterable[Any]) -> None:
        """Ends waiting requests that an abort has taken out of the queue."""
        still = {str(req.rid) for req in waiting}
        prefix = str(getattr(told, "rid", ""))
        is_all = bool(getattr(told, "abort_all", False))
        for rid, known in list(self._known.items()):
            if known.is_waiting and rid not in still and (is_all or rid.startswith(prefix)):
                del self._known[rid]
                self.recorder.aborted(known.index)

    # --- steps --------------------------------------------------------------------------------

    def launching(self, scheduler: Any, batch: Any) -> Launched | None:
        """Notes who is in a batch, before it is launched; None if there is nothing to run."""
        mode = batch.forward_mode
        if mode.is_idle() or not batch.reqs:
            return None
        launched = Launched(time.monotonic_ns(), [])
        decoding = list(batch.reqs)
        if mode.is_extend():
            mixed = _ids(getattr(batch, "decoding_reqs", None))
            decoding = [req for req in batch.reqs if id(req) in mixed]
            sizes = zip(batch.reqs, batch.extend_lens, batch.prefix_lens, strict=False)
            for req, n_tokens, n_context in sizes:
                known = self.arrived(req) if id(req) not in mixed else None
                if known is not None:
                    known.is_waiting = False
                    launched.prefill.append((known.index, int(n_tokens), int(n_context)))
        launched.decoding = [req for req in decoding if self.arrived(req) is not None]
        self._note_retracted(launched)
        launched.told = self._told(scheduler, batch, launched)
        return launched

    def _note_retracted(self, launched: Launched) -> None:
        """Finds those that decoded and were put back to the queue since."""
        now = {str(req.rid): self._known[str(req.rid)] for req in launched.decoding}
        for rid, known in self._decoding.items():
            n_retractions = _n_retractions(known.req)
            if rid not in now and n_retractions > known.n_retractions and rid in self._known:
                launched.preempted.append(known.index)
                known.is_waiting = True
            known.n_retractions = n_retractions
        if launched.prefill and not launched.decoding:
            return  # prefill goes first here: who decodes only pauses, and may be retracted yet
        self._decoding = now

    def _told(self, scheduler: Any, batch: Any, launched: Launched) -> dict[str, Any]:
        waiting = getattr(scheduler, "waiting_queue", None)
        running = getattr(getattr(scheduler, "running_batch", None), "reqs", None)
        told: dict[str, Any] = {}
        if running is not None:
            told["running"] = len({id(req) for req in (*running, *batch.reqs)})
        if waiting is not None:
            told["waiting"] = len(waiting)
            most = getattr(scheduler, "max_running_requests", None)
            if not waiting:
                told["admit_bound"] = "none"
            elif isinstance(most, int) and told.get("running", 0) >= most:
                told["admit_bound"] = "slots"
        if launched.decoding:
            told["context_tokens"] = sum(
                len(req.origin_input_ids) + _n_output(req) for req in launched.decoding
            )
        usage = _kv_usage(scheduler)
        if usage is not None:
            told["kv_usage"] = usage
        return told

    def launched(self, batch: Any, launched: Launched) -> None:
        """Keeps a batch until its result is handled; its number is set by the launch."""
        self._n_launched += 1
        key = getattr(batch, "forward_iter", None)
        self._pending[key if key is not None else ("n", self._n_launched)] = launched
        while len(self._pending) > MAX_PENDING:
            self._pending.popitem(last=False)

    def handling(self, batch: Any) -> tuple[Launched, list[tuple[Any, int, bool]]] | None:
        """Returns the launch that a result belongs to, and how far its streams were before."""
        if batch.forward_mode.is_idle() or not self._pending:
            return None
        key = getattr(batch, "forward_iter", None)
        if key is None:
            key = next(iter(self._pending))
        launched = self._pending.pop(key, None)
        if launched is None:
            return None
        before = [(req, _n_output(req), bool(req.finished())) for req in launched.decoding]
        return launched, before

    def handled(
        self, batch: Any, result: Any, launched: Launched, before: list[tuple[Any, int, bool]]
    ) -> None:
        """Records a step whose result was handled, and who is done by it."""
        end_ns = time.monotonic_ns()
        members = sorted(
            (self._known[str(req.rid)].index, _n_output(req) - n_before)
            for req, n_before, _ in before
            if str(req.rid) in self._known
        )
        told = launched.told
        new_tokens = [n for _, n in members]
        n_drafts = getattr(result, "num_correct_drafts", None)
        if isinstance(n_drafts, int):
            told["accepted"] = n_drafts
        graph = getattr(result, "can_run_cuda_graph", None)
        if isinstance(graph, bool):
            told["graph"] = "full" if graph else "eager"
        self.recorder.record_step(
            launched.start_ns,
            end_ns,
            decode=[index for index, _ in members],
            prefill=launched.prefill,
            preempted=launched.preempted,
            new_tokens=new_tokens if any(n != 1 for n in new_tokens) else None,
            **told,
        )
        for req in batch.reqs:
            if req.finished():
                self._finish(req)

    def _finish(self, req: Any) -> None:
        known = self._known.pop(str(req.rid), None)
        if known is None:
            return
        self._decoding.pop(str(req.rid), None)
        kind = (req.finished_reason.to_json() or {}).get("type")
        cached = getattr(req, "cached_tokens", None)
        self.recorder.finished(
            known.index,
            kind if isinstance(kind, str) else None,
            input_tokens=len(req.origin_input_ids),
            output_tokens=_n_output(req),
            cached_tokens=cached if isinstance(cached, int) else None,
        )


def _kv_usage(scheduler: Any) -> float | None:
    """Returns the share of KV that requests hold; None where it is not told."""
    most = getattr(scheduler, "max_total_num_tokens", None)
    allocator = getattr(scheduler, "token_to_kv_pool_allocator", None)
    tree = getattr(scheduler, "tree_cache", None)
    if not most or allocator is None or tree is None:
        return None
    try:
        return float(1.0 - (allocator.available_size() + tree.evictable_size()) / most)
    except (AttributeError, TypeError):
        return None  # pools of other kinds tell it otherwise


def resource_of(scheduler: Any) -> dict[str, Any]:
    """Returns what the engine is, by the contract's resource keys."""
    args = getattr(scheduler, "server_args", None)

    def of(owner: Any, name: str, kind: type) -> Any:
        value: Any = getattr(owner, name, None)
        # -1 is "off" here.
        is_off = isinstance(value, int) and value < 0
        return value if isinstance(value, kind) and not is_off else None

    chunk = of(args, "chunked_prefill_size", int)
    no_radix = of(args, "disable_radix_cache", bool)
    version = getattr(import_module("sglang"), "__version__", None) if args is not None else None
    return {
        names.ENGINE_NAME: "sglang",
        names.ENGINE_VERSION: version if isinstance(version, str) else None,
        names.ENGINE_MAX_SEQS: of(scheduler, "max_running_requests", int),
        names.ENGINE_MAX_BATCH_TOKENS: chunk or of(scheduler, "max_prefill_tokens", int),
        names.ENGINE_KV_TOKENS: of(scheduler, "max_total_num_tokens", int),
        names.ENGINE_CHUNKED_PREFILL: chunk is not None if args is not None else None,
        names.ENGINE_PREFIX_CACHING: None if no_radix is None else not no_radix,
        names.ENGINE_TENSOR_PARALLEL: of(args, "tp_size", int),
        names.ENGINE_PIPELINE_PARALLEL: of(args, "pp_size", int),
        names.MODEL_NAME: of(args, "served_model_name", str),
    }
