"""Small systems for the event simulator: every limit, policy and cost once, with few enough samples to be quick."""

from dataclasses import dataclass, replace

import numpy as np

from rlscope.model.arrays import Reals
from rlscope.model.lengths import LengthLaw
from rlscope.model.simulate import Settings
from rlscope.model.system import Admission, Engine, Layout, System, Trainer, TrainerPhase, WeightUpdateCost, Workload


@dataclass(frozen=True, slots=True)
class Affine:
    """flat_s + per_request_s * b."""

    flat_s: float
    per_request_s: float
    kv_s_per_token: float = 0.0

    def pass_s(self, running: Reals | float) -> Reals:
        return self.flat_s + self.per_request_s * np.asarray(running, dtype=np.float64)


LENGTHS = LengthLaw.lognormal(30, 0.6, max_output_tokens=150)
WORKLOAD = Workload(LENGTHS, prompt_tokens=12.5, group_size=4, samples_per_step=24, trained_prompt_tokens=12.5)
ENGINE = Engine(1, Affine(0.010, 0.002, 1e-6), max_running=8, prefill_tokens_per_s=5000.0)
TRAINER = Trainer(2000.0, seen_gpus=1, overhead_s=0.05, phases=(TrainerPhase("logprobs", 0.02, True),))
UPDATE = WeightUpdateCost(engine_pause_s=0.03, trainer_blocked_s=0.04, delay_s=0.02)
LAYOUT = Layout(trainer_gpus=1, sampler_gpus=3, max_running=8)
STARVED = System(WORKLOAD, ENGINE, TRAINER, UPDATE)
BUSY = replace(STARVED, trainer=replace(TRAINER, tokens_per_gpu_s=700.0))
"""The trainer is the slower side."""


def constant(tokens: int) -> LengthLaw:
    return LengthLaw(np.array([float(tokens)]), np.array([1.0]))


def with_admission(system: System, **limits: object) -> System:
    return replace(system, admission=Admission(**limits))  # type: ignore[arg-type]


CASES: dict[str, tuple[System, Layout, Settings]] = {
    "trainer waits": (STARVED, LAYOUT, Settings()),
    "trainer behind, queue waits": (with_admission(BUSY, queue_capacity_samples=48), LAYOUT, Settings()),
    "oldest dropped": (
        with_admission(BUSY, queue_capacity_samples=26, queue_policy="drop_oldest"),
        LAYOUT,
        Settings(),
    ),
    "dropped by age": (
        with_admission(BUSY, queue_capacity_samples=48, staleness_policy="drop", max_staleness=1),
        LAYOUT,
        Settings(),
    ),
    "staleness admission": (with_admission(STARVED, max_staleness=1), LAYOUT, Settings()),
    "in-flight limit": (with_admission(BUSY, max_in_flight_samples=40), LAYOUT, Settings()),
    "capped publication": (
        with_admission(BUSY, max_staleness=1, queue_capacity_samples=48, staleness_policy="publication_waits"),
        LAYOUT,
        Settings(),
    ),
    "synchronous": (with_admission(STARVED, max_staleness=0), LAYOUT, Settings(publication="drained")),
    "drained": (STARVED, LAYOUT, Settings(publication="drained")),
    "oldest first": (with_admission(BUSY, queue_capacity_samples=60), LAYOUT, Settings(queue_order="oldest_first")),
    "cache overflows": (replace(STARVED, engine=replace(ENGINE, kv_capacity_tokens=270)), LAYOUT, Settings()),
    "cache is computed again": (replace(STARVED, update=replace(UPDATE, kv_kept=False)), LAYOUT, Settings()),
    "late weights": (replace(STARVED, update=replace(UPDATE, delay_s=2.5)), LAYOUT, Settings()),
    "environment": (replace(STARVED, workload=replace(WORKLOAD, environment_s=0.4)), LAYOUT, Settings()),
    "environment, cache overflows": (
        replace(
            STARVED,
            workload=replace(WORKLOAD, environment_s=0.4, environment_kv_held=True),
            engine=replace(ENGINE, kv_capacity_tokens=270),
            update=replace(UPDATE, kv_kept=False),
        ),
        LAYOUT,
        Settings(),
    ),
    "environment, cache let go": (
        replace(
            STARVED,
            workload=replace(WORKLOAD, environment_s=0.4, environment_kv_voided=True),
            engine=replace(ENGINE, kv_capacity_tokens=270),
            update=replace(UPDATE, kv_kept=False),
        ),
        LAYOUT,
        Settings(),
    ),
    "environment, drained": (
        replace(STARVED, workload=replace(WORKLOAD, environment_s=0.4)),
        LAYOUT,
        Settings(publication="drained"),
    ),
    "turnaround": (
        replace(STARVED, workload=replace(WORKLOAD, environment_s=0.4, turnaround_s=0.4)),
        LAYOUT,
        Settings(),
    ),
    "delivered within the turnaround": (
        replace(STARVED, workload=replace(WORKLOAD, environment_s=0.4, turnaround_s=0.4, delivered_after_ratio=0.25)),
        LAYOUT,
        Settings(),
    ),
    "delivered at once": (
        replace(STARVED, workload=replace(WORKLOAD, environment_s=0.4, turnaround_s=0.3, delivered_after_ratio=0.0)),
        LAYOUT,
        Settings(),
    ),
    "environment and turnaround": (
        replace(STARVED, workload=replace(WORKLOAD, environment_s=0.4, turnaround_s=0.1)),
        LAYOUT,
        Settings(),
    ),
    "waits that vary": (
        replace(STARVED, workload=replace(WORKLOAD, environment_s=0.4, environment_waits_s=(0.0, 0.0, 3.0, 1.0))),
        LAYOUT,
        Settings(),
    ),
    "filtered groups": (replace(STARVED, workload=replace(WORKLOAD, kept_ratio=0.7)), LAYOUT, Settings()),
    "a straggler": (STARVED, LAYOUT, Settings(engine_slowness=(1.0, 1.0, 1.8))),
    "noisy steps": (BUSY, LAYOUT, Settings(step_noise=0.3)),
    "no groups": (replace(STARVED, workload=replace(WORKLOAD, group_size=1)), LAYOUT, Settings()),
    "uneven batches": (replace(STARVED, workload=replace(WORKLOAD, samples_per_step=22)), LAYOUT, Settings()),
    "more places than the batch": (replace(STARVED, engine=replace(ENGINE, max_running=5)), LAYOUT, Settings()),
    "one by one": (replace(STARVED, workload=replace(WORKLOAD, delivery="sample", kept_ratio=0.8)), LAYOUT, Settings()),
    "one by one, in-flight limit": (
        replace(with_admission(BUSY, max_in_flight_samples=40), workload=replace(WORKLOAD, delivery="sample")),
        LAYOUT,
        Settings(queue_order="lifo"),
    ),
    "newest first": (with_admission(BUSY, queue_capacity_samples=60), LAYOUT, Settings(queue_order="lifo")),
    "newest first, oldest dropped": (
        with_admission(BUSY, queue_capacity_samples=26, queue_policy="drop_oldest"),
        LAYOUT,
        Settings(queue_order="lifo"),
    ),
    "in-flight limit with training": (
        with_admission(BUSY, max_in_flight_samples=60, in_flight_until_trained=True),
        LAYOUT,
        Settings(),
    ),
    "taken as they come": (with_admission(STARVED, queue_capacity_samples=8), LAYOUT, Settings(taking="as_they_come")),
    "taken as they come, capped publication": (
        with_admission(BUSY, max_staleness=1, queue_capacity_samples=48, staleness_policy="publication_waits"),
        LAYOUT,
        Settings(taking="as_they_come"),
    ),
    "free prefill": (replace(STARVED, engine=replace(ENGINE, prefill_tokens_per_s=None)), LAYOUT, Settings()),
}

PULLED = (
    "trainer waits",
    "trainer behind, queue waits",
    "oldest dropped",
    "dropped by age",
    "staleness admission",
    "in-flight limit",
    "one by one, in-flight limit",
    "taken as they come",
    "newest first, oldest dropped",
    "in-flight limit with training",
    "capped publication",
    "drained",
    "cache overflows",
    "environment",
    "environment, cache overflows",
    "turnaround",
    "delivered within the turnaround",
    "delivered at once",
    "waits that vary",
    "filtered groups",
    "more places than the batch",
)
"""Cases that are also run with engines that take groups themselves."""
for name in PULLED:
    system, layout, settings = CASES[name]
    CASES[f"{name}, pulled"] = (system, layout, replace(settings, dispatch="pulled"))
