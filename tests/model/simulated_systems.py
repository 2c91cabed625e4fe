"""Small systems for the event simulator: every limit, policy and cost once, with few enough samples to be quick."""

from dataclasses import replace

import numpy as np

from rlscope.model.decode.curves import RooflineCurve
from rlscope.model.lengths import LengthLaw
from rlscope.model.simulate import Settings
from rlscope.model.system import Admission, Engine, Layout, System, Trainer, TrainerPhase, WeightUpdateCost, Workload

LENGTHS = LengthLaw.lognormal(30, 0.6, max_output_tokens=150)
WORKLOAD = Workload(LENGTHS, prompt_tokens=12.5, group_size=4, samples_per_step=24, trained_prompt_tokens=12.5)
CURVE = RooflineCurve(0.010, 0.002, sharpness=1.0, kv_s_per_token=1e-6)
ENGINE = Engine(1, CURVE, max_running=8, prefill_tokens_per_s=5000.0)
TRAINER = Trainer(2000.0, seen_gpus=1, overhead_s=0.05, phases=(TrainerPhase("logprobs", 0.02, True),))
UPDATE = WeightUpdateCost(engine_pause_s=0.03, trainer_blocked_s=0.04, delay_s=0.02)
LAYOUT = Layout(trainer_gpus=1, sampler_gpus=3, max_running=8)
STARVED = System(WORKLOAD, ENGINE, TRAINER, UPDATE)
BUSY = replace(STARVED, trainer=replace(TRAINER, tokens_per_gpu_s=700.0))
"""The trainer is the slower side."""


def constant(tokens: int) -> LengthLaw:
    return LengthLaw(np.array([float(tokens)]), np.array([1.0]))


def with_admission(system: System, **limits: object) -> System:
    return replace(system, admission=Admission(**limits))


def with_workload(system: System, **changes: object) -> System:
    return replace(system, workload=replace(system.workload, **changes))


def with_engine(system: System, **changes: object) -> System:
    return replace(system, engine=replace(system.engine, **changes))


def case(system: System, **settings: object) -> tuple[System, Layout, Settings]:
    return system, LAYOUT, Settings(**settings)


AWAY = with_workload(STARVED, environment_s=0.4)
OVERFLOWING = replace(with_engine(STARVED, kv_capacity_tokens=270), update=replace(UPDATE, kv_kept=False))
PUBLICATION_WAITS = {"max_staleness": 1, "queue_capacity_samples": 48, "staleness_policy": "publication_waits"}
OLDEST_DROPPED = {"queue_capacity_samples": 26, "queue_policy": "drop_oldest"}
CASES = {
    "trainer waits": case(STARVED),
    "trainer behind, queue waits": case(with_admission(BUSY, queue_capacity_samples=48)),
    "oldest dropped": case(with_admission(BUSY, **OLDEST_DROPPED)),
    "dropped by age": case(with_admission(BUSY, queue_capacity_samples=48, staleness_policy="drop", max_staleness=1)),
    "staleness admission": case(with_admission(STARVED, max_staleness=1)),
    "in-flight limit": case(with_admission(BUSY, max_in_flight_samples=40)),
    "capped publication": case(with_admission(BUSY, **PUBLICATION_WAITS)),
    "synchronous": case(with_admission(STARVED, max_staleness=0)),
    "oldest first": case(with_admission(BUSY, queue_capacity_samples=60), queue_order="oldest_first"),
    "cache overflows": case(with_engine(STARVED, kv_capacity_tokens=270)),
    "cache is computed again": case(replace(STARVED, update=replace(UPDATE, kv_kept=False))),
    "late weights": case(replace(STARVED, update=replace(UPDATE, delay_s=2.5))),
    "environment": case(AWAY),
    "environment, each turn a request of its own": case(with_workload(AWAY, environment_place_held=False)),
    "environment, cache overflows": case(with_workload(OVERFLOWING, environment_s=0.4, environment_kv_held=True)),
    "environment, cache let go": case(with_workload(OVERFLOWING, environment_s=0.4, environment_kv_voided=True)),
    "turnaround": case(with_workload(AWAY, turnaround_s=0.4)),
    "delivered within the turnaround": case(with_workload(AWAY, turnaround_s=0.4, delivered_after_ratio=0.25)),
    "delivered at once": case(with_workload(AWAY, turnaround_s=0.3, delivered_after_ratio=0.0)),
    "environment and turnaround": case(with_workload(AWAY, turnaround_s=0.1)),
    "waits that vary": case(with_workload(AWAY, environment_waits_s=(0.0, 0.0, 3.0, 1.0))),
    "filtered groups": case(with_workload(STARVED, kept_ratio=0.7)),
    "filtered by the trainer": case(with_workload(STARVED, kept_ratio=0.7), filters_taken=True),
    "filtered by the trainer, in-flight limit": case(
        with_workload(with_admission(BUSY, max_in_flight_samples=40), kept_ratio=0.7), filters_taken=True
    ),
    "a straggler": case(STARVED, engine_slowness=(1.0, 1.0, 1.8)),
    "noisy steps": case(BUSY, step_noise=0.3),
    "no groups": case(with_workload(STARVED, group_size=1)),
    "uneven batches": case(with_workload(STARVED, samples_per_step=22)),
    "more places than the batch": case(with_engine(STARVED, max_running=5)),
    "one by one": case(with_workload(STARVED, delivery="sample", kept_ratio=0.8)),
    "one by one, in-flight limit": case(
        with_workload(with_admission(BUSY, max_in_flight_samples=40), delivery="sample"), queue_order="lifo"
    ),
    "newest first": case(with_admission(BUSY, queue_capacity_samples=60), queue_order="lifo"),
    "newest first, oldest dropped": case(with_admission(BUSY, **OLDEST_DROPPED), queue_order="lifo"),
    "in-flight limit with training": case(with_admission(BUSY, max_in_flight_samples=60, in_flight_until_trained=True)),
    "taken as they come": case(with_admission(STARVED, queue_capacity_samples=4), dequeue="as_they_come"),
    "taken as they come, capped publication": case(with_admission(BUSY, **PUBLICATION_WAITS), dequeue="as_they_come"),
    "free prefill": case(with_engine(STARVED, prefill_tokens_per_s=None)),
}
CASES |= {
    f"{name}, pulled": (system, layout, replace(settings, dispatch="pulled"))
    for name, (system, layout, settings) in CASES.items()
}
"""The second half has engines that take groups themselves."""
