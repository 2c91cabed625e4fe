"""Which policy version an engine held during which of its passes."""

from bisect import bisect_right
from collections.abc import Iterable

from .requests import VersionRun


class VersionLog:
    """Versions in the order in which the engine took them, each with the first pass that it sampled."""

    def __init__(self) -> None:
        self._first_passes = [0]
        self._versions = [0]

    @property
    def version(self) -> int:
        """The one held now."""
        return self._versions[-1]

    def take(self, first_pass: int, version: int) -> None:
        """From that pass on the engine samples with that version."""
        self._first_passes.append(first_pass)
        self._versions.append(version)

    def runs_of(self, stints: Iterable[tuple[int, int]]) -> list[VersionRun]:
        """The versions of a request's tokens, one token for each pass of its stints; neighbors that agree are one."""
        runs: list[VersionRun] = []
        token = 0
        for first, after in stints:
            place = bisect_right(self._first_passes, first) - 1
            while first < after:
                is_last = place + 1 == len(self._versions)
                end = after if is_last else min(after, self._first_passes[place + 1])
                token = _extend(runs, self._versions[place], token, end - first)
                first, place = end, place + 1
        return runs


def _extend(runs: list[VersionRun], version: int, token: int, count: int) -> int:
    """Append tokens of one version; returns how many tokens there are then."""
    if count > 0:
        start = runs.pop().start if runs and runs[-1].version == version else token
        runs.append(VersionRun(version, start, token + count))
    return token + count
