"""What holds of every simulated run, whatever its limits and policies: sums, conservation, Little's law, one seed."""

import math
from collections import Counter
from dataclasses import asdict
from unittest.mock import patch

import numpy as np
import pytest

from rlscope.model.simulate import Settings, Simulated, dispatch, simulate
from rlscope.model.simulate.engine import SimulatedEngine
from rlscope.model.simulate.loop import EventLoop
from rlscope.model.simulate.results import summarize
from rlscope.model.simulate.samples import NEVER, Samples
from rlscope.model.system import Layout, System
from tests.model.simulated_systems import CASES

every_case = pytest.mark.parametrize(("system", "layout", "settings"), CASES.values(), ids=CASES)


@every_case
def test_what_is_counted_of_a_run_adds_up(system: System, layout: Layout, settings: Settings) -> None:
    run = simulate(system, layout, steps=16, seed=5, warm_up_steps=5, settings=settings)
    # The seconds of each side.
    totals = run.engine_totals
    spent_s = [totals.decode_s, totals.prefill_s, totals.recompute_s, totals.pause_s, *run.idle_s.values()]
    assert sum(spent_s) == pytest.approx(run.engines * run.seconds, rel=1e-9)
    assert sum(asdict(run.trainer_seconds).values()) == pytest.approx(run.seconds, rel=1e-9)
    assert sum(run.step_periods_s) == pytest.approx(run.seconds, rel=1e-9)
    assert min(*asdict(run.trainer_seconds).values(), *spent_s) >= 0.0
    assert run.staleness.tokens.max <= run.staleness.samples.max
    assert run.staleness.tokens.total == sum(run.step_trained_tokens)
    # No limit is exceeded.
    limits = system.admission
    assert limits.staleness_policy == "admission" or run.staleness.samples.max <= (limits.max_staleness or math.inf)
    assert run.mean_in_flight_samples <= (limits.max_in_flight_samples or math.inf)
    # Samples in flight are at least those that run and those that are queued; one that was preempted does not run.
    least = run.engines * run.mean_running + run.mean_queued_samples
    assert least * (1.0 - 1e-9) <= run.mean_in_flight_samples
    if system.workload.unit_samples == 1 and not system.workload.environment_s and not run.engine_totals.preemptions:
        assert run.mean_in_flight_samples <= least + 1e-9


@every_case
def test_engines_generate_the_tokens_of_finished_samples_and_what_the_others_have_so_far(
    system: System, layout: Layout, settings: Settings
) -> None:
    run = EventLoop(system, layout, settings, np.random.default_rng(5))
    totals, samples, so_far = run.play(14), run.samples, 0
    for sample, tokens in enumerate(samples.length_tokens):
        if samples.finished_s[sample] != NEVER:
            so_far += tokens
        elif (engine := samples.engine[sample]) != NEVER:
            so_far += tokens - samples.left_tokens[sample]
            start_pass = samples.start_pass[sample]
            so_far += 0 if start_pass == NEVER else totals.engines[engine].passes - start_pass
    assert sum(engine.tokens for engine in totals.engines) == so_far


@every_case
def test_requests_that_run_are_the_time_that_each_of_them_takes(
    system: System, layout: Layout, settings: Settings
) -> None:
    """Little's law as an identity: the integral of their number is the sum of their times."""
    run = EventLoop(system, layout, settings, np.random.default_rng(5))
    totals = run.play(14)
    admitted = np.array(run.samples.admitted_s)
    finished = np.array(run.samples.finished_s)
    begun = np.array(run.samples.first_version) >= 0
    ended = np.where(finished >= 0.0, finished, totals.now_s)
    running_s, lives_s = sum(engine.running_s for engine in totals.engines), float((ended - admitted)[begun].sum())
    if sum(engine.preemptions for engine in totals.engines):
        assert running_s < lives_s, "a preempted request is not in the batch all its life"
    elif system.workload.environment_s > system.workload.turnaround_s:
        assert running_s < lives_s, "a request that waits for its environment is in no batch"
    else:
        assert running_s == pytest.approx(lives_s)


@every_case
def test_one_seed_is_one_run(system: System, layout: Layout, settings: Settings) -> None:
    first, second, other = (
        simulate(system, layout, steps=6, seed=seed, warm_up_steps=2, settings=settings) for seed in (8, 8, 9)
    )
    assert first == second != other


class OnePassAtATime(SimulatedEngine):
    """The same engine without jumps: every pass is an event, and every token is written down."""

    written: dict[int, list[int]]

    def settle(self, now_s: float) -> list[int]:
        if self._scheduled:
            for key in self._due:
                OnePassAtATime.written.setdefault(key % 2**32, []).append(self.version)
        return list(super().settle(now_s))

    def resume(self, now_s: float) -> float:
        next_s = super().resume(now_s)
        if not self._scheduled:
            return next_s
        self._scheduled = 1
        return self.boundary_s()


def ages_written_down(samples: Samples, after_step: int) -> Counter[int]:
    ages: Counter[int] = Counter()
    for group, step in enumerate(samples.group_step):
        if step > after_step:
            for sample in range(group * samples.group_size, (group + 1) * samples.group_size):
                consumer = samples.group_consumer_version[group]
                ages.update(consumer - version for version in OnePassAtATime.written[sample])
    return ages


def totals_of(run: Simulated) -> dict[str, float]:
    return {**run.idle_s, **asdict(run.engine_totals)}


@every_case
def test_jumping_over_passes_changes_nothing(system: System, layout: Layout, settings: Settings) -> None:
    jumped = simulate(system, layout, steps=14, seed=5, warm_up_steps=4, settings=settings)
    OnePassAtATime.written = {}
    with patch.object(dispatch, "SimulatedEngine", OnePassAtATime):
        run = EventLoop(system, layout, settings, np.random.default_rng(5))
        walked = summarize(run.samples, run.play(4), run.play(14), run.step_ends_s, system.trainer)
    assert dict(jumped.staleness.tokens.counts) == ages_written_down(run.samples, 4)
    assert jumped.staleness == walked.staleness
    assert jumped.step_left_tokens == walked.step_left_tokens
    assert jumped.step_periods_s == pytest.approx(walked.step_periods_s, rel=1e-9)
    assert totals_of(jumped) == pytest.approx(totals_of(walked), rel=1e-9, abs=1e-9)


@every_case
def test_a_step_trains_the_samples_it_should(system: System, layout: Layout, settings: Settings) -> None:
    run = EventLoop(system, layout, settings, np.random.default_rng(5))
    run.play(12)
    workload = system.workload
    trained = Counter(step for step in run.samples.group_step if step != NEVER)
    so_far = 0
    for step in range(1, 13):
        so_far += trained[step] * workload.unit_samples
        assert so_far == math.floor(step * workload.samples_per_step / workload.unit_samples) * workload.unit_samples
