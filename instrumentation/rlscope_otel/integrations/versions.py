"""Maps a framework's label for a policy version to the version number of the trace.

An engine knows only a label: an optimizer step, a count of updates, any string. A label that is a whole number is the
version number; others are numbered from 1 in the order in which this process first applied them. So a trainer that can
choose the label should use the number, as the hooks of this package do, and the engine's tokens match the trainer's
publications. `None`, the empty string and vLLM's and SGLang's "default" are 0, the initial weights of the run.
"""

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
