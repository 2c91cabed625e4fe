"""Follows a run that is being written: looks at new files only and evaluates each tick of the rules once."""

from collections.abc import Mapping
from pathlib import Path

from rlscope.alerts.live_view import LiveView
from rlscope.alerts.rule import RuleSet


class LiveRun:
    """A run that is followed; the folder may appear late."""

    def __init__(self, folder: Path, rules: RuleSet) -> None:
        self._folder = folder
        self._rules = rules

    @classmethod
    def restored(cls, folder: Path, rules: RuleSet, state: Mapping[str, object]) -> "LiveRun":
        """Go on from what `saved` returned, in this process or another. Raises RuleError for a state of other rules."""
        raise NotImplementedError

    def poll(self, now_ns: int) -> LiveView:
        """Look at what is new and evaluate the ticks that are due; now_ns is UTC epoch."""
        raise NotImplementedError

    def saved(self) -> dict[str, object]:
        """What `restored` needs to go on, as a JSON object; it holds no secret."""
        raise NotImplementedError
