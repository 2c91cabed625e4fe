"""Converts the timestamps of a log, which may lack a zone, a year or a date, to times of the run that it joins."""

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from rlscope.errors import ImportFileError
from rlscope.importers.lines import ConsoleLine, LogFile, lines_from_the_end
from rlscope.importers.quantities import SECOND_NS
from rlscope.importers.target import ImportTarget

_STAMP: Final = re.compile(
    r"(?:(?:(?P<year>\d{4})-)?(?P<day>\d\d-\d\d)[ T])?"
    r"(?P<time>\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)(?P<zone>Z|[+-]\d\d:?\d\d)?$"
)
_FURTHEST_S: Final = 14 * 3600
"""Largest offset of any time zone from UTC."""
_QUARTER_HOUR_S: Final = 900
_HALF_DAY: Final = timedelta(hours=12)
_HALF_YEAR: Final = timedelta(days=180)


class LogClock:
    """Converts a log's timestamps (local times, possibly without year or date) to nanoseconds since the UTC epoch."""

    def __init__(self, first: datetime, offset_s: int, shift_s: int = 0) -> None:
        """Start at the first time. shift_s: by how much times with a zone are ahead of the run's, like offset_s."""
        self._latest = first.replace(tzinfo=None)
        self._last: tuple[str, int | None] = "", None
        self.offset_s, self._shift_s = offset_s, shift_s

    def time_ns(self, stamp: str) -> int | None:
        """Return the time of a timestamp; None if the text is not one."""
        if stamp != self._last[0]:
            self._last = stamp, None
            if local := _local(stamp, self._latest):
                self._latest = max(self._latest, local.replace(tzinfo=None))
                self._last = stamp, _ns(local, self.offset_s if local.tzinfo is None else self._shift_s)
        return self._last[1]


def open_clock(
    path: Path, pattern: re.Pattern[str], target: ImportTarget, utc_offset_s: int | None = None
) -> LogClock | None:
    """Return the clock of a log whose timestamps match the pattern's group `ts`; None for a log without timestamps.

    The time zone is that of the timestamps, else `--utc-offset`, else the quarter-hour offset that fits the log into
    the run it is joined to. A log by itself keeps local times, and the target's clock says so. If the run's own times
    are local or relative, those of a log with a zone are fitted too. A missing year is that of the run, else that of
    the file's last change.

    utc_offset_s: the offset if another reader of the file knows it, in the place of `--utc-offset`.

    Raises ImportFileError if no zone fits the log into the run, or several do and UTC is not among them.
    """
    first, last = (next(_stamps(lines, pattern), None) for lines in (LogFile(path), lines_from_the_end(path)))
    if first is None or last is None:
        return None
    run = target.extent() if target.clock != "relative" and "-" in first[:5] else None
    ended = datetime.fromtimestamp(run[1] / SECOND_NS if run else path.stat().st_mtime, UTC).replace(tzinfo=None)
    start, end = _stretch(first, last, ended)
    logged_ns = _ns(start, 0), _ns(end, 0)
    if start.tzinfo is not None:
        return LogClock(start, 0, offset_into_run_s(path, logged_ns, target))
    offset_s, joined_to = target.options.utc_offset_s if utc_offset_s is None else utc_offset_s, target.extent()
    if offset_s is None and joined_to is not None:
        offset_s = _fitting_offset_s(path, logged_ns, joined_to, target)
    elif offset_s is None and target.clock == "wall":
        target.clock = "local"
    return LogClock(start, offset_s or 0)


def offset_into_run_s(path: Path, recorded_ns: tuple[int, int], target: ImportTarget) -> int:
    """Return by how many seconds times in UTC are ahead of those of the run that they are joined to.

    recorded_ns: first and last time of the file or recording at `path`. Raises ImportFileError if no time zone fits.
    """
    run = target.extent()
    if run is None or target.clock == "wall":
        return 0
    if not target.is_growing:
        return _fitting_offset_s(path, recorded_ns, run, target)
    # The newest line of a log in local time was written when the file last changed.
    ahead_s = target.given.stat().st_mtime - run[1] / SECOND_NS
    return 0 if target.clock == "relative" else _QUARTER_HOUR_S * round(ahead_s / _QUARTER_HOUR_S)


def _fitting_offset_s(path: Path, naive: tuple[int, int], run: tuple[int, int], target: ImportTarget) -> int:
    offsets = range(-_FURTHEST_S, _FURTHEST_S + 1, _QUARTER_HOUR_S)
    inside = {offset: _overlap_ns(naive, run, offset) for offset in offsets}
    most = max(inside.values())
    if most > 0:
        best = [offset for offset in offsets if inside[offset] == most]
        if len(best) > 1:
            # A run that was down for hours has room for the log in zones in which it would be of no step.
            shifts_ns = {offset: offset * SECOND_NS for offset in best}
            best = [each for each, by_ns in shifts_ns.items() if target.is_up(naive[0] - by_ns, naive[1] - by_ns)]
        if len(best) == 1:
            return best[0]
        if 0 in best:
            target.note(
                f"The time zone of {path.name} is ambiguous; UTC is assumed. Pass --utc-offset, for example +02:00."
            )
            return 0
    if target.clock == "relative" and most <= 0:
        if target.aligned_s is None:
            target.aligned_s = (naive[0] - run[0]) // SECOND_NS
            target.note(
                f"{path.name} and the run's steps share no clock. They are aligned at their starts, so engine states "
                "may be matched to the wrong steps. Pass a step log with timestamps to align them."
            )
        elif _overlap_ns(naive, run, target.aligned_s) <= 0:
            raise ImportFileError.of(
                path,
                found="a log of another time than that of the engines before, as of a run that was started again",
                expected="one that overlaps theirs, because the run's steps have no times",
                next_step="Pass a step log with timestamps, or the engines' logs of one start.",
            )
        return target.aligned_s
    raise ImportFileError.of(
        path,
        found="local times that "
        + ("no time zone puts into the run" if most <= 0 else "fit the run in several time zones"),
        expected="times inside the run that the log is joined to",
        next_step="Pass --utc-offset, for example +02:00.",
    )


def _overlap_ns(naive: tuple[int, int], run: tuple[int, int], offset_s: int) -> int:
    shift = offset_s * SECOND_NS
    # Add 1 ns, so that a log of one line, which has no length, can overlap the run.
    return min(naive[1] - shift, run[1]) - max(naive[0] - shift, run[0]) + 1


def _stamps(lines: Iterable[ConsoleLine], pattern: re.Pattern[str]) -> Iterator[str]:
    """Yield the timestamps of lines."""
    return (found["ts"] for line in lines if (found := pattern.search(line.text)) and found["ts"])


def _stretch(first: str, last: str, ended: datetime) -> tuple[datetime, datetime]:
    """Return the times of a log's first and last timestamp. ended: its end, which fills in a missing year or date."""
    has_date, has_year = "-" in first[:5], len(first) > 4 and first[4] == "-"
    if has_year or not has_date:
        latest = ended if has_year else ended.replace(hour=0, minute=0, second=0, microsecond=0)
        start = _local(first, latest) or ended
        return start, _local(last, start) or start
    end = _local(last, datetime(ended.year, 1, 1)) or ended
    if end.replace(tzinfo=None) > ended + timedelta(days=2):
        end = end.replace(year=end.year - 1)
    start = _local(first, end) or end
    return (start.replace(year=start.year - 1) if start > end else start), end


def _local(stamp: str, latest: datetime) -> datetime | None:
    """Parse a timestamp; the latest one before it fills in missing parts, and the date advances at midnight."""
    found = _STAMP.match(stamp.strip())
    if found is None:
        return None
    latest = latest.replace(tzinfo=None)
    year, day = found["year"] or f"{latest.year:04}", found["day"] or f"{latest:%m-%d}"
    with suppress(ValueError):
        time = datetime.fromisoformat(f"{year}-{day}T{found['time'].replace(',', '.')}{found['zone'] or ''}")
        if found["zone"] or found["year"]:
            return time
        if found["day"]:
            return time.replace(year=time.year + 1) if latest - time > _HALF_YEAR else time
        return time + timedelta(days=1) if latest - time > _HALF_DAY else time
    return None


def _ns(local: datetime, offset_s: int) -> int:
    known = local if local.tzinfo is not None else local.replace(tzinfo=UTC)
    since_us = (known - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    return (since_us - offset_s * 1_000_000) * 1_000
