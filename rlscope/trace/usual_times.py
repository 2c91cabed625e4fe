"""Determines when the run took place from most of its files and workers; times far from that are not the run's.

An unset clock or a file from another year would stretch the run, and every grid, over years.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rlscope import format as fmt
from rlscope.trace.files import TableFiles
from rlscope.trace.manifest import RunManifest
from rlscope.trace.worker_files import Worker

APART_NS: Final = 30 * 86_400 * 10**9
"""Minimum distance of a time that is not the run's: no pause lasts both a month and ten times the run."""
_APART_RATIO: Final = 10
_ENDS: Final = ("stopped_ns", "last_flush_ns")


@dataclass(frozen=True, slots=True)
class Window:
    """The period in which the run can lie, UTC epoch, including both ends."""

    first_ns: int
    last_ns: int
    earliest_ns: int
    """Earliest of the times that agree with each other."""

    def holds(self, instant_ns: int) -> bool:
        """Return whether a time lies in the period."""
        return self.first_ns <= instant_ns <= self.last_ns


def usual_window(tables: Mapping[str, TableFiles], workers: Sequence[Worker]) -> Window | None:
    """Return the period of most times that files and workers state, extended on both sides by the longest pause.

    None if there is no time.
    """
    footers = [file.footer for files in tables.values() for file in files.files]
    stated = [time for footer in footers for time in (footer.first_ns, footer.last_ns)]
    stated += [time for each in workers for time in (each.started_ns, each.stopped_ns, each.last_flush_ns)]
    times = [time for time in stated if time is not None]
    return _window(times) if times else None


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
        for key in ("started_ns", *_ENDS):
            value: int | None = getattr(worker, key)
            if value is None or window.holds(value):
                continue
            changed[key] = _first_row_ns(worker.worker_id, tables, window) if key == "started_ns" else None
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


def usual_creation(manifest: RunManifest, window: Window | None) -> tuple[RunManifest, tuple[str, ...]]:
    """Return run.json without a time far from the rest of the run, and a sentence if it had one."""
    created_ns = manifest.created_ns
    if created_ns is None or window is None or window.holds(created_ns):
        return manifest, ()
    return replace(manifest, created_ns=None), (
        f"run.json: created_ns is {created_ns}, far from the rest of the run; it is ignored",
    )
