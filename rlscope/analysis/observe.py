"""Input of the model: answers of queries become `Observed`. Nothing is fitted."""

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Final, NamedTuple

import numpy as np
import polars as pl

from rlscope.analysis.interval import Interval
from rlscope.model.lengths import LengthLaw, measure_groups
from rlscope.model.observed import (
    Delivered,
    Observed,
    PassCosts,
    PreemptionCounts,
    SeenLoad,
    SeenScheduling,
    TrainerSteps,
)
from rlscope.trace.config import RunConfig

ASKED_OF_A_STRETCH: Final = (
    "pass_costs",
    "length_counts",
    "group_members",
    "samples_in_flight",
    "judged_outcomes",
    "environment_waits",
    "preemptions",
)
"""Queries whose answer depends on the interval. They run for its first half as well."""
ASKED_OF_STEPS: Final = ("length_counts", "judged_outcomes")
"""Queries that `delivered_steps` needs: of the second half nothing else is asked."""
ASKED_OF_THE_WHOLE: Final = (
    "group_engines",
    "batches_ahead",
    "group_deliveries",
    "taking_order",
    "in_flight_levels",
    "queue_level",
    "batch_filling",
)
"""Queries on scheduling and load. They are the slowest, so they run only for the whole interval."""
LEAST_STEPS_OBSERVED: Final = 3
"""Minimum number of steps that gives a spread."""
_FEWEST_QUEUED: Final = 20
"""Minimum number of samples or pairs. A share of fewer is uncertain by more than a tenth."""
_UNRECORDED_RATIO: Final = 0.10
"""Share of the trainers' time without a state that may hide their waits."""
_COUNTED_RATIO: Final = 1.5
"""Ratio of the samples that steps count to those delivered to them, either way, beyond which one count is wrong."""
_HELD_RATIO: Final = 0.10
"""Share of the trainers' time in waits for other work that may count as a fixed part of a step. Of longer ones, a
faster trainer may only wait longer."""
_FILTERED: Final = ("filtered", "abandoned")
"""Outcomes of samples that a step gives up whatever the layout is."""


class UnobservableError(Exception):
    """The run does not record what the model needs. The message names it."""


def observe(
    config: RunConfig,
    sampler_gpus: int,
    answers: Mapping[str, pl.DataFrame],
    inside: pl.DataFrame,
    stretch: Interval,
) -> Observed:
    """Return the model's observations of an interval.

    Args:
        config: The run's config.
        sampler_gpus: GPUs that samplers owned at once.
        answers: Answers of ASKED_OF_A_STRETCH for this interval, of ASKED_OF_THE_WHOLE for the interval that it is or
            lies in, and of worker_devices, trainer_steps, training_steps, token_staleness, oldest_staleness and
            weight_update_latency for the run.
        inside: The ledger over time, clipped to the interval.
        stretch: The interval.

    Raises:
        UnobservableError: The run does not record what the model needs.
    """
    samplers = answers["worker_devices"].filter(role="sampler")
    gpus_per_engine = _gpus_per_engine(samplers)
    steps, step_numbers = delivered_steps(answers, stretch)
    state_s = _engine_states(inside, gpus_per_engine)
    in_flight = answers["samples_in_flight"].row(0, named=True)
    return Observed(
        *stretch,
        trainer_gpus=trainer_gpus(answers["trainer_steps"], step_numbers),
        engines=sampler_gpus // gpus_per_engine,
        gpus_per_engine=gpus_per_engine,
        device_name=next((name for name in samplers["device_name"] if name), None),
        kv_capacity_tokens=_least(samplers["kv_capacity_tokens"]),
        max_running=config.max_running or _least(samplers["max_running"]),
        steps=steps,
        passes=_passes(answers["pass_costs"]),
        engine_state_s=state_s,
        **observe_lengths(answers, config.max_output_tokens)._asdict(),
        group_size=config.group_size or 1,
        began_samples=int(answers["length_counts"]["samples"].sum()),
        finished_samples=in_flight["finished_samples"],
        environment_samples=in_flight["environment_mean"],
        between_turns_samples=in_flight["between_turns_mean"],
        environment_waits_s=tuple(answers["environment_waits"]["wait_s"]),
        delivered=_delivered(answers["judged_outcomes"]),
        **_updates(answers["weight_update_latency"], stretch, state_s),
        staleness=_by_staleness(answers["token_staleness"], step_numbers, "tokens"),
        oldest_staleness=_by_staleness(answers["oldest_staleness"], step_numbers, "samples"),
        one_engine_groups_ratio=_one_engine_groups_ratio(answers["group_engines"]),
        **_batches(answers),
        preemption_counts=_preemption_counts(answers["preemptions"]),
        scheduling=_scheduling(answers),
        load=_load(answers, inside.filter(role="trainer")),
    )


class ObservedLengths(NamedTuple):
    """Lengths of the samples that started in an interval."""

    lengths: LengthLaw
    prompt_tokens: float
    """Mean context besides the response itself: the prompt, and what environments added, averaged over the response."""


def observe_lengths(answers: Mapping[str, pl.DataFrame], max_output_tokens: int | None) -> ObservedLengths:
    """Return the lengths from the answers of length_counts and group_members; responses are cut at max_output_tokens.

    Raises UnobservableError if no sample with a token started.
    """
    counts = answers["length_counts"]
    law = _length_law(counts, answers["group_members"], max_output_tokens)
    added_tokens = float(counts["added_tokens"].sum()) / int((counts["output_tokens"] * counts["samples"]).sum())
    return ObservedLengths(law, int(counts["prompt_tokens"].sum()) / int(counts["samples"].sum()) + added_tokens)


def _updates(
    latency: pl.DataFrame, stretch: Interval, state_s: Mapping[tuple[str, str | None], float]
) -> dict[str, Any]:
    """Return the weight updates that were applied in the interval; state_s: engine-seconds by state."""
    applied = latency.filter(pl.col("applied_ns").is_between(*stretch, closed="left"))
    return {
        "apply_s": state_s.get(("applying_weights", None), 0.0) / len(applied) if len(applied) else None,
        "update_delay_s": _mean(applied["publish_to_applied_s"]),
        "kv_kept": not (applied["kv"] == "recomputed").any(),
    }


def _gpus_per_engine(samplers: pl.DataFrame) -> int:
    sizes = samplers.filter(pl.col("gpu_count") > 0)["gpu_count"].unique().sort()
    if sizes.is_empty():
        raise UnobservableError("no GPU is for sampling alone, so there is no split of GPUs to model")
    if len(sizes) > 1:
        raise UnobservableError(f"the engines differ: they have {', '.join(map(str, sizes))} GPUs each")
    return int(sizes[0])


def trainer_gpus(steps: pl.DataFrame, numbers: pl.Series) -> int:
    """Return the GPUs that trained in the steps with these numbers, from trainer_steps."""
    return int(steps.filter(pl.col("step").is_in(numbers.implode()))["trainer_gpus"].max() or 0)  # type: ignore[arg-type]


def delivered_steps(answers: Mapping[str, pl.DataFrame], stretch: Interval) -> tuple[TrainerSteps, pl.Series]:
    """Return the steps of the interval, and their numbers.

    Raises UnobservableError if no sample was delivered to them.
    """
    steps, numbers = observe_steps(answers, stretch)
    if answers["length_counts"].is_empty():
        raise UnobservableError(f"no sample was recorded in steps {numbers[0]} to {numbers[-1]}")
    if not steps.response_tokens.any():
        raise UnobservableError(
            f"no recorded sample was delivered to steps {numbers[0]} to {numbers[-1]}; `deliveries` must name the steps"
            " of `train_steps` and the ids of `samples`"
        )
    taken = answers["trainer_steps"].filter(pl.col("step").is_in(numbers.implode()))
    held_gpu_s, gpu_s = float(taken["held_gpu_s"].sum()), float(taken["trainer_gpus"].to_numpy() @ steps.period_s)
    if held_gpu_s > _HELD_RATIO * gpu_s:
        raise UnobservableError(
            f"trainers waited for other work than sampling {held_gpu_s / gpu_s:.0%} of their time, such as at a "
            "`barrier`; how long that takes in another layout is unknown"
        )
    _check_samples(steps, answers["judged_outcomes"])
    return steps, numbers


def _check_samples(steps: TrainerSteps, outcomes: pl.DataFrame) -> None:
    """Raise UnobservableError if steps count clearly more or fewer samples than were delivered to them.

    The ends of the interval may cut the deliveries of one step off.
    """
    counted, delivered = int(steps.samples.sum()), int(outcomes.filter(outcome="trained")["samples"].sum())
    less, more = sorted((counted, delivered))
    if more > _COUNTED_RATIO * less + more / steps.samples.size:
        raise UnobservableError(
            f"a step counts {counted / steps.samples.size:,.0f} samples, and {delivered / steps.samples.size:,.0f} were"
            " delivered to it: either every rank passes its own share to `train_step`, or one rank passes all, and a"
            " sample is delivered once"
        )


def observe_steps(answers: Mapping[str, pl.DataFrame], stretch: Interval) -> tuple[TrainerSteps, pl.Series]:
    """Return the steps that start and end in the interval, and their numbers, from trainer_steps and training_steps.

    A step starts at the end of the previous step. Raises UnobservableError for too few steps, or without GPUs, samples
    or tokens.
    """
    wanted = answers["training_steps"].select("step", "step_s", "samples", "tokens", "response_tokens")
    # Integers, because a float of nanoseconds since the epoch is off by up to 128 ns, which loses the first step.
    begins_ns = pl.col("end_ns") - (pl.col("step_s") * 1e9).round().cast(pl.Int64)
    inside = (
        answers["trainer_steps"]
        .join(wanted, on="step")
        .filter((begins_ns >= stretch.start_ns - 1) & (pl.col("end_ns") <= stretch.end_ns) & (pl.col("step_s") > 0))
        .sort("step")
    )
    if len(inside) < LEAST_STEPS_OBSERVED:
        raise UnobservableError(
            f"{len(inside)} steps lie in the stretch; {LEAST_STEPS_OBSERVED} are the least that show a spread"
        )
    if not inside["trainer_gpus"].min():
        raise UnobservableError("the workers that trained own no GPU")
    if inside["samples"].null_count() or inside["tokens"].null_count():
        raise UnobservableError("how many samples and tokens a training step had is not recorded")
    per_gpu = {
        name: (inside[f"{name}_gpu_s"] / inside["trainer_gpus"]).to_numpy()
        for name in ("train", "logprobs", "publish", "other", "wait", "held")
    }
    # The queue explains no wait for other work: like checkpoints, it is part of every step.
    held_s = per_gpu.pop("held")
    per_gpu["wait"], per_gpu["other"] = per_gpu["wait"] - held_s, per_gpu["other"] + held_s
    steps = TrainerSteps(
        period_s=inside["step_s"].to_numpy(),
        **{f"{name}_s": seconds for name, seconds in per_gpu.items()},
        **{name: inside[name].to_numpy() for name in ("samples", "tokens", "response_tokens", "published")},
    )
    return steps, inside["step"]


def _passes(costs: pl.DataFrame) -> PassCosts:
    if costs["passes"].sum() == 0:
        raise UnobservableError("no forward pass was recorded in the stretch: what a pass costs is unknown")
    names = sorted(costs["worker_id"].unique(), key=_by_number)
    return PassCosts(
        engine=costs["worker_id"].replace_strict(names, range(len(names)), return_dtype=pl.Int64).to_numpy(),
        engine_names=tuple(names),
        kv_tokens=costs["kv_used_tokens"].cast(pl.Float64).fill_null(float("nan")).to_numpy(),
        **{each.name: costs[each.name].to_numpy() for each in fields(PassCosts) if each.name in costs.columns},
    )


def _by_number(name: str) -> list[str | int]:
    """Sort key that puts sampler-10 behind sampler-2."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def _length_law(counts: pl.DataFrame, members: pl.DataFrame, max_output_tokens: int | None) -> LengthLaw:
    if not int((counts["output_tokens"] * counts["samples"]).sum()):
        raise UnobservableError("no sample with a token began in the stretch: how long responses are is unknown")
    longest = int(counts["output_tokens"].max())  # type: ignore[arg-type]  # an integer column that is not empty
    weights = counts["samples"].to_numpy()
    law = LengthLaw.from_samples(
        np.repeat(counts["output_tokens"].to_numpy(), weights),
        np.repeat((counts["ending"] != "censored").to_numpy(), weights),
        # A sample of several segments may exceed the cap of one segment. Then the law has no atom at the cap.
        max_output_tokens if max_output_tokens is not None and longest <= max_output_tokens else None,
    )
    groups = measure_groups(
        members["output_tokens"].to_numpy(), members["is_ended"].to_numpy(), members["group_id"].to_list()
    )
    return replace(law, groups=groups)


def _engine_states(inside: pl.DataFrame, gpus_per_engine: int) -> dict[tuple[str, str | None], float]:
    """Return engine-seconds by state from the ledger of the interval."""
    states = inside.filter(role="sampler").group_by("state", "reason", maintain_order=True)
    totals = states.agg(pl.col("gpu_s").sum() / gpus_per_engine)
    return {(state, reason): engine_s for state, reason, engine_s in totals.iter_rows()}


def _delivered(outcomes: pl.DataFrame) -> Delivered:
    tokens = dict(zip(outcomes["outcome"], outcomes["tokens"], strict=True))
    return Delivered(
        trained_tokens=tokens.get("trained", 0),
        dropped_tokens=tokens.get("dropped_stale", 0),
        filtered_tokens=sum(tokens.get(outcome, 0) for outcome in _FILTERED),
    )


def _by_staleness(rows: pl.DataFrame, steps: pl.Series, counted: str) -> tuple[tuple[int, int], ...]:
    """Return the counts of these steps, by staleness."""
    inside = rows.filter(pl.col("step").is_in(steps.implode()))
    counts = inside.group_by("staleness").agg(pl.col(counted).sum()).filter(pl.col(counted) > 0).sort("staleness")
    return tuple(counts.select("staleness", counted).iter_rows())


def _one_engine_groups_ratio(groups: pl.DataFrame) -> float | None:
    found = groups.row(0, named=True)
    return found["one_engine_groups"] / found["groups"] if found["engines"] > 1 and found["groups"] else None


def _batches(answers: Mapping[str, pl.DataFrame]) -> dict[str, Any]:
    """Return the order and the size of the batches that trainers take.

    If s steps share a batch, the k-th of them seems to have k batches ahead that it does not have, (s - 1) / 2 on
    average. A trainer that takes its batch in equal parts, as samples come, has the first part when its step starts.
    """
    counted, filling = (answers[name].row(0, named=True) for name in ("batches_ahead", "batch_filling"))
    if counted["batches_ahead"] is None:
        return {}
    sharing = counted["steps"] / counted["batches"]
    held, waited_for = filling["held_at_start"], filling["waited_for"]
    parts = waited_for / held if held and waited_for >= _FEWEST_QUEUED else 1.0
    return {
        "prefetched_batches": max(0.0, counted["batches_ahead"] - (sharing - 1.0) / 2.0),
        "batches_per_step": parts / sharing,
    }


def _preemption_counts(counted: pl.DataFrame) -> PreemptionCounts | None:
    found = counted.row(0, named=True)
    if found["preemptions"] is None:
        return None
    if not found["preemptions"]:
        return PreemptionCounts(0, 0)
    recomputed_tokens = found["prefill_tokens"] - found["prompt_tokens"]
    return PreemptionCounts(found["preemptions"], recomputed_tokens if recomputed_tokens > 0 else None)


def _scheduling(answers: Mapping[str, pl.DataFrame]) -> SeenScheduling:
    alone, levels = (answers[name].row(0, named=True) for name in ("group_deliveries", "in_flight_levels"))
    filling = answers["batch_filling"].row(0, named=True)
    filtered = answers["judged_outcomes"].filter(pl.col("outcome").is_in(_FILTERED))
    tokens, queued_tokens = (int(filtered[column].sum()) for column in ("tokens", "queued_tokens"))
    alone_ratio = alone["queued_earlier"] / alone["samples"] if alone["samples"] >= _FEWEST_QUEUED else None
    left = answers["taking_order"].row(0, named=True)
    # If groups are not queued together, the age of a sample is that of its own oldest token.
    unit = "" if alone_ratio is not None and alone_ratio > 0.5 else "_group"
    older, younger = left[f"older{unit}_left"], left[f"younger{unit}_left"]
    return SeenScheduling(
        queued_alone_ratio=alone_ratio,
        delivery_s=alone["delivery_s"],
        disorder_ratios={
            "fifo": _ratio_of(left["earlier_left"], left["later_left"]),
            "lifo": _ratio_of(left["later_left"], left["earlier_left"]),
            "oldest_first": _ratio_of(older, younger),
        },
        untaken_high_samples=levels["taken_high"],
        untrained_high_samples=levels["trained_high"],
        taken_on_arrival_ratio=_ratio_of(filling["taken_on_arrival"], filling["samples"] - filling["taken_on_arrival"]),
        filtered_queued_ratio=queued_tokens / tokens if tokens else None,
    )


def _ratio_of(part: int, rest: int) -> float | None:
    return part / (part + rest) if part + rest >= _FEWEST_QUEUED else None


def _load(answers: Mapping[str, pl.DataFrame], trainer_time: pl.DataFrame) -> SeenLoad:
    in_flight = answers["samples_in_flight"].row(0, named=True)
    return SeenLoad(
        running_samples=(in_flight["in_flight_mean"] - in_flight["environment_mean"]) or None,
        in_flight_samples=answers["in_flight_levels"].item(0, "taken_mean"),
        queued_samples=_queued_samples(answers["queue_level"], answers["batch_filling"].row(0, named=True)),
        wait_samples_ratio=_wait_ratio(trainer_time, "waiting_for_samples"),
        wait_staleness_cap_ratio=_wait_ratio(trainer_time, "waiting_for_staleness_cap"),
    )


def _queued_samples(queues: pl.DataFrame, taken: Mapping[str, float | None]) -> float | None:
    """Return the mean depth of the queue. None for several queues, which may hold the same samples or different ones.

    Depths recorded only when samples are taken miss the samples that enter in between. Then the depth follows from the
    times of the samples.
    """
    if len(queues) != 1:
        return None
    entered_unseen = not taken["depths_of_others"] and taken["queued_mean_samples"] is not None
    return taken["queued_mean_samples"] if entered_unseen else queues.item(0, "depth_mean_samples")


def _wait_ratio(trainer_time: pl.DataFrame, state: str) -> float | None:
    """Return the share of the trainers' time. None if they record no wait and much of their time is unattributed."""
    # Sorted, so that the same run gives the same sums to the last bit.
    seconds = dict(trainer_time.group_by("state", maintain_order=True).agg(pl.col("gpu_s").sum()).iter_rows())
    total_s = sum(seconds.values())
    waits = any(name.startswith("waiting") for name in seconds)
    if not total_s or (not waits and seconds.get("unattributed", 0.0) > _UNRECORDED_RATIO * total_s):
        return None
    return seconds.get(state, 0.0) / total_s


def _least(values: pl.Series) -> int | None:
    found = values.min()
    return int(found) if found is not None else None  # type: ignore[arg-type]  # an integer column


def _mean(values: pl.Series) -> float | None:
    found = values.mean()
    return float(found) if found is not None else None  # type: ignore[arg-type]  # a column of floats
