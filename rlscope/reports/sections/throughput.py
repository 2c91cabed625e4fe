"""Measured throughput over time, and the time of each step."""

from typing import Final, NamedTuple

from rlscope import format as fmt
from rlscope.analysis.result import AnalysisResult
from rlscope.reports.charts import training
from rlscope.reports.page.figure import Drawn, Figure, drawn_all
from rlscope.reports.text import verdict as verdict_words
from rlscope.reports.text.brief import Fact
from rlscope.reports.text.origin import counted_words


class ThroughputSection(NamedTuple):
    """What the section shows."""

    facts: list[Fact]
    window: str
    figures: list[Drawn]


def throughput_section(analysis: AnalysisResult) -> ThroughputSection:
    """Make the section."""
    return ThroughputSection(_facts(analysis), verdict_words.window_sentence(analysis), drawn_all(_FIGURES, analysis))


def _facts(analysis: AnalysisResult) -> list[Fact]:
    rates, run = analysis.throughput, analysis.run
    note = f"measured{counted_words(rates)}"
    return [
        Fact("Trained, steady stretch", fmt.tokens_per_second(rates.steady_tokens_per_s), note),
        Fact("Trained, whole run", fmt.tokens_per_second(rates.achieved_tokens_per_s), note),
        Fact("Effective, whole run", fmt.tokens_per_second(rates.effective_tokens_per_s), "from importance ratios"),
        Fact("Generated, whole run", fmt.tokens_per_second(rates.generated_tokens_per_s), "measured"),
        Fact("Samples trained", fmt.count(run.samples_trained) if rates.counted_tokens is None else fmt.NO_DATA),
    ]


_FIGURES: Final = (
    Figure(
        "Measured tokens per second",
        "Trained and generated tokens. If generated stays above trained, samples pile up or are dropped. Shaded: the "
        "steady stretch that steady throughput is measured over. Healthy: both lines steady and close together.",
        "throughput", "trained_tokens_per_s", training.throughput, "no sample was trained on",
    ),
    Figure(
        "Step time",
        "Time from the end of one training step to the end of the next, and the part spent computing. The rest is "
        "waiting, publishing and other work between steps. Healthy: nearly all of a step is computing.",
        "training_steps", "compute_s", training.step_time, "no training step was recorded",
    ),
)  # fmt: skip
