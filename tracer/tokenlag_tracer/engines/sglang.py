"""SGLang: hooks around its scheduler's launch of a batch and its handling of the result.

Written for 0.5.23 from its source's names and tested against stand-ins that have them; it has
not been run on the real engine (its CPU build does not install where this is developed). Each
hook takes whatever arguments come, tells the recorder after the engine's own work is done, and
switches itself off at its first failure.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from tokenlag_tracer.config import is_disabled
from tokenlag_tracer.engines import imports
from tokenlag_tracer.engines.patching import Patches, describe, warn_once
from tokenlag_tracer.engines.sglang_steps import SchedulerTracer

SCHEDULER: Final = "sglang.srt.managers.scheduler"
REGISTRY: Final = "sglang.srt.plugins.hook_registry"

Original = Callable[..., Any]
_ATTRIBUTE: Final = "_tokenlag_tracer"
_is_on = False


def tracer_of(scheduler: Any) -> SchedulerTracer | None:
    """Returns a scheduler's tracer; None on the ranks that only follow the first."""
    if not _is_on:
        return None
    found = scheduler.__dict__.get(_ATTRIBUTE, False)
    if found is False:
        # The other ranks of one engine run the same batches, and would tell them again.
        is_first = not getattr(scheduler, "tp_rank", 0) and not getattr(scheduler, "pp_rank", 0)
        found = SchedulerTracer(scheduler) if is_first else None
        setattr(scheduler, _ATTRIBUTE, found)
    tracer: SchedulerTracer | None = found
    return tracer


def _trouble(scheduler: Any, error: Exception) -> None:
    """Ends a scheduler's tracing."""
    tracer = scheduler.__dict__.get(_ATTRIBUTE)
    setattr(scheduler, _ATTRIBUTE, None)
    if tracer:
        tracer.recorder.close()
    warn_once(f"SGLang is no longer traced: {describe(error)}")


def around_next_batch(original: Original, scheduler: Any, *args: Any, **named: Any) -> Any:
    """Before a batch is put together: who has come."""
    try:
        tracer = tracer_of(scheduler)
        if tracer is not None:
            tracer.look_at_queue(scheduler)
    except Exception as error:
        _trouble(scheduler, error)
    return original(scheduler, *args, **named)


def around_run(original: Original, scheduler: Any, *args: Any, **named: Any) -> Any:
    """Around the launch of a batch: who is in it, and its number."""
    launched = tracer = None
    batch = args[0] if args else named.get("batch")
    try:
        tracer = tracer_of(scheduler)
        if tracer is not None:
            launched = tracer.launching(scheduler, batch)
    except Exception as error:
        _trouble(scheduler, error)
    result = original(scheduler, *args, **named)
    if tracer is not None and launched is not None:
        try:
            tracer.launched(batch, launched)
        except Exception as error:
            _trouble(scheduler, error)
    return result


def around_result(original: Original, scheduler: Any, *args: Any, **named: Any) -> Any:
    """Around the handling of a result: the step, and who is done."""
    found = tracer = None
    batch = args[0] if args else named.get("batch")
    result = args[1] if len(args) > 1 else named.get("result")
    try:
        tracer = tracer_of(scheduler)
        if tracer is not None:
            found = tracer.handling(batch)
    except Exception as error:
        _trouble(scheduler, error)
    answer = original(scheduler, *args, **named)
    if tracer is not None and found is not None:
        try:
            tracer.handled(batch, result, *found)
        except Exception as error:
            _trouble(scheduler, error)
    return answer


def around_abort(original: Original, scheduler: Any, *args: Any, **named: Any) -> Any:
    """After an abort: whom it took out of the queue."""
    answer = original(scheduler, *args, **named)
    try:
        tracer = tracer_of(scheduler)
        told = args[0] if args else next(iter(named.values()), None)
        if tracer is not None:
            tracer.aborted(told, getattr(scheduler, "waiting_queue", None) or ())
    except Exception as error:
        _trouble(scheduler, error)
    return answer


HOOKS: Final[dict[str, Callable[..., Any]]] = {
    "get_next_batch_to_run": around_next_batch,
    "run_batch": around_run,
    "process_batch_result": around_result,
    "abort_request": around_abort,
}
_patches = Patches()
_is_registered = False


def plugin() -> None:
    """What SGLang calls in each of its processes: the entry point of `sglang.srt.plugins`."""
    global _is_on, _is_registered
    if is_disabled() or _is_registered or _is_on:
        return
    try:
        registry: Any = import_module(REGISTRY)
        for name, hook in HOOKS.items():
            target = f"{SCHEDULER}.Scheduler.{name}"
            registry.HookRegistry.register(target, hook, registry.HookType.AROUND)
        _is_registered = _is_on = True
    except Exception as error:
        warn_once(f"SGLang is not traced: {describe(error)}")


# --- what `instrument` calls ----------------------------------------------------------------------


def scheduler_class(target: Any) -> Any:
    """Returns SGLang's scheduler class, of itself or of a scheduler; None if it is neither."""
    kind = target if isinstance(target, type) else type(target)
    is_own = any(base.__module__.partition(".")[0] == "sglang" for base in kind.__mro__)
    return kind if is_own and all(hasattr(kind, name) for name in list(HOOKS)[:3]) else None


def handles(target: Any) -> bool:
    """Returns whether it is SGLang's scheduler, or its class."""
    return scheduler_class(target) is not None


def instrument(target: Any, **_: Any) -> Any:
    """Puts the hooks into a scheduler's class, as SGLang's own registry would."""
    global _is_on
    if _is_registered:
        _is_on = True
        return target
    kind = scheduler_class(target)
    for name, hook in HOOKS.items():
        _patches.replace(kind, name, functools.partial(_around, hook))
    _is_on = True
    return target


def _around(hook: Callable[..., Any], original: Original) -> Original:
    @functools.wraps(original)
    def traced(scheduler: Any, *args: Any, **named: Any) -> Any:
        return hook(original, scheduler, *args, **named)

    return traced


def uninstrument(target: Any = None) -> None:  # noqa: ARG001
    """Takes the hooks out; those that SGLang's registry holds only call through from now on."""
    global _is_on
    _is_on = False
    _patches.restore()
    imports.forget(_when_imported)


def _when_imported(module: Any) -> None:
    try:
        if not _is_registered:
            instrument(module.Scheduler)
    except Exception as error:
        warn_once(f"SGLang is not traced: {describe(error)}")


def autoload() -> None:
    """Waits for SGLang's scheduler to be imported, where only the environment says so."""
    imports.when_imported(SCHEDULER, _when_imported)
