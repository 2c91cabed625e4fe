"""Runs code, such as a hook that watches functions, once the host has imported a module.

A plug-in is loaded before the modules that it watches, and importing them itself would load a framework into processes
that do not need it.
"""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any

from rlscope_otel.faults import Faults
from rlscope_otel.integrations.seams import Seams, Watch

Then = Callable[[ModuleType], object]
WatchedClasses = Mapping[str, Mapping[str, Watch]]
"""The functions to watch, by class; no name stands for the module itself."""
WatchedModules = Mapping[str, WatchedClasses]

_awaited: set[str] = set()


def watch_modules(watched: WatchedModules, seams: Seams) -> None:
    """Watch functions of the host's modules, whether loaded already or later; each module once per process."""
    for name, classes in watched.items():
        once_loaded(name, partial(watch_module, classes, seams), seams.faults)


def watch_module(classes: WatchedClasses, seams: Seams, module: ModuleType) -> None:
    """Watch functions of a module that is loaded."""
    for class_name, functions in classes.items():
        owner: Any = _actor_class(getattr(module, class_name)) if class_name else module
        for function, watch in functions.items():
            seams.watch(owner, function, watch)


def once_loaded(name: str, then: Then, faults: Faults) -> None:
    """Call `then` with a module as soon as it is loaded: now, or when the host imports it.

    Only the first caller in the process is heard for a module. Exceptions of `then` are counted and not propagated.
    """
    if name in _awaited:
        return
    _awaited.add(name)
    tell = partial(faults.attempt, f"loading {name}", then)
    module = sys.modules.get(name)
    if module is not None:
        tell(module)
        return
    finder = next((finder for finder in sys.meta_path if isinstance(finder, _Finder)), None)
    if finder is None:
        finder = _Finder()
        sys.meta_path.insert(0, finder)
    finder.waiting[name] = tell


def _actor_class(found: Any) -> Any:
    """The class whose methods an actor runs: Ray's decorator leaves a handle in its place."""
    ray_metadata = getattr(found, "__ray_metadata__", None)
    return found if ray_metadata is None else ray_metadata.modified_class


class _Finder(importlib.abc.MetaPathFinder):
    """Finds nothing itself: has the loader of an awaited module tell when it is done."""

    def __init__(self) -> None:
        self.waiting: dict[str, Then] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The host's own spec with a loader that tells; None for a module that nobody waits for."""
        if fullname not in self.waiting:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self.waiting.pop(fullname))
        return spec


class _Loader(importlib.abc.Loader):
    """The host's loader; once the module is there, it is as if this one had never been."""

    def __init__(self, host: Any, tell: Then) -> None:
        self._host = host
        self._tell = tell

    def __getattr__(self, name: str) -> Any:
        return getattr(self._host, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """As the host's loader does."""
        return self._host.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Load the module as the host's loader does, then tell."""
        if module.__spec__ is not None:
            module.__spec__.loader = self._host
        module.__loader__ = self._host
        self._host.exec_module(module)
        self._tell(module)
