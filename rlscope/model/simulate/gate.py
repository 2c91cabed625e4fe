"""Who may start: the limits on what is in flight, and the name of the one that binds.

A group is in flight from its start until the trainer takes it, or until it is dropped or filtered. With
`max_staleness` and without dropping by age, groups start only up to (version + max_staleness + 1) steps' worth, less
what was thrown away: the rule of AReaL (Fu et al. 2025), which a sample overtaken by shorter ones can exceed.
"""

from typing import Literal

from rlscope.model.simulate.queue import GroupQueue
from rlscope.model.simulate.settings import Publication
from rlscope.model.system import Admission

Hold = Literal["backpressure", "staleness_cap"]


class Gate:
    """Counts in groups."""

    def __init__(
        self, admission: Admission, publication: Publication, samples_per_step: int, group_size: int, queue: GroupQueue
    ) -> None:
        self._queue = queue
        self._samples_per_step, self._group_size = samples_per_step, group_size
        in_flight = admission.max_in_flight_samples
        self._most_in_flight = None if in_flight is None else in_flight // group_size
        admits_by_age = admission.queue_policy != "drop_by_age" and publication != "capped"
        self._most_ahead = admission.max_staleness if admits_by_age else None
        self.is_always_open = self._most_in_flight is None and self._most_ahead is None and queue.always_has_room
        """Whether nothing ever holds."""
        self.started = 0
        self.taken = 0
        self.filtered = 0
        self.version = 0
        """The newest one that samplers have been offered."""

    def groups_of(self, step: int) -> int:
        """Groups that a step trains on, the first being 1: where a step is no whole number of groups, the mean is."""
        return self._groups_until(step) - self._groups_until(step - 1)

    def hold(self) -> Hold | None:
        """What keeps the next group from starting; None where it may.

        A limit on what is in flight that binds while a whole step's worth is queued costs nothing: the trainer is
        behind, and that is backpressure.
        """
        queue = self._queue
        if not queue.has_room:
            return "backpressure"
        started = self.started - self.filtered - queue.dropped + 1
        is_held = self._most_in_flight is not None and started - self.taken > self._most_in_flight
        if self._most_ahead is not None and not is_held:
            is_held = started > self._groups_until(self.version + self._most_ahead + 1)
        if not is_held:
            return None
        return "backpressure" if len(queue) * self._group_size >= self._samples_per_step else "staleness_cap"

    def _groups_until(self, step: int) -> int:
        return step * self._samples_per_step // self._group_size
