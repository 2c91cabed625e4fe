"""Follows a growing log or metrics file: reads it again as a whole when it has grown.

What was read is a run folder whose workers go on, so ticks, alerts and facts are those of `follow`. Time goes by the
log: the present is its newest entry, until no line has come for longer than steps take. Then the time since the last
line is added, so that rules on silence and overdue steps fire. The clock and the time zone of the machine that writes
the log do not matter. A log without dates is taken to end when it was first read.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

from rlscope.alerts.live.facts import SHOWN_STEPS, LiveView
from rlscope.alerts.live.follow import LiveRun, RunProgress
from rlscope.alerts.types import RuleSet
from rlscope.analysis.reported import reported_metrics, trains_on_own_samples
from rlscope.errors import RlscopeError
from rlscope.format import counted, duration, printable
from rlscope.importers.importer import open_regular
from rlscope.importers.join import RELATIVE_ORIGIN_NS, RunFolder, import_run
from rlscope.importers.lines import clean
from rlscope.importers.target import ImportOptions
from rlscope.trace.config import read_config
from rlscope.trace.manifest import read_manifest
from rlscope.trace.query import ask
from rlscope.trace.store import open_run
from rlscope.trace.worker_files import read_workers

_STILL_NS: Final = 30_000_000_000
"""Least time without a new line that counts as a standstill."""
_STILL_STEPS: Final = 3.0
"""Least number of mean steps that it has to last."""
_OVER_STEPS: Final = 10.0
"""Least number of mean steps after which the run has ended."""
_TAIL_BYTES: Final = 64 << 10
"""Bytes in which the last line is looked for."""
_LINE_CHARACTERS: Final = 160
"""Characters of the last line that are shown."""
_HEAD_BYTES: Final = 4096
"""Bytes that tell a log from the next one of the same name: settings and times are among them."""
_SAME_START_NS: Final = 60_000_000_000
"""Most that the start of a log may move as it grows, by further files that are read with it."""
_Stamp = tuple[int, int]
"""Size and modification time of the files."""


class LiveLog:
    """A log or metrics file in progress; it may appear later, and in a folder, further files of a run started again."""

    def __init__(
        self,
        path: Path,
        rules: RuleSet,
        options: ImportOptions,
        state: RunProgress | None = None,
        folder: Path | None = None,
    ) -> None:
        """Begin to follow a file, or resume from a state. folder: where it was found, None if it was named."""
        self._path, self._rules, self._options, self._folder = path, rules, options, folder
        self._state = state
        self._read: tuple[RunFolder, LiveRun] | None = None
        self._newest_ns = 0
        """The end of the newest row of the trainer."""
        self._stamp: _Stamp | None = None
        self._trouble: str | None = None
        """Why the file as it is cannot be read."""
        self._notes: tuple[str, ...] = ()
        self._grown_ns = 0
        """When the file last grew, by the clock of the watch."""
        self._still_looks = 0
        """Number of times that the engines were read, and that further files were looked for, since then."""
        self._step_ns: float | None = None
        """Mean time of a step, as of the last look."""
        known = state or RunProgress()
        self._origin_ns, self._head, self._bytes = known.log_origin_ns, known.log_head, known.log_bytes
        self._total_steps: int | None = None
        self._is_synchronous = False
        """Whether the framework says that every step trained on samples of its own version."""
        self._paths = (path,) if folder is None else self._files_in(folder)

    def poll(self, now_ns: int) -> LiveView:
        """Read the file again if it has changed, and evaluate the ticks that are due; now_ns is UTC epoch."""
        absent = self._look(now_ns)
        troubles = tuple(each for each in (absent, self._trouble) if each)
        if self._read is None:
            return LiveView(now_ns, None, (), None, False, troubles)
        live, still_ns = self._read[1], self._still_ns(now_ns)
        view = live.poll(self._newest_ns + still_ns)
        self._save(live)
        facts = view.facts
        if facts is not None:
            facts = replace(facts, hides_samplers=facts.hides_samplers and not self._is_synchronous)
            self._step_ns = facts.step_ns
        return replace(
            view,
            now_ns=self._newest_ns + max(0, now_ns - self._grown_ns),
            facts=facts,
            ended=self._has_ended(view, still_ns),
            problems=(*troubles, *self._stillness(view, still_ns), *self._notes, *view.problems),
        )

    def saved(self) -> RunProgress | None:
        """Return the state that is needed to resume; None before the first step."""
        return self._state

    def close(self) -> None:
        """Forget the firing alerts, because the run has ended."""
        if self._read is not None:
            self._read[1].close()
            self._save(self._read[1])

    def _save(self, live: LiveRun) -> None:
        known = {"log_origin_ns": self._origin_ns, "log_head": self._head, "log_bytes": self._bytes}
        self._state = replace(live.saved(), **known)

    def _look(self, now_ns: int) -> str | None:
        """Read the file if it has changed. Return why it cannot be found, if so."""
        try:
            stamp, head = _stamp_of(self._paths), _head_of(self._path)
        except OSError as error:
            return f"{self._path}: {error.strerror}"
        if stamp == self._stamp:
            self._look_around(now_ns)
            return None
        size, changed_ns = stamp
        if size < self._bytes or self._head not in (None, head):
            self._start_over()
            self._origin_ns = None
        # At the first look the file may not have grown for an hour.
        self._grown_ns = min(now_ns, changed_ns) if self._stamp is None else now_ns
        self._stamp, self._head, self._bytes, self._still_looks = stamp, head, size, 0
        self._read_again()
        return None

    def _look_around(self, now_ns: int) -> None:
        """Read the engines again while the log stands still: they show who waits for whom. Look for further files."""
        seen = self._still_ns(now_ns) // _STILL_NS
        if seen <= self._still_looks:
            return
        self._still_looks = seen
        if self._folder is not None:
            self._paths = self._files_in(self._folder)
        if self._options.engine_logs:
            self._read_again()

    def _files_in(self, folder: Path) -> tuple[Path, ...]:
        """Return the files of the folder that are of one run; if there are others, the file that is followed."""
        from rlscope.importers.recognize import recognize

        try:
            found = recognize(folder, self._options.framework, self._options.own).source.paths
        except RlscopeError as error:
            self._trouble = " ".join(str(error).split())
            return (self._path,)
        return found if found[0] == self._path else (self._path,)

    def _start_over(self) -> None:
        self._notes = (f"{self._path.name} was replaced or truncated; it is followed from its new start",)
        self._state = None

    def _read_again(self) -> None:
        try:
            made, newest_ns = self._imported()
        except RlscopeError as error:
            # The first lines of a log often name no step; the last one may be half written.
            self._trouble = " ".join(str(error).split())
            return
        manifest = read_manifest(made.path)
        if self._state and abs((self._state.origin_ns or 0) - (manifest.created_ns or 0)) > _SAME_START_NS:
            self._start_over()
        live = LiveRun(made.path, self._rules, 0, SHOWN_STEPS, self._state)
        self._read, self._newest_ns, self._trouble = (made, live), newest_ns, None
        self._total_steps = read_config(manifest.config)[0].total_steps
        self._is_synchronous = _is_synchronous(made.path)

    def _imported(self) -> tuple[RunFolder, int]:
        """Return the file as a run folder, and the end of the trainer's newest row."""
        while True:
            made = RunFolder(Path(mkdtemp(prefix="rlscope-watch-")), is_temporary=True)
            origin_ns = RELATIVE_ORIGIN_NS if self._origin_ns is None else self._origin_ns
            given = self._path if self._folder is None or len(self._paths) == 1 else self._folder
            found = import_run(given, made.path, self._options, is_growing=True, relative_origin_ns=origin_ns)
            workers, _ = read_workers(made.path)
            own = [each for each in workers if each.role != "sampler"] or workers
            newest_ns = max(each.last_flush_ns or 0 for each in own)
            if found.is_dated or self._origin_ns is not None:
                return made, newest_ns
            self._origin_ns = self._grown_ns - (newest_ns - RELATIVE_ORIGIN_NS)

    def _still_ns(self, now_ns: int) -> int:
        """Return how long no line has come, if that is long for this run; else 0."""
        still_ns = now_ns - self._grown_ns
        is_long = self._step_ns is not None and still_ns >= max(_STILL_NS, _STILL_STEPS * self._step_ns)
        return still_ns if is_long else 0

    def _has_ended(self, view: LiveView, still_ns: int) -> bool:
        """Whether all steps that the log announces have ended, or no line has come for very long."""
        is_complete = view.facts is not None and self._total_steps is not None and view.facts.steps >= self._total_steps
        return is_complete or (view.ended and still_ns >= _OVER_STEPS * (self._step_ns or 0.0))

    def _stillness(self, view: LiveView, still_ns: int) -> tuple[str, ...]:
        if not still_ns or view.facts is None or self._step_ns is None:
            return ()
        steps = counted(view.facts.steps, "step")
        mean = duration(self._step_ns / 1e9)
        last = ((path.name, _last_line(path)) for path in (self._paths[-1], *self._options.engine_logs))
        return (
            f"{self._paths[-1].name} has not grown for {duration(still_ns / 1e9)}, after {steps} of {mean} on average",
            *(f"the last line of {name}: {line}" for name, line in last if line),
        )


def _stamp_of(paths: Sequence[Path]) -> _Stamp:
    """Return the size and the modification time of files. Raises OSError if one cannot be found."""
    found = [path.stat() for path in paths]
    return sum(each.st_size for each in found), max(each.st_mtime_ns for each in found)


def _is_synchronous(folder: Path) -> bool:
    with open_run(folder) as run:
        answers = {"reported_values": ask(run, "reported_values")}
        reported = reported_metrics(answers, run.imported, "staleness")
    return trains_on_own_samples(reported) is True


def _last_line(path: Path) -> str:
    """Return the last line with text, on one line and without colors; empty if the file is a folder or no text."""
    try:
        with open_regular(path) as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    lines = (
        [] if "\0" in text else [line for each in text.splitlines() if (line := printable(clean(each).text).strip())]
    )
    return lines[-1][:_LINE_CHARACTERS] if lines else ""


def _head_of(path: Path) -> str | None:
    """Hash the first bytes of a file; None while it has fewer. Raises OSError if it cannot be read."""
    with open_regular(path) as file:
        head = file.read(_HEAD_BYTES)
    return hashlib.sha256(head).hexdigest()[:16] if len(head) == _HEAD_BYTES else None
