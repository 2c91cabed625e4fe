"""From an open run to its model result: observes the steady stretch and its halves, and asks the model.

A run that the model can say nothing about is no error: `NoModelResult` says what is missing.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from types import MappingProxyType
from typing import Final

import polars as pl

from rlscope.analysis.interval import Interval
from rlscope.analysis.observe import ASKED_OF_A_STRETCH, UnobservableError, observe
from rlscope.analysis.result import Constraints, RunFacts
from rlscope.model.calibration import UncalibratableError
from rlscope.model.decode.prior import hardware_prior
from rlscope.model.forecast.result import STEPS_TO_PREDICT, ModelConfig, ModelResult, NoModelResult, model_run
from rlscope.model.hardware.devices import ModelShape, find_device
from rlscope.model.observed import Observed, OtherRun
from rlscope.model.simulate import Settings
from rlscope.model.system import Admission, Granularity
from rlscope.trace.config import RunConfig
from rlscope.trace.query import Grid, ask
from rlscope.trace.store import OpenRun

_DROPPED_RATIO: Final = 0.001
"""Of the delivered tokens: a cap that drops less than this is kept by other means than dropping."""

_TOGETHER_RATIO: Final = 0.95
"""Groups on one engine each, of all: a router that spreads samples over engines leaves few together, and engines that
take groups all of them; a few that were resumed elsewhere do not make it a router."""

_LEAST_PREFETCHED: Final = 0.05
"""Of a batch: trainers that hold less took a few samples early and prefetch no batch."""


def advise(
    run: OpenRun,
    facts: RunFacts,
    grid: Grid,
    answers: Mapping[str, pl.DataFrame],
    constraints: Constraints,
    others: tuple[OtherRun, ...] = (),
    lost_gpu_s: Mapping[str, float] = MappingProxyType({}),
) -> ModelResult | NoModelResult:
    """What the model says about the run.

    answers: of the questions of an analysis, with `ledger_timeline` made of the ledger; others: of `constraints.also`;
    lost_gpu_s: GPU-seconds of the stretch lost to each cause.
    """
    window = facts.window
    if window is None:
        return NoModelResult(f"no steady stretch: {facts.window_reason}")
    stretch = Interval(window.start_ns, window.end_ns)
    try:
        whole = _observe(run, facts, grid, answers, stretch)
        halves = _halves(run, facts, grid, answers, stretch)
        model_config = replace(
            _model_config(run.config, facts, whole, constraints), others=others, lost_gpu_s=lost_gpu_s
        )
        return model_run(whole, halves, model_config)
    except (UnobservableError, UncalibratableError) as error:
        return NoModelResult(str(error))


def _observe(
    run: OpenRun, facts: RunFacts, grid: Grid, answers: Mapping[str, pl.DataFrame], stretch: Interval
) -> Observed:
    arguments = asdict(replace(grid, from_ns=stretch.start_ns, to_ns=stretch.end_ns))
    asked = {name: ask(run, name, arguments) for name in ASKED_OF_A_STRETCH}
    timeline = answers["ledger_timeline"]
    return observe(run.config, facts.sampler_gpus, {**answers, **asked}, timeline, grid.bucket_ns, stretch)


def _halves(
    run: OpenRun, facts: RunFacts, grid: Grid, answers: Mapping[str, pl.DataFrame], stretch: Interval
) -> tuple[Observed, Observed] | None:
    """The stretch cut at the end of its middle step; None where it is too short to be cut."""
    ends_ns = answers["training_steps"].filter(pl.col("end_ns").is_between(*stretch, closed="right"))["end_ns"].sort()
    if len(ends_ns) < STEPS_TO_PREDICT:
        return None
    middle_ns = int(ends_ns[len(ends_ns) // 2 - 1])
    first, rest = Interval(stretch.start_ns, middle_ns), Interval(middle_ns, stretch.end_ns)
    return _observe(run, facts, grid, answers, first), _observe(run, facts, grid, answers, rest)


def _model_config(config: RunConfig, facts: RunFacts, whole: Observed, constraints: Constraints) -> ModelConfig:
    admission = _admission(config, whole)
    # A cap that the run keeps by itself it keeps in any layout, as well as it does today; it leaves none out.
    own_cap = None if admission.max_staleness is not None else config.max_staleness
    device = find_device(whole.device_name)
    shape = ModelShape.of(config.model)
    return ModelConfig(
        admission=admission,
        form="expert_hit" if shape.has_experts else None,
        settings=_settings(config, whole),
        prior=hardware_prior(shape, device, whole.gpus_per_engine),
        granularity=Granularity(whole.gpus_per_engine, config.gpus_per_trainer_replica or 1, constraints.gpus_per_node),
        most_staleness=own_cap if constraints.most_staleness is None else constraints.most_staleness,
        remaining_steps=None if config.total_steps is None else max(0, config.total_steps - facts.steps),
        gpu_hour_price=config.gpu_hour_price,
        new_cap_policy="drop" if config.staleness_policy == "drop" else "admission",
        prefetched_batches=_prefetched(config, whole),
        scheduling_stated=config.dispatch is not None
        and (config.queue_policy is not None or config.queue_capacity_samples is None),
    )


def _settings(config: RunConfig, whole: Observed) -> Settings:
    """Rollout scheduling as the config states it; an unstated dispatch follows from where groups ran."""
    together_ratio = whole.one_engine_groups_ratio
    inferred = "pulled" if together_ratio is not None and together_ratio >= _TOGETHER_RATIO else "least_loaded"
    return Settings(
        queue_order=config.queue_order or "fifo",
        dispatch=config.dispatch or inferred,
    )


def _admission(config: RunConfig, whole: Observed) -> Admission:
    """The limits that are seen to act: a cap that is exceeded, and that nothing was dropped for, is none.

    What is pushed out of a full queue is recorded as dropped as stale too, so with a queue that drops its oldest
    nothing is known about a cap that drops. Prefetched samples age after the drop.
    """
    delivered = whole.delivered
    dropped_ratio = delivered.dropped_tokens / max(1, delivered.dropped_tokens + delivered.trained_tokens)
    queue = config.queue_capacity_samples
    policy, cap = config.staleness_policy, config.max_staleness
    most = (config.max_in_flight_samples, config.max_running_samples)
    if config.queue_policy == "drop_oldest" and queue is not None:
        return Admission(queue, "drop_oldest", None, *most)
    if (
        policy == "drop"
        and cap
        and (dropped_ratio > _DROPPED_RATIO or _is_kept(cap + _prefetched(config, whole), whole))
    ):
        return Admission(queue, "wait", cap, *most, staleness_policy="drop")
    if policy == "publication_waits" and cap:
        return Admission(queue, "wait", cap, *most, staleness_policy="publication_waits")
    return Admission(queue, "wait", cap if policy == "admission" and cap else None, *most)


def _prefetched(config: RunConfig, whole: Observed) -> float:
    """Prefetched batches of the trainers: as the config states, else as the run shows."""
    if config.batches_ahead is not None:
        return max(0.0, config.batches_ahead)
    shown = whole.prefetched_batches or 0.0
    return shown if shown >= _LEAST_PREFETCHED and _has_room_for(shown, config, whole) else 0.0


def _has_room_for(prefetched: float, config: RunConfig, whole: Observed) -> bool:
    """Whether the model covers trainers that prefetch so much under the way in which the run keeps its cap."""
    if config.staleness_policy not in ("publication_waits", "admission") or not config.max_staleness:
        return True
    versions_ahead = prefetched * whole.steps.published.sum() / whole.steps.period_s.size
    return config.staleness_policy == "admission" and versions_ahead < config.max_staleness


def _is_kept(cap: float, whole: Observed) -> bool:
    """Whether what was trained on was within the cap: then nothing says that another layout would exceed it."""
    tokens = sum(tokens for _, tokens in whole.staleness)
    over = sum(tokens for staleness, tokens in whole.staleness if staleness > cap)
    return bool(tokens) and over <= _DROPPED_RATIO * tokens
