"""Part of a large system, simulated in place of the whole: fewer engines with as many samples fewer in each step.

Engines and batches that are both a k-th wait for each other as the whole does: the time of a step, staleness and drops
are those of the whole, but for the chance in smaller batches. Not covered: engines of different speeds, and limits that
the slowest of all samples decides.
"""

import math
from dataclasses import replace
from typing import Final, NamedTuple

from rlscope.model.simulate.settings import Settings
from rlscope.model.system import Layout, System

_LEAST_SAMPLES: Final = 512
"""Samples in a step of a part, at least."""
_LEAST_GROUPS: Final = 128
"""Groups in a step of a part, at least: it then trains within 1.3% of the whole (19 systems of 2,048 or 4,096 samples a
step). Where engines fall into step with each other, two seeds of either differ by 3%."""
_LEAST_RARE: Final = 256
"""As many if rare groups decide: if some are filtered, or if limits let a batch wait for its longest ones. Fewer groups
have shorter longest ones: with 128 of 512, parts of such systems train up to 3% more."""
_ROOMY_BATCHES: Final = 2
"""Batches in flight, or versions of a staleness cap, from which no batch waits for its longest groups."""
_LEAST_LIMIT: Final = 32
"""Groups that every limit on samples leaves a part, at least: it is rounded to whole ones, by under 2% of these."""
_LEAST_ENGINES: Final = 2
_UNEVEN_RATIO: Final = 0.001
"""Difference between the part's share of the engines and of a batch, which is a number of whole groups, at most."""


class Part(NamedTuple):
    """System to simulate, and how many such systems make the whole."""

    system: System
    layout: Layout
    whole_ratio: float
    """Engines of the whole over those of the part; 1 if it is the whole."""


def part_of(system: System, layout: Layout, settings: Settings) -> Part:
    """Return the smallest part that is like the whole; the whole itself if it is small, or not made of equal parts."""
    workload, engine_gpus = system.workload, system.engine.gpus
    engines, groups = layout.sampler_gpus // engine_gpus, workload.samples_per_step // workload.unit_samples
    # Publications that wait for the cap wait for the slowest sample of all, which is faster among fewer.
    is_uneven = settings.engine_slowness is not None or system.admission.staleness_policy == "publication_waits"
    least_groups = _LEAST_RARE if _is_tight(system) or workload.kept_ratio < 1.0 else _LEAST_GROUPS
    least = max(least_groups, _LEAST_SAMPLES / workload.unit_samples)
    admission = system.admission
    limits = (admission.queue_capacity_samples, admission.max_in_flight_samples, admission.max_running_samples)
    lowest = min((limit / workload.unit_samples for limit in limits if limit is not None), default=math.inf)
    for fewer in range(_LEAST_ENGINES, 1 if is_uneven else engines // 2 + 1):
        wanted = groups * fewer / engines
        is_enough = wanted >= least and lowest * fewer / engines >= _LEAST_LIMIT
        if is_enough and abs(round(wanted) / wanted - 1.0) <= _UNEVEN_RATIO:
            part = _with_groups(system, round(wanted) / groups)
            return Part(part, replace(layout, sampler_gpus=fewer * engine_gpus), engines / fewer)
    return Part(system, layout, 1.0)


def _is_tight(system: System) -> bool:
    """Whether batches may wait for their longest groups because a limit lets no others start."""
    admission, in_flight = system.admission, system.admission.max_in_flight_samples
    is_low = in_flight is not None and in_flight < _ROOMY_BATCHES * system.workload.samples_per_step
    return is_low or (admission.waits_for_cap and (admission.max_staleness or 0) < _ROOMY_BATCHES)


def _with_groups(system: System, ratio: float) -> System:
    """Return the system with a share of the samples in each step and limit. The trainers take as long for a step."""
    workload, trainer, admission = system.workload, system.trainer, system.admission

    def share_of(samples: int | None) -> int | None:
        return None if samples is None else round(ratio * samples / workload.unit_samples) * workload.unit_samples

    return replace(
        system,
        workload=replace(workload, samples_per_step=round(ratio * workload.samples_per_step)),
        trainer=replace(trainer, tokens_per_gpu_s=ratio * trainer.tokens_per_gpu_s),
        admission=replace(
            admission,
            queue_capacity_samples=share_of(admission.queue_capacity_samples),
            max_in_flight_samples=share_of(admission.max_in_flight_samples),
            max_running_samples=share_of(admission.max_running_samples),
        ),
    )
