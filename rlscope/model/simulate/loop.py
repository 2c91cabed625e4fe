"""The event loop: engines, groups, the queue and the trainer, from one change to the next.

A step is everything that makes a version: if trainers take several batches for one version, the step ends with the last
of them. Everything in a simulated run happens at one of four kinds of moment: an engine's boundary, a sample's return
from its environment, the end of a training step, and the end of a publication. A version counts as published when its
step ends; the engines are offered it `delay_s` later. A sample waits for its environment once, between two of its
tokens, and for its client after its last one. Not covered: passes whose time varies, engines or trainers that fail,
samples that are aborted and resumed elsewhere.

The module also sets the initial state of a simulated run: its engines' terms, and the number of samples that start at
once. The rest of the model calls only `simulate`.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from heapq import heappop, heappush
from typing import Final, Literal

import numpy as np

from rlscope.model.hardware.kv_cache import steady_kv_load
from rlscope.model.policies import QueueOrder
from rlscope.model.simulate.dispatch import Cap, EngineFleet, Pull, Router
from rlscope.model.simulate.engine import EngineTerms
from rlscope.model.simulate.queue import Gate, GroupQueue, IdleEngines, IdleReason
from rlscope.model.simulate.results import NeverTrains, RunningSums, Simulated, summarize
from rlscope.model.simulate.samples import FILTERED, NEVER, TRAINED, Draws, Samples
from rlscope.model.simulate.settings import DEFAULTS, MOST_PLACES, Settings, refuse_what_can_not_run
from rlscope.model.simulate.trainer import SimulatedTrainer
from rlscope.model.system import Layout, System

Moment = Literal["step_end", "offer", "free"]

_LONGEST_WAITS_STEPS: Final = 100
"""Steps' worth of samples that may finish while the trainer waits, per step so far; beyond that, hardly any is trained.
"""
_WARM_UP_RATIO: Final = 0.2
_WARM_UP_FILLS: Final = 2
"""Number of times that everything in flight is replaced before the run counts as steady."""
_UNLIMITED_QUEUE_STEPS: Final = 1
"""Steps' worth of samples that an unlimited queue is assumed to hold in steady state."""


def simulate(
    system: System,
    layout: Layout,
    *,
    steps: int,
    seed: int,
    warm_up_steps: int | None = None,
    settings: Settings = DEFAULTS,
) -> Simulated:
    """Simulate `steps` training steps of a layout and measure everything after the warm-up.

    The run starts spread out, as if its first requests had been running for a while. warm_up_steps: None leaves out the
    first fifth, and at least the steps that replace everything in flight twice, but never more than half; then as many
    as leave whole periods of the trainers' rarest phase. The same arguments give the same result. Raises ValueError if
    the limits let no step start (the message names the limit), for fewer than 2 steps, or if nothing remains after the
    warm-up. Raises NeverTrains if fewer than about one sample in a hundred is trained of those that finish while the
    trainer waits for samples.
    """
    system, layout = _in_short_periods(system, steps), _within_cap(system, layout)
    refuse_what_can_not_run(system, layout, settings)
    run = EventLoop(system, layout, settings, np.random.default_rng(seed))
    warm_up = _default_warm_up(system, layout, steps) if warm_up_steps is None else warm_up_steps
    if steps < 2 or not 0 <= warm_up < steps:
        raise ValueError(f"{steps} steps leave nothing to measure after a warm-up of {warm_up}")
    return summarize(run.samples, run.play(warm_up), run.play(steps), run.step_ends_s, system.trainer)


def _in_short_periods(system: System, steps: int) -> System:
    """Turn rare phases of the trainers into shorter ones that occur at least twice in half of the steps."""
    most = max(1, steps // 4)
    phases = tuple(replace(each, every_steps=min(each.every_steps, most)) for each in system.trainer.phases)
    return replace(system, trainer=replace(system.trainer, phases=phases))


def _within_cap(system: System, layout: Layout) -> Layout:
    """Turn a cap on running samples over all engines into each one's share: a router fills the engines alike.

    No run has more than MOST_PLACES, so that a higher limit holds nothing back.
    """
    most = min(system.admission.max_running_samples or MOST_PLACES, MOST_PLACES)
    share = max(1, round(most / max(1, layout.sampler_gpus // system.engine.gpus)))
    return replace(layout, max_running=min(layout.max_running, share))


def _default_warm_up(system: System, layout: Layout, steps: int) -> int:
    """Steps to leave out, by the rule in `simulate`."""
    admission, batch = system.admission, system.workload.samples_per_step
    queued = admission.queue_capacity_samples or _UNLIMITED_QUEUE_STEPS * batch
    in_flight = (samples_at_start(system, layout) + queued) / batch
    fill = math.ceil(_WARM_UP_FILLS * (in_flight + system.workload.prefetched_batches))
    measured = steps - min(max(fill, round(_WARM_UP_RATIO * steps)), steps // 2)
    period = max((phase.every_steps for phase in system.trainer.phases), default=1)
    return steps - measured // period * period


def engine_terms(system: System, layout: Layout, settings: Settings) -> tuple[EngineTerms, ...]:
    """Return the terms of every engine of the layout."""
    engine, update = system.engine, system.update
    running = min(layout.max_running, engine.max_running)
    empty_pass_s = np.append(0.0, engine.curve.pass_s(np.arange(1.0, running + 1)))
    prefill_s = 1.0 / engine.prefill_tokens_per_s if engine.prefill_tokens_per_s else 0.0
    capacity_tokens = math.inf if engine.kv_capacity_tokens is None else engine.kv_capacity_tokens
    # A cache that holds as many of the longest requests as can run at once is no limit, and need not be watched.
    longest_tokens = system.workload.prompt_tokens + math.ceil(system.workload.lengths.max_tokens)
    is_limit = running * longest_tokens > capacity_tokens
    return tuple(
        EngineTerms(
            empty_pass_s=tuple((slowness * empty_pass_s).tolist()),
            kv_s_per_token=slowness * engine.curve.kv_s_per_token,
            max_running=running,
            kv_capacity_tokens=capacity_tokens if is_limit else math.inf,
            prompt_tokens=system.workload.prompt_tokens,
            prefill_s_per_token=slowness * prefill_s,
            prefill_pass_s=slowness * engine.prefill_pass_s,
            pause_s=update.engine_pause_s,
            kv_kept=update.kv_kept,
            away_place_held=system.workload.environment_place_held,
            away_kv_held=system.workload.environment_kv_held,
            away_kv_voided=system.workload.environment_kv_voided and not update.kv_kept,
        )
        for slowness in settings.engine_slowness or (1.0,) * (layout.sampler_gpus // engine.gpus)
    )


def samples_at_start(system: System, layout: Layout) -> int:
    """Samples that start at once: as many as the places, the cache and the limits on samples in flight allow."""
    workload, admission = system.workload, system.admission
    limits = [layout.sampler_gpus // system.engine.gpus * round(min(layout.max_running, _cached_samples(system)))]
    if admission.max_in_flight_samples is not None:
        limits.append(admission.max_in_flight_samples)
    if admission.max_staleness is not None and admission.staleness_policy != "drop":
        limits.append((admission.max_staleness + 1) * workload.samples_per_step)
    return min(limits)


def _cached_samples(system: System) -> float:
    """Mean number of running requests of an engine whose cache is full; infinite if its capacity is unknown."""
    capacity_tokens, workload = system.engine.kv_capacity_tokens, system.workload
    if capacity_tokens is None:
        return math.inf
    return max(1.0, capacity_tokens / steady_kv_load(workload.prompt_tokens, workload.lengths).mean_tokens)


class EventLoop:
    """A simulated run between two moments."""

    def __init__(self, system: System, layout: Layout, settings: Settings, rng: np.random.Generator) -> None:
        workload, admission = system.workload, system.admission
        capped = admission.staleness_policy == "publication_waits"
        waits_for_queued = capped and admission.waits_for_queued
        self._system = system
        terms = engine_terms(system, layout, settings)
        self._leave_engines = self._go_outside if workload.environment_s else self._finish
        draws = self._draws = Draws(workload, samples_at_start(system, layout), settings.step_noise, rng)
        self.samples = Samples(draws, workload.unit_samples)
        self.fleet = EngineFleet(terms, layout.max_running, self.samples)
        pulls = settings.dispatch == "pulled"
        order: QueueOrder = "oldest_first" if waits_for_queued else settings.queue_order
        self.queue = GroupQueue(admission, order, self.samples, held_by_engines=pulls)
        self.gate = Gate(admission, workload, self.queue)
        starts = self.fleet, self.gate, self.queue, self._start_group
        self._starter = Pull(*starts, self.samples, self._note_queued) if pulls else Router(*starts)
        watched = self.queue if waits_for_queued else None
        self._cap = Cap(admission.max_staleness or 0, self.samples, watched, self.fleet) if capped else None
        self._takes_as_they_come = settings.dequeue == "as_they_come"
        self._filters_taken = settings.filters_taken
        self.trainer = SimulatedTrainer(system, layout.trainer_gpus, draws.step_factor)
        self.idle = IdleEngines()
        self.version = 0
        self.step_ends_s: list[float] = []
        self._needed_groups = self.gate.groups_of(1)
        """Groups of the next batch."""
        self._prefetched_groups = round(workload.prefetched_batches * workload.samples_per_step / workload.unit_samples)
        """Groups held besides those of the next batch when its step starts."""
        self._taken: list[int] = []
        """Groups taken out of the queue and not yet trained on."""
        self._batch: list[int] = []
        self._outside: list[tuple[float, int]] = []
        """Heap of (return, sample) for samples in the environment or with the client; ~sample once the sample is
        delivered."""
        self._moments: list[tuple[float, int, Moment, int]] = []
        self._moments_made = 0
        self._horizon_s = math.inf
        """Time of the next event other than a boundary."""
        self._groups_of_waits = 0
        """Groups that finished while the trainer waited for samples."""
        self._starter.fill(0, 0.0)
        self._note_idle(0.0)

    def play(self, steps: int) -> RunningSums:
        """Continue until `steps` steps have ended, and return the totals at that moment."""
        while len(self.step_ends_s) < steps:
            self._next()
        now_s = self.step_ends_s[-1] if steps else 0.0
        self.queue.note_depth(now_s)
        return RunningSums(
            now_s=now_s,
            steps=steps,
            version=self.version,
            engines=tuple(engine.totals_at(now_s) for engine in self.fleet.engines),
            switches=tuple(tuple(engine.switches) for engine in self.fleet.engines),
            idle_s=self.idle.idle_s_until(now_s),
            trainer=replace(self.trainer.totals),
            queue_group_s=self.queue.depth_integral,
        )

    def _next(self) -> None:
        fleet, now_s = self.fleet, self.fleet.next_boundary_s()
        if now_s < self._horizon_s:
            self._leave_engines(fleet.reach_boundary(), now_s)
            if fleet.paused:
                self._pause(now_s)
            self._starter.fill(self.version, now_s)
            fleet.leave_boundary(now_s)
        else:
            now_s = self._horizon_s
            self._reach_horizon(now_s)
        if fleet.idle_engines or self.idle.engines:
            self._note_idle(now_s)

    def _reach_horizon(self, now_s: float) -> None:
        if self._moments and self._moments[0][0] == now_s:
            self._reach_moment(now_s)
        else:
            self._return(heappop(self._outside)[1], now_s)
        self._starter.fill(self.version, now_s)
        moment_s = self._moments[0][0] if self._moments else math.inf
        self._horizon_s = min(moment_s, self._outside[0][0]) if self._outside else moment_s

    def _pause(self, now_s: float) -> None:
        """Send away samples that left their engine between two tokens."""
        pause_s = self.samples.pause_s
        for sample in self.fleet.paused:
            self._come_back_at(now_s + pause_s[sample], sample)
            pause_s[sample] = 0.0

    def _return(self, sample: int, now_s: float) -> None:
        """Return a sample: it continues, or is delivered.

        A value below 0 means that the client of a delivered sample is back for another.
        """
        if sample < 0:
            self._starter.come_back(~sample)
        elif self.samples.finished_s[sample] == NEVER:
            self.fleet.come_back(sample)
        else:
            self._deliver(sample, now_s)

    def _go_outside(self, samples: Sequence[int], now_s: float) -> None:
        """Send samples outside after the last token; samples without a wait between two tokens also wait here."""
        delivery_s, pause_s = self._draws.delivery_s, self.samples.pause_s
        for sample in samples:
            wait_s = delivery_s + pause_s[sample] if pause_s else delivery_s
            if not wait_s and not self._draws.client_s:
                self._finish((sample,), now_s)
                continue
            self._starter.go_outside(sample)
            if wait_s:
                self._come_back_at(now_s + wait_s, sample)
            else:
                self._deliver(sample, now_s)

    def _deliver(self, sample: int, now_s: float) -> None:
        if self._draws.client_s:
            self._come_back_at(now_s + self._draws.client_s, ~sample)
            self.fleet.call(self.samples.engine[sample])
        else:
            self._starter.come_back(sample)
        self._finish((sample,), now_s)

    def _come_back_at(self, back_s: float, sample: int) -> None:
        heappush(self._outside, (back_s, sample))
        self._horizon_s = min(self._horizon_s, back_s)

    def _finish(self, samples: Sequence[int], now_s: float) -> None:
        unfinished, group_size = self.samples.group_unfinished, self.samples.group_size
        for sample in samples:
            group = sample // group_size
            unfinished[group] -= 1
            if not unfinished[group]:
                self._finish_group(group, now_s)

    def _finish_group(self, group: int, now_s: float) -> None:
        samples = self.samples
        if self._cap is not None:
            self._cap.open_groups.discard(group)
        samples.group_first_version[group] = min(samples.first_version[samples.members(group)])
        self._groups_of_waits += self.trainer.waits_for == "samples"
        if samples.group_is_kept[group] or self._filters_taken:
            self._starter.finish(group, self.version, now_s)
        else:
            self._filter(group, now_s)
        self._note_queued(now_s)

    def _filter(self, group: int, now_s: float) -> None:
        self.samples.group_outcome[group] = FILTERED
        self.samples.group_left_s[group] = now_s
        self.gate.filtered += 1

    def _note_queued(self, now_s: float) -> None:
        if self.trainer.waits_for is not None:
            self._try_step(now_s)

    def _start_group(self) -> range:
        self.gate.started += 1
        if self._cap is not None:
            self._cap.open_groups.add(self.samples.groups_started)
        return self.samples.start_group()

    def _note_idle(self, now_s: float) -> None:
        cause: IdleReason = self._starter.hold if self._starter.empty_places else "environment"
        self.idle.note(now_s, self.fleet.idle_engines, cause)

    def _reach_moment(self, now_s: float) -> None:
        _, _, moment, version = heappop(self._moments)
        if moment == "step_end":
            self._end_step(now_s)
        elif moment == "offer":
            self.gate.version = version
            self.fleet.publish(version, now_s)
        else:
            self._try_step(now_s)

    def _plan(self, at_s: float, moment: Moment, version: int) -> None:
        heappush(self._moments, (at_s, self._moments_made, moment, version))
        self._moments_made += 1
        self._horizon_s = min(self._horizon_s, at_s)

    def _try_step(self, now_s: float) -> None:
        """Take a batch, or wait for missing samples; the first step also takes the prefetched batches, one by one."""
        needed = self._needed_groups
        if self._takes_as_they_come:
            # Taking groups may let in groups that were held back, which are taken too.
            while ready := min(len(self.queue), needed + self._prefetched_groups - len(self._taken)):
                self._take(ready, now_s)
        while (missing := needed + self._prefetched_groups - len(self._taken)) > needed and len(self.queue) >= needed:
            self._take(needed, now_s)
        if len(self.queue) < min(missing, needed):
            self.trainer.wait("samples", now_s)
            self._give_up_on_waits()
            return
        if self._cap is not None and self._cap.waits_for_one(self.version + 1):
            self.trainer.wait("staleness_cap", now_s)
            return
        if self.trainer.waits_for is None:
            self.trainer.wait("samples", now_s)
        self._take(missing, now_s)
        if len(self._taken) < needed:  # Some of them were filtered.
            self._try_step(now_s)
            return
        self._batch, self._taken = self._taken[:needed], self._taken[needed:]
        tokens = self.samples.tokens_of(self._batch)
        self._plan(self.trainer.step(needed * self.samples.group_size, tokens, now_s), "step_end", self.version)
        self._needed_groups = self.gate.groups_of(self.trainer.batches + 1)

    def _take(self, groups: int, now_s: float) -> None:
        for group in self.queue.take(groups, now_s):
            if self.samples.group_is_kept[group]:
                self._taken.append(group)
                self.gate.taken += 1
            else:
                self._filter(group, now_s)

    def _give_up_on_waits(self) -> None:
        finished, steps = self._groups_of_waits * self.samples.group_size, len(self.step_ends_s)
        if finished > _LONGEST_WAITS_STEPS * (steps + 1) * self._system.workload.samples_per_step:
            raise NeverTrains(f"{finished} samples finished while the trainer waited for samples, over {steps} steps")

    def _end_step(self, now_s: float) -> None:
        samples, step = self.samples, self.trainer.steps
        for group in self._batch:
            samples.group_outcome[group] = TRAINED
            samples.group_step[group] = step
            samples.group_consumer_version[group] = self.version
        self.gate.trained += len(self._batch)
        self.trainer.publish(now_s)
        if not self.trainer.makes_version:
            self._plan(now_s, "free", self.version)
            return
        self.step_ends_s.append(now_s)
        if self._cap is None or self._cap.allows(self.version + 1):
            self.version += 1
            self.queue.drop_stale(self.version, now_s)
            self._plan(now_s + self._system.update.delay_s, "offer", self.version)
            self._plan(now_s + self.trainer.blocked_s, "free", self.version)
        else:
            self._plan(now_s, "free", self.version)
