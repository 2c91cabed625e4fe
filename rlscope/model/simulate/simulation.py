"""The one function that the rest of the model calls."""

import math
from dataclasses import replace
from typing import Final

import numpy as np

from rlscope.model.simulate.outcome import Simulated
from rlscope.model.simulate.run import Run
from rlscope.model.simulate.settings import DEFAULTS, Settings, refuse_what_can_not_run
from rlscope.model.simulate.start import samples_at_start
from rlscope.model.simulate.summary import summarise
from rlscope.model.system import Layout, System

_WARM_UP_RATIO: Final = 0.2
_WARM_UP_FILLS: Final = 2
"""Times that what is in flight is replaced before the run counts as steady."""
_UNLIMITED_QUEUE_STEPS: Final = 1
"""Steps' worth of samples that an unlimited queue is taken to hold in steady state."""


def simulate(
    system: System,
    layout: Layout,
    *,
    steps: int,
    seed: int,
    warm_up_steps: int | None = None,
    settings: Settings = DEFAULTS,
) -> Simulated:
    """Simulate so many training steps of a layout and measure what follows the warm-up.

    The run starts spread out, as if its first requests had been under way for a while. warm_up_steps: None leaves out
    the first fifth, and at least what it takes to replace everything in flight twice, but never more than half. Same
    arguments, same result. ValueError: the limits let no step start (the message says which), fewer than 2 steps, or
    nothing after the warm-up. NeverTrains: fewer than about one sample in a hundred is trained.
    """
    layout = _within_cap(system, layout)
    refuse_what_can_not_run(system, layout, settings)
    run = Run(system, layout, settings, np.random.default_rng(seed))
    warm_up = _default_warm_up(system, layout, steps) if warm_up_steps is None else warm_up_steps
    if steps < 2 or not 0 <= warm_up < steps:
        raise ValueError(f"{steps} steps leave nothing to measure after a warm-up of {warm_up}")
    return summarise(run.samples, run.play(warm_up), run.play(steps), run.step_ends_s)


def _within_cap(system: System, layout: Layout) -> Layout:
    """With a cap on what runs over all engines as each one's share of it: a router fills them alike."""
    most = system.admission.max_running_samples
    if most is None:
        return layout
    share = max(1, round(most / max(1, layout.sampler_gpus // system.engine.gpus)))
    return replace(layout, running_per_engine=min(layout.running_per_engine, share))


def _default_warm_up(system: System, layout: Layout, steps: int) -> int:
    """Steps to leave out, by the rule of `simulate`."""
    admission, batch = system.admission, system.workload.samples_per_step
    queued = admission.queue_capacity_samples or _UNLIMITED_QUEUE_STEPS * batch
    ahead = system.workload.batches_ahead
    fill = math.ceil(_WARM_UP_FILLS * ((samples_at_start(system, layout) + queued) / batch + ahead))
    return min(max(fill, round(_WARM_UP_RATIO * steps)), steps // 2)
