"""A watch put together: rules, receivers, the state of an earlier watch, the run. Set-up fails loudly."""

from collections.abc import Callable, Iterable
from pathlib import Path

from rlscope.alerts.live import LiveRun
from rlscope.alerts.notify.apprise_service import is_installed
from rlscope.alerts.notify.couriers import Couriers
from rlscope.alerts.receiver import Receiver
from rlscope.alerts.receivers import receivers_of
from rlscope.alerts.rule import RuleSet
from rlscope.alerts.rule_source import read_source
from rlscope.alerts.rules import built_in_rules, rules_of
from rlscope.alerts.state_file import FILE_NAME, StateFile, WatchState
from rlscope.alerts.watch import Clock, Look, Outcome, SystemClock, Watch
from rlscope.errors import RlscopeError, RuleError


def watch_run(
    folder: Path,
    rules_file: Path | None,
    state_path: Path | None,
    interval_s: float,
    show: Callable[[Look], None],
    interruptions: Callable[[], int],
    note: Callable[[str], None],
    clock: Clock | None = None,
) -> Outcome:
    """Follow the run in a folder to its end. The folder may appear late.

    Raises RuleError for rules or receivers that cannot be read, RlscopeError for a secret that is not there, and for a
    file of state that is none, that another watch uses, or that has no folder.
    """
    rules, receivers = _rules_and_receivers(rules_file)
    check_ready(receivers)
    with StateFile(_state_path(folder, state_path)) as state_file:
        state = state_file.read()
        couriers = Couriers(receivers)
        if state is not None:
            _restore(couriers, state, state_file.path)
        watch = Watch(
            _followed(folder, rules, state, note),
            couriers,
            state_file=state_file,
            show=show,
            interval_s=interval_s,
            clock=clock or SystemClock(),
            worst=None if state is None else state.worst,
        )
        return watch.follow(interruptions)


def check_ready(receivers: Iterable[Receiver]) -> None:
    """Raise SecretError for a secret that is not there, RlscopeError for a library that is not installed."""
    for receiver in receivers:
        for source in (receiver.address, receiver.token):
            if source is not None:
                source.reveal()
        if receiver.kind == "apprise" and not is_installed():
            raise RlscopeError.of(
                f"receiver {receiver.name}",
                found="no apprise",
                expected="the library that sends for it",
                next_step="pip install 'rlscope[apprise]'",
            )


def _state_path(folder: Path, named: Path | None) -> Path:
    path = named or folder / FILE_NAME
    if path.parent.resolve() != folder.resolve() and not path.parent.is_dir():
        raise RlscopeError.of(
            path, found="no folder to put it in", expected="one that is there", next_step="Make it, or name another."
        )
    return path


def _rules_and_receivers(file: Path | None) -> tuple[RuleSet, tuple[Receiver, ...]]:
    if file is None:
        return built_in_rules(), ()
    source = read_source(file)
    return rules_of(source), receivers_of(source)


def _followed(folder: Path, rules: RuleSet, state: WatchState | None, note: Callable[[str], None]) -> LiveRun:
    if state is None:
        return LiveRun(folder, rules)
    try:
        return LiveRun.restored(folder, rules, state.run)
    except RuleError:
        note("the rules changed since the last watch; the run is looked at from its beginning")
        return LiveRun(folder, rules)


def _restore(couriers: Couriers, state: WatchState, path: Path) -> None:
    try:
        couriers.restore(state.receivers)
    except (KeyError, TypeError, AttributeError) as error:
        raise RlscopeError.of(
            path, found="a state with parts missing", expected="what an earlier watch wrote", next_step="Delete it."
        ) from error
