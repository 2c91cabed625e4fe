"""Model result of an open run: observes the steady state and its first half, and fits the model.

A run that cannot be modeled is not an error: `NoModelResult` says what the run lacks.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import polars as pl

from rlscope.analysis.bottleneck import auxiliary_busy_ratio
from rlscope.analysis.interval import Interval
from rlscope.analysis.observe import (
    ASKED_OF_A_STRETCH,
    ASKED_OF_STEPS,
    ASKED_OF_THE_WHOLE,
    UnobservableError,
    delivered_steps,
    observe,
)
from rlscope.analysis.result import Constraints, RunFacts
from rlscope.analysis.run_facts import most_gpus
from rlscope.model.calibration import UncalibratableError
from rlscope.model.causes import LossCause
from rlscope.model.decode.prior import hardware_prior
from rlscope.model.forecast.replay import Scheduling
from rlscope.model.forecast.result import STEPS_TO_PREDICT, ModelConfig, ModelResult, NoModelResult, model_run
from rlscope.model.hardware.devices import ModelShape, find_device
from rlscope.model.observed import Observed, OtherRun, TrainerSteps
from rlscope.model.policies import Delivery, Taking
from rlscope.model.simulate import Settings
from rlscope.model.system import Admission, Granularity
from rlscope.trace.config import RunConfig
from rlscope.trace.query import Grid, ask
from rlscope.trace.store import OpenRun

_ABSENT_RATIO: Final = 0.10
"""Share of the samplers' GPU time that may be missing, such as while a few of many engines start again."""

_DROPPED_RATIO: Final = 0.001
"""Share of the delivered tokens. A cap that drops less than this is enforced by other means than dropping."""

_TOGETHER_RATIO: Final = 0.95
"""Share of groups whose samples all ran on one engine. Engines that take whole groups keep every group together, except
for a few samples that are resumed elsewhere; a router that spreads samples keeps few groups together."""

_PLAIN_RATIO: Final = 0.8
"""Share of the informative samples or pairs above which the run clearly behaves in a certain way."""

_PLAINLY_NOT_RATIO: Final = 0.2
"""Share of the informative samples or pairs below which the run clearly does not behave in that way."""

_PLAINLY_DROPPED_RATIO: Final = 0.01
"""Share of the delivered tokens. Dropping more than this is intentional, whatever the config states."""

_DISORDER_RATIO: Final = 0.05
"""Maximum share of informative pairs that contradict an order. Several trainers that take at once swap a few pairs."""

_AWAITED_RATIO: Final = 0.05
"""Minimum share of trainer time spent waiting that shows what the trainers take meanwhile."""

_ON_ARRIVAL_RATIO: Final = 0.5
"""Minimum share of samples taken on arrival, relative to the share of time that trainers wait, that shows that trainers
take samples as they come. The first samples of a batch are also taken at once and count as its first."""

_LEFT_BEHIND_RATIO: Final = 0.01
"""Share of the trained samples. If more are beyond a cap that publications wait for, these wait for running ones only.
"""
_WAIT_RATIO: Final = 0.01
"""Share of a side's time. If it waits longer for a cap, it enforces the cap by waiting."""

_REACHED_RATIO: Final = 0.9
"""Share of a limit on samples in flight. A run that stays below it has not reached the limit and does not show what it
counts."""

_MOST_TRIED: Final = 8
"""Maximum number of schedulings to simulate. Each takes 0.1 to 0.5 s."""

_LEAST_PREFETCHED: Final = 0.05
"""Minimum prefetched share of a batch. Trainers that hold less took a few samples early and prefetch no batch."""


def advise(
    run: OpenRun,
    facts: RunFacts,
    grid: Grid,
    answers: Mapping[str, pl.DataFrame],
    constraints: Constraints,
    others: tuple[OtherRun, ...] = (),
    lost_gpu_s: Mapping[LossCause, float] = MappingProxyType({}),
) -> ModelResult | NoModelResult:
    """Fit the model to a run and return its result, or the reason that there is none.

    Args:
        run: The open run.
        facts: Basic facts of the run.
        grid: Time grid of the answers.
        answers: Answers to the queries of an analysis, with `ledger_timeline` made from the ledger.
        constraints: Constraints on the recommended layout.
        others: Train steps of the runs in `constraints.also`.
        lost_gpu_s: GPU-seconds of the steady state lost to each cause.
    """
    window = facts.window
    if window is None:
        return NoModelResult(f"no steady state: {facts.window_reason}")
    stretch = Interval(window.start_ns, window.end_ns)
    try:
        answers = {**answers, **_asked(run, grid, stretch, ASKED_OF_THE_WHOLE)}
        observed = partial(_observe, run, sampler_gpus_in(answers["worker_extents"], stretch), grid, answers)
        whole, parts = observed(stretch), _halves(answers["training_steps"], stretch)
        halves = None if parts is None else (observed(parts[0]), _steps(run, grid, answers, parts[1]))
        busy_ratio = auxiliary_busy_ratio(stretch.clip(answers["ledger_timeline"], grid.bucket_ns))
        model_config = _model_config(run.config, facts, whole, constraints)
        model_config = replace(model_config, others=others, lost_gpu_s=lost_gpu_s, auxiliary_busy_ratio=busy_ratio)
        return model_run(whole, halves, model_config)
    except (UnobservableError, UncalibratableError) as error:
        return NoModelResult(str(error))


def sampler_gpus_in(extents: pl.DataFrame, stretch: Interval) -> int:
    """Return the GPUs that samplers owned at once in the interval, from worker_extents.

    Raises UnobservableError if they owned notably fewer on average: a layout has as many all the time.
    """
    start_ns = pl.max_horizontal("start_ns", pl.lit(stretch.start_ns))
    end_ns = pl.min_horizontal("end_ns", pl.lit(stretch.end_ns))
    inside = extents.filter(role="sampler").with_columns(start_ns=start_ns, end_ns=end_ns)
    inside = inside.filter(pl.col("end_ns") > pl.col("start_ns"))
    gpus = most_gpus(inside)
    gpu_ns = int((inside["gpu_count"] * (inside["end_ns"] - inside["start_ns"])).sum())
    mean_gpus = gpu_ns / (stretch.end_ns - stretch.start_ns)
    if mean_gpus < (1.0 - _ABSENT_RATIO) * gpus:
        raise UnobservableError(
            "samplers joined or left in the steady state, or their logs do not cover it: "
            f"of up to {gpus} sampler GPUs, {mean_gpus:.1f} were there on average"
        )
    return gpus


def _observe(
    run: OpenRun, sampler_gpus: int, grid: Grid, answers: Mapping[str, pl.DataFrame], stretch: Interval
) -> Observed:
    answers = {**answers, **_asked(run, grid, stretch, ASKED_OF_A_STRETCH)}
    inside = stretch.clip(answers["ledger_timeline"], grid.bucket_ns)
    return observe(run.config, sampler_gpus, answers, inside, stretch)


def _steps(run: OpenRun, grid: Grid, answers: Mapping[str, pl.DataFrame], stretch: Interval) -> TrainerSteps:
    return delivered_steps({**answers, **_asked(run, grid, stretch, ASKED_OF_STEPS)}, stretch)[0]


def _asked(run: OpenRun, grid: Grid, stretch: Interval, names: tuple[str, ...]) -> dict[str, pl.DataFrame]:
    arguments = asdict(replace(grid, from_ns=stretch.start_ns, to_ns=stretch.end_ns))
    return {name: ask(run, name, arguments) for name in names}


def _halves(steps: pl.DataFrame, stretch: Interval) -> tuple[Interval, Interval] | None:
    """Split the interval at the end of its middle step. None if it is too short."""
    ends_ns = steps.filter(pl.col("end_ns").is_between(*stretch, closed="right"))["end_ns"].sort()
    if len(ends_ns) < STEPS_TO_PREDICT:
        return None
    middle_ns = int(ends_ns[len(ends_ns) // 2 - 1])
    return Interval(stretch.start_ns, middle_ns), Interval(middle_ns, stretch.end_ns)


def _model_config(config: RunConfig, facts: RunFacts, whole: Observed, constraints: Constraints) -> ModelConfig:
    read = read_scheduling(config, whole)
    # A cap that the run's own settings enforce holds in every layout, so it excludes no layout.
    own_cap = None if read.possible[0].admission.max_staleness is not None else config.max_staleness
    is_own = constraints.most_staleness in (None, config.max_staleness)
    device = find_device(whole.device_name)
    shape = ModelShape.of(config.model)
    return ModelConfig(
        candidates=read.possible,
        form="expert_hit" if shape.has_experts else None,
        prior=hardware_prior(shape, device, whole.gpus_per_engine),
        granularity=Granularity(whole.gpus_per_engine, config.gpus_per_trainer_replica or 1, constraints.gpus_per_node),
        most_staleness=own_cap if is_own else constraints.most_staleness,
        remaining_steps=None if config.total_steps is None else max(0, config.total_steps - facts.steps),
        gpu_hour_price=config.gpu_hour_price,
        auxiliary_gpus=facts.auxiliary_gpus,
        new_cap_policy="drop" if config.staleness_policy == "drop" else "admission",
        prefetched_batches=_prefetched(config, whole),
        scheduling_stated=config.dispatch is not None
        and (config.queue_policy is not None or config.queue_capacity_samples is None),
        scheduling_contradicted=read.contradicted,
    )


class Reading(NamedTuple):
    """Reading of the scheduling of rollouts, or of one property of it, from the config and the run."""

    possible: tuple[Any, ...]
    """Values that are consistent with both, at least one, the most likely first."""
    contradicted: bool = False
    """Whether the run clearly shows another value than the config states."""


def read_scheduling(config: RunConfig, whole: Observed) -> Reading:
    """Return every scheduling that is consistent with the facts.

    Each property is the one that the config states, unless the run clearly shows otherwise. If the config does not
    state it, it is the one that the run shows. If the run does not show it either, all values are possible.
    """
    deliveries, orders = _deliveries(config, whole), _orders(config, whole)
    dispatches, admissions = _dispatches(config, whole), _admissions(config, whole)
    parts = (admissions, dispatches, deliveries, orders, _takings(whole))
    # Trainers filter samples that they took if most of the filtered ones show it.
    filters_taken = (whole.scheduling.filtered_queued_ratio or 0.0) > 0.5
    every = [
        Scheduling(delivery, Settings(order, dispatch, taking, filters_taken), admission)
        for admission, dispatch, delivery, order, taking in product(*(part.possible for part in parts))
    ]
    return Reading(tuple(every[:_MOST_TRIED]), any(part.contradicted for part in parts))


def _deliveries(config: RunConfig, whole: Observed) -> Reading:
    """Read whether whole groups or single samples are delivered."""
    alone_ratio, stated = whole.scheduling.queued_alone_ratio, config.delivery
    if whole.group_size == 1:
        return Reading((stated or "group",))
    if alone_ratio is not None and not _PLAINLY_NOT_RATIO < alone_ratio < _PLAIN_RATIO:
        shown: Delivery = "sample" if alone_ratio >= _PLAIN_RATIO else "group"
        return Reading((shown,), contradicted=stated not in (None, shown))
    return Reading((stated,)) if stated else Reading(("group", "sample"))


def _orders(config: RunConfig, whole: Observed) -> Reading:
    """Read which samples are taken first: the orders that hardly any pair of samples contradicts."""
    disorder, stated = whole.scheduling.disorder_ratios, config.queue_order
    known = {order: ratio for order, ratio in disorder.items() if ratio is not None}
    fitting = tuple(order for order in ("fifo", "oldest_first", "lifo") if known.get(order, 1.0) <= _DISORDER_RATIO)
    if stated:
        is_contradicted = bool(fitting) and known.get(stated, 0.0) >= _PLAINLY_NOT_RATIO
        return Reading(fitting, contradicted=True) if is_contradicted else Reading((stated,))
    # If a batch leaves no sample behind, the order makes no difference.
    return Reading(fitting or ("fifo",))


def _takings(whole: Observed) -> Reading:
    """Read whether trainers take whole batches or samples as they come.

    If they take samples as they come, the samples that arrive while the trainers wait are taken on arrival.
    """
    seen, awaited_ratio = whole.scheduling.taken_on_arrival_ratio or 0.0, whole.load.wait_samples_ratio
    expected = 1.0 if awaited_ratio is None else awaited_ratio
    if expected < _AWAITED_RATIO or seen <= _PLAINLY_NOT_RATIO * expected:
        return Reading(("batch",))
    as_they_come: Taking = "as_they_come"
    return Reading((as_they_come,) if seen >= _ON_ARRIVAL_RATIO * expected else (as_they_come, "batch"))


def _dispatches(config: RunConfig, whole: Observed) -> Reading:
    """Read how samples get to the engines. If the config does not state it, the engines of the groups show it."""
    together_ratio = whole.one_engine_groups_ratio
    if config.dispatch is not None:
        return Reading((config.dispatch,))
    if together_ratio is not None and together_ratio >= _TOGETHER_RATIO:
        return Reading(("pulled",))
    # If groups are spread over engines, a router spread them or engines pulled single samples.
    return Reading(("least_loaded",) if together_ratio is None else ("least_loaded", "pulled"))


def _admissions(config: RunConfig, whole: Observed) -> Reading:
    policies, counts = _policies(config, whole), _counts_training(config, whole)
    possible = [
        replace(_admission(config, policy, whole), in_flight_until_trained=until_trained)
        for policy, until_trained in product(policies.possible, counts.possible)
    ]
    return Reading(tuple(dict.fromkeys(possible)), policies.contradicted or counts.contradicted)


def _policies(config: RunConfig, whole: Observed) -> Reading:
    """Read how a staleness cap is enforced: by dropping samples, by waiting trainers or by waiting engines."""
    stated, cap = config.staleness_policy, config.max_staleness
    dropped_ratio = 0.0 if config.queue_policy == "drop_oldest" else _dropped_ratio(whole)
    if stated is not None:
        waits = stated in ("publication_waits", "admission") and cap is not None
        is_contradicted = waits and dropped_ratio > _PLAINLY_DROPPED_RATIO
        return Reading(("drop",), contradicted=True) if is_contradicted else Reading((stated,))
    if not cap:
        return Reading(("none",))
    if dropped_ratio > _DROPPED_RATIO:
        return Reading(("drop",))
    if (whole.load.wait_staleness_cap_ratio or 0.0) > _WAIT_RATIO:
        return Reading(("publication_waits",))
    held_s = whole.engine_state_s.get(("no_requests", "staleness_cap"), 0.0)
    if held_s > _WAIT_RATIO * whole.engines * whole.seconds and config.max_in_flight_samples is None:
        return Reading(("admission",))
    return Reading(("none", "drop", "admission"))


def _counts_training(config: RunConfig, whole: Observed) -> Reading:
    """Read whether the limit on samples in flight includes the batch in training.

    It does if the count with that batch reaches the limit, and does not if that count exceeds the limit. If the counts
    with and without the batch are both above the limit, or both below it, the run does not show it.
    """
    limit, stated, seen = config.max_in_flight_samples, config.in_flight_until_trained, whole.scheduling
    with_batch, without = seen.untrained_high_samples, seen.untaken_high_samples
    if limit is None:
        return Reading((False,))
    if with_batch is None or without is None or without > limit or with_batch < _REACHED_RATIO * limit:
        return Reading((stated,)) if stated is not None else Reading((False, True))
    shown = with_batch <= limit
    return Reading((shown,), contradicted=stated not in (None, shown))


def _dropped_ratio(whole: Observed) -> float:
    """Return the dropped share of the tokens that were trained on or dropped as stale."""
    delivered = whole.delivered
    return delivered.dropped_tokens / max(1, delivered.dropped_tokens + delivered.trained_tokens)


def _admission(config: RunConfig, policy: str, whole: Observed) -> Admission:
    """Return the limits that take effect. A cap that is exceeded although nothing was dropped for it has no effect.

    Samples pushed out of a full queue are also recorded as dropped as stale, so a queue that drops its oldest samples
    hides whether a cap drops samples. Prefetched samples age after the drop.
    """
    queue, cap = config.queue_capacity_samples, config.max_staleness
    most = (config.max_in_flight_samples, config.max_running_samples)
    if config.queue_policy == "drop_oldest" and queue is not None:
        return Admission(queue, "drop_oldest", None, *most)
    is_kept = cap is not None and _is_kept(cap + _prefetched(config, whole), whole)
    if policy == "drop" and cap and (_dropped_ratio(whole) > _DROPPED_RATIO or is_kept):
        return Admission(queue, "wait", cap, *most, staleness_policy="drop")
    if policy == "publication_waits" and cap:
        waits_for_queued = _keeps_in_queue(cap, whole)
        return Admission(
            queue, "wait", cap, *most, staleness_policy="publication_waits", waits_for_queued=waits_for_queued
        )
    return Admission(queue, "wait", cap if policy == "admission" and cap else None, *most)


def _prefetched(config: RunConfig, whole: Observed) -> float:
    """Return the number of batches that trainers prefetch, from the config or else from the run."""
    if config.batches_ahead is not None:
        return config.batches_ahead
    shown = whole.prefetched_batches or 0.0
    return shown if shown >= _LEAST_PREFETCHED and _has_room_for(shown, config, whole) else 0.0


def _has_room_for(prefetched: float, config: RunConfig, whole: Observed) -> bool:
    """Return whether the model covers this much prefetching together with the run's way of enforcing its cap."""
    if config.staleness_policy not in ("publication_waits", "admission") or not config.max_staleness:
        return True
    versions_ahead = prefetched * whole.steps.published.sum() / whole.steps.period_s.size
    return config.staleness_policy == "admission" and versions_ahead < config.max_staleness


def _keeps_in_queue(cap: int, whole: Observed) -> bool:
    """Return whether publications also wait for queued samples.

    If they wait only for running ones, samples that the queue left behind are trained on beyond the cap. If none was,
    the queue is never that deep in the run, or they do. Prefetched batches age after they are taken.
    """
    samples = sum(count for _, count in whole.oldest_staleness)
    most = cap + round(whole.prefetched_batches or 0.0)
    over = sum(count for staleness, count in whole.oldest_staleness if staleness > most)
    return over <= _LEFT_BEHIND_RATIO * samples


def _is_kept(cap: float, whole: Observed) -> bool:
    """Return whether the trained samples were within the cap. If so, nothing shows that another layout exceeds it."""
    tokens = sum(tokens for _, tokens in whole.staleness)
    over = sum(tokens for staleness, tokens in whole.staleness if staleness > cap)
    return bool(tokens) and over <= _DROPPED_RATIO * tokens
