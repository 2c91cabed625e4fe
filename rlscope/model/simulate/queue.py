"""The queue to the trainer, the limits on starting groups, and the engines that idle for them. Counts in groups.

A group is in flight from its start until it is dropped or filtered, or until the trainer takes it, or, if the limit
counts that too, until the trainer has trained on it. If the staleness cap is kept by admission, groups start only up to
(version + max_staleness + 1) steps' worth, minus those dropped or filtered: the rule of AReaL (Fu et al. 2025), which a
sample overtaken by shorter ones can exceed.
"""

from heapq import heapify, heappop, heappush
from typing import Literal, get_args

from rlscope.model.policies import QueueOrder
from rlscope.model.simulate.samples import DROPPED, NEVER, QUEUED, Samples
from rlscope.model.system import Admission, Workload

Hold = Literal["backpressure", "staleness_cap"]
"""Limit that keeps a group from starting."""
IdleReason = Literal["backpressure", "staleness_cap", "environment"]
"""Wait reason of a trace. backpressure: the queue is full, or the trainer is behind. staleness_cap: a limit on samples
in flight. environment: samples outside hold places."""


class GroupQueue:
    """The groups in the queue, and those that wait for room in it."""

    def __init__(
        self, admission: Admission, order: QueueOrder, samples: Samples, *, held_by_engines: bool = False
    ) -> None:
        """Create an empty queue. held_by_engines: a held group enters on `release`, not as soon as there is room."""
        self._samples, self._oldest_first = samples, order == "oldest_first"
        self._newest_first = order == "lifo"
        self._held_by_engines = held_by_engines
        capacity = admission.queue_capacity_samples
        self._capacity = None if capacity is None else capacity // samples.group_size
        self._drops_oldest = admission.queue_policy == "drop_oldest"
        self._most_stale = admission.max_staleness if admission.staleness_policy == "drop" else None
        self._queued: list[tuple[int, int, int]] = []
        """(rank, arrival, group): the smallest is taken next."""
        self._held: list[int] = []
        self._arrivals = 0
        self.dropped = 0
        """Groups dropped so far."""
        self.depth_integral = 0.0
        """Queued groups, integrated over time."""
        self._since_s = 0.0

    def __len__(self) -> int:
        return len(self._queued)

    @property
    def has_room(self) -> bool:
        """Whether the queue takes one more group, even if that pushes another out."""
        return self._capacity is None or self._drops_oldest or len(self._queued) < self._capacity

    def oldest_version(self) -> int | None:
        """Version of the oldest token of any finished group; None without one."""
        groups = [group for _, _, group in self._queued] + self._held
        return min((self._samples.group_first_version[group] for group in groups), default=None)

    def oldest_held_version(self) -> int | None:
        """Version of the oldest token of any group that is held back; None without one."""
        return min((self._samples.group_first_version[group] for group in self._held), default=None)

    def hold_back(self, group: int) -> None:
        """Hold back a finished group, which its engine keeps for now."""
        self._samples.group_outcome[group] = QUEUED
        self._held.append(group)

    def release(self, group: int, version: int, now_s: float) -> None:
        """Offer a group that its engine held back."""
        self._held.remove(group)
        self.offer(group, version, now_s)

    def offer(self, group: int, version: int, now_s: float) -> None:
        """Offer a group that finished while `version` is the last one published."""
        self._samples.group_outcome[group] = QUEUED
        if self._is_stale(group, version):
            self._drop(group, now_s)
        elif not self.has_room:
            self._held.append(group)
        else:
            if self._drops_oldest and len(self._queued) == self._capacity:
                self._drop(self._pop_oldest(now_s), now_s)
            self._push(group, now_s)

    def drop_stale(self, version: int, now_s: float) -> None:
        """Drop groups that are too stale now that `version` is published."""
        if self._most_stale is None:
            return
        kept = [entry for entry in self._queued if not self._is_stale(entry[2], version)]
        for entry in self._queued:
            if self._is_stale(entry[2], version):
                self._drop(entry[2], now_s)
        heapify(kept)
        self.note_depth(now_s)
        self._queued = kept
        if not self._held_by_engines:
            held, self._held = self._held, []
            for group in held:
                self.offer(group, version, now_s)

    def take(self, count: int, now_s: float) -> list[int]:
        """Take the groups of a batch, in order; held groups move up, unless engines hold them."""
        taken = [self._pop(now_s) for _ in range(count)]
        for group in taken:
            self._samples.group_left_s[group] = now_s
        while self._held and self.has_room and not self._held_by_engines:
            self._push(self._held.pop(0), now_s)
        return taken

    def note_depth(self, now_s: float) -> None:
        """Update the integral of the depth."""
        self.depth_integral += len(self._queued) * (now_s - self._since_s)
        self._since_s = now_s

    def _is_stale(self, group: int, version: int) -> bool:
        return self._most_stale is not None and version - self._samples.group_first_version[group] > self._most_stale

    def _drop(self, group: int, now_s: float) -> None:
        self._samples.group_outcome[group] = DROPPED
        self._samples.group_left_s[group] = now_s
        self.dropped += 1

    def _push(self, group: int, now_s: float) -> None:
        self.note_depth(now_s)
        rank = self._samples.group_first_version[group] if self._oldest_first else NEVER
        arrival = -self._arrivals if self._newest_first else self._arrivals
        heappush(self._queued, (rank, arrival, group))
        self._arrivals += 1

    def _pop(self, now_s: float) -> int:
        self.note_depth(now_s)
        return heappop(self._queued)[2]

    def _pop_oldest(self, now_s: float) -> int:
        """Remove the group that a full queue loses: the head, or the other end if the newest are taken first."""
        if not self._newest_first:
            return self._pop(now_s)
        self.note_depth(now_s)
        oldest = max(self._queued)
        self._queued.remove(oldest)
        heapify(self._queued)
        return oldest[2]


class Gate:
    """Limits on starting groups. Counts in groups."""

    def __init__(self, admission: Admission, workload: Workload, queue: GroupQueue) -> None:
        self._queue = queue
        self._samples_per_step, self._group_size = workload.samples_per_step, workload.unit_samples
        self._batches_per_version = workload.batches_per_version
        in_flight = admission.max_in_flight_samples
        self._most_in_flight = None if in_flight is None else in_flight // self._group_size
        self._counts_training = admission.in_flight_until_trained
        self._max_versions_ahead = admission.max_staleness if admission.staleness_policy == "admission" else None
        self.started = 0
        self.taken = 0
        self.trained = 0
        """Taken groups whose step has ended."""
        self.filtered = 0
        self.version = 0
        """Newest version that samplers have been offered."""

    @property
    def out_of_flight(self) -> int:
        """Groups that the in-flight cap no longer counts, besides those dropped or filtered."""
        return self.trained if self._counts_training else self.taken

    def groups_of(self, batch: int) -> int:
        """Groups of a batch, the first being 1. If a batch is no whole number of groups, they average to it."""
        return self._groups_until(batch) - self._groups_until(batch - 1)

    def hold(self) -> Hold | None:
        """Limit that keeps the next group from starting; None if it may start.

        A limit on samples in flight that binds while a whole batch is queued costs nothing: the trainer is behind, and
        that is backpressure.
        """
        queue = self._queue
        if not queue.has_room:
            return "backpressure"
        started = self.started - self.filtered - queue.dropped + 1
        is_held = self._most_in_flight is not None and started - self.out_of_flight > self._most_in_flight
        if self._max_versions_ahead is not None and not is_held:
            allowed_versions = self.version + self._max_versions_ahead + 1
            is_held = started > self._groups_until(allowed_versions * self._batches_per_version)
        if not is_held:
            return None
        queued = len(queue) * self._group_size * self._batches_per_version
        return "backpressure" if queued >= self._samples_per_step else "staleness_cap"

    def _groups_until(self, batch: int) -> int:
        return batch * self._samples_per_step // (self._group_size * self._batches_per_version)


class IdleEngines:
    """Time of engines without a request, with one cause at a time for all: the limits belong to the run."""

    def __init__(self) -> None:
        self.engines = 0
        """Idle engines since the last note."""
        self._cause: IdleReason = "backpressure"
        self._since_s = 0.0
        self._idle_s: dict[IdleReason, float] = dict.fromkeys(get_args(IdleReason), 0.0)

    def note(self, now_s: float, engines: int, cause: IdleReason) -> None:
        """Set the number of idle engines from now on."""
        self._idle_s[self._cause] += self.engines * (now_s - self._since_s)
        self.engines, self._cause, self._since_s = engines, cause, now_s

    def idle_s_until(self, now_s: float) -> dict[IdleReason, float]:
        """Engine-seconds by cause up to a time that is not before the last note."""
        self.note(now_s, self.engines, self._cause)
        return dict(self._idle_s)
