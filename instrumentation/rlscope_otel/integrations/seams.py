"""Watches functions of a host: runs code of a hook before and after each call.

The host's function runs with its own arguments, returns its own result and raises its own errors. Exceptions of a
watcher are counted and not propagated. A function that this version of the host lacks is counted too, and the trace
has less detail.
"""

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from types import FunctionType, TracebackType
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


def during(
    phase: Callable[[Call], AbstractContextManager[object] | None],
    owner: Callable[[], object] | None = None,
    then: Watcher | None = None,
) -> Watch:
    """Return a watch that enters a phase before each call, if it is given one, and leaves it after the call.

    then: what to do next.
    """

    def begin(call: Call) -> None:
        """Enter the phase."""
        entered = phase(call)
        call.memo = None if entered is None else entered.__enter__()

    def end(call: Call) -> None:
        """Leave the phase."""
        end_phase(call)
        if then is not None:
            then(call)

    return Watch(begin, after=end, owner=owner)


def of_recorder(recorder_of: Callable[[Call], object | None], method: str) -> Watcher:
    """Return a watcher that calls a method of the recorder of the called object, if it has one."""

    def watcher(call: Call) -> None:
        """Tell the recorder."""
        recorder = recorder_of(call)
        if recorder is not None:
            getattr(recorder, method)(call)

    watcher.__qualname__ = method
    return watcher


def end_phase(call: Call) -> None:
    """Leave the phase that was entered before the call and is its memo, if there is one."""
    if call.memo is not None:
        call.memo.__exit__(None, None, None)


class Seams:
    """The watched functions of one host, until `close` restores them."""

    def __init__(self, faults: Faults, now_ns: Callable[[], int]) -> None:
        self.faults = faults
        self.now_ns = now_ns
        self._restores: list[Callable[[], None]] = []

    def __reduce__(self) -> tuple[Any, ...]:
        """A host may send a class to another process by value: its watchers go along, what is to give back stays."""
        return Seams, (self.faults, self.now_ns)

    def watch(self, owner: Any, name: str, watch: Watch) -> bool:
        """Watch `owner.name`, a function of a class or a module: a plain one, a coroutine or a generator.

        Returns False, and counts it, if the host has no such function.
        """
        return self.wrap(owner, name, lambda found: self._watched(found, watch))

    def wrap(self, owner: Any, name: str, wrapper: Wrapper) -> bool:
        """Replace a plain function by `wrapper(function)`, for calls that are too frequent for a `Watch`.

        The wrapper must let only the host's own errors reach the host, and report its own errors to `failed`. Returns
        False, and counts it, if the host has no such function.
        """
        found = inspect.getattr_static(owner, name, None)
        if not isinstance(found, FunctionType):
            self.faults.note(f"seam {name}", f"{owner!r} has no function {name}; less detail is recorded")
            return False
        is_own = name in vars(owner)
        setattr(owner, name, functools.wraps(found)(wrapper(found)))
        self._restores.append(lambda: setattr(owner, name, found) if is_own else delattr(owner, name))
        return True

    def failed(self, watcher: Callable[..., object], error: Exception) -> None:
        """Count an error of a watcher."""
        function = getattr(watcher, "func", watcher)  # of a partial, which has no name of its own
        self.faults.note(f"watcher {getattr(function, '__qualname__', function)}", repr(error))

    def tell(self, watcher: Callable[..., object] | None, *seen: Any) -> None:
        """Call a watcher, if there is one, and count its error."""
        if watcher is not None:
            try:
                watcher(*seen)
            except Exception as error:  # Nothing of ours reaches the host.
                self.failed(watcher, error)

    def close(self) -> None:
        """Restore every watched function, last first."""
        while self._restores:
            self._restores.pop()()

    def _watched(self, host: FunctionType, watch: Watch) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(host):
            return self._coroutine(host, watch)
        return self._generator(host, watch) if inspect.isgeneratorfunction(host) else self._function(host, watch)

    def _function(self, host: FunctionType, watch: Watch) -> Callable[..., Any]:
        owner = watch.owner

        def watched(*args: Any, **kwargs: Any) -> Any:
            """Call the host's function, between what watches it."""
            if owner is not None and args[0] is not owner():
                return host(*args, **kwargs)
            with _Around(self, watch, args, kwargs) as call:
                call.result = host(*args, **kwargs)
                return call.result

        return watched

    def _coroutine(self, host: FunctionType, watch: Watch) -> Callable[..., Any]:
        async def watched(*args: Any, **kwargs: Any) -> Any:
            """Await the host's coroutine, between what watches it."""
            with _Around(self, watch, args, kwargs) as call:
                call.result = await host(*args, **kwargs)
                return call.result

        return watched

    def _generator(self, host: FunctionType, watch: Watch) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Iterator[Any]:
            """Yield the host's items, and show each of them, between what watches the whole."""
            # Not `yield from`: each item is looked at. A host that sends into its generator is not watched.
            with _Around(self, watch, args, kwargs) as call, closing(host(*args, **kwargs)) as items:
                for item in items:
                    self.tell(watch.each, call, item)
                    yield item

        return watched


class _Around:
    """A call of a watched function, and what is told before and after it."""

    __slots__ = ("_call", "_seams", "_watch")

    def __init__(self, seams: Seams, watch: Watch, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._seams, self._watch = seams, watch
        self._call = Call(args, kwargs, seams.now_ns())

    def __enter__(self) -> Call:
        self._seams.tell(self._watch.before, self._call)
        return self._call

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._call.error = error
        self._seams.tell(self._watch.after, self._call)
