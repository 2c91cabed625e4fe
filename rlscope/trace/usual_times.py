"""Determines when the run took place from most of its files and workers; times far from that are not the run's.

An unset clock or a file from another year would stretch the run, and every grid, over years. If all times of a host lie
in another year, its clock is wrong; `clocks` decides whether it can be corrected.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from rlscope import format as fmt
from rlscope.trace.files import TableFiles
from rlscope.trace.worker_files import Worker

APART_NS: Final = 30 * 86_400 * 10**9
"""Minimum distance of a time that is not the run's: no pause lasts both a month and ten times the run."""
_APART_RATIO: Final = 10
_ENDS: Final = ("stopped_ns", "last_flush_ns")
_LEAST_TIMES: Final = 4


@dataclass(frozen=True, slots=True)
class Window:
    """The period in which the run can lie, UTC epoch, including both ends."""

    first_ns: int
    last_ns: int
    earliest_ns: int
    """Earliest of the times that agree with each other."""
    apart: Mapping[str, "Window"] = field(default_factory=dict[str, "Window"], hash=False)
    """Separate periods, by worker, for hosts whose clock is far from the others."""

    def of(self, worker_id: str) -> "Window":
        """Return the period in which the times of a worker can lie."""
        return self.apart.get(worker_id, self)

    def holds(self, instant_ns: int) -> bool:
        """Return whether a time lies in the period."""
        return self.first_ns <= instant_ns <= self.last_ns


def usual_window(
    tables: Mapping[str, TableFiles], workers: Sequence[Worker], *, may_be_apart: bool = True
) -> Window | None:
    """Return the period of most times that files and workers state, extended on both sides by the longest pause.

    None if there is no time. may_be_apart: whether the clock of a whole host may be far from the others.
    """
    known = _known_times(tables, workers)
    times = [time for own in known.values() for time in own]
    if not times:
        return None
    window = _window(times)
    hosts: dict[str | None, list[str]] = {}
    for worker in workers:
        hosts.setdefault(worker.host, []).append(worker.worker_id)
    if not may_be_apart or len(hosts) < 2:
        return window
    hosts.pop(None, None)
    apart: dict[str, Window] = {}
    for own in hosts.values():
        of_host = [time for worker_id in own for time in known.get(worker_id, ())]
        # At least a start, an end and both ends of a file: fewer may be a single mistake.
        if len(of_host) >= _LEAST_TIMES and not any(window.holds(time) for time in of_host):
            apart |= dict.fromkeys(own, _window(of_host))
    return replace(window, apart=apart)


def _known_times(tables: Mapping[str, TableFiles], workers: Sequence[Worker]) -> dict[str, list[int]]:
    """Return the times in the worker file and the footers of each worker, by worker."""
    known: dict[str, list[int]] = {}
    for files in tables.values():
        for file in files.files:
            ends = (file.footer.first_ns, file.footer.last_ns)
            known.setdefault(file.owner.worker_id, []).extend(time for time in ends if time is not None)
    for worker in workers:
        stated = (worker.started_ns, worker.stopped_ns, worker.last_flush_ns)
        known.setdefault(worker.worker_id, []).extend(time for time in stated if time is not None)
    return known


def _window(times: Sequence[int]) -> Window:
    ordered = sorted(times)
    groups: list[list[int]] = [[ordered[0]]]
    for time in ordered[1:]:
        if time - groups[-1][-1] > APART_NS:
            groups.append([])
        groups[-1].append(time)
    # Ties go to the later group: an unset clock starts at the epoch.
    most = max(groups, key=lambda group: (len(group), group[0]))
    slack_ns = max(APART_NS, _APART_RATIO * (most[-1] - most[0]))
    return Window(most[0] - slack_ns, most[-1] + slack_ns, most[0])


def with_usual_times(
    workers: Sequence[Worker], tables: Mapping[str, TableFiles], window: Window | None
) -> tuple[list[Worker], tuple[str, ...]]:
    """Return the workers without times far from the run, and a sentence for each such time.

    A wrong start is replaced by the time of the worker's first row; a wrong end is removed.
    """
    if window is None:
        return [*workers], ()
    kept: list[Worker] = []
    gaps: list[str] = []
    for worker in workers:
        changed: dict[str, int | None] = {}
        usual = window.of(worker.worker_id)
        for key in ("started_ns", *_ENDS):
            value: int | None = getattr(worker, key)
            if value is None or usual.holds(value):
                continue
            changed[key] = _first_row_ns(worker.worker_id, tables, usual) if key == "started_ns" else None
            instead = "the worker is assumed to start at its first row" if key == "started_ns" else "it is ignored"
            gaps.append(
                f"workers/{worker.worker_id}.json: {key} is {fmt.instant(value)}, far from the rest of the run; "
                + instead
            )
        usual_worker = replace(worker, **changed) if changed else worker  # type: ignore[arg-type]  # both are times
        if usual_worker.stopped_ns is not None and usual_worker.stopped_ns < usual_worker.started_ns:
            gaps.append(f"workers/{worker.worker_id}.json: stopped_ns is before started_ns; it is ignored")
            usual_worker = replace(usual_worker, stopped_ns=None)
        kept.append(usual_worker)
    return kept, tuple(gaps)


def _first_row_ns(worker_id: str, tables: Mapping[str, TableFiles], window: Window) -> int:
    """Return the first time in a worker's files; if it has none, in all files; otherwise the earliest of the window."""
    own: list[int] = []
    others: list[int] = []
    for files in tables.values():
        for file in files.files:
            time = file.footer.first_ns
            if time is not None and window.holds(time):
                (own if file.owner.worker_id == worker_id else others).append(time)
    return min(own or others or [window.earliest_ns])


def usual_creation(created_ns: int | None, window: Window | None) -> tuple[int | None, tuple[str, ...]]:
    """Return when the run was created, None if that is far from the rest of the run, and a sentence in that case."""
    if created_ns is None or window is None or any(each.holds(created_ns) for each in (window, *window.apart.values())):
        return created_ns, ()
    return None, (f"run.json: created_ns is {created_ns}, far from the rest of the run; it is ignored",)
