"""Differences between two runs with intervals, and breakdowns that add up.

A breakdown splits one difference by state of the ledger: the step time, the GPU time per trained token, or the shares
of a role's GPU time. Parts are exact fractions of whole nanoseconds and tokens, so that nothing is left over. The runs
are compared in steady state if both have one; otherwise whole runs are compared.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Annotated, Any, Final, Literal

import numpy as np
import polars as pl

from rlscope.analysis.ledger import TRAINER_ROLES, StateKey
from rlscope.comparison.facts import NOT_RUNNING, ComparedRun, GpuTime, version_steps
from rlscope.comparison.statistics import Difference, Measure, Scale, StepSeries, corrected, difference
from rlscope.document import LEFT_OUT, computed_field

Basis = Literal["steady", "whole"]
"""The compared part of each run: its steady state, or the whole run."""
Quantity = Literal[
    "tokens_per_s",
    "tokens_per_gpu_s",
    "step_s",
    "samples_per_step",
    "response_tokens",
    "staleness_mean",
    "staleness_p95",
    "staleness_in_flight",
    "staleness_in_queue",
    "staleness_mean_steps",
    "staleness_p95_steps",
    "staleness_in_flight_steps",
    "staleness_in_queue_steps",
    "update_s",
    "dropped_ratio",
]
"""tokens_per_s: trained response tokens per second. tokens_per_gpu_s: tokens_per_s per GPU of the run. response_tokens:
mean length of the trained samples. staleness_mean: in versions. staleness_mean_steps: in optimizer steps, if the runs
differ in their publish interval. update_s: from publication to an engine. dropped_ratio: share of the tokens leaving
the queue that was dropped as stale or abandoned."""
Learned = Literal["reward", "loss", "entropy"]
Place = Literal["step", "gpu_hours"]
"""Basis of a comparison of learning: the same number of steps or the same number of GPU-hours."""
BreakdownName = Literal["step_s", "gpu_s_per_1k_tokens", "role_share"]

_IN_STEPS: Final[Mapping[Quantity, Quantity]] = {
    "staleness_mean": "staleness_mean_steps",
    "staleness_p95": "staleness_p95_steps",
    "staleness_in_flight": "staleness_in_flight_steps",
    "staleness_in_queue": "staleness_in_queue_steps",
}
"""The quantity in optimizer steps for each quantity in versions."""
_ABSOLUTE: Final = frozenset({*_IN_STEPS, *_IN_STEPS.values(), "dropped_ratio"})
"""Quantities that may be 0, so they are compared by difference, not by ratio."""
_LEARNED_COLUMNS: Final[Mapping[Learned, str]] = {"reward": "reward_mean", "loss": "loss", "entropy": "entropy"}
"""Column of the training metrics for each learned quantity."""
_PLACES: Final[tuple[Place, ...]] = ("step", "gpu_hours")
LEARNING_STEPS: Final = 10
"""Number of steps over which reward and loss are averaged: the minimum length of a steady state."""


@dataclass(frozen=True, slots=True)
class Row:
    """A quantity of both runs."""

    quantity: Quantity
    """The quantity; its unit is in its name."""
    difference: Difference
    """The quantity in both runs."""


@dataclass(frozen=True, slots=True)
class LearningRow:
    """Reward, loss or entropy of both runs at the same point: the mean of the last ten steps up to it."""

    learned: Learned
    """The quantity."""
    at: Place
    """Basis of the comparison: the same number of steps or the same number of GPU-hours."""
    where: float
    """The step, or the GPU-hours, that both runs reached."""
    difference: Difference
    """The quantity in both runs."""


@dataclass(frozen=True, slots=True)
class BreakdownPart:
    """One part of a breakdown."""

    name: str
    """State of the ledger."""
    role: str
    """Role of the workers."""
    reason: str | None
    """Reason for the wait; None if the state needs no reason."""
    before: float
    """Value in A."""
    after: float
    """Value in the other run."""
    change: float
    """Contribution to the change of the total."""
    difference: Annotated[Difference | None, LEFT_OUT] = None
    """The difference with its interval, if both runs have steps. Only shares of GPU time have one."""

    @computed_field
    @property
    def is_significant(self) -> bool | None:
        """Whether the change exceeds the noise; None if it was not tested."""
        return None if self.difference is None else self.difference.is_significant

    @computed_field
    @property
    def low(self) -> float | None:
        """Low end of the 95% interval of `change`; None if it has none."""
        return None if self.difference is None else self.difference.low

    @computed_field
    @property
    def high(self) -> float | None:
        """High end of the 95% interval of `change`; None if it has none."""
        return None if self.difference is None else self.difference.high


@dataclass(frozen=True, slots=True)
class Breakdown:
    """A difference and the parts that add up to it."""

    name: BreakdownName
    """step_s: seconds of a step by the trainers' states. gpu_s_per_1k_tokens: GPU-seconds per 1,000 trained tokens by
    state. role_share: shares of a role's GPU time."""
    role: str | None
    """Role of role_share; None for other breakdowns."""
    before: float
    """Total in A."""
    after: float
    """Total in the other run."""
    change: float
    """Change of the total: exactly the sum of the parts' changes."""
    parts: tuple[BreakdownPart, ...]
    """The parts, sorted by the size of their change."""


@dataclass(frozen=True, slots=True)
class Differences:
    """All differences between two runs."""

    basis: Basis
    """Whether the comparison covers the steady states or the whole runs."""
    quantities: tuple[Row, ...]
    """Quantities of both runs, starting with the trained tokens per second."""
    learning: tuple[LearningRow, ...]
    """Reward, loss and entropy, if recorded."""
    breakdowns: tuple[Breakdown, ...]
    """Sources of the differences."""

    def row(self, quantity: Quantity) -> Difference:
        """Return the difference of a quantity."""
        return next(each.difference for each in self.quantities if each.quantity == quantity)

    @computed_field
    @property
    def tested(self) -> int:
        """Number of differences tested; the significance of all but the rate is corrected for this number."""
        shares = [part.difference for each in self.breakdowns for part in each.parts if part.difference is not None]
        every = [*(row.difference for row in self.quantities), *(row.difference for row in self.learning), *shares]
        return sum(each.p_value is not None for each in every)


def differences_of(before: ComparedRun, after: ComparedRun) -> Differences:
    """Compare two runs. All differences but the rate, which is the main question, are corrected for their number."""
    basis: Basis = "whole" if before.table is None or after.table is None else "steady"
    rate, *rows = _rows(before, after, basis)
    learning = tuple(learning_rows([before], [after], lambda first, then, scale: difference(first[0], then[0], scale)))
    breakdowns = tuple(_breakdowns(before, after, basis))
    rows, learning, *parts = corrected_rows(rows, learning, *(each.parts for each in breakdowns))
    breakdowns = tuple(replace(each, parts=own) for each, own in zip(breakdowns, parts, strict=True))
    return Differences(basis, (rate, *rows), learning, breakdowns)


def corrected_rows(*groups: Sequence[Row | LearningRow | BreakdownPart]) -> list[tuple[Any, ...]]:
    """Return the rows of each group, with their differences corrected for the number of those in all groups."""
    found = iter(corrected([row.difference for rows in groups for row in rows if row.difference is not None]))
    return [
        tuple(row if row.difference is None else replace(row, difference=next(found)) for row in rows)
        for rows in groups
    ]


def _rows(before: ComparedRun, after: ComparedRun, basis: Basis) -> tuple[Row, ...]:
    (first, then), spans = (measures(run, basis) for run in (before, after)), version_steps(before, after)
    rows: list[Row] = []
    for name in first:
        quantity, ends = name, (first[name], then[name])
        if quantity == "tokens_per_gpu_s" and before.run.policy_gpus == after.run.policy_gpus:
            continue
        if spans is not None and quantity in _IN_STEPS:
            # Versions span different numbers of steps, so a difference in versions carries no information.
            ends = _times(ends[0], spans[0]), _times(ends[1], spans[1])
            quantity = _IN_STEPS[quantity]
        rows.append(Row(quantity, difference(*ends, scale_of(quantity))))
    return tuple(rows)


def _times(value: Measure, factor: float) -> Measure:
    if isinstance(value, StepSeries):
        return StepSeries(value.numerators * factor, value.denominators)
    return None if value is None else value * factor


def scale_of(quantity: Quantity) -> Scale:
    """Return the scale on which a quantity of two runs is compared."""
    return "absolute" if quantity in _ABSOLUTE else "ratio"


def measures(run: ComparedRun, basis: Basis) -> dict[Quantity, Measure]:
    """Return every quantity of a run, the rate first: step by step in steady state, else as a total."""
    time, ages, facts = time_of(run, basis), run.staleness, run.run
    tokens = None if run.counts_prompts or not facts.samples_trained else facts.tokens_trained
    whole: dict[Quantity, Measure] = {
        "tokens_per_s": run.throughput.achieved_tokens_per_s,
        "tokens_per_gpu_s": time.tokens / (time.total_ns / 1e9) if time.total_ns and time.tokens else None,
        "step_s": time.length_ns / 1e9 / time.steps if time.steps else None,
        "samples_per_step": facts.samples_trained / facts.steps if facts.steps and facts.samples_trained else None,
        "response_tokens": tokens / facts.samples_trained if tokens else None,
        "staleness_mean": ages.tokens and ages.tokens.mean,
        "staleness_p95": ages.tokens and float(ages.tokens.p95),
        "staleness_in_flight": ages.in_flight_mean,
        "staleness_in_queue": ages.in_queue_mean,
        "update_s": None,
        "dropped_ratio": run.dropped_ratio,
    }
    return whole | _series(run) if basis == "steady" else whole


def _series(run: ComparedRun) -> dict[Quantity, Measure]:
    table = run.table
    assert table is not None
    ones, gpus = np.ones(table.step.size), max(1, run.run.policy_gpus)
    tokens, samples = (
        None if counts is None else counts.astype(float) for counts in (table.trained_tokens, table.samples)
    )
    is_length_known = tokens is not None and samples is not None and not run.counts_prompts
    return {
        "tokens_per_s": None if tokens is None else StepSeries(tokens, table.step_s),
        "tokens_per_gpu_s": None if tokens is None else StepSeries(tokens, table.step_s * gpus),
        "step_s": StepSeries(table.step_s, ones),
        "samples_per_step": None if samples is None else StepSeries(samples, ones),
        "response_tokens": StepSeries(tokens, samples) if is_length_known else None,  # type: ignore[arg-type]
        "staleness_mean": StepSeries(table.staleness, table.known_tokens),
        "staleness_p95": run.steady_staleness_p95,
        "staleness_in_flight": StepSeries(table.in_flight, table.known_tokens),
        "staleness_in_queue": StepSeries(table.in_queue, table.known_tokens),
        "update_s": StepSeries(run.update_s, np.ones(run.update_s.size)),
    }


def time_of(run: ComparedRun, basis: Basis) -> GpuTime:
    """Return the ledger of the compared part of a run."""
    return run.steady if basis == "steady" and run.steady is not None else run.whole


def learning_rows(
    before: Sequence[ComparedRun],
    after: Sequence[ComparedRun],
    compared: Callable[[Sequence[Measure], Sequence[Measure], Scale], Difference],
) -> Iterator[LearningRow]:
    """Compare reward, loss and entropy at the last step, and at the most GPU-hours, that all runs reached.

    compared: the difference between what the runs of one group and of the other had reached by then.
    """
    if any(run.answers["training_metrics"].is_empty() for run in (*before, *after)):
        return
    curves = [[with_gpu_hours(run) for run in group] for group in (before, after)]
    for learned, column in _LEARNED_COLUMNS.items():
        for at in _PLACES:
            where = min(float(curve[at].max() or 0) for group in curves for curve in group)  # type: ignore[arg-type]
            values = [[_reached(curve, at, where, column) for curve in group] for group in curves]
            if all(value is not None for group in values for value in group):
                yield LearningRow(learned, at, where, compared(values[0], values[1], "absolute"))


def with_gpu_hours(run: ComparedRun) -> pl.DataFrame:
    """Return the run's training metrics, with the GPU-hours from its start to the end of each step."""
    hours = (pl.col("end_ns") - run.run.started_ns) / 3.6e12 * run.run.policy_gpus
    return run.answers["training_metrics"].with_columns(gpu_hours=hours)


def _reached(curve: pl.DataFrame, at: Place, where: float, column: str) -> StepSeries | None:
    """Return the last steps up to a point, weighted by samples if known; None if nothing was recorded."""
    weighted = curve.with_columns(pl.col("samples").fill_null(1))
    up_to = weighted.filter((pl.col(at) <= where) & pl.col(column).is_finite() & (pl.col("samples") > 0))
    last = up_to.tail(LEARNING_STEPS)
    if last.is_empty():
        return None
    samples = last["samples"].to_numpy().astype(float)
    return StepSeries(last[column].to_numpy() * samples, samples)


def _breakdowns(before: ComparedRun, after: ComparedRun, basis: Basis) -> Iterator[Breakdown]:
    times = [time_of(run, basis) for run in (before, after)]
    trainers = [sum(each.gpus.get(role, 0) for role in TRAINER_ROLES) for each in times]
    of_steps = [10**9 * gpus * each.steps for gpus, each in zip(trainers, times, strict=True)]
    yield from _breakdown("step_s", times, of_steps, TRAINER_ROLES)
    yield from _breakdown("gpu_s_per_1k_tokens", times, [10**6 * each.tokens for each in times])
    runs = (before, after) if basis == "steady" else ()
    for role in times[0].gpus:
        yield from _breakdown("role_share", times, [each.of_role(role) for each in times], (role,), runs)


def _breakdown(
    name: BreakdownName,
    times: Sequence[GpuTime],
    divisors: Sequence[int],
    roles: Sequence[str] = (),
    runs: Sequence[ComparedRun] = (),
) -> Iterator[Breakdown]:
    """Yield a breakdown whose parts add up to the total, unless a divisor of the GPU-nanoseconds is 0.

    roles: the roles that count; empty counts all. runs: tests the parts. A state that a run lacks counts as 0 there.
    """
    if not all(divisors):
        return
    sides = [
        {key: Fraction(gpu_ns, divisor) for key, gpu_ns in time.states.items() if not roles or key.role in roles}
        for time, divisor in zip(times, divisors, strict=True)
    ]
    parts: list[BreakdownPart] = []
    for key in {**sides[0], **sides[1]}:
        before, after = (side.get(key, Fraction(0)) for side in sides)
        shares = [_share_series(key, run) for run in runs]
        tested = difference(shares[0], shares[1], "absolute") if shares else None
        parts.append(
            BreakdownPart(key.state, key.role, key.reason, float(before), float(after), float(after - before), tested)
        )
    parts.sort(key=lambda part: -abs(part.change))
    before, after = (sum(side.values(), Fraction(0)) for side in sides)
    role = roles[0] if name == "role_share" else None
    yield Breakdown(name, role, float(before), float(after), float(after - before), tuple(parts))


def _share_series(key: StateKey, run: ComparedRun) -> StepSeries:
    assert run.table is not None and run.steady is not None
    states = run.table.state_gpu_s
    owned_gpu_s = run.table.step_s * run.steady.gpus[key.role]
    spent = states.get(key, np.zeros(run.table.step.size))
    if key.state == NOT_RUNNING:
        running = sum(gpu_s for each, gpu_s in states.items() if each.role == key.role)
        spent = np.maximum(owned_gpu_s - running, 0.0)
    return StepSeries(spent, owned_gpu_s)
