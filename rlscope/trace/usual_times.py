"""When the run was, by most of its files and workers: a time far from it is no time of the run.

A clock that is not set, or a file of another year, would stretch the run over years, and every grid with it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rlscope import format as fmt
from rlscope.trace.files import TableFiles, is_integer

APART_NS: Final = 30 * 86_400 * 10**9
"""A pause in a run is shorter than a month, or than ten times the run."""
_APART_RATIO: Final = 10
_ENDS: Final = ("stopped_ns", "last_flush_ns")


@dataclass(frozen=True, slots=True)
class Window:
    """The stretch that the run can have lain in, UTC epoch; both ends belong to it."""

    first_ns: int
    last_ns: int
    earliest_ns: int
    """The first time that is one of most."""

    def holds(self, instant_ns: int) -> bool:
        """Whether a time lies in it."""
        return self.first_ns <= instant_ns <= self.last_ns


def usual_window(tables: Mapping[str, TableFiles], workers: Sequence[Mapping[str, object]]) -> Window | None:
    """The stretch of most times that files and workers state, and as much around it as a pause may last.

    None where nothing states a time.
    """
    footers = [file.footer for files in tables.values() for file in files.files]
    times = [time for footer in footers for time in (footer.first_ns, footer.last_ns) if time is not None]
    stated = [worker.get(key) for worker in workers for key in ("started_ns", *_ENDS)]
    times += [time for time in stated if is_integer(time)]
    if not times:
        return None
    times.sort()
    groups: list[list[int]] = [[times[0]]]
    for time in times[1:]:
        if time - groups[-1][-1] > APART_NS:
            groups.append([])
        groups[-1].append(time)
    # Of two as large, the later one: a clock that is not set is at the epoch.
    most = max(groups, key=lambda group: (len(group), group[0]))
    slack_ns = max(APART_NS, _APART_RATIO * (most[-1] - most[0]))
    return Window(most[0] - slack_ns, most[-1] + slack_ns, most[0])


def with_usual_times(
    workers: Sequence[Mapping[str, object]], tables: Mapping[str, TableFiles], window: Window | None
) -> tuple[list[dict[str, object]], tuple[str, ...]]:
    """The workers with times of the run alone, and one sentence for each time that is none.

    A start that is none becomes the worker's first row; an end is left out.
    """
    if window is None:
        return [dict(worker) for worker in workers], ()
    kept: list[dict[str, object]] = []
    gaps: list[str] = []
    for worker in workers:
        changed = dict(worker)
        for key in ("started_ns", *_ENDS):
            value = worker.get(key)
            if not is_integer(value) or window.holds(value):
                continue
            changed[key] = _first_row_ns(str(worker["worker_id"]), tables, window) if key == "started_ns" else None
            instead = "the worker starts at its first row" if key == "started_ns" else "it is ignored"
            gaps.append(
                f"workers/{worker['worker_id']}.json: {key} is {fmt.instant(value)}, far from the rest of the run; "
                + instead
            )
        stopped, started = changed.get("stopped_ns"), changed["started_ns"]
        if is_integer(stopped) and is_integer(started) and stopped < started:
            gaps.append(f"workers/{worker['worker_id']}.json: stopped_ns is before started_ns; it is ignored")
            changed["stopped_ns"] = None
        kept.append(changed)
    return kept, tuple(gaps)


def _first_row_ns(worker_id: str, tables: Mapping[str, TableFiles], window: Window) -> int:
    """The first time in the files of a worker; where it has none, that of all files, or of all workers."""
    own: list[int] = []
    others: list[int] = []
    for files in tables.values():
        for file in files.files:
            time = file.footer.first_ns
            if time is not None and window.holds(time):
                (own if file.numbers is not None and file.numbers.worker_id == worker_id else others).append(time)
    return min(own or others or [window.earliest_ns])


def usual_creation(created_ns: int | None, window: Window | None) -> tuple[int | None, tuple[str, ...]]:
    """When the run was created, and what is wrong with it; None for a time far from the rest of the run."""
    if created_ns is None or window is None or window.holds(created_ns):
        return created_ns, ()
    return None, (f"run.json: created_ns is {created_ns}, far from the rest of the run; it is ignored",)
