"""Calls back when a module has been imported: adapters wait for their engine, never import it."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType

Callback = Callable[[ModuleType], None]

_waiting: dict[str, list[Callback]] = {}
_busy = threading.local()


class _Loader(importlib.abc.Loader):
    """Loads a module as its own loader does, and then calls back."""

    def __init__(self, loader: importlib.abc.Loader, name: str) -> None:
        self._loader = loader
        self._name = name

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # What asks the module for its loader afterwards gets its own one.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        _call(self._name, module)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds only modules that are waited for, by asking the other finders."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _waiting or getattr(_busy, "name", None) == fullname:
            return None
        _busy.name = fullname
        try:
            for finder in sys.meta_path:
                find = getattr(finder, "find_spec", None)
                if finder is self or find is None:
                    continue
                spec: importlib.machinery.ModuleSpec | None = find(fullname, path, target)
                if spec is not None:
                    if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                        spec.loader = _Loader(spec.loader, fullname)
                    return spec
            return None
        finally:
            _busy.name = None


_finder = _Finder()


def when_imported(name: str, callback: Callback) -> None:
    """Calls back with a module: now, if it is imported already, else right after it is.

    What the callback raises is its own to catch: an import must not fail for it.
    """
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    if module is not None and not getattr(spec, "_initializing", False):
        callback(module)
        return
    _waiting.setdefault(name, []).append(callback)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def forget(callback: Callback) -> None:
    """Takes a callback back, wherever it waits."""
    for name, callbacks in list(_waiting.items()):
        callbacks[:] = [other for other in callbacks if other is not callback]
        if not callbacks:
            del _waiting[name]
    if not _waiting and _finder in sys.meta_path:
        sys.meta_path.remove(_finder)


def _call(name: str, module: ModuleType) -> None:
    for callback in _waiting.pop(name, []):
        callback(module)
    if not _waiting and _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
