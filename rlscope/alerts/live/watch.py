"""The loop of `rlscope watch`: poll the run, save the state, send notifications, update the display, wait.

The state is saved before a notification is sent and again once it was delivered. A watch that is killed and restarted
sends nothing twice, except a message delivered within the last tenth of a second. Set-up errors are raised.
"""

import gc
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Final

from rlscope.alerts.config import RuleFile, built_in_rules, load_rules
from rlscope.alerts.live.facts import LiveView
from rlscope.alerts.live.follow import LiveRun, is_saved_with
from rlscope.alerts.live.log import LiveLog
from rlscope.alerts.live.scrape import Scraper, engines_folder, scraping
from rlscope.alerts.live.state_file import FILE_NAME, StateFile, WatchState
from rlscope.alerts.notify.couriers import Couriers
from rlscope.alerts.notify.outbox import of_run
from rlscope.alerts.notify.senders import is_installed
from rlscope.alerts.receiver import Receiver
from rlscope.analysis.result import Alert, Severity, at_least
from rlscope.errors import ImportFileError, OutputError, RlscopeError
from rlscope.format import duration
from rlscope.importers.target import NO_OPTIONS, ImportOptions
from rlscope.trace.manifest import RUN_FILE

_NS_PER_S: Final = 1_000_000_000
# How soon a delivery is noted: a kill before that makes the next watch send it again.
_NAP_NS: Final = 50_000_000
# Enough for two retries, and short for a job that waits for the exit code. The resolved alerts have as long again.
_LAST_MESSAGES_S: Final = 5.0
# Pauses are at least so many times as long as looks take CPU time: a watch takes at most 5% of a core beside training.
_REST: Final = 19.0
# Also what is not owed at first: the first looks load libraries and read all earlier rows.
_LONGEST_REST_S: Final = 75.0
_LOG_SUFFIXES: Final = frozenset({".log", ".txt", ".out", ".err", ".json", ".jsonl", ".wandb"})


@dataclass(frozen=True, slots=True)
class WatchClock:
    """The time, and a way to wait."""

    now_ns: Callable[[], int] = time.time_ns
    """UTC epoch."""
    sleep: Callable[[float], None] = time.sleep
    """Waits for so many seconds."""
    cpu_s: Callable[[], float] = time.process_time
    """CPU time that the watch has used."""


Followed = LiveRun | LiveLog


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a watch."""

    ended: bool
    """Whether the run ended; if not, the watch was interrupted."""
    worst: Severity | None
    """The highest severity of any alert; None if nothing fired."""
    untold: int
    """Alerts that could not be delivered to some receiver."""

    def failed(self, fail_on: Severity) -> bool:
        """Whether an alert of this severity or higher fired."""
        return self.worst is not None and at_least(self.worst, fail_on)


@dataclass(slots=True)
class RunWatch:
    """One watch of one run."""

    run: Followed
    couriers: Couriers
    _: KW_ONLY
    state_file: StateFile | None
    show: Callable[[LiveView], None]
    interval_s: float
    clock: WatchClock
    worst: Severity | None = None
    """The highest severity so far, an earlier watch included."""
    scrapers: Sequence[Scraper] = ()
    _look_s: float = 0.0
    """CPU time of the last look."""
    _owed_s: float = -_LONGEST_REST_S
    """Rest that the looks so far need beyond the pauses so far."""
    _state_trouble: str | None = None

    def follow(self, interruptions: Callable[[], int]) -> Outcome:
        """Watch until the run ends or is interrupted; a second interruption leaves messages unsent.

        Raises RlscopeError if another watch uses the state file, before anything is sent.
        """
        while True:
            view = self._look()
            if view.ended or interruptions():
                break
            self._wait(interruptions)
        untold = self._send_the_last(view, interruptions)
        return Outcome(view.ended, self.worst, untold)

    def _look(self) -> LiveView:
        now_ns, began_s = self.clock.now_ns(), self.clock.cpu_s()
        view = self.run.poll(now_ns)
        settle()
        self._look_s = self.clock.cpu_s() - began_s
        self._owed_s += _REST * self._look_s
        self.couriers.collect(now_ns)
        # Before the first tick, no alert may be closed as missing.
        if view.evaluated_ns is not None:
            self._take(view, view.alerts, now_ns)
        for alert in view.alerts:
            if self.worst is None or not at_least(self.worst, alert.severity):
                self.worst = alert.severity
        self._save()
        self._tend(at_once=False)
        self._show_look(view)
        return view

    def _take(self, view: LiveView, alerts: Sequence[Alert], now_ns: int) -> None:
        """Give the alerts of a view to the couriers, with their run as a label."""
        if view.facts is not None:
            self.couriers.take((of_run(alert, view.facts.run_id) for alert in alerts), now_ns)

    def _show_look(self, view: LiveView) -> None:
        self.show(replace(view, troubles=(*self.couriers.troubles, *self._own_troubles())))

    def _own_troubles(self) -> Iterator[str]:
        yield from filter(None, (each.trouble() for each in self.scrapers))
        if self._state_trouble is not None:
            yield self._state_trouble
        if self._pause_s > self.interval_s:
            cost, pause = duration(self._look_s), duration(self._pause_s)
            yield f"polls are rarer than --interval: the last took {cost} of CPU time, so the next is in {pause}"

    @property
    def _pause_s(self) -> float:
        return max(self.interval_s, min(_LONGEST_REST_S, self._owed_s))

    def _wait(self, interruptions: Callable[[], int]) -> None:
        # Counted down, because a clock that is set back would stop the watch.
        left_ns = round(self._pause_s * _NS_PER_S)
        self._owed_s = max(-_LONGEST_REST_S, min(0.0, self._owed_s - self._pause_s))
        while left_ns > 0 and not interruptions():
            nap_ns = min(_NAP_NS, left_ns)
            self.clock.sleep(nap_ns / _NS_PER_S)
            left_ns -= nap_ns
            self._tend(at_once=False)

    def _send_the_last(self, view: LiveView, interruptions: Callable[[], int]) -> int:
        """Send the remaining messages, and resolve firing alerts if the run ended. Return the number not delivered."""
        self._deliver(interruptions)
        untold = self.couriers.waiting
        # Alerts that just ended were shown by the poll itself.
        left = tuple(alert for alert in view.alerts if alert.end_ns is None)
        if view.ended and left:
            left = tuple(replace(alert, end_ns=view.evaluated_ns) for alert in left)
            self.run.close()
            self._take(view, left, self.clock.now_ns())
            self._save()
            self._deliver(interruptions)
        self._save()
        self._show_look(replace(view, alerts=left))
        # A receiver of firing alerts alone has nothing left to be told about those that were resolved.
        return max(untold, self.couriers.waiting)

    def _deliver(self, interruptions: Callable[[], int]) -> None:
        """Send the remaining messages while sending can still succeed."""
        due_ns = self.clock.now_ns() + round(_LAST_MESSAGES_S * _NS_PER_S)
        self._tend(at_once=True)
        while interruptions() < 2 and self.clock.now_ns() < due_ns and self.couriers.can_deliver_before(due_ns):
            self.clock.sleep(_NAP_NS / _NS_PER_S)
            self._tend(at_once=True)

    def _tend(self, *, at_once: bool) -> None:
        """Send due messages, and save the outcome of those in flight at once."""
        now_ns = self.clock.now_ns()
        self.couriers.dispatch(now_ns, at_once=at_once)
        if self.couriers.collect(now_ns):
            self._save()

    def _save(self) -> None:
        if self.state_file is None:
            return
        try:
            self.state_file.write(WatchState(self.run.saved(), self.couriers.saved(), self.worst))
            self._state_trouble = None
        except OutputError as error:
            self._state_trouble = f"a restarted watch would send its notifications again: cannot write {error}"


def settle() -> None:
    """Leave what a look has kept, which is the state of every file, out of all later garbage collections.

    Going through it again and again takes an eighth of a look at ten thousand workers.
    """
    gc.collect()
    gc.freeze()


def watch_run(
    path: Path,
    rules_file: Path | None,
    state_path: Path | None,
    interval_s: float,
    show: Callable[[LiveView], None],
    interruptions: Callable[[], int],
    note: Callable[[str], None],
    clock: WatchClock | None = None,
    options: ImportOptions = NO_OPTIONS,
    scrape: Sequence[str] = (),
) -> Outcome:
    """Follow a run folder, a log or metrics file, or a folder with one, to the end of the run. It may appear later.

    options: what the file does not state. scrape: metrics pages of engines that are recorded meanwhile, into the run
    folder, or for a log into `engines_folder`.

    Raises ArgumentError for an address that is none of a page, RuleError for invalid rules or receivers, RlscopeError
    for a missing secret or for a state file that is invalid, used by another watch, or in a missing directory.
    """
    rules, receivers = RuleFile(built_in_rules()) if rules_file is None else load_rules(rules_file)
    check_ready(receivers)
    given, path = path, _log_in(path, options) or path
    # A run folder may have a dot in its name, but not one of these suffixes.
    is_log = path.is_file() or (not path.exists() and path.suffix in _LOG_SUFFIXES)
    engines = engines_folder(path) if is_log else path
    if is_log and scrape:
        options = replace(options, engine_logs=(*options.engine_logs, engines))
    with (
        StateFile(_state_path(path, state_path, is_log=is_log)) as state_file,
        scraping(scrape, engines, options.gpus_per_engine or 1) as scrapers,
    ):
        state = state_file.read()
        saved = state.run
        if saved and not is_saved_with(rules, saved):
            note("the rules changed since the last watch; evaluating the run from its start")
            saved = None
        folder = None if given == path else given
        run = LiveLog(path, rules, options, saved, folder) if is_log else LiveRun(path, rules, state=saved)
        watch = RunWatch(
            run, Couriers(receivers, state.receivers), state_file=state_file, show=show, interval_s=interval_s,
            clock=clock or WatchClock(), worst=state.worst, scrapers=scrapers,
        )  # fmt: skip
        outcome = watch.follow(interruptions)
    if is_log and scrape:
        note(f"the engines are in {engines}; read them with: rlscope analyze {path} --engine-log {engines}")
    return outcome


def check_ready(receivers: Iterable[Receiver]) -> None:
    """Raise SecretError for a missing secret, RlscopeError for a missing library."""
    for receiver in receivers:
        receiver.check_secrets()
        if receiver.kind == "apprise" and not is_installed():
            raise RlscopeError.of(
                f"receiver {receiver.name}",
                found="apprise is not installed",
                expected="the apprise library for receivers of this kind",
                next_step="pip install 'rlscope[apprise]'",
            )


def _log_in(path: Path, options: ImportOptions) -> Path | None:
    """Return the file of a folder that an import would read; None for a run folder, or if one may begin there."""
    if not path.is_dir() or (path / RUN_FILE).is_file():
        return None
    from rlscope.importers.recognize import recognize

    try:
        found = recognize(path, options.framework, options.own).source.path
    except ImportFileError:
        return None
    return found if found.is_file() else None


def _state_path(followed: Path, named: Path | None, *, is_log: bool) -> Path:
    path = named or (followed.with_name(f"{followed.name}.{FILE_NAME}") if is_log else followed / FILE_NAME)
    if path.parent.resolve() != followed.resolve() and not path.parent.is_dir():
        raise RlscopeError.of(
            path, found="no such directory", expected="an existing directory", next_step="Create it, or choose another."
        )
    return path
