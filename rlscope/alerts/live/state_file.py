"""The state file of a watch: its resume point in the run, and the alerts already sent to each receiver.

The file is complete or absent, whenever the watch is killed. It holds alerts, never a URL or a token. Only one watch at
a time uses it, because two would send every alert twice.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Self, cast

from filelock import FileLock, Timeout

from rlscope.analysis.result import SEVERITIES, Severity
from rlscope.errors import RlscopeError
from rlscope.text_out import write_file

FILE_NAME: Final = "watch_state.json"
"""Default file name, in the run folder."""
_FORMAT: Final = "rlscope-watch"
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class WatchState:
    """One watch at one moment."""

    run: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """State of `LiveRun` or `LiveLog`; empty for a watch that begins."""
    receivers: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """State for `Couriers.restore`."""
    worst: Severity | None = None
    """The highest severity so far; None while nothing fired."""


class StateFile:
    """The state file, locked against other watches until it is closed or its process ends, however that happens.

    The lock is taken once the file's folder exists.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # Beside the file, because every state replaces the file itself.
        self._lock = FileLock(path.with_name(f".{path.name}.lock"), thread_local=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def read(self) -> WatchState:
        """As `read_state`. Raises RlscopeError too when another watch uses the file."""
        self._acquire()
        return read_state(self.path)

    def write(self, state: WatchState) -> None:
        """Replace the state in one step; nothing while there is no folder, which the run creates itself.

        Raises OutputError when it cannot be written, RlscopeError when another watch uses the file.
        """
        if self.path.parent.is_dir():
            self._acquire()
            text = json.dumps({"format": _FORMAT, "version": _VERSION, **asdict(state)}, allow_nan=False)
            write_file(self.path, text.encode())

    def _acquire(self) -> None:
        # Without its folder there is nothing to lock, and the lock must not create it.
        if self._lock.is_locked or not self.path.parent.is_dir():
            return
        try:
            self._lock.acquire(blocking=False)
        except Timeout:
            raise RlscopeError.of(
                self.path,
                found="another watch that uses it",
                expected="one watch at a time: two would send every alert twice",
                next_step="Stop the other watch, or choose another state file with --state.",
            ) from None
        except (OSError, NotImplementedError):  # No locks, or a folder that cannot be written to: writing reports that.
            pass


def read_state(path: Path) -> WatchState:
    """Return the state of an earlier watch, or an empty one. Raises RlscopeError if the file is no state."""
    try:
        document: object = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return WatchState()
    except (OSError, ValueError, RecursionError) as error:
        raise _refused(path, f"a file that cannot be read ({type(error).__name__})") from error
    known = cast("dict[str, Any]", document) if isinstance(document, dict) else {}
    if (known.get("format"), known.get("version")) != (_FORMAT, _VERSION):
        raise _refused(path, "no state of a watch of this version")
    try:
        state = WatchState(dict(known["run"]), dict(known["receivers"]), known["worst"])
    except (KeyError, TypeError, ValueError) as error:
        raise _refused(path, "a state with parts missing") from error
    if state.worst not in (None, *SEVERITIES):
        raise _refused(path, f"unknown severity {state.worst!r}")
    return state


def _refused(path: Path, found: str) -> RlscopeError:
    return RlscopeError.of(
        path,
        found=found,
        expected="the state of an earlier watch",
        next_step="Delete it to start again (alerts already sent are sent again), or choose another with --state.",
    )
