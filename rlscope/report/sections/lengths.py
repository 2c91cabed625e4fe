"""How long the responses were, and what became of their tokens."""

from typing import Final, NamedTuple

from rlscope.analysis import Analysis
from rlscope.report import numbers
from rlscope.report.charts import sampling
from rlscope.report.fact import Fact
from rlscope.report.figure import Drawn, Figure, drawn_all


class LengthsSection(NamedTuple):
    """What the section shows."""

    facts: list[Fact]
    figures: list[Drawn]


def lengths_section(analysis: Analysis) -> LengthsSection:
    """The section's words and figures."""
    return LengthsSection(_facts(analysis), drawn_all(_FIGURES, analysis))


def _facts(analysis: Analysis) -> list[Fact]:
    frame = analysis.answers.get("token_balance")
    if frame is None or frame.is_empty():
        return []
    return [
        Fact(name.removesuffix("_tokens").replace("_", " ").capitalize(), numbers.tokens(value))
        for name, value in frame.row(0, named=True).items()
    ]


_FIGURES: Final = (
    Figure(
        "Response lengths",
        "Capped samples hit the length limit. Censored ones were aborted or still running: they are longer than they "
        "look. Healthy: few are capped.",
        "response_lengths", "length_from_tokens", sampling.response_lengths, "no sample was recorded",
    ),
    Figure(
        "What became of the tokens",
        "Tokens by the outcome of their sample's delivery. Healthy: nearly all are trained.",
        "delivery_outcomes", "tokens", sampling.delivery_outcomes, "no delivery was recorded",
    ),
)  # fmt: skip
