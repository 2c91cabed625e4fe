"""How old the tokens were when they were trained on, and where they got old."""

from typing import Final, NamedTuple

from rlscope.analysis import Analysis
from rlscope.report import numbers
from rlscope.report.charts import training
from rlscope.report.fact import Fact
from rlscope.report.figure import Drawn, Figure, drawn_all


class StalenessSection(NamedTuple):
    """What the section shows."""

    facts: list[Fact]
    version_sources: str
    figures: list[Drawn]


def staleness_section(analysis: Analysis) -> StalenessSection:
    """The section's words and figures."""
    return StalenessSection(_facts(analysis), _version_sources(analysis), drawn_all(_FIGURES, analysis))


def _facts(analysis: Analysis) -> list[Fact]:
    staleness, cap = analysis.staleness, analysis.run.max_staleness
    tokens, samples = staleness.tokens, staleness.samples
    over = "the run states no cap" if cap is None else numbers.tokens(staleness.over_cap_tokens)
    facts = [
        Fact("Gained in flight", numbers.versions(staleness.in_flight_mean), "while the sample was generated"),
        Fact("Gained in the queue", numbers.versions(staleness.in_queue_mean), "between its end and its step"),
        Fact("Beyond the cap", over, "" if cap is None else f"cap {cap}"),
    ]
    if samples is not None:
        facts.insert(
            0, Fact("Oldest token of a sample", f"{numbers.significant(samples.mean)} mean", f"max {samples.max}")
        )
    if tokens is not None:
        spread = f"p50 {tokens.p50}, p95 {tokens.p95}, p99 {tokens.p99}, max\u00a0{tokens.max}"
        facts.insert(0, Fact("Tokens", f"{numbers.significant(tokens.mean)} mean", spread))
    return facts


def _version_sources(analysis: Analysis) -> str:
    sources = analysis.staleness.version_source_tokens
    return ", ".join(f"{numbers.tokens(n)} by {source.replace('_', ' ')}" for source, n in sources.items())


_FIGURES: Final = (
    Figure(
        "Staleness by step",
        "The line is the mean over trained tokens; the band goes from the median to the 95th percentile. Healthy: "
        "level, and under the cap.",
        "token_staleness_by_step", "staleness_mean", training.staleness_by_step,
        "no trained token has a known version",
    ),
    Figure(
        "Staleness of trained tokens",
        "How many tokens were trained at which age. Tokens beyond the cap are in the cap's colour. Healthy: a narrow "
        "heap, and nothing beyond the cap.",
        "staleness_histogram", "tokens", training.staleness_histogram, "no trained token has a known version",
    ),
)  # fmt: skip
