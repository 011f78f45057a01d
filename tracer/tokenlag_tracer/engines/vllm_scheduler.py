"""vLLM's scheduler, whichever class is configured, with the tracer around four of its methods.

The class is made by subclassing the configured one, so that vLLM's own, a user's, or another
product's scheduler goes on doing what it does. Arguments are handed on as they come. What the
tracer does beside it is caught: a hook that fails turns tracing off for that engine, once.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from tokenlag_tracer.engines.patching import describe, warn_once
from tokenlag_tracer.engines.vllm_steps import SchedulerTracker

MakeTracker = Callable[[Any], SchedulerTracker | None]


class _Traced(Protocol):
    """What the mixin adds to a scheduler."""

    _tokenlag: SchedulerTracker | None


_composed: dict[tuple[type, MakeTracker], type] = {}
_schedulers: weakref.WeakSet[Any] = weakref.WeakSet()


def compose(base: type, make_tracker: MakeTracker) -> type:
    """Returns a subclass of a scheduler class whose instances are traced.

    Args:
        base: the configured class; one that was made here is returned as it is.
        make_tracker: makes the tracker of a new scheduler, or None if it cannot be traced.
    """
    if base in _composed.values():
        return base
    key = (base, make_tracker)
    if key not in _composed:
        _composed[key] = _subclass(base, make_tracker)
    return _composed[key]


def attach(scheduler: Any, make_tracker: MakeTracker) -> None:
    """Traces a scheduler that exists already."""
    if getattr(scheduler, "_tokenlag", None) is not None:
        return
    scheduler.__class__ = compose(type(scheduler), make_tracker)
    _start(scheduler, make_tracker)


def release_all() -> None:
    """Gives every traced scheduler its own class back, and ends what was recorded of it."""
    for scheduler in list(_schedulers):
        tracker, scheduler._tokenlag = scheduler._tokenlag, None
        if tracker is not None:
            tracker.close()
        for (base, _), made in _composed.items():
            if type(scheduler) is made:
                scheduler.__class__ = base
    _schedulers.clear()
    _composed.clear()


def _start(scheduler: _Traced, make_tracker: MakeTracker) -> None:
    try:
        scheduler._tokenlag = make_tracker(scheduler)
        if scheduler._tokenlag is not None:
            _schedulers.add(scheduler)
    except Exception as error:
        warn_once(f"vLLM is not traced: {describe(error)}")


def _fail(scheduler: _Traced, error: Exception) -> None:
    tracker, scheduler._tokenlag = scheduler._tokenlag, None
    warn_once(f"vLLM is no longer traced, it goes on without: {describe(error)}")
    if tracker is not None:
        tracker.close()


def _subclass(base: Any, make_tracker: MakeTracker) -> type:
    class Traced(base):  # type: ignore[misc]
        _tokenlag: SchedulerTracker | None = None

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            _start(self, make_tracker)

        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            output = super().schedule(*args, **kwargs)
            tracker = self._tokenlag
            if tracker is not None:
                try:
                    tracker.scheduled(output, any(args) or any(kwargs.values()))
                except Exception as error:
                    _fail(self, error)
            return output

        def update_from_output(self, *args: Any, **kwargs: Any) -> Any:
            tracker = self._tokenlag
            if tracker is None:
                return super().update_from_output(*args, **kwargs)
            try:
                output = args[0] if args else kwargs["scheduler_output"]
                tracker.received(
                    output, args[1] if len(args) > 1 else kwargs.get("model_runner_output")
                )
            except Exception as error:
                _fail(self, error)
            results = super().update_from_output(*args, **kwargs)
            tracker = self._tokenlag
            if tracker is not None:
                try:
                    tracker.updated(results)
                except Exception as error:
                    _fail(self, error)
            return results

        def add_request(self, *args: Any, **kwargs: Any) -> Any:
            at_ns = time.monotonic_ns()
            result = super().add_request(*args, **kwargs)
            tracker = self._tokenlag
            if tracker is not None:
                try:
                    tracker.added(args[0] if args else kwargs["request"], at_ns)
                except Exception as error:
                    _fail(self, error)
            return result

        def finish_requests(self, *args: Any, **kwargs: Any) -> Any:
            result = super().finish_requests(*args, **kwargs)
            tracker = self._tokenlag
            if tracker is not None:
                try:
                    tracker.collect()
                except Exception as error:
                    _fail(self, error)
            return result

    Traced.__name__ = f"Traced{base.__name__}"
    Traced.__qualname__ = Traced.__name__
    return Traced
