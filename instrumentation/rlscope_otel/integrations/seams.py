"""Watches functions of a host: runs code of a hook before and after each call.

The host's function runs with its own arguments, returns its own result and raises its own errors. Exceptions of a
watcher are counted and not propagated. A function that this version of the host lacks is counted too, and the trace
has less detail.
"""

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from rlscope_otel.faults import Faults


@dataclass(slots=True)
class Call:
    """One call of a watched function, from before it to after it."""

    args: tuple[Any, ...]
    """Positional arguments, `self` of a method first."""
    kwargs: dict[str, Any]
    started_ns: int
    result: Any = None
    error: BaseException | None = None
    memo: Any = None
    """Value that `before` passes to `after`."""

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument, however the host passed it. `self` of a method is position 0."""
        return self.args[position] if len(self.args) > position else self.kwargs.get(name, default)


Watcher = Callable[[Call], object]
ItemWatcher = Callable[[Call, Any], None]
Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Makes the function that is called instead of the host's, which it is given."""


@dataclass(frozen=True, slots=True)
class Watch:
    """Functions to run at a call: before it, at each item that a generator yields, and after it."""

    before: Watcher | None = None
    each: ItemWatcher | None = None
    after: Watcher | None = None
    owner: Callable[[], object] | None = None
    """For a plain method, the only object whose calls are watched. None watches all objects."""


def during(phase: Callable[[Call], AbstractContextManager[object]], owner: Callable[[], object] | None = None) -> Watch:
    """Return a watch that enters a phase before each call and leaves it after the call."""

    def begin(call: Call) -> None:
        """Enter the phase."""
        call.memo = phase(call).__enter__()

    return Watch(begin, after=end_phase, owner=owner)


def end_phase(call: Call) -> None:
    """Leave the phase that was entered before the call and is its memo, if there is one."""
    if call.memo is not None:
        call.memo.__exit__(None, None, None)


class Seams:
    """The watched functions of one host, until `close` restores them."""

    def __init__(self, faults: Faults, now_ns: Callable[[], int]) -> None:
        self._faults = faults
        self._now_ns = now_ns
        self._restores: list[Callable[[], None]] = []

    def __reduce__(self) -> tuple[Any, ...]:
        """A host may send a class to another process by value: its watchers go along, what is to give back stays."""
        return Seams, (self._faults, self._now_ns)

    def watch(self, owner: Any, name: str, watch: Watch) -> bool:
        """Watch `owner.name`, a plain function of a class or a module, of any of Python's four kinds.

        Returns False, and counts it, if the host has no such function.
        """
        found = inspect.getattr_static(owner, name, None)
        if not isinstance(found, FunctionType):
            self._faults.note(f"seam {name}", f"{owner!r} has no function {name}; less detail is recorded")
            return False
        self._put(owner, name, found, self._watched(found, watch))
        return True

    def wrap(self, owner: Any, name: str, wrapper: Wrapper) -> bool:
        """Replace a plain function by `wrapper(function)`, for calls that are too frequent for a `Watch`.

        The wrapper must let only the host's own errors reach the host, and report its own errors to `failed`.
        """
        found = inspect.getattr_static(owner, name, None)
        if not isinstance(found, FunctionType):
            self._faults.note(f"seam {name}", f"{owner!r} has no function {name}; less detail is recorded")
            return False
        self._put(owner, name, found, functools.wraps(found)(wrapper(found)))
        return True

    def failed(self, watcher: Callable[..., object], error: Exception) -> None:
        """Count an error of a watcher."""
        self._faults.note(f"watcher {getattr(watcher, '__qualname__', watcher)}", repr(error))

    def _put(self, owner: Any, name: str, found: FunctionType, function: Callable[..., Any]) -> None:
        own = name in vars(owner)
        setattr(owner, name, function)
        self._restores.append(lambda: setattr(owner, name, found) if own else delattr(owner, name))

    def close(self) -> None:
        """Restore every watched function, last first."""
        while self._restores:
            self._restores.pop()()

    def _watched(self, host: FunctionType, watch: Watch) -> Callable[..., Any]:
        kinds: tuple[tuple[Callable[[Any], bool], Callable[..., Callable[..., Any]]], ...] = (
            (inspect.iscoroutinefunction, self._coroutine),
            (inspect.isasyncgenfunction, self._async_generator),
            (inspect.isgeneratorfunction, self._generator),
        )
        wrap = next((wrap for is_kind, wrap in kinds if is_kind(host)), self._function)
        return functools.wraps(host)(wrap(host, watch))

    def _function(self, host: FunctionType, watch: Watch) -> Callable[..., Any]:
        owner = watch.owner

        def watched(*args: Any, **kwargs: Any) -> Any:
            """Call the host's function, between what watches it."""
            if owner is not None and args[0] is not owner():
                return host(*args, **kwargs)
            call = self._begin(watch, args, kwargs)
            try:
                call.result = host(*args, **kwargs)
                return call.result
            except BaseException as error:
                call.error = error
                raise
            finally:
                self._end(watch, call)

        return watched

    def _coroutine(self, host: FunctionType, watch: Watch) -> Callable[..., Any]:
        async def watched(*args: Any, **kwargs: Any) -> Any:
            """Await the host's coroutine, between what watches it."""
            call = self._begin(watch, args, kwargs)
            try:
                call.result = await host(*args, **kwargs)
                return call.result
            except BaseException as error:
                call.error = error
                raise
            finally:
                self._end(watch, call)

        return watched

    def _generator(self, host: FunctionType, watch: Watch) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Iterator[Any]:
            """Yield the host's items, and show each of them, between what watches the whole."""
            call = self._begin(watch, args, kwargs)
            items = host(*args, **kwargs)
            try:
                # Not `yield from`: each item is looked at. A host that sends into its generator is not watched.
                for item in items:
                    self._see(watch, call, item)
                    yield item
            except BaseException as error:
                call.error = error
                raise
            finally:
                items.close()
                self._end(watch, call)

        return watched

    def _async_generator(self, host: FunctionType, watch: Watch) -> Callable[..., Any]:
        async def watched(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            """Yield the host's items, and show each of them, between what watches the whole."""
            call = self._begin(watch, args, kwargs)
            items = host(*args, **kwargs)
            try:
                async for item in items:
                    self._see(watch, call, item)
                    yield item
            except BaseException as error:
                call.error = error
                raise
            finally:
                await items.aclose()
                self._end(watch, call)

        return watched

    def _begin(self, watch: Watch, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        call = Call(args, kwargs, self._now_ns())
        before = watch.before
        if before is not None:
            try:
                before(call)
            except Exception as error:  # Nothing of ours reaches the host.
                self.failed(before, error)
        return call

    def _see(self, watch: Watch, call: Call, item: Any) -> None:
        each = watch.each
        if each is not None:
            try:
                each(call, item)
            except Exception as error:  # Nothing of ours reaches the host.
                self.failed(each, error)

    def _end(self, watch: Watch, call: Call) -> None:
        after = watch.after
        if after is not None:
            try:
                after(call)
            except Exception as error:  # Nothing of ours reaches the host.
                self.failed(after, error)
