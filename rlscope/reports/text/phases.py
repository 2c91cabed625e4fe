"""The phases of GPUs that sample and train in turn: there are no two sides to balance, and the longest phase counts."""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Final, NamedTuple

import polars as pl

from rlscope import format as fmt
from rlscope.analysis.interval import Interval
from rlscope.analysis.ledger import GENERATING, StateKey
from rlscope.analysis.result import AnalysisResult
from rlscope.reports.text.states import state_of

_GENERATION: Final = "generation"
_LEAST_NAMED_RATIO: Final = 0.02
_LEAST_OUTSIDE_RATIO: Final = 0.20
"""Share of generation outside the engines from which it is named."""
_MOSTLY_OUTSIDE_RATIO: Final = 0.50
"""Share of generation outside the engines from which faster engines gain less than shortening the rest."""
_SAVING: Final = (state_of("eval").label, state_of("checkpoint").label)
_INSIDE_ENGINES: Final = "timing_s/generate_sequences"
"""verl's own measure of the part of generation that the engines take."""
_NEXT: Final[Mapping[str, str]] = {
    _GENERATION: (
        "To go faster, shorten generation: run more requests per engine, cap the longest responses, or give sampling "
        "GPUs of its own, so that it overlaps with training."
    ),
    state_of("other").label: (
        "To go faster, look up what the trainer does in this time, such as preparing batches or writing files, and "
        "move it into the background."
    ),
    state_of("logprobs").label: (
        "To go faster, recompute log-probabilities in larger micro-batches, or take those of the policy from the "
        "engines."
    ),
    "training": "To go faster, shorten training: use larger micro-batches, or a faster parallel layout.",
    state_of("eval").label: "To go faster, evaluate less often, on fewer prompts, or on GPUs that do not train.",
    state_of("checkpoint").label: "To go faster, save less often, or in the background.",
}
_NEXT_OUTSIDE: Final = (
    "To go faster, shorten what generation does outside generate_sequences: keep the engines awake between steps, load "
    "their weights faster, or give sampling GPUs of its own. Shorter responses gain little."
)


class StepPhase(NamedTuple):
    """A phase of a step."""

    name: str
    share_ratio: float
    """Share of the GPU time of the interval that the verdict covers."""


def judged_states(analysis: AnalysisResult) -> dict[StateKey, float]:
    """Return the GPU-seconds of the stretch of the verdict by state; empty if nothing is known of it."""
    return _states_in(judged(analysis), analysis)


def judged(analysis: AnalysisResult) -> Interval:
    """Return the stretch of the verdict."""
    return Interval(analysis.verdict.start_ns, analysis.verdict.end_ns)


def in_turn(analysis: AnalysisResult) -> tuple[list[StepPhase], Interval]:
    """Return the phases of GPUs that sample and train in turn, and their stretch; no phases if others do something.

    The stretch is that of the verdict, or the run after its first step if evaluations or checkpoints are the longest
    phase there alone: a few long ones, between which the step time is stable.
    """
    ends_ns, stretch = analysis.answers["training_steps"]["end_ns"], judged(analysis)
    phases = _shared(stretch, analysis)
    if not phases or not len(ends_ns):
        return phases, stretch
    run = Interval(int(ends_ns[0]), int(ends_ns[-1]))
    whole = _shared(run, analysis)
    is_left_out = bool(whole) and whole[0].name in _SAVING and whole[0].name != phases[0].name
    return (whole, run) if is_left_out else (phases, stretch)


def _shared(interval: Interval, analysis: AnalysisResult) -> list[StepPhase]:
    states = _states_in(interval, analysis)
    is_shared = {key.role for key in states} == {"colocated"}
    return by_share((key.state, gpu_s) for key, gpu_s in states.items()) if is_shared else []


def _states_in(interval: Interval, analysis: AnalysisResult) -> dict[StateKey, float]:
    timeline = analysis.answers["ledger_timeline"]
    starts = timeline["bucket_start_ns"].unique().sort()
    if len(starts) < 2:
        return {}
    bucket_ns = min(after - before for before, after in pairwise(starts))
    inside = interval.clip(timeline, bucket_ns)
    sums = inside.group_by("role", "state", "reason").agg(pl.col("gpu_s").sum()).filter(pl.col("gpu_s") > 0)
    return {
        StateKey(role, state, reason): gpu_s
        for role, state, reason, gpu_s in sums.sort("role", "state", "reason").rows()
    }


def by_share(times: Iterable[tuple[str, float]]) -> list[StepPhase]:
    """Return the phases that times by ledger state are of, the longest first. The unit of the times does not matter."""
    by_name = dict[str, float]()
    for state, time in times:
        name = _GENERATION if state in GENERATING else state_of(state).label
        by_name[name] = by_name.get(name, 0.0) + time
    total = sum(by_name.values())
    return sorted((StepPhase(name, time / total) for name, time in by_name.items()), key=lambda each: -each.share_ratio)


def label(longest: StepPhase) -> str:
    """Title the verdict by the longest phase."""
    return f"Longest phase: {longest.name}"


def headline(longest: StepPhase) -> str:
    """Name the longest phase and its share, without a full stop."""
    takes = "take" if longest.name.endswith("s") else "takes"
    share = fmt.percent(longest.share_ratio)
    return f"{longest.name.capitalize()} {takes} {share} of the time, more than any other phase"


def why(phases: list[StepPhase], analysis: AnalysisResult) -> str:
    """Name the other phases, and what of generation is spent outside the engines; as sentences after a stretch."""
    said, outside_ratio = f"the same GPUs sample and train in turn: {shares(phases)}.", _outside_ratio(analysis)
    if outside_ratio < _LEAST_OUTSIDE_RATIO:
        return said
    return (
        f"{said} {fmt.percent(outside_ratio)} of generation lies outside generate_sequences: waking the engines up, "
        "resharding and loading weights, or waiting for the slowest of them."
    )


def shares(phases: list[StepPhase]) -> str:
    """Name the phases that are not too short, with their shares."""
    return ", ".join(
        f"{each.name} {fmt.percent(each.share_ratio)}" for each in phases if each.share_ratio >= _LEAST_NAMED_RATIO
    )


def next_step(longest: StepPhase, analysis: AnalysisResult) -> str:
    """Say what to shorten."""
    if longest.name == _GENERATION and _outside_ratio(analysis) >= _MOSTLY_OUTSIDE_RATIO:
        return _NEXT_OUTSIDE
    return _NEXT.get(longest.name, f"To go faster, shorten this phase: {longest.name}.")


def _outside_ratio(analysis: AnalysisResult) -> float:
    """Return the share of generation outside verl's generate_sequences; 0 if it is unknown."""
    rows = analysis.answers["reported_values"].filter(name=_INSIDE_ENGINES).rows(named=True)
    generating_s = sum(state.gpu_ns for state in analysis.ledger.states if state.state in GENERATING) / 1e9
    if not rows or not generating_s or not analysis.run.total_gpus:
        return 0.0
    return 1.0 - sum(row["rows"] * row["mean"] for row in rows) * analysis.run.total_gpus / generating_s
