"""Maps a framework's label for a policy version to the version number of the trace.

An engine knows only a label: an optimizer step, a count of updates, any string. A label that is a whole number is the
version number; others are numbered from 1 in the order in which this process first applied them. So a trainer that can
choose the label should use the number, as the hooks of this package do, and the engine's tokens match the trainer's
publications. `None`, the empty string and vLLM's and SGLang's "default" are 0, the initial weights of the run.
"""

from collections import deque

from rlscope_otel.samples import VersionRun

INITIAL_LABELS = (None, "", "default")


class VersionNames:
    """The labels that one process has seen and the ordinal of each. Not for use by several threads at once."""

    def __init__(self) -> None:
        self._ordinals: dict[str, int] = {}
        self.latest = 0
        """The ordinal of the label that was taken into use last."""

    def ordinal_of(self, label: object) -> int:
        """The ordinal of a label; an unseen one that is not a number is the next."""
        if label in INITIAL_LABELS:
            return 0
        text = str(label)
        if text.isdecimal():
            return int(text)
        return self._ordinals.setdefault(text, max(self.latest, *self._ordinals.values(), 0) + 1)

    def applied(self, label: object) -> int:
        """The engine took a label into use: its ordinal, which is now the latest."""
        self.latest = self.ordinal_of(label)
        return self.latest


# Estimates which version sampled which token, from the times of the request and of the version changes (`time_join`).
#
# It assumes that the tokens of a request are evenly spaced from its start to its end, which is wrong while the
# request waits in the engine or is paused, and that a version changes when the change is first observed.


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
