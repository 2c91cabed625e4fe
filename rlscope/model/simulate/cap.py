"""A staleness cap that the trainer keeps: it waits before steps, and skips publications."""

from rlscope.model.simulate.fleet import Fleet
from rlscope.model.simulate.queue import GroupQueue
from rlscope.model.simulate.samples import Samples


class Cap:
    """Which groups are under way, and which publications would make one of them too old."""

    def __init__(self, max_staleness: int, samples: Samples, queue: GroupQueue, fleet: Fleet) -> None:
        self._max_staleness = max_staleness
        self._samples, self._queue, self._fleet = samples, queue, fleet
        self.open_groups: set[int] = set()
        """Groups with unfinished samples."""

    def waits_for_one(self, next_version: int) -> bool:
        """Whether a group that runs would be too old to train on once the next version is published.

        One that is finished and held back by a full queue could not arrive: it is not waited for.
        """
        running = self._oldest_running()
        return running is not None and running < next_version - self._max_staleness

    def allows(self, version: int) -> bool:
        """Whether nothing that runs, is finished, or starts on the versions that engines hold would be too old."""
        versions = (self._oldest_running(), self._queue.oldest_version(), self._fleet.oldest_version())
        return min(each for each in versions if each is not None) >= version - self._max_staleness

    def _oldest_running(self) -> int | None:
        """The oldest version in any group that is not finished; None where none has begun."""
        samples = self._samples
        versions = (
            version
            for group in self.open_groups
            for version in samples.first_version[samples.members(group)]
            if version >= 0
        )
        return min(versions, default=None)
