"""How fast the run trained and generated, over time and step by step."""

from typing import Final, NamedTuple

from rlscope import format as fmt
from rlscope.analysis.result import Analysis
from rlscope.reports.charts import training
from rlscope.reports.page.figure import Drawn, Figure, drawn_all
from rlscope.reports.text import verdict as verdict_words
from rlscope.reports.text.brief import Fact


class ThroughputSection(NamedTuple):
    """What the section shows."""

    facts: list[Fact]
    window: str
    figures: list[Drawn]


def throughput_section(analysis: Analysis) -> ThroughputSection:
    """The section's words and figures."""
    return ThroughputSection(_facts(analysis), verdict_words.window_sentence(analysis), drawn_all(_FIGURES, analysis))


def _facts(analysis: Analysis) -> list[Fact]:
    rates, run = analysis.throughput, analysis.run
    return [
        Fact("Trained, steady", fmt.tokens_per_second(rates.steady_tokens_per_s)),
        Fact("Trained, whole run", fmt.tokens_per_second(rates.achieved_tokens_per_s)),
        Fact("Generated, whole run", fmt.tokens_per_second(rates.generated_tokens_per_s)),
        Fact("Samples trained", fmt.count(run.samples_trained)),
    ]


_FIGURES: Final = (
    Figure(
        "Tokens per second",
        "Trained tokens against generated ones. Where generated stays above trained, work piles up or is dropped. "
        "The shaded stretch is the stable one that the steady rate is taken over. Healthy: the two lines lie on one "
        "another, and level.",
        "throughput", "trained_tokens_per_s", training.throughput, "no sample was trained on",
    ),
    Figure(
        "Step time",
        "From the end of one training step to the end of the next, and the part of it that computes. The rest is "
        "waiting, publishing and everything else between steps. Healthy: nearly all of a step computes.",
        "training_steps", "compute_s", training.step_time, "no training step was recorded",
    ),
)  # fmt: skip
