"""Staleness of the trained tokens, where it arises, and its cost in effective sample size."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import polars as pl

from rlscope import format as fmt
from rlscope.analysis.result import AnalysisResult
from rlscope.analysis.staleness import effective_share_of_all
from rlscope.reports.blocks import Asked, Block, Charts, Fold, Paragraph, Part, Table
from rlscope.reports.card import staleness_blocks
from rlscope.reports.charts import staleness
from rlscope.reports.figure import Figure, drawn_frame
from rlscope.reports.text.origin import reported_staleness


def heat_frame(answers: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """staleness_heat with the 95th percentile of its column in each row."""
    heat, parts = answers["staleness_heat"], answers["staleness_parts"]
    return heat.join(parts.select("start_ns", "first_step", "staleness_p95"), on=["start_ns", "first_step"], how="left")


def shares_frame(answers: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """staleness_histogram in the bins of staleness_heat, with shares of all tokens."""
    histogram, heat = answers["staleness_histogram"], answers["staleness_heat"]
    rows = heat.select(pl.col("staleness_to") - pl.col("staleness_from") + 1).head(1).rows()
    width = int(rows[0][0]) if rows else 1
    least = min(0, int(histogram["staleness"].min() or 0))  # pyright: ignore[reportArgumentType]
    row = (pl.col("staleness") - least) // width * width + least
    return (
        histogram.group_by(row.alias("staleness_from"))
        .agg(pl.col("tokens").sum())
        .sort("staleness_from")
        .select(
            "staleness_from",
            (pl.col("staleness_from") + width - 1).alias("staleness_to"),
            "tokens",
            (pl.col("tokens") / pl.col("tokens").sum()).alias("share_ratio"),
        )
    )


def never_stale(histogram: pl.DataFrame) -> str:
    """Return a sentence if every trained token had staleness 0, which needs no chart; empty otherwise."""
    if histogram.is_empty() or bool((histogram["staleness"] != 0).any()):
        return ""
    tokens = fmt.tokens(int(histogram["tokens"].sum()))
    return f"Staleness is 0 for all {tokens} of known version: the trainer had published nothing newer."


def staleness_section(analysis: AnalysisResult) -> Sequence[Block]:
    """Return the blocks of the section."""
    if analysis.staleness.tokens is None and reported_staleness(analysis):
        return [*staleness_blocks(analysis)]
    answers, run = analysis.answers, analysis.run
    fresh = never_stale(answers["staleness_histogram"])
    heat = drawn_frame(_HEAT, heat_frame(answers), run)
    first = Charts([heat, drawn_frame(_SHARES, shares_frame(answers), run)], is_wide_first=True)
    return [
        Paragraph(fresh, "lead") if fresh else first,
        Fold("staleness-more", "Where staleness is added, and what it costs", list(_costs(analysis))),
    ]


def _costs(analysis: AnalysisResult) -> Iterator[Block]:
    moments = analysis.answers["version_moments"]
    effective = effective_share_of_all(moments)
    yield from staleness_blocks(analysis)
    price = Paragraph(_PRICE_UNKNOWN if effective is None else _PRICE.format(fmt.percent(effective)), "lead")
    yield Part("Cost of staleness", [price, *([] if effective is None else ratios_table(moments))])


def ratios_table(moments: pl.DataFrame) -> Iterator[Block]:
    """Yield the effective sample size and the variance of the importance ratios by staleness, the freshest first."""
    shown = moments.sort("staleness").head(_RATIO_ROWS_MAX)
    columns = shown.select("staleness", "tokens", "effective_share_ratio", "ratio_variance")
    rows = [
        (str(age), fmt.count(tokens), fmt.percent(share), fmt.significant(variance))
        for age, tokens, share, variance in columns.iter_rows()
    ]
    titles = ("staleness, versions", "trained tokens", "effective sample size", "variance of w")
    yield Table("Importance ratios by staleness", titles, rows, numbers=frozenset({1, 2, 3}))
    if shown.height < moments.height:
        yield Paragraph(f"{fmt.count(moments.height - shown.height)} staler rows are in the query.", "note")
    yield Asked(["version_moments"])


_PRICE: Final = (
    "The importance ratios w of stale tokens spread away from 1, so a stale batch is worth fewer fresh tokens. The "
    "effective sample size of this run is {} of its trained tokens: (Σw)² / (n · Σw²), from the recorded ratios."
)
_PRICE_UNKNOWN: Final = (
    "Unknown: no trainer recorded importance ratios. Record `importance` with each training step: for every staleness "
    "in its batch, the number of tokens, the sum of their ratios w, and the sum of w²."
)
_RATIO_ROWS_MAX: Final = 16
_NO_STALENESS: Final = "no trained token has a known version"
_HEAT: Final = Figure(
    "Token staleness over time",
    "Each column is one or several steps; the color is the share of its tokens at that staleness. Line: 95th "
    "percentile. Healthy: steady, narrow, and at or below the cap, if there is one.",
    "staleness_heat", "tokens", staleness.staleness_heat, "no trained token has a known version and a timed step",
    False, ("staleness_heat", "staleness_parts"),
)  # fmt: skip
_SHARES: Final = Figure(
    "Token staleness, whole run",
    "Healthy: a narrow peak. Crimson: above the cap.",
    "staleness_shares", "tokens", staleness.staleness_shares, _NO_STALENESS, False, ("staleness_histogram",),
)  # fmt: skip
