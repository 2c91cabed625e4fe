"""Limits and policies: what a run by hand comes to, which limit is named, what is dropped, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest

from rlscope.model.lengths import GroupLengths, LengthLaw
from rlscope.model.simulate import NeverTrains, Settings, simulate
from rlscope.model.simulate.dispatch import Cap, EngineFleet, Pull
from rlscope.model.simulate.loop import EventLoop, engine_terms, samples_at_start
from rlscope.model.simulate.queue import Gate, GroupQueue
from rlscope.model.simulate.results import Ages, Simulated
from rlscope.model.simulate.samples import DROPPED, NEVER, QUEUED, Draws, Samples
from rlscope.model.simulate.settings import QueueOrder
from rlscope.model.simulate.trainer import SimulatedTrainer
from rlscope.model.system import (
    Admission,
    Engine,
    Layout,
    System,
    Trainer,
    TrainerPhase,
    WeightUpdateCost,
    Workload,
)
from tests.model.golden_system import Affine
from tests.model.simulated_systems import (
    BUSY,
    CASES,
    LAYOUT,
    LENGTHS,
    STARVED,
    WORKLOAD,
    constant,
    with_admission,
    with_engine,
    with_workload,
)

ONE_BY_ONE = System(
    Workload(constant(10), prompt_tokens=0.0, group_size=1, samples_per_step=1),
    Engine(1, Affine(1.0, 0.0), max_running=1),
    Trainer(10.0, seen_gpus=1, overhead_s=2.0),
)
"""A sample takes 10 seconds of one engine, a step 3 seconds of one trainer."""
ALONE = Layout(trainer_gpus=1, sampler_gpus=1, max_running=1)


def test_tokens_of_the_step_that_trains_are_one_version_old() -> None:
    run = simulate(ONE_BY_ONE, ALONE, steps=20, seed=1)
    assert (run.step_s, run.trained_tokens_per_s, run.mean_running) == (10.0, 1.0, 1.0)
    # Each sample is sampled while the one before is trained on for 3 s, and goes on with the version of that step.
    assert run.staleness.tokens.counts == ((0, 7 * run.steps), (1, 3 * run.steps))
    assert run.staleness.samples.counts == ((1, run.steps),)
    assert (run.trainer_seconds.train_s, run.trainer_seconds.wait_samples_s) == (3.0 * run.steps, 7.0 * run.steps)
    assert run.trainer_idle_ratio == 0.7


def test_weights_that_come_late_leave_more_tokens_to_the_old_version() -> None:
    late = replace(ONE_BY_ONE, update=WeightUpdateCost(engine_pause_s=0.5, delay_s=4.0))
    run = simulate(late, ALONE, steps=20, seed=1)
    # Passes 1 to 7 start before the offer at 7 s; the pause follows the seventh.
    assert run.step_s == 10.5
    assert run.staleness.tokens.counts == ((0, 3 * run.steps), (1, 7 * run.steps))
    assert run.engine_totals.pause_s == 0.5 * run.steps


def test_a_synchronous_step_is_the_sum_of_its_parts() -> None:
    system = System(
        Workload(constant(10), prompt_tokens=5.0, group_size=2, samples_per_step=4),
        Engine(1, Affine(1.0, 0.5, 0.01), max_running=4, prefill_tokens_per_s=100.0),
        Trainer(20.0, seen_gpus=1),
        WeightUpdateCost(engine_pause_s=3.0, trainer_blocked_s=2.0, delay_s=1.0),
        Admission(max_staleness=0),
    )
    run = simulate(system, Layout(1, 1, 4), steps=10, seed=1)
    prefill_s = 4 * 5 / 100
    decode_s = sum(1.0 + 0.5 * 4 + 0.01 * (4 * 5 + 4 * done) for done in range(10))
    train_s = 40 / 20
    assert run.step_s == pytest.approx(1.0 + 3.0 + prefill_s + decode_s + train_s)
    assert run.staleness.tokens.counts == ((0, 40 * run.steps),)
    assert run.trainer_seconds.publish_s == pytest.approx(2.0 * run.steps)
    assert run.idle_s["staleness_cap"] == pytest.approx((1.0 + train_s) * run.steps)


def test_waits_are_drawn_from_those_given_relative_to_their_mean() -> None:
    waiting = replace(WORKLOAD, environment_s=6.0, environment_waits_s=(0.0, 1.0, 3.0, 0.0))
    draws = Draws(waiting, 0, 0.0, np.random.default_rng(0))
    waits_s = np.array([draws.environment_s() for _ in range(4000)])
    assert set(waits_s.tolist()) == {0.0, 6.0, 18.0}
    assert waits_s.mean() == pytest.approx(6.0, rel=0.05)
    alike = Draws(replace(waiting, environment_waits_s=(2.0, 2.0)), 0, 0.0, np.random.default_rng(0))
    assert alike.environment_s() == 6.0


def test_where_in_a_response_it_waits_is_drawn_evenly_and_a_response_of_one_token_waits_after_it() -> None:
    draws = Draws(replace(WORKLOAD, environment_s=6.0), 0, 0.0, np.random.default_rng(0))
    waits_s, after_tokens = draws.pauses([1, 5] * 2000)
    assert set(waits_s) == {6.0}
    assert set(after_tokens[::2]) == {0}
    assert set(after_tokens[1::2]) == {1, 2, 3, 4}
    assert np.mean(after_tokens[1::2]) == pytest.approx(2.5, rel=0.05)
    one_token = replace(ONE_BY_ONE, workload=replace(ONE_BY_ONE.workload, lengths=constant(1), environment_s=5.0))
    assert simulate(one_token, ALONE, steps=20, seed=1).step_s == 1.0 + 5.0


@pytest.mark.parametrize(("ratio", "in_flight_s"), [(1.0, 15.0), (0.4, 12.0), (0.0, 10.0)])
def test_a_sample_is_delivered_within_the_turnaround_and_its_place_stays_empty_for_all_of_it(
    ratio: float, in_flight_s: float
) -> None:
    workload = replace(ONE_BY_ONE.workload, environment_s=5.0, turnaround_s=5.0, delivered_after_ratio=ratio)
    run = simulate(replace(ONE_BY_ONE, workload=workload), ALONE, steps=20, seed=1)
    assert run.step_s == 15.0
    assert run.idle_s["environment"] == pytest.approx(5.0 * run.steps)
    # The trainer takes it as soon as it is delivered.
    assert run.mean_in_flight_samples * run.step_s == pytest.approx(in_flight_s)


def test_publications_that_wait_for_running_samples_only_are_as_many_as_the_steps_and_queued_ones_pass_the_cap() -> (
    None
):
    limits = {"max_staleness": 3, "staleness_policy": "publication_waits", "queue_capacity_samples": 96}
    both, running = (
        simulate(with_admission(BUSY, **limits, waits_for_queued=queued), LAYOUT, steps=40, seed=4)
        for queued in (True, False)
    )
    assert (both.staleness.samples.max, running.published_versions) == (3, running.steps)
    assert both.published_versions < both.steps
    assert running.staleness.samples.max > 3


def queue_of(
    order: QueueOrder = "fifo", *, held_by_engines: bool = False, **limits: object
) -> tuple[GroupQueue, Samples]:
    """Groups 0 to 5 of one sample, whose first versions are 3, 1, 2, 1, 5, 0."""
    workload = replace(WORKLOAD, group_size=1)
    samples = Samples(Draws(workload, 0, 0.0, np.random.default_rng(0)), 1)
    for version in (3, 1, 2, 1, 5, 0):
        (sample,) = samples.start_group()
        samples.group_first_version[sample] = version
    admission = Admission(**limits)
    return GroupQueue(admission, order, samples, held_by_engines=held_by_engines), samples


@pytest.mark.parametrize(("order", "taken"), [("fifo", [0, 1, 2]), ("lifo", [5, 4, 3]), ("oldest_first", [5, 1, 3])])
def test_the_trainer_takes_what_came_first_or_last_or_what_is_oldest(order: QueueOrder, taken: list[int]) -> None:
    queue, _ = queue_of(order)
    for group in range(6):
        queue.offer(group, 5, 0.0)
    assert queue.take(3, 1.0) == taken
    assert (len(queue), queue.dropped) == (3, 0)


@pytest.mark.parametrize(("order", "taken"), [("fifo", [2, 3]), ("lifo", [3, 2])])
def test_a_full_queue_that_drops_loses_what_came_first(order: QueueOrder, taken: list[int]) -> None:
    queue, samples = queue_of(order, queue_capacity_samples=2, queue_policy="drop_oldest")
    for group in range(4):
        assert queue.has_room
        queue.offer(group, 5, float(group))
    assert (samples.group_outcome[:4], queue.dropped) == ([DROPPED, DROPPED, QUEUED, QUEUED], 2)
    assert samples.group_left_s[:4] == [2.0, 3.0, NEVER, NEVER]
    assert queue.take(2, 9.0) == taken
    assert samples.group_left_s[:4] == [2.0, 3.0, 9.0, 9.0]


def test_groups_at_the_age_limit_are_kept_and_older_ones_dropped() -> None:
    queue, samples = queue_of(staleness_policy="drop", max_staleness=2, queue_capacity_samples=3)
    for group in range(6):
        queue.offer(group, 3, 0.0)
    # At version 3 the last, of version 0, is too old; the queue holds three, one more waits.
    assert (len(queue), queue.has_room, queue.dropped, samples.group_outcome[5]) == (3, False, 1, DROPPED)
    queue.drop_stale(4, 1.0)
    assert (queue.dropped, queue.oldest_version(), queue.take(3, 1.0)) == (3, 2, [0, 2, 4])


def cap_of_1(*engine_versions: int) -> tuple[Cap, Samples, GroupQueue]:
    """Two running groups of one sample, neither admitted yet, and engines that hold these versions."""
    queue, samples = queue_of(held_by_engines=True, queue_capacity_samples=1)
    terms = engine_terms(STARVED, replace(LAYOUT, sampler_gpus=len(engine_versions)), Settings())
    fleet = EngineFleet(terms, 8, samples)
    for engine, version in zip(fleet.engines, engine_versions, strict=True):
        engine.version = version
    cap = Cap(1, samples, queue, fleet)
    cap.open_groups.update((0, 1))
    return cap, samples, queue


def test_a_group_that_its_engine_holds_back_is_waited_for_while_there_is_room_for_it() -> None:
    cap, _, queue = cap_of_1(9, 9)
    queue.hold_back(1)
    assert [cap.waits_for_one(version) for version in (2, 3)] == [False, True]
    queue.offer(4, 5, 0.0)
    assert not cap.waits_for_one(3), "it could not arrive"
    assert not cap.allows(3)


def test_a_running_group_at_the_cap_is_not_waited_for_and_one_beyond_it_is() -> None:
    cap, samples, _ = cap_of_1(3, 3)
    assert not cap.waits_for_one(9), "nothing has begun"
    samples.first_version[0] = 2
    assert [cap.waits_for_one(version) for version in (3, 4)] == [False, True]
    assert [cap.allows(version) for version in (3, 4)] == [True, False]


def test_a_group_that_starts_late_on_an_engine_behind_the_others_is_seen() -> None:
    cap, samples, _ = cap_of_1(3, 1)
    samples.first_version[0] = 2
    assert not cap.waits_for_one(3)
    samples.first_version[1] = 1
    assert cap.waits_for_one(3)


def test_no_version_is_published_that_an_engine_is_too_far_behind_for() -> None:
    cap, _, _ = cap_of_1(3, 1)
    assert [cap.allows(version) for version in (2, 3)] == [True, False]


ALONE_IN_A_STEP = replace(WORKLOAD, group_size=1, samples_per_step=1)


def gate_of(admission: Admission) -> tuple[Gate, GroupQueue, Samples]:
    """The gate of steps of 24 samples in groups of 4, its queue and the samples."""
    samples = Samples(Draws(WORKLOAD, 0, 0.0, np.random.default_rng(0)), 4)
    queue = GroupQueue(admission, "fifo", samples)
    return Gate(admission, WORKLOAD, queue), queue, samples


@pytest.mark.parametrize(
    ("limits", "started"),
    [
        ({}, 100),
        ({"max_in_flight_samples": 43}, 10),
        ({"max_in_flight_samples": 44}, 11),
        ({"max_staleness": 1}, 12),
        ({"max_staleness": 1, "max_in_flight_samples": 28}, 7),
        ({"max_staleness": 1, "staleness_policy": "drop"}, 100),
    ],
)
def test_groups_start_up_to_the_limit_in_samples(limits: dict[str, object], started: int) -> None:
    admission = Admission(**limits)
    gate, _, _ = gate_of(admission)
    while gate.hold() is None and gate.started < 100:
        gate.started += 1
    assert gate.started == started


@pytest.mark.parametrize(("most", "running"), [(23, 4), (4, 1), (1, 1), (54, 9), (55, 9), (1_000, 9)])
def test_a_cap_on_what_runs_is_each_engine_s_share_of_it(most: int, running: int) -> None:
    plenty, limited = Layout(2, 6, 9), Layout(2, 6, running)
    admission = Admission(queue_capacity_samples=48)
    capped = replace(STARVED, admission=replace(admission, max_running_samples=most))
    runs = [
        simulate(system, asked, steps=12, seed=3)
        for system, asked in ((capped, plenty), (replace(STARVED, admission=admission), limited))
    ]
    assert runs[0].trained_tokens_per_s == runs[1].trained_tokens_per_s


def test_a_limit_in_flight_lets_go_of_a_batch_when_it_is_taken_or_when_it_is_trained_on() -> None:
    for until_trained, started in ((False, 16), (True, 10)):
        admission = Admission(max_in_flight_samples=40, in_flight_until_trained=until_trained)
        gate, _, _ = gate_of(admission)
        gate.started, gate.taken = 10, 6
        while gate.hold() is None:
            gate.started += 1
        assert gate.started == started
        gate.trained = 6
        while gate.hold() is None:
            gate.started += 1
        assert gate.started == 16


def test_a_limit_that_binds_while_a_whole_batch_is_queued_is_backpressure() -> None:
    admission = Admission(max_in_flight_samples=40)
    gate, queue, samples = gate_of(admission)
    gate.started = 10
    holds = []
    for group in range(6):
        samples.start_group()
        queue.offer(group, 0, 0.0)
        holds.append(gate.hold())
    assert holds == ["staleness_cap"] * 5 + ["backpressure"]


def test_groups_that_are_alike_have_the_measured_tail() -> None:
    alike = replace(LENGTHS, groups=GroupLengths(8, tail_ratio=1.5, correlation_ratio=0.6))
    assert LENGTHS.group_tail_ratio(8) > 2.0
    workload = replace(WORKLOAD, lengths=alike, group_size=8)
    lengths, _ = Draws(workload, 0, 0.0, np.random.default_rng(1)).groups(20_000)
    table = np.array(lengths).reshape(-1, 8)
    error = table.max(axis=1).std() / np.sqrt(20_000) / table.mean()
    # The lengths are whole tokens and the quadrature is one: 1 % beside four standard errors.
    assert table.max(axis=1).mean() / table.mean() == pytest.approx(1.5, abs=0.015 + 4 * error)
    assert table.mean() == pytest.approx(LENGTHS.mean_tokens, rel=0.02)


def test_the_first_requests_are_what_is_left_of_running_ones() -> None:
    lengths = LengthLaw(np.array([100.0, 900.0]), np.array([0.5, 0.5]))
    draws = Draws(replace(WORKLOAD, lengths=lengths), 1500, 0.0, np.random.default_rng(1))
    drawn = np.array([draws.groups(250)[0], draws.groups(250)[0]]).ravel()
    first, rest = drawn[:1500], drawn[1500:]
    assert set(rest.tolist()) == {100, 900}
    assert (first.min() >= 1, first.max() <= 900, len(set(first.tolist())) > 300) == (True, True, True)
    assert np.isin(first, (100, 900)).mean() < 0.01
    # Half of a length-biased length: E[L^2] / (2 E[L]) = 410, and half a token for rounding up.
    assert first.mean() == pytest.approx(410.5, abs=4 * first.std() / np.sqrt(1500))


def test_a_step_is_overhead_tokens_with_prompts_and_phases_each_as_slow_as_the_noise() -> None:
    # 12.5 counted prompt tokens a sample; twice the GPUs seen make it and its phase twice as fast.
    system = replace(BUSY, trainer=replace(BUSY.trainer, tokens_per_gpu_s=1000.0))
    trainer = SimulatedTrainer(system, 2, lambda: 1.5)
    end_s = trainer.step(samples=24, response_tokens=700, now_s=10.0)
    train_s, phases_s = 1.5 * (0.05 + (700 + 24 * 12.5) / 2000.0), 1.5 * 0.02 / 2
    assert end_s == pytest.approx(10.0 + train_s + phases_s)
    assert (trainer.totals.train_s, trainer.totals.phases_s) == pytest.approx((train_s, phases_s))
    assert trainer.totals.wait_samples_s == 10.0


@pytest.mark.parametrize(
    ("every_steps", "batches", "phases_s"),
    [
        (1, 1, [2.0] * 6),
        (2, 1, [4.0, 0.0, 4.0, 0.0, 4.0, 0.0]),
        (3, 1, [0.0, 6.0, 0.0, 0.0, 6.0, 0.0]),
        (3, 2, [0.0, 0.0, 3.0, 3.0, 0.0, 0.0]),
    ],
)
def test_a_rare_phase_takes_the_seconds_of_its_whole_period_in_one_step(
    every_steps: int, batches: int, phases_s: list[float]
) -> None:
    phases = (TrainerPhase("checkpoints", 2.0, False, every_steps),)
    system = with_workload(replace(BUSY, trainer=replace(BUSY.trainer, phases=phases)), batches_per_version=batches)
    trainer, totals_s = SimulatedTrainer(system, 1, lambda: 1.0), [0.0]
    for now_s in range(6):
        trainer.step(samples=24, response_tokens=700, now_s=float(now_s))
        totals_s.append(trainer.totals.phases_s)
    assert np.diff(totals_s) == pytest.approx(phases_s)


@pytest.mark.parametrize(
    ("every_steps", "step_s"),
    [
        # Engines make a batch in 2 s; trainers need 0.5 s and, on average, 1 s of checkpoint for it.
        (1, 2.0),
        # In a checkpoint of 10 s, the queue of two batches is full after 4 s. What runs ends within 2 s more, and
        # engines start again when the third batch is taken, 11 s after the first: 1 s and 5 s are lost to 10 steps.
        (10, 2.6),
    ],
)
def test_a_checkpoint_that_fills_the_queue_stops_the_engines(every_steps: int, step_s: float) -> None:
    run = simulate(with_checkpoints(every_steps), Layout(1, 2, 12), steps=60, seed=1)
    assert run.step_s == pytest.approx(step_s, rel=0.02)


def with_checkpoints(every_steps: int) -> System:
    """Samples of 2 s on engines of 12 requests, a queue of two batches of 24, and 1 s of checkpoint per step."""
    return System(
        replace(WORKLOAD, lengths=constant(100), prompt_tokens=0.0, trained_prompt_tokens=0.0, group_size=1),
        Engine(1, Affine(0.02, 0.0), max_running=12),
        Trainer(4_800.0, seen_gpus=1, phases=(TrainerPhase("checkpoints", 1.0, False, every_steps),)),
        admission=Admission(queue_capacity_samples=48),
    )


@pytest.mark.parametrize(("every_steps", "steps"), [(1, 48), (10, 40), (15, 45), (16, 45), (99, 45)])
def test_whole_periods_are_measured_and_rarer_phases_come_four_times_in_a_simulation(
    every_steps: int, steps: int
) -> None:
    run = simulate(with_checkpoints(every_steps), Layout(1, 2, 12), steps=60, seed=1)
    assert (run.steps, run.trainer_seconds.phases_s) == (steps, pytest.approx(steps))
    assert sum(run.step_periods_s) == pytest.approx(run.seconds)
    # A checkpoint of 10 s or more is spread over its period.
    assert max(run.step_periods_s) < 5.0


def test_a_straggler_is_slow_at_passes_and_at_prefill_and_not_at_weights() -> None:
    fast, slow = engine_terms(STARVED, replace(LAYOUT, sampler_gpus=2), Settings(engine_slowness=(1.0, 1.5)))
    assert slow.empty_pass_s == pytest.approx([1.5 * pass_s for pass_s in fast.empty_pass_s])
    assert (slow.kv_s_per_token, slow.prefill_s_per_token) == pytest.approx((1.5e-6, 1.5 / 5000.0))
    assert slow.pause_s == fast.pause_s == 0.03


def test_percentiles_are_the_smallest_age_that_covers_the_share() -> None:
    ages = Ages(((0, 50), (2, 45), (7, 5)))
    assert [ages.percentile(ratio) for ratio in (0.5, 0.501, 0.95, 0.951, 1.0)] == [0, 2, 2, 7, 7]
    assert (ages.mean, ages.max, ages.total) == (1.25, 7, 100)
    with pytest.raises(ValueError, match="not within"):
        ages.percentile(1.1)


def test_what_finishes_while_the_trainer_trains_is_no_sign_that_nothing_ever_will() -> None:
    # Some 170 steps' worth of samples finish within a step, and all but the last are dropped.
    trainer = replace(STARVED.trainer, overhead_s=60.0)
    short = replace(STARVED, trainer=trainer, workload=replace(WORKLOAD, lengths=constant(3), samples_per_step=8))
    run = simulate(with_admission(short, max_staleness=0, staleness_policy="drop"), LAYOUT, steps=4, seed=1)
    assert sum(run.step_dropped_tokens) > 100 * sum(run.step_trained_tokens)


@pytest.mark.parametrize("filters_taken", [False, True])
def test_a_run_that_throws_nearly_everything_away_has_no_end(filters_taken: bool) -> None:
    def filtered(kept_ratio: float) -> Simulated:
        system = with_workload(STARVED, lengths=constant(3), kept_ratio=kept_ratio)
        return simulate(system, LAYOUT, steps=4, seed=1, settings=Settings(filters_taken=filters_taken))

    assert filtered(0.05).steps == 2
    with pytest.raises(NeverTrains, match="finished while the trainer waited"):
        filtered(0.001)


def test_rare_long_waits_are_simulated_while_more_than_one_sample_in_a_hundred_is_trained() -> None:
    # Each version takes 40 s to reach the engines: five steps, then some 380 steps' worth of samples that are too old.
    late = replace(with_workload(STARVED, lengths=constant(3)), update=WeightUpdateCost(delay_s=40.0))
    run = simulate(with_admission(late, max_staleness=4, staleness_policy="drop"), LAYOUT, steps=40, seed=1)
    assert sum(run.step_dropped_tokens) == pytest.approx(76 * sum(run.step_trained_tokens), rel=0.01)
    assert max(run.step_periods_s) == pytest.approx(39.4, rel=0.01)


def test_trainers_that_filter_what_they_took_wait_for_the_rest_of_a_batch_and_the_queue_drops_more() -> None:
    # The queue holds little more than a batch, and samplers are ahead. Half of what a full queue holds is kept.
    system, layout, _ = CASES["oldest dropped"]
    early, late = (
        simulate(
            with_workload(system, kept_ratio=0.5), layout, steps=40, seed=1, settings=Settings(filters_taken=is_late)
        )
        for is_late in (False, True)
    )
    assert late.trainer_idle_ratio > early.trainer_idle_ratio
    assert late.trained_tokens_per_s < early.trained_tokens_per_s
    assert late.dropped_ratio > early.dropped_ratio


def test_engines_that_take_groups_themselves_take_all_they_have_places_for_in_turn() -> None:
    # Of two engines with 8 places, the first takes 2 groups of 4 and the second the third: 12 samples are let in.
    admission = Admission(max_in_flight_samples=12)
    system = replace(STARVED, admission=admission, workload=replace(WORKLOAD, samples_per_step=12))
    layout = replace(LAYOUT, sampler_gpus=2)
    pulled, routed = (
        EventLoop(system, layout, Settings(dispatch=dispatch), np.random.default_rng(0))
        for dispatch in ("pulled", "least_loaded")
    )
    for run in (pulled, routed):
        for _ in range(2):
            run._next()
    assert [[engine.running for engine in run.fleet.engines] for run in (pulled, routed)] == [[8, 4], [6, 6]]


def test_an_engine_whose_finished_group_is_held_back_starts_none_and_another_does() -> None:
    # Groups of one, a queue of one: what the first engine holds back is its own matter while there is room.
    queue, samples = queue_of(held_by_engines=True, queue_capacity_samples=1)
    fleet = EngineFleet(engine_terms(STARVED, replace(LAYOUT, sampler_gpus=2), Settings()), 2, samples)
    gate = Gate(Admission(queue_capacity_samples=1), ALONE_IN_A_STEP, queue)
    pull = Pull(fleet, gate, queue, samples.start_group, samples, lambda _now_s: None)
    samples.engine[0] = samples.engine[1] = 0
    pull.finish(0, 5, 0.0)
    assert (len(queue), queue.oldest_held_version()) == (0, 3), "its engine is not at a boundary"
    pull.fill(5, 0.0)
    fleet.reach_boundary()
    pull.finish(1, 5, 0.0)
    assert (len(queue), queue.oldest_held_version()) == (1, 1), "the first is queued, the second finds no room"
    pull.fill(5, 0.0)
    fleet.leave_boundary(0.0)
    assert (fleet.free_places_of(0), pull.hold) == (2, "backpressure")
    assert queue.take(1, 1.0) == [0]
    assert len(queue) == 0, "what an engine holds does not move up by itself"
    assert fleet.next_boundary_s() == 0.0
    fleet.reach_boundary()
    pull.fill(5, 1.0)
    fleet.leave_boundary(1.0)
    assert fleet.free_places_of(1) == 0, "the other has nothing to hold back"


def with_limits(ahead: float = 0.0, **limits: object) -> System:
    return with_workload(with_admission(STARVED, **limits), prefetched_batches=ahead)


WAITING = {"staleness_policy": "publication_waits", "max_staleness": 1}


@pytest.mark.parametrize(
    ("system", "layout", "settings", "words"),
    [
        (with_limits(queue_capacity_samples=23), LAYOUT, {}, "the queue's capacity of 23"),
        (with_limits(queue_capacity_samples=3), LAYOUT, {"dequeue": "as_they_come"}, "the queue's capacity of 3"),
        (with_limits(max_in_flight_samples=23), LAYOUT, {}, "max_in_flight_samples of 23 samples holds fewer whole"),
        (with_limits(staleness_policy="publication_waits"), LAYOUT, {}, "needs a max_staleness of 1"),
        (with_limits(1.5, max_staleness=1), LAYOUT, {}, "older than a max_staleness of 1"),
        (with_limits(1.0, **WAITING), LAYOUT, {}, "without prefetched batches"),
        (with_engine(STARVED, kv_capacity_tokens=162), LAYOUT, {}, "does not fit"),
        (STARVED, Layout(1, 0, 8), {}, "no whole engine"),
        (STARVED, Layout(0, 3, 8), {}, "no trainer"),
        (STARVED, Layout(1, 3, 0), {}, "no request"),
    ],
)
def test_what_no_step_can_pass_is_refused_by_name(
    system: System, layout: Layout, settings: dict[str, object], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        simulate(system, layout, steps=4, seed=1, settings=Settings(**settings))


@pytest.mark.parametrize(("less_tokens", "is_limit"), [(0.0, False), (0.5, True)])
def test_a_cache_that_holds_as_many_of_the_longest_as_run_at_once_is_no_limit(
    less_tokens: float, is_limit: bool
) -> None:
    longest = WORKLOAD.prompt_tokens + float(np.ceil(LENGTHS.max_tokens))
    holds = min(LAYOUT.max_running, STARVED.engine.max_running) * longest - less_tokens
    cached, unlimited = (with_engine(STARVED, kv_capacity_tokens=tokens) for tokens in (holds, None))
    assert np.isfinite(engine_terms(cached, LAYOUT, Settings())[0].kv_capacity_tokens) == is_limit
    runs = [simulate(each, LAYOUT, steps=12, seed=1) for each in (cached, unlimited)]
    np.testing.assert_array_equal(*(each.step_periods_s for each in runs))
    assert runs[0].engine_totals.preemptions == 0


def test_a_limit_above_every_load_is_no_limit_and_leaves_the_first_samples_as_they_are() -> None:
    # An engine holds 7 requests on average: the others wait, and none of them has generated a token at the start.
    system = with_engine(STARVED, kv_capacity_tokens=270, max_running=10**9)
    limits = (6, 7, 8, 10**4)
    assert [samples_at_start(system, replace(LAYOUT, max_running=most)) for most in limits] == [18, 21, 21, 21]
    runs = [simulate(system, replace(LAYOUT, max_running=most), steps=40, seed=1) for most in (10**4, 10**9)]
    assert runs[1].trained_tokens_per_s == pytest.approx(runs[0].trained_tokens_per_s, rel=0.02)


def test_a_warm_up_that_leaves_nothing_is_refused() -> None:
    assert simulate(STARVED, LAYOUT, steps=3, seed=1, warm_up_steps=2).steps == 1
    for steps, warm_up in ((3, 3), (3, -1), (1, 0)):
        with pytest.raises(ValueError, match="leave nothing"):
            simulate(STARVED, LAYOUT, steps=steps, seed=1, warm_up_steps=warm_up)


@pytest.mark.parametrize(("ahead", "versions"), [(1.0, 1.0), (0.5, 0.5), (2.0, 2.0)])
def test_batches_that_are_held_ahead_age_a_version_each_and_leave_the_rate_as_it_is(
    ahead: float, versions: float
) -> None:
    early = with_workload(STARVED, prefetched_batches=ahead)
    plain, held = (simulate(each, LAYOUT, steps=120, seed=1) for each in (STARVED, early))
    assert held.staleness.tokens.mean == pytest.approx(plain.staleness.tokens.mean + versions, abs=0.1)
    assert held.trained_tokens_per_s == pytest.approx(plain.trained_tokens_per_s, rel=0.03)


def test_a_drop_for_staleness_judges_what_is_held_ahead_when_it_is_taken() -> None:
    dropping = with_admission(BUSY, max_staleness=2, staleness_policy="drop")
    early = with_workload(dropping, prefetched_batches=1.0)
    plain, held = (simulate(each, LAYOUT, steps=60, seed=1) for each in (dropping, early))
    assert (plain.staleness.samples.max, held.staleness.samples.max) == (2, 3)
