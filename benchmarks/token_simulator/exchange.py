"""Between engines and trainers: the queue of finished groups, who may start and who may queue, the version published.

The rules are those of `examples/pipeline_rl`, written anew:
- a group starts only when the queue has room for it, when the samples in flight stay under their limit, and with the
  policy `admission` when `started <= (version + max_staleness + 1) * samples_per_version`, where what was thrown away
  does not count as started;
- a full queue makes engines wait, or loses its oldest group;
- whoever stands still looks again whenever something changes.

What is called a group here is what is started, queued and taken as one: with `delivery="sample"`, one sample.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from .agenda import Agenda
from .requests import Group
from .world import QueueOrder, World

_ORDERS: Final[Mapping[QueueOrder, Callable[[Group], tuple[float, ...]]]] = {
    "oldest_first": lambda group: (group.oldest_version, group.queued_s),
    "fifo": lambda group: (group.queued_s,),
    "lifo": lambda group: (-group.queued_s,),
}


class Exchange:
    """Shared state of one run."""

    def __init__(self, world: World, agenda: Agenda) -> None:
        self._limits, self._rollouts, self._agenda = world.limits, world.rollouts, agenda
        self._samples_per_version = world.rollouts.samples_per_step * world.training.steps_per_version
        self.queue: list[Group] = []
        self.version = 0
        """Last version published."""
        self.admitted_samples = 0
        self.taken_samples = 0
        self.trained_samples = 0
        """Of those taken: trained on, or thrown away."""
        self.discarded_samples = 0
        self.generating: Counter[int] = Counter()
        """Groups that still generate, by the version that they were admitted under."""
        self.unqueued: Counter[int] = Counter()
        """Groups that are started and not yet in the queue, likewise."""
        self.onlookers: list[Callable[[float], None]] = []
        """Called after every change."""
        self.on_eviction: Callable[[Group], None] = lambda _group: None
        self._is_told = False

    @property
    def depth_samples(self) -> int:
        """Samples in the queue."""
        return len(self.queue) * self._rollouts.unit_samples

    def has_room(self) -> bool:
        """Whether the queue takes a group more without losing one or making its engine wait."""
        capacity = self._limits.queue_capacity_samples
        return capacity is None or self.depth_samples + self._rollouts.unit_samples <= capacity

    def blocked_by(self, engine_version: int) -> str | None:
        """Why an engine that holds that version may not start a group, as a wait reason; None when it may."""
        if self._limits.full_queue == "wait" and not self.has_room():
            return "backpressure"
        if self._is_within_limits(engine_version):
            return None
        return "staleness_cap" if self.depth_samples < self._rollouts.samples_per_step else "backpressure"

    def admit(self, group: Group, engine_version: int) -> None:
        """Count the group as started."""
        group.admitted_version = engine_version
        self.admitted_samples += self._rollouts.unit_samples
        self.generating[engine_version] += 1
        self.unqueued[engine_version] += 1

    def finished(self, now_s: float, group: Group) -> None:
        """The group generates no more; it is not in the queue yet."""
        self.generating[group.admitted_version] -= 1
        self.announce(now_s)

    def try_queue(self, now_s: float, group: Group) -> bool:
        """Put the group into the queue; False when it has to wait for room."""
        if not self.has_room():
            if self._limits.full_queue == "wait":
                return False
            self._evict_oldest(now_s)
        group.queued_s = now_s
        self.queue.append(group)
        self.unqueued[group.admitted_version] -= 1
        self.announce(now_s)
        return True

    def take(self, now_s: float, count: int) -> list[Group]:
        """Remove up to `count` groups in the queue's order."""
        self.queue.sort(key=_ORDERS[self._limits.queue_order])
        taken, self.queue = self.queue[:count], self.queue[count:]
        self._note_taken(now_s, taken)
        return taken

    def take_older_than(self, now_s: float, version: int) -> list[Group]:
        """Remove every group that holds a token from before that version."""
        taken = [group for group in self.queue if group.oldest_version < version]
        if taken:
            self.queue = [group for group in self.queue if group.oldest_version >= version]
            self._note_taken(now_s, taken)
        return taken

    def discard(self, group: Group) -> None:
        """A group that was taken is not trained on."""
        self.discarded_samples += len(group.requests)
        self.trained_samples += len(group.requests)

    def trained(self, now_s: float, groups: Sequence[Group]) -> None:
        """The step of groups that were taken has ended."""
        self.trained_samples += sum(len(group.requests) for group in groups)
        self.announce(now_s)

    def oldest_generating(self) -> int | None:
        """Oldest version under which a group that still generates was admitted."""
        return min((version for version, count in self.generating.items() if count), default=None)

    def oldest_unqueued(self) -> int | None:
        """Likewise of all groups that are not yet in the queue."""
        return min((version for version, count in self.unqueued.items() if count), default=None)

    def announce(self, now_s: float) -> None:
        """Have every onlooker look, once all that happens at this instant has happened."""
        if not self._is_told:
            self._is_told = True
            self._agenda.schedule(now_s, self._tell)

    def _tell(self, now_s: float) -> None:
        self._is_told = False
        for look in self.onlookers:
            look(now_s)

    def _is_within_limits(self, engine_version: int) -> bool:
        admitted = self.admitted_samples + self._rollouts.unit_samples
        most = self._limits.max_in_flight_samples
        left = self.trained_samples if self._limits.in_flight_until_trained else self.taken_samples
        if most is not None and admitted - left > most:
            return False
        if self._limits.staleness_policy != "admission" or self._limits.max_staleness is None:
            return True
        publications = engine_version + self._limits.max_staleness + 1
        return admitted <= publications * self._samples_per_version + self.discarded_samples

    def _note_taken(self, now_s: float, groups: Sequence[Group]) -> None:
        self.taken_samples += len(groups) * self._rollouts.unit_samples
        for group in groups:
            group.taken_s = now_s
        if groups:
            self.announce(now_s)

    def _evict_oldest(self, now_s: float) -> None:
        self.queue.sort(key=_ORDERS["oldest_first"])
        evicted, self.queue = self.queue[:1], self.queue[1:]
        self._note_taken(now_s, evicted)
        for group in evicted:
            self.on_eviction(group)
