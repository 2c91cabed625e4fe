"""A comparison as a JSON document.

`change` is B over A less 1 if `scale` is "ratio", and B minus A in the quantity's unit if it is "absolute".
"""

from collections.abc import Mapping
from dataclasses import dataclass

from rlscope.comparison.attribution import ChangeCause, Promise
from rlscope.comparison.differences import Differences
from rlscope.comparison.facts import ComparedRun, Setting, plain
from rlscope.comparison.repeats import RepeatedSetting
from rlscope.comparison.runs import Pair, RunComparison
from rlscope.comparison.warnings import CompareWarning
from rlscope.document import Document, extended
from rlscope.model.causes import Bottleneck
from rlscope.reports.text import comparison as words


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One run of the comparison."""

    letter: str
    """A for the baseline, then B, C and so on."""
    name: str
    """Identifier of the run, or the name of its folder or log if two runs share one identifier."""
    run_id: str
    """Identifier of the run."""
    started_ns: int
    """Start of the run, in UTC epoch nanoseconds."""
    trainer_gpus: int
    """Trainer GPUs."""
    sampler_gpus: int
    """Sampler GPUs."""
    colocated_gpus: int
    """GPUs that both train and sample."""
    max_running: int | None
    """Limit on running requests of an engine; None if not recorded."""
    first_step: int | None
    """First optimizer step of the steady state; None if there is none."""
    last_step: int | None
    """Last optimizer step of the steady state; None if there is none."""
    steady_tokens_per_s: float | None
    """Trained response tokens per second in steady state."""
    bottleneck: Bottleneck
    """The bottleneck of the run, from its own analysis."""
    settings: Mapping[str, Setting]
    """The run's config: nested entries by dotted names, lists as text."""
    devices: Mapping[str, str]
    """Recorded GPU models, by role."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldCompareWarning(CompareWarning):
    """One reason to interpret the comparison with care."""

    sentence: str
    """The reason in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairDocument(Differences):
    """One run compared with the baseline."""

    run: RunSummary
    """The run."""
    label: str
    """The outcome in a few words."""
    headline: str
    """The outcome in one sentence."""
    warnings: tuple[ToldCompareWarning, ...]
    """Reasons for care, the most important first."""
    causes: tuple[ChangeCause, ...]
    """Causes of the change in the rate, the largest effect first."""
    together_ratio: float | None
    """Modeled gain of trained tokens per second from all causes together; None if the model cannot predict it."""
    promise: Promise | None
    """Prediction for the recommended action that this run carries out; None if it carries out none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareDocument(Document):
    """Output of `rlscope compare --json`: a baseline, and every other run compared with it."""

    baseline: RunSummary
    """Run A."""
    comparisons: tuple[PairDocument, ...]
    """The other runs, in the given order."""
    repeated: tuple[RepeatedSetting, ...]
    """Settings that were run several times, each compared with that of the baseline."""


def compare_document(compared: RunComparison) -> CompareDocument:
    """Return the whole comparison."""
    return CompareDocument(
        baseline=_summary(compared.baseline, "A"),
        comparisons=tuple(_pair(pair, words.letter_of(index)) for index, pair in enumerate(compared.pairs, start=1)),
        repeated=compared.repeated,
    )


def _summary(run: ComparedRun, letter: str) -> RunSummary:
    settings = {name: plain(value) for name, value in run.settings.items()}
    parts = (run.run, run.run.window, run.verdict, run.throughput)
    return extended(RunSummary, run, *parts, letter=letter, settings=settings)


def _pair(pair: Pair, letter: str) -> PairDocument:
    rate = pair.differences.row("tokens_per_s")
    return extended(
        PairDocument,
        pair.differences,
        pair.attribution,
        run=_summary(pair.run, letter),
        label=words.label(rate),
        headline=words.headline(rate, letter),
        warnings=tuple(
            extended(ToldCompareWarning, each, sentence=words.warning_words(each, letter)) for each in pair.warnings
        ),
    )
