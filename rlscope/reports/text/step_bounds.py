"""Bounds from the phases of a step, in words: the gain of each change, and what that assumes."""

from collections.abc import Mapping
from typing import Final

from rlscope import format as fmt
from rlscope.model.step_bounds import Change, Requirement, StepBound, StepBounds, StepPhases
from rlscope.reports.blocks import Paragraph, Part, Table
from rlscope.reports.text.states import state_of

_TITLE: Final = "What changes could gain: bounds from the phases of a step"
_NO_GAIN_RATIO: Final = 1.005
"""Least throughput ratio that is named as one: smaller ones are today's throughput to the printed digits."""
_WHAT: Final[Mapping[Change, str]] = {
    "staleness_cap": "a staleness cap of 1 or more",
    "double_generation": "generation (with tools) twice as fast",
    "half_update": "weight updates half as long",
    "hidden_update": "weight updates that stop neither side",
    "hidden_phase": "{phase} off the critical path",
}
_REQUIRES: Final[Mapping[Requirement, str]] = {
    "staleness_cap": "a staleness cap of 1 or more, and ",
    "sampler_gpus": "as many GPUs again for sampling alone, and ",
}


def bounds_part(bounds: StepBounds) -> Part:
    """Return the phases of a step and what each change could gain."""
    phases = bounds.phases
    columns = ("change", "throughput over today's", "assumes")
    rows = [(change_words(each, phases), range_words(each), assumption(each, phases)) for each in bounds.bounds]
    shown = [Table(_TITLE, columns, rows, "stacks")] if rows else []
    return Part(_TITLE, [Paragraph(phases_sentence(phases)), *shown])


def change_words(bound: StepBound, phases: StepPhases) -> str:
    """Return the change, with what it needs, as a noun phrase."""
    if bound.change == "staleness_cap" and not phases.is_synchronous:
        return "a higher staleness cap"
    what = _WHAT[bound.change].format(phase="" if bound.phase is None else state_of(bound.phase).label)
    return what if bound.requires is None else _REQUIRES[bound.requires] + what


def range_words(bound: StepBound) -> str:
    """Return the range as factors of today's throughput, such as "1.24 to 1.6 times"."""
    return f"{_factor(bound)} times"


def _factor(bound: StepBound) -> str:
    low, high = (fmt.significant(each) for each in (bound.throughput_ratio_low, bound.throughput_ratio_high))
    if low == high:
        return high
    return f"at most {high}" if bound.throughput_ratio_low < _NO_GAIN_RATIO else f"{low} to {high}"


def assumption(bound: StepBound, phases: StepPhases) -> str:
    """Return what the bound assumes, as a clause."""
    if bound.change == "staleness_cap" and phases.is_synchronous:
        return f"low: generation takes as long as now, and updates stop it; {_full(phases)}"
    if bound.change == "hidden_update" and phases.is_synchronous:
        return f"low: generation takes as long as now, also during updates; {_full(phases)}"
    if bound.change == "hidden_phase":
        pace = "" if phases.is_synchronous else ", and trainers, not samplers, set the pace"
        return f"other hardware, or the background, does it{pace}"
    if phases.is_synchronous:
        return "phases follow each other, as now"
    if bound.change == "staleness_cap":
        return "trainers never wait for samples; no gain if samplers are always busy"
    if bound.change == "double_generation":
        return "trainers wait for generation alone; low: steps do not overlap, high: samplers are always busy"
    return "high: samplers are busy only while trainers wait; low: samplers are always busy"


def _full(phases: StepPhases) -> str:
    """Return what the upper end assumes if the next samples fill the engines while the longest responses end."""
    if phases.mean_length_ratio is None:
        return "high: trainers never wait for samples"
    return f"high: engines stay full (the mean response is {fmt.percent(phases.mean_length_ratio)} of the longest)"


def phases_sentence(phases: StepPhases) -> str:
    """Return the phases of the mean step as a sentence."""
    generation = "generation" if phases.shares_gpus else "waits for samples"
    parts = {generation: phases.generation_s, "weight updates": phases.update_s}
    parts |= {state_of(name).label: seconds for name, seconds in phases.other_s.items()}
    named = [f"{name} {fmt.duration(s)}" for name, s in sorted(parts.items(), key=lambda part: -part[1]) if s > 0.0]
    order = {
        True: "They follow each other" if phases.shares_gpus else "No sample is stale, so they follow each other",
        False: "Samples are stale, so steps overlap",
        None: "Whether steps overlap is not in the log",
    }[phases.is_synchronous]
    mean = f"mean of {fmt.counted(phases.steps, 'step')}"
    return f"A step takes {fmt.duration(phases.step_s)} ({mean}): {', '.join(named)}. {order}."


def largest_sentence(bounds: StepBounds | None) -> str:
    """Return the largest bound on a single change as a sentence; empty without one."""
    largest = None if bounds is None else bounds.largest
    if bounds is None or largest is None:
        return ""
    what = change_words(largest, bounds.phases)
    return f"From the phases of a step: {what} would multiply throughput by {_factor(largest)}."
