"""How long the responses were, what became of them, and what the longest of a group cost the others."""

from typing import Final, NamedTuple

from rlscope.analysis import Analysis
from rlscope.report import numbers
from rlscope.report.charts import lengths, sampling
from rlscope.report.fact import Fact
from rlscope.report.figure import Drawn, Figure, drawn, drawn_frame
from rlscope.report.length_frames import (
    bias_sentence,
    capped_lengths,
    mirrored_frame,
    stated_cap_tokens,
    tails_sentence,
)


class LengthsSection(NamedTuple):
    """What the section shows."""

    facts: list[Fact]
    figures: list[Drawn]
    bias: str
    mirrored: Drawn | None
    """None where nothing was dropped."""
    outcomes: Drawn


def lengths_section(analysis: Analysis) -> LengthsSection:
    """The section's words and figures."""
    answers, run = analysis.answers, analysis.run
    mirrored = mirrored_frame(answers)
    return LengthsSection(
        facts=_facts(analysis),
        figures=[
            drawn_frame(_with_cap(_LENGTHS, analysis), "figure-response-lengths", capped_lengths(answers, run), run),
            drawn(_TAILS._replace(reading=f"{_TAILS.reading} {tails_sentence(answers)}".strip()), analysis),
        ],
        bias=bias_sentence(mirrored, answers),
        mirrored=None if mirrored is None else drawn_frame(_MIRRORED, "figure-mirrored-lengths", mirrored, run),
        outcomes=drawn(_OUTCOMES, analysis),
    )


def _facts(analysis: Analysis) -> list[Fact]:
    frame = analysis.answers.get("token_balance")
    if frame is None or frame.is_empty():
        return []
    return [
        Fact(name.removesuffix("_tokens").replace("_", " ").capitalize(), numbers.tokens(value))
        for name, value in frame.row(0, named=True).items()
    ]


def _with_cap(figure: Figure, analysis: Analysis) -> Figure:
    """The figure with the cap in its reading."""
    cap = stated_cap_tokens(analysis.run)
    said = "The run states no cap." if cap is None else f"The cap is {numbers.count(cap)} tokens."
    return figure._replace(reading=f"{figure.reading} {said}")


_LENGTHS: Final = Figure(
    "Response lengths",
    "Capped samples hit the length limit. Censored ones were aborted or still running: they are longer than they "
    "look. Healthy: few are capped.",
    "response_lengths", "length_from_tokens", lengths.response_lengths, "no sample was recorded",
    False, ("response_lengths",),
)  # fmt: skip
_OUTCOMES: Final = Figure(
    "What became of the tokens",
    "Tokens by the outcome of their sample's delivery. Healthy: nearly all are trained.",
    "delivery_outcomes", "tokens", sampling.delivery_outcomes, "no delivery was recorded",
)  # fmt: skip
_MIRRORED: Final = Figure(
    "Trained on, and not",
    "Lengths of what was trained on upwards, of what was dropped, filtered or abandoned downwards, each as shares of "
    "its side. Healthy: a mirror image, that is, dropping does not choose by length.",
    "", "samples", lengths.mirrored_lengths, "no sample of known length left the queue", False,
    ("delivered_lengths", "delivery_outcomes"),
)  # fmt: skip
_TAILS: Final = Figure(
    "The tail of each group",
    "Groups by how far their longest sample stands out of their mean; 1 is a group of equals. Healthy: a heap near 1.",
    "group_tail_counts", "groups", lengths.group_tails, "no group of two or more samples was recorded",
)  # fmt: skip
