"""Basic facts of a run: workers, duration, steps, tokens, and the window over which its rates are steady."""

from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Final

import polars as pl

from rlscope.analysis.data_quality import unrecorded_ratio
from rlscope.analysis.reported import reported_metrics
from rlscope.analysis.result import RunFacts, SteadyWindow, Throughput
from rlscope.analysis.staleness import effective_share_of_all
from rlscope.format import counted
from rlscope.model.numerics.changepoints import LEAST_STEPS_TO_SETTLE, drift, last_stable_stretch
from rlscope.trace.imported import COMPLETE_RATIO, Imported
from rlscope.trace.store import OpenRun

_LEAST_LATEST_STEPS: Final = 2 * LEAST_STEPS_TO_SETTLE
"""Steps that are left where response lengths drift: one level to calibrate on, and one to compare with."""


def gather_facts(run: OpenRun, answers: Mapping[str, pl.DataFrame]) -> RunFacts:
    """Return the facts from worker_extents, training_steps, delivery_outcomes and worker_devices."""
    extents, steps = answers["worker_extents"], answers["training_steps"]
    gpus = {role: most_gpus(extents.filter(role=role)) for role in ("trainer", "sampler", "colocated", "auxiliary")}
    window = steady_window(steps)
    started_ns = min(extents["start_ns"], default=run.created_ns or 0)
    delivered = answers["delivery_outcomes"]
    trained = delivered.filter(outcome="trained")
    tokens = int(trained["tokens"].sum())
    # Samples that were trained on have tokens: if none has any, nobody counted them.
    is_counted = not delivered.is_empty() and (tokens > 0 or trained.is_empty())
    is_known = is_counted and unrecorded_ratio(run, answers) <= 1.0 - COMPLETE_RATIO
    return RunFacts(
        run_id=run.run_id,
        started_ns=started_ns,
        duration_s=(max(extents["end_ns"], default=started_ns) - started_ns) / 1e9,
        total_gpus=sum(gpus.values()),
        trainer_gpus=gpus["trainer"],
        sampler_gpus=gpus["sampler"],
        colocated_gpus=gpus["colocated"],
        auxiliary_gpus=gpus["auxiliary"],
        steps=len(steps),
        samples_trained=int(trained["samples"].sum()),
        tokens_trained=tokens if is_known else None,
        max_staleness=run.config.max_staleness,
        window=window,
        window_reason=window_reason(window, steps["step"]),
        gpu_hour_price=run.config.gpu_hour_price or None,
        currency=run.config.currency,
        devices=_devices(answers["worker_devices"]),
        settings=run.settings,
        total_steps=run.config.total_steps,
    )


def _devices(workers: pl.DataFrame) -> dict[str, str]:
    """Return GPU models by role, from the result of worker_devices."""
    named = workers.filter((pl.col("gpu_count") > 0) & pl.col("device_name").is_not_null())
    found: dict[str, set[str]] = {}
    for role, name in named.select("role", "device_name").iter_rows():
        found.setdefault(role, set()).add(name)
    return {role: " and ".join(sorted(names)) for role, names in sorted(found.items())}


def most_gpus(extents: pl.DataFrame) -> int:
    """Return the maximum number of GPUs that these workers owned at once. A restarted worker keeps its GPUs."""
    return most_at_once(extents.select("start_ns", "end_ns", "gpu_count").iter_rows())


def most_at_once(counted: Iterable[tuple[int, int, int]]) -> int:
    """Return the largest sum of counts at one time, from the start, the end and the count of each."""
    edges = [edge for start_ns, end_ns, count in counted for edge in ((start_ns, 1, count), (end_ns, 0, -count))]
    return max(accumulate(change for _, _, change in sorted(edges)), default=0)


def steady_window(steps: pl.DataFrame) -> SteadyWindow | None:
    """Return the last interval with a stable step time, from the end of the previous step to its last step's end.

    It is of one start of the run, whose first step has no period. If response lengths drift over it, only its latest
    steps count: the next steps will have their lengths.
    """
    starts = steps.with_columns(start=pl.col("step_s").is_null().cum_sum()).partition_by("start", include_key=False)
    timed = [own.filter(pl.col("step_s").is_not_null()) for own in reversed(starts)]
    stretches = ((own, last_stable_stretch(own["step_s"].to_list())) for own in timed)
    found = [own.slice(each.first, each.last - each.first + 1) for own, each in stretches if each is not None]
    if not found:
        return None
    stable = found[0]
    inside = _of_latest_lengths(stable)
    before = steps.filter(pl.col("step") < inside["step"][0])
    return SteadyWindow(
        start_ns=int(before["end_ns"][-1]),
        end_ns=int(inside["end_ns"][-1]),
        first_step=int(inside["step"][0]),
        last_step=int(inside["step"][-1]),
        lengths_drifted=len(inside) < len(stable),
    )


def _of_latest_lengths(steps: pl.DataFrame) -> pl.DataFrame:
    """Return the later half of the steps, again and again, as long as response lengths drift over them.

    Half a stretch that is cut has enough steps to check a prediction.
    """
    known = (pl.col("samples") > 0) & (pl.col("response_tokens") > 0)
    while len(steps) >= 2 * _LEAST_LATEST_STEPS:
        told = steps.filter(known).select(pl.col("response_tokens") / pl.col("samples")).to_series()
        found = drift(told.to_list())
        if found is None or not found.drifts:
            break
        steps = steps.tail(len(steps) // 2)
    return steps


def measure_throughput(
    facts: RunFacts, answers: Mapping[str, pl.DataFrame], imported: Imported | None = None
) -> Throughput:
    """Return tokens over seconds for the whole run and for the window.

    A rate over no time is None. If no delivery was recorded, the trained tokens are those that the trainer counts,
    prompts included, or None if it counts none. The framework of an imported run may report rates itself.
    """
    steps, window, trained = answers["training_steps"], facts.window, facts.tokens_trained
    is_recorded = len(answers["delivery_outcomes"]) > 0
    counted = None if is_recorded or steps["tokens"].null_count() == len(steps) else int(steps["tokens"].sum())
    total = trained if counted is None else counted
    steady = None
    if window is not None and total is not None:
        inside = steps.filter(window.is_inside)
        tokens = int(inside["response_tokens" if counted is None else "tokens"].sum())
        # Samples were trained, none of them in a step of the window: the deliveries do not name their step.
        steady = window.per_s(tokens) if tokens or not total or counted is not None else None
    achieved = total / facts.duration_s if total is not None and facts.duration_s else None
    effective_share = None if counted is not None else effective_share_of_all(answers["version_moments"])
    return Throughput(
        achieved_tokens_per_s=achieved,
        steady_tokens_per_s=steady,
        generated_tokens_per_s=_generated_per_s(facts, answers),
        effective_tokens_per_s=None if achieved is None or effective_share is None else achieved * effective_share,
        counted_tokens=counted,
        reported=reported_metrics(answers, imported, "throughput"),
    )


def _generated_per_s(facts: RunFacts, answers: Mapping[str, pl.DataFrame]) -> float | None:
    """Return the tokens of all samples, or those that the engines decoded if no sample was recorded, per second."""
    if (facts.samples_trained and facts.tokens_trained is None) or not facts.duration_s:
        return None
    sampled = int(answers["token_balance"]["generated_tokens"].sum())
    return (sampled or int(answers["engine_speed"]["decode_tokens"].sum())) / facts.duration_s or None


def window_reason(window: SteadyWindow | None, numbers: pl.Series) -> str:
    """Return the reason for the window, or for having none. The step numbers of an incomplete export have gaps."""
    steps = len(numbers)
    if window is not None:
        count = int(numbers.is_between(window.first_step, window.last_step).sum())
        found = "the latest stretch with a stable step time"
        if window.lengths_drifted:
            found = "the end of the latest stretch with a stable step time, because response lengths drifted over it"
        return f"{found}: {count} of {steps} steps"
    if steps > LEAST_STEPS_TO_SETTLE:
        return f"the step time keeps no level for {LEAST_STEPS_TO_SETTLE} of the {steps} steps"
    few = counted(steps, "step", "steps")
    return f"{few} cannot show a steady state, which needs {LEAST_STEPS_TO_SETTLE} step times"
