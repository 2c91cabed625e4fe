"""What a watch has to remember to go on after its end: how far it had come, and what each receiver has been told.

The file is whole or absent, whenever the watch is killed. It holds alerts, never an address or a token.
"""

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from rlscope.alerts.alert import SEVERITIES, Severity
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


def write_state(path: Path, state: WatchState) -> None:
    """Put the state in the place of the one before. Raises OSError when it cannot be written."""
    text = json.dumps({"format": _FORMAT, "version": _VERSION, **asdict(state)}, allow_nan=False)
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


def _refused(path: Path, found: str) -> RlscopeError:
    return RlscopeError.of(
        path,
        found=found,
        expected="the state of an earlier watch, of this version",
        next_step="Delete it to begin anew (what was told is told again), or name another with --state.",
    )
