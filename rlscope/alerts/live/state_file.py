"""What a watch has to remember to go on after its end: how far it had come, and what each receiver has been told.

The file is whole or absent, whenever the watch is killed. It holds alerts, never an address or a token. One watch at
a time uses it: two would each tell what the other has told.
"""

import contextlib
import fcntl
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Self, cast

from rlscope.analysis.result import SEVERITIES, Severity
from rlscope.errors import RlscopeError

FILE_NAME: Final = "watch_state.json"
"""Beside the run's own files, unless the user names another place."""
_FORMAT: Final = "rlscope-watch"
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class WatchState:
    """One watch at one moment."""

    run: Mapping[str, Any]
    """What `LiveRun.restored` takes."""
    receivers: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What `Couriers.restore` takes."""
    worst: Severity | None = None
    """The gravest alert so far; None while nothing fired."""


class StateFile:
    """The file of a watch, which keeps others off it until it is closed or its process ends, however that does.

    The folder that it lies in may appear late: it is kept from then on. Where a file system has no locks, another watch
    shows by what it writes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_shared = False
        """Whether another watch was found to have written the file between two writes of ours."""
        self._writer = secrets.token_hex(8)
        self._has_written = False
        self._lock: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def read(self) -> WatchState | None:
        """As `read_state`. Raises RlscopeError too when another watch uses the file."""
        self._keep()
        return read_state(self.path)

    def write(self, state: WatchState) -> None:
        """As `write_state`; nothing while there is no folder. Raises RlscopeError when another watch uses the file."""
        # A run folder that is not there yet is the run's to make.
        if self.path.parent.is_dir():
            self._keep()
            self.is_shared |= self._has_written and _writer_of(self.path) not in (None, self._writer)
            write_state(self.path, state, self._writer)
            self._has_written = True

    def _keep(self) -> None:
        if self._lock is not None:
            return
        # Beside the file, since every state takes the place of the one before.
        beside = self.path.with_name(f".{self.path.name}.lock")
        try:
            lock = os.open(beside, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError:  # No folder yet, or one where no state can be written either: writing says so.
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise RlscopeError.of(
                self.path,
                found="another watch that uses it",
                expected="one watch at a time, or everything would be told twice",
                next_step="End the other one, or name a state of its own with --state.",
            ) from None
        except OSError:  # A file system without locks.
            pass
        self._lock = lock


def read_state(path: Path) -> WatchState | None:
    """The state of an earlier watch; None where there was none. Raises RlscopeError for a file that is no state."""
    try:
        document: object = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _refused(path, f"a file that cannot be read ({type(error).__name__})") from error
    known = cast("dict[str, Any]", document) if isinstance(document, dict) else {}
    if (known.get("format"), known.get("version")) != (_FORMAT, _VERSION):
        raise _refused(path, "something else")
    try:
        state = WatchState(dict(known["run"]), dict(known["receivers"]), known["worst"])
    except (KeyError, TypeError, ValueError) as error:
        raise _refused(path, "a state with parts missing") from error
    if state.worst not in (None, *SEVERITIES):
        raise _refused(path, "a severity that there is not")
    return state


def write_state(path: Path, state: WatchState, writer: str | None = None) -> None:
    """Put the state in the place of the one before; writer tells watches apart. Raises OSError when it cannot."""
    text = json.dumps({"format": _FORMAT, "version": _VERSION, "writer": writer, **asdict(state)}, allow_nan=False)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def _writer_of(path: Path) -> object:
    """Which watch wrote the file; None where nobody says."""
    try:
        document: object = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return cast("dict[str, object]", document).get("writer") if isinstance(document, dict) else None


def _refused(path: Path, found: str) -> RlscopeError:
    return RlscopeError.of(
        path,
        found=found,
        expected="the state of an earlier watch, of this version",
        next_step="Delete it to begin anew (what was told is told again), or name another with --state.",
    )
