"""A staleness cap that the trainer keeps: it waits before steps, and skips publications."""

from rlscope.model.simulate.fleet import Fleet
from rlscope.model.simulate.queue import GroupQueue
from rlscope.model.simulate.samples import NEVER, Samples


class Cap:
    """Which groups are under way, and which publications would make one of them too old."""

    def __init__(self, max_staleness: int, samples: Samples, queue: GroupQueue, fleet: Fleet) -> None:
        self._max_staleness = max_staleness
        self._samples, self._queue, self._fleet = samples, queue, fleet
        self.open_groups: set[int] = set()
        """Groups with unfinished samples."""
        self._oldest_version = self._oldest_group = NEVER

    def waits_for_one(self, next_version: int) -> bool:
        """Whether a group on its way would be too old to train on once the next version is published.

        One that is finished and held back by a full queue could not arrive: it is not waited for.
        """
        versions = [self._oldest_running(), self._queue.oldest_held_version() if self._queue.has_room else None]
        return any(version is not None and version < next_version - self._max_staleness for version in versions)

    def allows(self, version: int) -> bool:
        """Whether nothing that runs, is finished, or starts on the versions that engines hold would be too old."""
        versions = (self._oldest_running(), self._queue.oldest_version(), self._fleet.oldest_version())
        return min(each for each in versions if each is not None) >= version - self._max_staleness

    def _oldest_running(self) -> int | None:
        """The oldest version in any group that is not finished; None where none has begun."""
        if self._oldest_group in self.open_groups:
            return self._oldest_version
        oldest = min(
            ((version, group) for group in self.open_groups if (version := self._version_of(group)) is not None),
            default=None,
        )
        # As long as this group runs nothing older can start, unless an engine still holds an older version.
        if oldest is not None and oldest[0] <= self._fleet.oldest_version():
            self._oldest_version, self._oldest_group = oldest
        return None if oldest is None else oldest[0]

    def _version_of(self, group: int) -> int | None:
        samples = self._samples
        versions = samples.first_version[samples.members(group)]
        return min((version for version in versions if version != NEVER), default=None)
