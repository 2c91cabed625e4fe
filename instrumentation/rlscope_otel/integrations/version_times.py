"""Estimates which version sampled which token, from the times of the request and of the version changes (`time_join`).

It assumes that the tokens of a request are evenly spaced from its start to its end, which is wrong while the request
waits in the engine or is paused, and that a version changes when the change is first observed.
"""

from collections import deque

from rlscope_otel.samples import VersionRun

_MOST_CHANGES = 4096


class VersionTimes:
    """The changes of version that a process has seen, oldest first; the oldest of very many are forgotten."""

    def __init__(self) -> None:
        self._changes: deque[tuple[int, int]] = deque(maxlen=_MOST_CHANGES)

    def note(self, seen_ns: int, version: int) -> None:
        """The version is this one, as seen now; call in the order of time."""
        if not self._changes or self._changes[-1][1] != version:
            self._changes.append((seen_ns, version))

    def runs(self, start_ns: int, end_ns: int, tokens: int) -> list[VersionRun]:
        """The versions of a request's tokens; none without tokens, or before any version was seen."""
        if not self._changes or tokens <= 0:
            return []
        version, begin = self._changes[0][1], 0
        runs: list[VersionRun] = []
        for change_ns, next_version in self._changes:
            before = _tokens_before(change_ns, start_ns, end_ns, tokens)
            if before > begin:
                runs.append((version, begin, before))
                begin = before
            version = next_version
        return [*runs, (version, begin, tokens)] if begin < tokens else runs


def _tokens_before(change_ns: int, start_ns: int, end_ns: int, tokens: int) -> int:
    """Return the number of tokens before change_ns, if tokens are evenly spaced and the last one comes at end_ns."""
    if change_ns <= start_ns:
        return 0
    if change_ns > end_ns:
        return tokens
    # Token i, from 1, comes at start + i / tokens of the time: strictly before the change, so that one at it is new.
    return (tokens * (change_ns - start_ns) - 1) // (end_ns - start_ns)
