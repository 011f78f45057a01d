"""Continuous batching of transformers: `generate_batch`, its manager, and `transformers serve`.

Each batch processor gets a tracker when it is made. Its scheduler, whichever class is chosen,
is wrapped as an object, so that users' own schedulers (`SCHEDULER_MAPPING`) are traced too.
"""

from __future__ import annotations

import re
import sys
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from tokenlag_tracer.config import is_disabled
from tokenlag_tracer.engines import imports
from tokenlag_tracer.engines.patching import Patches, describe, warn_once

if TYPE_CHECKING:
    from tokenlag_tracer.engines.transformers_steps import ProcessorTracker

MODULE: Final = "transformers.generation.continuous_batching.continuous_api"
# First release whose names are those below; it was run with 5.19 and 5.24.
SUPPORTED_SINCE: Final = (5, 19)

_patches = Patches()
_processors: weakref.WeakSet[Any] = weakref.WeakSet()
_is_waiting = False


def is_supported(version: str) -> bool:
    """Returns whether a release of transformers is traced."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return match is not None and (int(match[1]), int(match[2])) >= SUPPORTED_SINCE


def _version() -> str:
    return str(getattr(sys.modules.get("transformers"), "__version__", ""))


def _change(module: ModuleType) -> None:
    try:
        if not is_supported(_version()):
            warn_once(f"transformers {_version()} is not traced: 5.19 or newer is needed")
            return
        kind = module.ContinuousBatchProcessor
        _patches.replace(kind, "__init__", _wrap_init)
        _patches.replace(kind, "_generation_step", _wrap_step)
        _patches.replace(kind, "update_batch", _wrap_update)
        _patches.replace(kind, "_handle_request_error", _wrap_error)
    except Exception as error:
        warn_once(f"transformers is not traced: {describe(error)}")


def _tell(processor: Any, what: Callable[[ProcessorTracker], None]) -> None:
    """Calls a processor's tracker; if that fails, the processor is traced no longer."""
    tracker = getattr(processor, "_tokenlag", None)
    if tracker is None:
        return
    try:
        what(tracker)
    except Exception as error:
        warn_once(f"transformers is no longer traced, it goes on without: {describe(error)}")
        _release(processor)


def _wrap_init(original: Callable[..., None]) -> Callable[..., None]:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        try:
            attach(self)
        except Exception as error:
            warn_once(f"transformers is not traced: {describe(error)}")

    return init


def _wrap_step(original: Callable[..., Any]) -> Callable[..., Any]:
    def _generation_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        _tell(self, lambda tracker: tracker.launched())
        return original(self, *args, **kwargs)

    return _generation_step


def _wrap_update(original: Callable[..., Any]) -> Callable[..., Any]:
    def update_batch(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        _tell(self, lambda tracker: tracker.updated())
        return result

    return update_batch


def _wrap_error(original: Callable[..., Any]) -> Callable[..., Any]:
    def _handle_request_error(self: Any, error: Exception, state: Any) -> Any:
        result = original(self, error, state)
        _tell(self, lambda tracker: tracker.ended(state, "error", error))
        return result

    return _handle_request_error


def attach(processor: Any) -> None:
    """Traces a batch processor that exists.

    Raises:
        AttributeError: it lacks what this adapter reads.
    """
    if is_disabled() or getattr(processor, "_tokenlag", None) is not None:
        return
    if processor.input_queue is None:
        return  # a rank that follows another: that one tells
    from tokenlag_tracer import recorder
    from tokenlag_tracer.engines.transformers_steps import ProcessorTracker

    engine = recorder.engine(resource=resource_of(processor, _version()))
    try:
        processor._tokenlag = ProcessorTracker(processor, engine)
        _wrap_scheduler(processor, processor.scheduler)
        _wrap_outputs(processor, processor.inputs_and_outputs)
    except Exception:
        engine.close()
        _release(processor)
        raise
    _processors.add(processor)


def _wrap_scheduler(processor: Any, scheduler: Any) -> None:
    schedule, add = scheduler.schedule_batch, scheduler.add_waiting_request
    clear = scheduler.clear_cancelled_requests

    def schedule_batch(token_budget: int, *args: Any, **kwargs: Any) -> Any:
        was_held = scheduler.block_new_requests
        result = schedule(token_budget, *args, **kwargs)
        _tell(processor, lambda tracker: tracker.scheduled(result[0], token_budget, was_held))
        return result

    def add_waiting_request(state: Any) -> Any:
        result = add(state)
        _tell(processor, lambda tracker: tracker.added(state))
        return result

    def clear_cancelled_requests() -> Any:
        states = clear()
        if states:
            _tell(processor, lambda tracker: tracker.cancelled(states))
        return states

    scheduler.schedule_batch = schedule_batch
    scheduler.add_waiting_request = add_waiting_request
    scheduler.clear_cancelled_requests = clear_cancelled_requests


def _wrap_outputs(processor: Any, outputs: Any) -> None:
    prepare = outputs.prepare_batch_update

    def prepare_batch_update() -> Any:
        result = prepare()
        _tell(processor, lambda tracker: tracker.received(result[0]))
        return result

    outputs.prepare_batch_update = prepare_batch_update


def _release(processor: Any) -> None:
    tracker, processor._tokenlag = getattr(processor, "_tokenlag", None), None
    if tracker is not None:
        tracker.close()
    wrapped = (
        (processor.scheduler, "schedule_batch"),
        (processor.scheduler, "add_waiting_request"),
        (processor.scheduler, "clear_cancelled_requests"),
        (processor.inputs_and_outputs, "prepare_batch_update"),
    )
    for owner, name in wrapped:
        if getattr(vars(owner).get(name), "__module__", None) == __name__:
            delattr(owner, name)


def resource_of(processor: Any, version: str) -> dict[str, Any]:
    """Returns what the engine is, by the contract's keys."""
    from tokenlag_tracer import conventions as names

    cache = processor.cache
    page_size = getattr(processor.cb_config, "page_size", None)
    n_tokens = None
    if isinstance(page_size, int) and isinstance(getattr(cache, "num_blocks", None), int):
        n_tokens = page_size * cache.num_blocks
    name = getattr(processor.config, "_name_or_path", None)
    return {
        names.ENGINE_NAME: "transformers",
        names.ENGINE_VERSION: version,
        names.ENGINE_MAX_BATCH_TOKENS: cache.max_batch_tokens,
        names.ENGINE_MAX_SEQS: processor.scheduler.max_requests_per_batch,
        names.ENGINE_KV_TOKENS: n_tokens,
        names.ENGINE_CHUNKED_PREFILL: True,
        names.ENGINE_PREFIX_CACHING: bool(cache.use_prefix_sharing),
        # The last part of a path: where a model lies on the disk is nobody's business.
        names.MODEL_NAME: str(name).rstrip("/").rpartition("/")[2] if name else None,
    }


def autoload() -> None:
    """Has continuous batching traced in this process, now or when it is imported."""
    global _is_waiting
    if not _is_waiting and not is_disabled():
        _is_waiting = True
        imports.when_imported(MODULE, _change)


# --- what `tokenlag_tracer.instrument` asks ---------------------------------------------------


def handles(target: Any) -> bool:
    """Returns whether it is a model, a manager or a processor of transformers that batches."""
    kinds = type(target).__mro__
    is_own = any(kind.__module__.partition(".")[0] == "transformers" for kind in kinds)
    return is_own and (
        hasattr(target, "generate_batch")
        or hasattr(target, "continuous_batching_config")
        or hasattr(target, "prepare_next_batch")
    )


def instrument(target: Any, **_: Any) -> Any:
    """Traces continuous batching from here on, and the target's processor if it has one."""
    autoload()
    processor = target if hasattr(target, "prepare_next_batch") else None
    processor = processor or getattr(target, "batch_processor", None)
    if processor is not None:
        attach(processor)
    return target


def uninstrument(target: Any = None) -> None:  # noqa: ARG001
    """Takes all changes back; processors that run go on untraced."""
    global _is_waiting
    imports.forget(_change)
    _is_waiting = False
    _patches.restore()
    for processor in list(_processors):
        _release(processor)
    _processors.clear()
