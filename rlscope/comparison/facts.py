"""Collects the facts of one run that a comparison needs, from its analysis.

GPU time is kept in whole nanoseconds, so that every breakdown adds up. This module compares only networks and settings.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, cast

import numpy as np
import polars as pl

from rlscope.analysis.bottleneck import DROPPED, dropped_ratio
from rlscope.analysis.data_quality import has_update_times
from rlscope.analysis.ledger import StateKey
from rlscope.analysis.result import AnalysisResult, RunFacts, SteadyWindow
from rlscope.analysis.staleness import weighted_quantile
from rlscope.document import extended
from rlscope.model.arrays import Counts, Reals
from rlscope.model.forecast.actions import Action
from rlscope.model.observed import steps_per_version

ALSO_ASKED: Final = ("response_lengths", "delivered_lengths", "training_metrics")
"""Queries that only a comparison needs, in addition to those of an analysis."""
NOT_RUNNING: Final = "not_running"
"""State of GPU time during which the role had no worker."""
_ROUNDING_NS: Final = 100_000
"""Maximum rounding error per GPU: buckets fit the compared time to within microseconds; more is a missing worker."""
_SIZES: Final = frozenset({"model.parameters", "model.active_parameters"})
"""Sizes of a network. Step times grow at most in proportion; a position table or output layer adds a few percent."""
_SIZE_RATIO: Final = 1.05
"""Maximum ratio of two sizes that count as equal: step times of two runs on one machine differ by as much."""
_AGES: Final = ("staleness", "in_flight", "in_queue", "known_tokens")
"""Columns of `StepTable` that are sums over tokens."""
_SHAPE: Final = ("model.layers", "model.kv_heads", "model.head_dim")
ALIKE_RATIO: Final = 1.25
"""Maximum ratio of similar values. Up to this ratio of tokens per step, attention and overhead hardly change the time
per token, and means of 2.4 and 2.6 optimizer steps per version come from the same publish interval."""

Setting = int | float | str | bool | None
"""A value of the config."""


@dataclass(frozen=True, slots=True)
class GpuTime:
    """The ledger of a part of a run, in GPU-nanoseconds; every GPU-nanosecond is in exactly one state."""

    states: Mapping[StateKey, int]
    gpus: Mapping[str, int]
    """GPUs by role, without roles that have none."""
    length_ns: int
    tokens: int
    """Response tokens trained in this part; 0 if unknown."""
    steps: int
    """Training steps that ended in this part."""

    @property
    def total_ns(self) -> int:
        """GPU-nanoseconds of all roles."""
        return sum(self.states.values())

    def of_role(self, role: str) -> int:
        """GPU-nanoseconds of one role."""
        return sum(gpu_ns for key, gpu_ns in self.states.items() if key.role == role)


@dataclass(frozen=True, slots=True, eq=False)
class StepTable:
    """The steps in steady state; every array has one entry per step."""

    step: Counts
    step_s: Reals
    samples: Counts | None
    """None if not recorded."""
    trained_tokens: Counts | None
    """Response tokens, including prompts if `ComparedRun.counts_prompts`; None if not recorded."""
    state_gpu_s: Mapping[StateKey, Reals]
    """GPU-seconds in each state between the ends of consecutive steps."""
    staleness: Reals
    """Sum of the staleness of all trained tokens, in versions."""
    in_flight: Reals
    """The part of `staleness` added before the sample ended."""
    in_queue: Reals
    known_tokens: Reals
    """Trained tokens of known staleness."""
    train_gpu_s: Reals
    """GPU-seconds of training passes."""
    processed_tokens: Counts | None
    """Prompt and response tokens trained on; None if not recorded."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ComparedRun(AnalysisResult):
    """The analysis of one run, and what else a comparison needs of it."""

    name: str
    """The run's id, or its folder if several runs have the same id."""
    max_running: int | None
    """Limit on the running requests of an engine; None if not recorded."""
    whole: GpuTime
    """The whole run."""
    promised: tuple[Action, ...]
    """The recommended actions, the first to do first."""
    settings: Mapping[str, object]
    """The run's config, with nested entries under dotted names."""
    table: StepTable | None = None
    """None without a steady state."""
    steady: GpuTime | None = None
    """The ledger of the steady state."""
    steady_staleness_p95: float | None = None
    """95th percentile of the staleness of the tokens trained in steady state, in versions; None if unknown."""
    update_s: Reals = field(default_factory=lambda: np.zeros(0))
    """Mean seconds from publication until an engine applied it, for each version applied in steady state, in order."""
    dropped_ratio: float | None = None
    """Share of the tokens leaving the queue that was dropped as stale or abandoned, over the verdict's time window."""
    dropping_ratio: float = 0.0
    """Mean length of the trained samples relative to all trained or dropped ones, minus 1, over the whole run; 0 if
    nothing was dropped."""
    steps_per_version: float | None = None
    """Optimizer steps from one published version to the next; None if none was published, or no step has a period."""
    counts_prompts: bool = False
    """Whether trained tokens are the trainer's counts, which include prompts, because no delivery was recorded."""


def run_of(analysis: AnalysisResult, name: str | None = None) -> ComparedRun:
    """Return an analyzed run with what a comparison needs of it. The analysis has the answers of ALSO_ASKED too."""
    facts, answers, table = analysis.run, analysis.answers, _table(analysis)
    states = {StateKey(each.role, each.state, each.reason): each.gpu_ns for each in analysis.ledger.states}
    length_ns = round(facts.duration_s * 1e9)
    return extended(
        ComparedRun,
        analysis,
        name=facts.run_id if name is None else name,
        max_running=_max_running(analysis),
        whole=GpuTime(states, _gpus(facts), length_ns, facts.tokens_trained or 0, facts.steps),
        promised=analysis.modeled.ranking.actions if analysis.modeled else (),
        settings={name: value for name, value in flattened(facts.settings) if value != {}},
        dropped_ratio=_dropped_ratio(answers["judged_outcomes"]),
        dropping_ratio=_dropping_ratio(answers["delivery_outcomes"]),
        steps_per_version=_steps_per_version(answers["trainer_steps"], facts.window),
        table=table,
        steady=None if table is None else _steady_time(analysis, table),
        steady_staleness_p95=None if table is None else _staleness_p95(answers["token_staleness"], table),
        update_s=_update_s(analysis),
        counts_prompts=analysis.throughput.counted_tokens is not None,
    )


def flattened(settings: Mapping[str, object], before: str = "") -> Iterator[tuple[str, object]]:
    """Yield the entries, nested ones under dotted names. An empty mapping is an entry of its own."""
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from flattened(cast("Mapping[str, object]", value), f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def plain(value: object) -> Setting:
    """Return a config value in JSON types; anything but a finite number, text or null becomes text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, int | float | str | bool) else str(value)


def one_sided_settings(before: ComparedRun, after: ComparedRun) -> frozenset[str]:
    """Return the config entries of one run that the log of the other, imported run does not state."""
    unknown: set[str] = set()
    for run, other in ((before.settings, after), (after.settings, before)):
        if other.data_quality.imported is not None:
            unknown |= {name for name in run.keys() - other.settings.keys() if run[name] is not None}
    return frozenset(unknown)


def is_same_size(name: str, before: object, after: object) -> bool:
    """Whether a config entry is the size of a network, and both values are within 5% of each other."""
    if name not in _SIZES or not isinstance(before, int | float) or not isinstance(after, int | float):
        return False
    return min(before, after) > 0 and max(before, after) <= _SIZE_RATIO * min(before, after)


def version_steps(before: ComparedRun, after: ComparedRun) -> tuple[float, float] | None:
    """Return the optimizer steps per version of both runs if they differ, so that versions are no common unit.

    None if they are similar or unknown.
    """
    first, second = before.steps_per_version, after.steps_per_version
    if not first or not second or max(first, second) < ALIKE_RATIO * min(first, second):
        return None
    return first, second


def same_compute_cost(before: ComparedRun, after: ComparedRun) -> bool:
    """Whether both networks need the same compute per pass, for example two checkpoints of one network.

    Only entries of config.model that both runs have are compared. A different name alone means a different network,
    unless both runs state the number of parameters or the full shape.
    """
    first, then = before.settings, after.settings
    both = {name for name in first.keys() & then.keys() if name.startswith("model.")}
    changed = {each for each in both if first[each] != then[each] and not is_same_size(each, first[each], then[each])}
    if changed - {"model.name"}:
        return False
    return not changed or "model.parameters" in both or both.issuperset(_SHAPE)


def counting_prompts(run: ComparedRun) -> ComparedRun:
    """Return the run with prompts counted among its trained tokens, to compare it with a run that counts them.

    Means over the whole run are unknown on this basis and become None.
    """
    if run.counts_prompts:
        return run
    table, steady, rate = run.table, run.steady, None
    if table is not None and steady is not None:
        table = replace(table, trained_tokens=table.processed_tokens)
        steady = replace(steady, tokens=_sum(table.trained_tokens))
        rate = steady.tokens / (steady.length_ns / 1e9) or None
    rates = replace(run.throughput, achieved_tokens_per_s=None, steady_tokens_per_s=rate)
    whole = replace(run.whole, tokens=0)
    return replace(run, counts_prompts=True, whole=whole, throughput=rates, table=table, steady=steady)


def _max_running(analysis: AnalysisResult) -> int | None:
    stated = analysis.run.integer_setting("max_running")
    recorded = analysis.answers["worker_devices"].filter(role="sampler")["max_running"].min()
    return recorded if stated is None else stated  # type: ignore[return-value]


def _gpus(run: RunFacts) -> dict[str, int]:
    gpus = {"trainer": run.trainer_gpus, "sampler": run.sampler_gpus, "colocated": run.colocated_gpus}
    gpus["auxiliary"] = run.auxiliary_gpus
    return {role: count for role, count in gpus.items() if count}


def _table(analysis: AnalysisResult) -> StepTable | None:
    """Return the steps that lie entirely in the steady state; None if there are none."""
    window = analysis.run.window
    if window is None:
        return None
    answers = analysis.answers
    steps = (
        answers["training_steps"]
        .filter(window.is_inside, pl.col("step_s").is_not_null())
        .join(answers["trainer_steps"].select("step", "train_gpu_s"), on="step", how="left", maintain_order="left")
        .join(_age_sums(answers["token_staleness"]), on="step", how="left", maintain_order="left")
        .with_columns(pl.col("train_gpu_s", *_AGES).fill_null(0.0))
    )
    if steps.is_empty() or steps["step_s"].sum() <= 0:
        return None
    counts_prompts = analysis.throughput.counted_tokens is not None
    ends_ns = np.concatenate([[window.start_ns], steps["end_ns"].to_numpy()])
    return StepTable(
        samples=_known(steps["samples"]),
        trained_tokens=_known(steps["tokens" if counts_prompts else "response_tokens"]),
        state_gpu_s=_state_gpu_s(answers["ledger_timeline"], ends_ns),
        processed_tokens=_known(steps["tokens"]),
        **{name: steps[name].to_numpy() for name in ("step", "step_s", "train_gpu_s", *_AGES)},
    )


def _age_sums(ages: pl.DataFrame) -> pl.DataFrame:
    """Return sums over the tokens of each step."""
    tokens = pl.col("tokens").cast(pl.Float64)
    return ages.group_by("step").agg(
        staleness=(tokens * pl.col("staleness")).sum(),
        in_flight=pl.col("in_flight_versions").cast(pl.Float64).sum(),
        in_queue=pl.col("in_queue_versions").cast(pl.Float64).sum(),
        known_tokens=tokens.sum(),
    )


def _known(column: pl.Series) -> Counts | None:
    """Return the column; None if a step lacks a value, or all are 0 because nothing was recorded."""
    return column.to_numpy() if not column.null_count() and column.sum() else None


def _sum(column: Counts | None) -> int:
    return 0 if column is None else int(column.sum())


def _state_gpu_s(timeline: pl.DataFrame, ends_ns: Counts) -> dict[StateKey, Reals]:
    """Return GPU-seconds by state between the ends of consecutive steps.

    Time in a state is assumed to be spread evenly within each bucket.
    """
    starts = timeline["bucket_start_ns"].unique().sort().to_numpy()
    if not starts.size:
        return {}
    bucket_ns = int(np.diff(starts).min()) if starts.size > 1 else int(ends_ns[-1] - starts[0])
    edges = np.arange(starts[0], starts[-1] + 2 * bucket_ns, bucket_ns)
    found: dict[StateKey, Reals] = {}
    for (role, state, reason), rows in timeline.group_by("role", "state", "reason", maintain_order=True):
        amounts = np.zeros(edges.size - 1)
        np.add.at(amounts, (rows["bucket_start_ns"].to_numpy() - edges[0]) // bucket_ns, rows["gpu_s"].to_numpy())
        so_far = np.concatenate([[0.0], np.cumsum(amounts)])
        # Relative to the first edge, because a float cannot represent nanoseconds since the epoch exactly.
        taken = np.interp((ends_ns - edges[0]).astype(np.float64), (edges - edges[0]).astype(np.float64), so_far)
        spent = np.maximum(np.diff(taken), 0.0)
        if spent.any():
            found[StateKey(str(role), str(state), None if reason is None else str(reason))] = spent
    return found


def _steady_time(analysis: AnalysisResult, table: StepTable) -> GpuTime:
    window, gpus = analysis.run.window, _gpus(analysis.run)
    assert window is not None
    length_ns = window.end_ns - window.start_ns
    states = {key: round(float(seconds.sum()) * 1e9) for key, seconds in table.state_gpu_s.items()}
    return GpuTime(_closed(states, gpus, length_ns), gpus, length_ns, _sum(table.trained_tokens), table.step.size)


def _closed(states: Mapping[StateKey, int], gpus: Mapping[str, int], length_ns: int) -> dict[StateKey, int]:
    """Return the states so that they add up to each role's GPU time.

    A rounding error goes to the role's largest state; a larger gap becomes `NOT_RUNNING`.
    """
    closed = {key: gpu_ns for key, gpu_ns in states.items() if key.role in gpus}
    for role, count in gpus.items():
        keys = [key for key in closed if key.role == role]
        missing = count * length_ns - sum(closed[key] for key in keys)
        if keys and abs(missing) <= _ROUNDING_NS * count:
            closed[max(keys, key=lambda key: closed[key])] += missing
        elif missing:
            closed[StateKey(role, NOT_RUNNING, None)] = missing
    return closed


def _staleness_p95(ages: pl.DataFrame, table: StepTable) -> float | None:
    if not table.known_tokens.sum():
        return None
    inside = ages.filter(pl.col("step").is_between(int(table.step[0]), int(table.step[-1])))
    counts = inside.group_by("staleness").agg(pl.col("tokens").sum()).sort("staleness")
    return float(weighted_quantile(tuple(counts.select("staleness", "tokens").iter_rows()), 95))


def _update_s(analysis: AnalysisResult) -> Reals:
    window = analysis.run.window
    if window is None or not has_update_times(analysis.data_quality.imported):
        return np.zeros(0)
    applied = analysis.answers["weight_update_latency"].filter(
        pl.col("applied_ns").is_between(window.start_ns, window.end_ns), pl.col("publish_to_applied_s").is_not_null()
    )
    means = applied.group_by("version").agg(pl.col("publish_to_applied_s").mean()).sort("version")
    return means["publish_to_applied_s"].to_numpy()


def _dropped_ratio(outcomes: pl.DataFrame) -> float | None:
    return dropped_ratio(outcomes) if outcomes["tokens"].sum() else None


def _dropping_ratio(outcomes: pl.DataFrame) -> float:
    columns = outcomes.drop_nulls("mean_output_tokens").select("outcome", "samples", "mean_output_tokens")
    taken = {outcome: (samples, mean) for outcome, samples, mean in columns.rows() if outcome in ("trained", *DROPPED)}
    samples, tokens = sum(count for count, _ in taken.values()), sum(count * mean for count, mean in taken.values())
    return taken["trained"][1] * samples / tokens - 1.0 if "trained" in taken and len(taken) > 1 and tokens else 0.0


def _steps_per_version(steps: pl.DataFrame, window: SteadyWindow | None) -> float | None:
    steps = steps if window is None else steps.filter(window.is_inside)
    return steps_per_version(steps["published"].fill_null(0).to_numpy())
