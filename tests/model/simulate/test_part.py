"""A part of a large system stands for the whole."""

from dataclasses import asdict, replace

import pytest

from rlscope.model.lengths import LengthLaw
from rlscope.model.simulate import Settings, simulate
from rlscope.model.simulate.part import part_of
from rlscope.model.system import Admission, Engine, Layout, System, Trainer, TrainerPhase, Workload
from tests.model.golden_system import Affine
from tests.model.simulated_systems import with_admission, with_workload

LENGTHS = LengthLaw.lognormal(100, 0.8, max_output_tokens=500)
SYSTEM = System(
    Workload(LENGTHS, prompt_tokens=20.0, group_size=8, samples_per_step=4096),
    Engine(2, Affine(0.01, 0.0001), max_running=256),
    Trainer(18_000.0, seen_gpus=8, phases=(TrainerPhase("a reference model", 0.1, shrinks_with_gpus=True),)),
)
LAYOUT = Layout(trainer_gpus=8, sampler_gpus=33, max_running=256)
"""Sixteen engines of two GPUs, and one GPU that is left over."""


def test_a_part_has_whole_engines_and_groups_and_the_share_of_every_limit_and_of_the_trainers_rate():
    limits = Admission(queue_capacity_samples=8192, max_running_samples=6144)
    part = part_of(replace(SYSTEM, admission=limits), LAYOUT, Settings())
    # A quarter of the 512 groups are the 128 that a part needs.
    assert part.layout == Layout(trainer_gpus=8, sampler_gpus=8, max_running=256) and part.whole_ratio == 4.0
    assert part.system.workload == replace(SYSTEM.workload, samples_per_step=1024)
    assert part.system.trainer == replace(SYSTEM.trainer, tokens_per_gpu_s=4500.0)
    assert part.system.admission == Admission(queue_capacity_samples=2048, max_running_samples=1536)


@pytest.mark.parametrize(
    ("changes", "limits", "sampler_gpus", "part_gpus"),
    [
        # Of 17 engines, 5 have 150.6 of the 512 groups, 6 have 180.7, and 7 have 210.8, which is 211 to a thousandth.
        ({}, Admission(), 34, 14),
        ({}, Admission(), 62, 16),
        ({"group_size": 1}, Admission(), 32, 4),
        ({"samples_per_step": 2048}, Admission(), 32, 16),
        ({"samples_per_step": 2040}, Admission(), 32, 32),
        # A quarter of 128 groups in the queue are 32; of fewer, a larger part is simulated, or the whole.
        ({}, Admission(queue_capacity_samples=1024), 32, 8),
        ({}, Admission(queue_capacity_samples=1023), 32, 10),
        ({}, Admission(queue_capacity_samples=8), 32, 32),
        # Rare groups decide.
        ({"kept_ratio": 0.9}, Admission(), 32, 16),
        ({}, Admission(max_in_flight_samples=8191), 32, 16),
        ({}, Admission(max_in_flight_samples=8192), 32, 8),
        ({}, Admission(max_staleness=1), 32, 16),
        ({}, Admission(max_staleness=2), 32, 8),
        ({}, Admission(max_staleness=1, staleness_policy="drop"), 32, 8),
    ],
)
def test_the_fewest_engines_with_enough_whole_groups_are_simulated(changes, limits, sampler_gpus, part_gpus):
    layout, system = replace(LAYOUT, sampler_gpus=sampler_gpus), replace(SYSTEM, admission=limits)
    part = part_of(with_workload(system, **changes), layout, Settings())
    assert part.layout.sampler_gpus == part_gpus
    assert part.whole_ratio == sampler_gpus / part_gpus


def test_unequal_engines_and_publications_that_wait_for_the_slowest_sample_are_simulated_as_a_whole():
    slow = Settings(engine_slowness=(2.0, *[1.0] * 15))
    assert part_of(SYSTEM, LAYOUT, slow) == (SYSTEM, LAYOUT, 1.0)
    waiting = with_admission(SYSTEM, max_staleness=1, staleness_policy="publication_waits")
    assert part_of(waiting, LAYOUT, Settings()) == (waiting, LAYOUT, 1.0)


def test_the_whole_has_the_engines_seconds_and_tokens_of_its_parts_and_steps_as_long():
    part = part_of(SYSTEM, LAYOUT, Settings())
    simulated = simulate(part.system, part.layout, steps=6, seed=3)
    whole = simulated.of_whole(part.whole_ratio)
    assert whole.engines == 16 and whole.step_periods_s == simulated.step_periods_s
    assert whole.trained_tokens_per_s == pytest.approx(4.0 * simulated.trained_tokens_per_s)
    assert whole.mean_queued_samples == 4.0 * simulated.mean_queued_samples
    assert whole.mean_running == pytest.approx(simulated.mean_running)
    totals = asdict(whole.engine_totals)
    spent_s = sum(totals[name] for name in ("decode_s", "prefill_s", "recompute_s", "pause_s"))
    assert spent_s + sum(whole.idle_s.values()) == pytest.approx(whole.engines * whole.seconds)
    assert sum(asdict(whole.trainer_seconds).values()) == pytest.approx(whole.seconds)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "limits",
    [
        Admission(max_staleness=1),
        Admission(max_in_flight_samples=5120),
        Admission(max_staleness=2, staleness_policy="drop"),
        Admission(queue_capacity_samples=4096, queue_policy="drop_oldest"),
    ],
    ids=str,
)
@pytest.mark.parametrize("speed", [0.7, 1.0, 1.4])
def test_a_part_trains_drops_and_ages_as_the_whole_does(limits, speed):
    trainer = replace(SYSTEM.trainer, tokens_per_gpu_s=speed * SYSTEM.trainer.tokens_per_gpu_s)
    system = replace(SYSTEM, trainer=trainer, admission=limits)
    part = part_of(system, LAYOUT, Settings())
    of_part = simulate(part.system, part.layout, steps=40, seed=1).of_whole(part.whole_ratio)
    whole = simulate(system, LAYOUT, steps=40, seed=1)
    assert part.whole_ratio >= 2.0
    assert of_part.trained_tokens_per_s == pytest.approx(whole.trained_tokens_per_s, rel=0.02)
    assert of_part.dropped_ratio == pytest.approx(whole.dropped_ratio, abs=0.02)
    assert of_part.staleness.tokens.mean == pytest.approx(whole.staleness.tokens.mean, rel=0.05, abs=0.02)
