"""Any model runner of one's own: a scheduler's loop around an `nn.Module`, or the like.

The engine says who is in a step and how many tokens each computes, by `Part`s; the rest follows.
`StepTracer` is a context manager around whatever runs a step, `TracedRunner` wraps a runner that
is called once a step. Nothing here raises into the engine, and torch is imported only by it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple

from tokenlag_tracer import conventions as names
from tokenlag_tracer.device import EventTimer, device_timer
from tokenlag_tracer.recorder import EngineRecorder, engine

# What a step may be told of besides its parts; as `EngineRecorder.record_step` has them.
_SAME_KEYS: Final = frozenset(
    (
        "context_tokens", "running", "waiting", "waiting_tokens", "oldest_wait_ns", "kv_usage",
        "admit_bound", "graph",
    )
)  # fmt: skip


class Part(NamedTuple):
    """One request's share of a step.

    Attributes:
        request: the engine's own name of it, as given to `StepTracer.queued`.
        n_tokens: tokens computed for it in this step.
        n_context: its tokens whose KV was there before.
        is_prompt: they are of its prompt (or of a recomputation after a preemption).
    """

    request: Hashable
    n_tokens: int
    n_context: int
    is_prompt: bool


class Step:
    """One step under way; made by `StepTracer.step`, ended by leaving its `with`.

    Attributes:
        index: its number once it is recorded, -1 before.
        new_tokens: tokens that decoding requests got, by request, where that is not 1 each.
        told: what else is known of it; may be added to until it ends.
    """

    __slots__ = (
        "_is_launched", "_parts", "_preempted", "_start_ns", "_tracer", "index", "new_tokens",
        "told",
    )  # fmt: skip

    def __init__(
        self,
        tracer: StepTracer,
        parts: Iterable[tuple[Hashable, int, int, bool]],
        preempted: Iterable[Hashable],
        told: dict[str, Any],
    ) -> None:
        self._tracer = tracer
        self._parts = parts
        self._preempted = preempted
        self.told = told
        self.new_tokens: Mapping[Hashable, int] | None = None
        self.index = -1
        self._start_ns = 0
        self._is_launched = False

    def __enter__(self) -> Step:
        self._start_ns = time.monotonic_ns()
        if self._tracer.timer is not None:
            self._tracer.timer.start(self)
        return self

    def launched(self) -> None:
        """Notes that all of its work is in the device's queue; by default its end does."""
        if self._tracer.timer is not None and not self._is_launched:
            self._is_launched = True
            self._tracer.timer.stop(self)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Literal[False]:
        timer = self._tracer.timer
        if kind is not None:
            if timer is not None:
                timer.drop(self)
            return False
        end_ns = time.monotonic_ns()
        self._tracer._end(self, end_ns)
        return False


class StepTracer:
    """Tells a recorder of an engine's steps by the engine's own names of its requests.

    Args:
        recorder: from `tokenlag_tracer.engine(...)`, whose `device_lag` is the timer's; by
            default a new one.
        resource: what the engine is, for a new recorder; see `model_resource`.
        timer: measures device time; by default CUDA events where there are any.

    Attributes:
        recorder: where records go.
        timer: measures device time, None: it is not measured.
        n_failed: steps that could not be told, by a mistake in what the engine said of them.
    """

    def __init__(
        self,
        recorder: EngineRecorder | None = None,
        *,
        resource: Mapping[str, str | int | float | bool | None] | None = None,
        timer: EventTimer | None = None,
    ) -> None:
        self.timer = device_timer() if timer is None else timer
        if recorder is None:
            lag = self.timer.lag if self.timer is not None else 0
            recorder = engine(resource=resource, device_lag=lag)
        self.recorder = recorder
        self.n_failed = 0
        self._indexes: dict[Hashable, int] = {}
        self._decoding: list[int] = []

    # --- requests -----------------------------------------------------------------------------

    def queued(self, request: Hashable, request_id: str | None = None, **told: Any) -> int:
        """Notes that the engine took a request in.

        Args:
            request: the engine's name of it.
            request_id: its id outside; by default that name, where it is a string.
            told: what `EngineRecorder.queued` takes.

        Returns:
            The index that the trace knows it by.
        """
        if request_id is None and isinstance(request, str):
            request_id = request
        index = self.recorder.queued(request_id, **told)
        self._indexes[request] = index
        return index

    def finished(self, request: Hashable, reason: str | None = None, **told: Any) -> None:
        """Notes that the engine is done with it; `told` is what `EngineRecorder` takes."""
        index = self._indexes.pop(request, None)
        if index is not None:
            self.recorder.finished(index, reason, **told)

    def aborted(self, request: Hashable) -> None:
        """Notes that the engine noticed its abort."""
        self.finished(request, "abort")

    # --- steps --------------------------------------------------------------------------------

    def step(
        self,
        parts: Iterable[tuple[Hashable, int, int, bool]],
        *,
        preempted: Iterable[Hashable] = (),
        **told: Any,
    ) -> Step:
        """Returns a step, to be run in a `with`, which ends when its tokens are known.

        Args:
            parts: who is in it: `Part`s, or tuples like them.
            preempted: requests put back to the queue when it was scheduled.
            told: `running`, `waiting`, `waiting_tokens`, `oldest_wait_ns`, `kv_usage`,
                `kv_reserved`, `admit_bound`, `graph`, `drafted`, `accepted` as in
                `EngineRecorder.record_step`; leave out what is not known.
        """
        return Step(self, parts, preempted, told)

    def _end(self, step: Step, end_ns: int) -> None:
        try:
            step.launched()
            self._record(step, end_ns)
        except Exception:
            self.n_failed += 1

    def _record(self, step: Step, end_ns: int) -> None:
        indexes = self._indexes
        decoding: list[int] = []
        decoders: list[Hashable] = []
        prefill: list[tuple[int, int, int]] = []
        context = 0
        for request, n_tokens, n_context, is_prompt in step._parts:
            index = indexes.get(request)
            if index is None:
                index = self.queued(request, at_ns=step._start_ns)
            if is_prompt:
                prefill.append((index, n_tokens, n_context))
            else:
                decoding.append(index)
                decoders.append(request)
                context += n_context + n_tokens
        told = step.told
        told.setdefault("context_tokens", context)
        recorder = self.recorder
        step.index = recorder.n_steps
        device_step, device_ns = self.timer.take() if self.timer is not None else (-1, -1)
        preempted = [indexes[request] for request in step._preempted if request in indexes]
        if (
            decoding == self._decoding and not prefill and not preempted and device_step < 0
            and step.new_tokens is None and told.keys() <= _SAME_KEYS
        ):  # fmt: skip
            recorder.record_same(step._start_ns, end_ns, **told)
            return
        self._decoding = decoding
        recorder.record_step(
            step._start_ns, end_ns, decode=decoding, prefill=prefill, preempted=preempted,
            new_tokens=_new_tokens(step, decoding, decoders), device_step=device_step,
            device_ns=device_ns, **told,
        )  # fmt: skip


def _new_tokens(
    step: Step, decoding: Sequence[int], decoders: Sequence[Hashable]
) -> list[int] | None:
    """Returns what each decoding request got, in index order; None: one each."""
    given = step.new_tokens
    if given is None:
        return None
    counts = {i: given.get(r, 1) for i, r in zip(decoding, decoders, strict=True)}
    return [counts[index] for index in sorted(counts)]


_OWN: Final = frozenset(("tracer", "_runner", "_parts", "_told", "_is_on", "_run"))


class TracedRunner:
    """A runner that is called once a step, traced. All else of it is the runner's own.

    Args:
        runner: what is called.
        recorder: from `tokenlag_tracer.engine(...)`, or a `StepTracer`; by default new ones.
        parts: of the arguments of a call, who is in the step.
        told: of the same arguments, what else is known of the step, as `StepTracer.step` takes.
        method: name of the method that runs a step, if it is not the runner's call itself.

    Attributes:
        tracer: tell it of requests: `queued`, `finished`.

    A step ends when the call returns; a runner that returns before its tokens are known to the
    host is better wrapped by `StepTracer.step`, which ends where the engine says.
    """

    def __init__(
        self,
        runner: Any,
        recorder: EngineRecorder | StepTracer | None = None,
        *,
        parts: Callable[..., Iterable[tuple[Hashable, int, int, bool]]],
        told: Callable[..., Mapping[str, Any]] | None = None,
        method: str | None = None,
    ) -> None:
        self.tracer = recorder if isinstance(recorder, StepTracer) else StepTracer(recorder)
        self._runner = runner
        self._parts = parts
        self._told = told
        self._is_on = True
        if method is not None:
            self._run = getattr(runner, method)
            self.__dict__[method] = self._step
        else:
            self._run = runner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_runner"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        is_own = name in _OWN or name in self.__dict__ or "_runner" not in self.__dict__
        (super().__setattr__ if is_own else self._runner.__setattr__)(name, value)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Runs one step."""
        return self._step(*arguments, **named)

    def stop(self) -> None:
        """Stops tracing: calls go straight to the runner."""
        self._is_on = False
        self.tracer.recorder.close()

    def _step(self, *arguments: Any, **named: Any) -> Any:
        if not self._is_on:
            return self._run(*arguments, **named)
        try:
            told = dict(self._told(*arguments, **named)) if self._told is not None else {}
            # Taken now: the runner may change what it is given.
            step = self.tracer.step(list(self._parts(*arguments, **named)), **told)
        except Exception:
            self.tracer.n_failed += 1
            return self._run(*arguments, **named)
        with step:
            return self._run(*arguments, **named)


def model_resource(module: Any) -> dict[str, str | int | float | bool]:
    """Returns what an `nn.Module` tells of itself, by the contract's resource keys."""
    torch: Any = sys.modules.get("torch")
    found: dict[str, str | int | float | bool] = {names.ENGINE_NAME: "torch"}
    if torch is None or not isinstance(module, torch.nn.Module):
        return found
    parameters = list(module.parameters())
    found[names.ENGINE_VERSION] = str(torch.__version__)
    found[names.MODEL_PARAMETERS] = sum(p.numel() for p in parameters)
    found[names.MODEL_WEIGHT_BYTES] = sum(p.numel() * p.element_size() for p in parameters)
    device = parameters[0].device if parameters else None
    if device is not None and device.type == "cuda":
        found[names.DEVICE_NAME] = str(torch.cuda.get_device_name(device))
    return found


# --- what `instrument` calls --------------------------------------------------------------------


def handles(target: Any) -> bool:
    """Returns whether it is a module of torch, or a runner that has `execute_model`."""
    torch: Any = sys.modules.get("torch")
    is_module = torch is not None and isinstance(target, torch.nn.Module)
    return is_module or callable(getattr(target, "execute_model", None))


def instrument(
    target: Any,
    *,
    parts: Callable[..., Iterable[tuple[Hashable, int, int, bool]]],
    told: Callable[..., Mapping[str, Any]] | None = None,
    recorder: EngineRecorder | StepTracer | None = None,
    method: str | None = None,
) -> TracedRunner:
    """Returns a `TracedRunner` around a runner; the runner itself is not changed."""
    if recorder is None:
        recorder = StepTracer(resource=dict(model_resource(target)))
    if method is None and callable(getattr(target, "execute_model", None)):
        method = "execute_model"
    return TracedRunner(target, recorder, parts=parts, told=told, method=method)


def uninstrument(traced: TracedRunner) -> None:
    """Ends its records; whoever still calls it gets the runner's own answers."""
    traced.stop()
