"""What went wrong inside our own hooks: counted, and said once. Nothing here raises into the run.

`logging` and not `warnings`: a host that turns warnings into errors must not be stopped by its observer.
"""

import logging

_logger = logging.getLogger("rlscope_otel")


class Faults:
    """Counts faults by kind and logs the first of each kind as one warning."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def note(self, kind: str, what: object) -> None:
        """Count a fault; the first of its kind is logged, with what comes of it."""
        seen = self.counts.get(kind, 0)
        self.counts[kind] = seen + 1
        if not seen:
            _logger.warning("rlscope: %s: %s (the run goes on; said once, counted after that)", kind, what)
