"""The state file of a watch: its resume point in the run, and the alerts already sent to each receiver.

The file is complete or absent, whenever the watch is killed. It holds alerts, never a URL or a token. Only one watch at
a time uses it, because two would send every alert twice.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal, Self

from filelock import FileLock, Timeout
from pydantic import TypeAdapter, ValidationError

from rlscope.alerts.live.follow import RunProgress
from rlscope.alerts.notify.outbox import OutboxState
from rlscope.analysis.result import Severity
from rlscope.errors import RlscopeError
from rlscope.text_out import write_file

FILE_NAME: Final = "watch_state.json"
"""Default file name, in the run folder."""


@dataclass(frozen=True, slots=True)
class WatchState:
    """One watch at one moment."""

    run: RunProgress | None
    """State of `LiveRun` or `LiveLog`; None for a watch that begins."""
    receivers: Mapping[str, OutboxState]
    """State of `Couriers`."""
    worst: Severity | None
    """The highest severity so far; None while nothing fired."""
    format: Literal["rlscope-watch"] = "rlscope-watch"
    version: Literal[1] = 1


NO_STATE: Final = WatchState(None, {}, None)
"""State of a watch that begins."""


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
            write_file(self.path, json.dumps(asdict(state), allow_nan=False).encode())

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
        return TypeAdapter(WatchState).validate_json(path.read_bytes())
    except FileNotFoundError:
        return NO_STATE
    except (OSError, ValidationError) as error:
        is_read = isinstance(error, ValidationError)
        raise RlscopeError.of(
            path,
            found="no state of a watch of this version" if is_read else f"a file that cannot be read ({error})",
            expected="the state of an earlier watch",
            next_step="Delete it to start again (alerts already sent are sent again), or choose another with --state.",
        ) from error
