"""Finds warnings: reasons for a difference between two runs, or for the lack of one, besides its causes.

Reports show them before the numbers. A changed setting is a cause (`attribution.py`) and no warning.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from rlscope.comparison.attribution import Attribution
from rlscope.comparison.differences import Differences
from rlscope.comparison.facts import ComparedRun, one_sided_settings
from rlscope.comparison.statistics import Difference
from rlscope.model.warnings import ModelWarning

_LENGTH_RATIO: Final = 0.05
"""Minimum difference of the mean response length: a smaller one changes the rate too little to be worth a restart."""
_OVERLAP_RATIO: Final = 0.5
"""Minimum share of the shorter steady state that both runs cover: with less, they are at different points of
training."""


class CompareWarningKind(StrEnum):
    """The kind of a warning."""

    SAME_RUN = "same_run"
    """Both are the same recording."""
    NO_WINDOW = "no_window"
    """A run never reaches steady state."""
    COUNTS_PROMPTS = "counts_prompts"
    """Trained tokens are the trainer's counts, which include prompts."""
    MODEL_MISSES = "model_misses"
    """The baseline's model missed the held-out part of the baseline."""
    HIDDEN_SAMPLERS = "hidden_samplers"
    """The log of one run does not show what its samplers do; the other run does."""
    DROPPED_LENGTHS = "dropped_lengths"
    """Trained responses are shorter or longer because of dropping: an effect of the change."""
    DRIFT = "drift"
    """Response lengths drift within a run."""
    NOISY = "noisy"
    """The halves of one run differ by more than the two runs do."""
    OTHER_STEPS = "other_steps"
    """The steady states cover different training steps."""
    SETTINGS_PARTLY_KNOWN = "settings_partly_known"
    """A run was imported from a log that lacks settings of the other run."""


@dataclass(frozen=True, slots=True)
class CompareWarning:
    """A reason to read the comparison with care."""

    kind: CompareWarningKind
    """Kind of the reason."""
    about: str
    """Its subject as text: the name of a run, device or config entry, or a number."""
    before: str = ""
    """Value in A, as text."""
    after: str = ""
    """Value in the other run, as text."""


def warnings_of(
    before: ComparedRun, after: ComparedRun, differences: Differences, attribution: Attribution
) -> tuple[CompareWarning, ...]:
    """Return all warnings, the most important first."""
    asks_model = any(each.alone_ratio is not None for each in attribution.causes)
    return (
        *_missing(before, after),
        *_lengths(before, after, differences, attribution),
        *_noise(differences.row("tokens_per_s")),
        *(_steps(before, after) if differences.basis == "steady" else ()),
        *_unknown(before, after, asks_model=asks_model),
    )


def _missing(before: ComparedRun, after: ComparedRun) -> Iterator[CompareWarning]:
    if (before.run, before.settings) == (after.run, after.settings):
        yield CompareWarning(CompareWarningKind.SAME_RUN, after.name)
    for run in (before, after):
        if run.table is None:
            yield CompareWarning(CompareWarningKind.NO_WINDOW, run.name)
    if before.counts_prompts and after.counts_prompts:
        yield CompareWarning(CompareWarningKind.COUNTS_PROMPTS, "tokens")
    hidden = [run.name for run in (before, after) if run.hides_samplers and run.run.sampler_gpus]
    if len(hidden) == 1:
        yield CompareWarning(CompareWarningKind.HIDDEN_SAMPLERS, hidden[0])


def _lengths(
    before: ComparedRun, after: ComparedRun, differences: Differences, attribution: Attribution
) -> Iterator[CompareWarning]:
    of_dropping = attribution.lengths.of_dropping
    is_tested = differences.row("response_tokens").is_significant
    if abs(of_dropping) >= _LENGTH_RATIO and (is_tested or differences.basis == "whole"):
        yield CompareWarning(CompareWarningKind.DROPPED_LENGTHS, f"{of_dropping}")
    for run in (before, after):
        if run.modeled and run.modeled.length_drift and run.modeled.length_drift.drifts:
            yield CompareWarning(CompareWarningKind.DRIFT, run.name)


def _noise(rate: Difference) -> Iterator[CompareWarning]:
    # Explain the noise only if it overrules an interval that excludes 0.
    if rate.is_noisy and ((rate.low or 0.0) > 0 or (rate.high or 0.0) < 0):
        yield CompareWarning(CompareWarningKind.NOISY, f"{rate.own_change}", f"{rate.change}")


def _steps(before: ComparedRun, after: ComparedRun) -> Iterator[CompareWarning]:
    window, other = before.run.window, after.run.window
    assert window is not None and other is not None
    shorter = min(each.last_step - each.first_step for each in (window, other)) + 1
    common = min(window.last_step, other.last_step) - max(window.first_step, other.first_step) + 1
    if common < _OVERLAP_RATIO * shorter:
        ends = (f"{each.first_step} to {each.last_step}" for each in (window, other))
        yield CompareWarning(CompareWarningKind.OTHER_STEPS, "steps", *ends)


def _unknown(before: ComparedRun, after: ComparedRun, *, asks_model: bool) -> Iterator[CompareWarning]:
    if one_sided := one_sided_settings(before, after):
        yield CompareWarning(CompareWarningKind.SETTINGS_PARTLY_KNOWN, str(len(one_sided)))
    if asks_model and before.modeled and ModelWarning.PREDICTION_MISSED in before.modeled.warnings:
        yield CompareWarning(CompareWarningKind.MODEL_MISSES, before.name)
