"""The pause of an engine around a weight update: what passes before the first weights, and after the last.

The drain lasts from the pause to the first weights, whoever was waited for: requests that end, or the trainer. Weights
are in place long before generation goes on where caches are built again; that is the resumption.
"""

from rlscope_otel.recorder import Run


class Pause:
    """The last pause of one engine. Not for use by several threads at once."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._since_ns: int | None = None
        self._until_ns: int | None = None
        self._update: tuple[int, int, int] | None = None
        """Version of the last update, start of the first and end of the last."""

    def began(self, at_ns: int) -> None:
        """Generation is paused; a pause within a pause is the same one."""
        if self._since_ns is None or self._until_ns is not None:
            self._since_ns, self._until_ns, self._update = at_ns, None, None

    def ended(self, at_ns: int) -> None:
        """Generation may go on."""
        if self._since_ns is not None and self._until_ns is None:
            self._until_ns = at_ns

    def updated(self, version: int, start_ns: int, end_ns: int) -> None:
        """Weights were loaded; what was loaded outside of the pause does not count."""
        if self._since_ns is not None and start_ns >= self._since_ns:
            self._update = (version, self._update[1] if self._update else start_ns, end_ns)

    def settle(self) -> None:
        """A pass begins after the pause: record its parts, if there was an update."""
        since_ns, until_ns, update = self._since_ns, self._until_ns, self._update
        if since_ns is None or until_ns is None:
            return
        self._since_ns = self._until_ns = self._update = None
        if update is None or until_ns < update[2]:
            return
        version, start_ns, end_ns = update
        self._run.weight_update_part("drain", version).between(since_ns, start_ns)
        self._run.weight_update_part("resume", version).between(end_ns, until_ns)
