# Polars names numpy in its signatures, and numpy is not installed: hence the unknown member types.
# pyright: reportUnknownMemberType=false
"""The frames of the staleness section, made of several answers, and the effective share of all trained tokens."""

from collections.abc import Mapping

import polars as pl


def heat_frame(answers: Mapping[str, pl.DataFrame]) -> pl.DataFrame | None:
    """staleness_heat with the 95th percentile of each column in its rows; None where it was not asked."""
    heat, parts = answers.get("staleness_heat"), answers.get("staleness_parts")
    if heat is None or parts is None:
        return None
    return heat.join(parts.select("start_ns", "first_step", "staleness_p95"), on=["start_ns", "first_step"], how="left")


def heat_table(heat: pl.DataFrame) -> pl.DataFrame:
    """A row per column of the picture, with the share of each staleness in a column of its own."""
    ages = heat.select("staleness_from", "staleness_to").unique().sort("staleness_from").rows()
    index = ["first_step", "last_step", "start_ns", "end_ns", "staleness_p95"]
    shares = [
        pl.col("share_ratio").filter(pl.col("staleness_from") == first).sum().alias(_ages_name(first, last))
        for first, last in ages
    ]
    return heat.group_by(index, maintain_order=True).agg(shares).sort("start_ns", "first_step")


def shares_frame(answers: Mapping[str, pl.DataFrame]) -> pl.DataFrame | None:
    """staleness_histogram put together into the rows of staleness_heat, with shares of all tokens."""
    histogram, heat = answers.get("staleness_histogram"), answers.get("staleness_heat")
    if histogram is None or histogram.is_empty():
        return None
    rows = [] if heat is None else heat.select(pl.col("staleness_to") - pl.col("staleness_from") + 1).head(1).rows()
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


def effective_share_of_all(moments: pl.DataFrame | None) -> float | None:
    """The effective sample size of all trained tokens over their number, 0..1; None where no ratio was recorded.

    (sum w)^2 / (n sum w^2) (Kish 1965), from the mean and the variance of each staleness.
    """
    if moments is None or moments.is_empty():
        return None
    tokens, mean = pl.col("tokens"), pl.col("ratio_mean")
    sums = moments.select(
        n=tokens.sum(), w=(tokens * mean).sum(), w2=(tokens * (pl.col("ratio_variance") + mean**2)).sum()
    ).row(0, named=True)
    return sums["w"] ** 2 / (sums["n"] * sums["w2"]) if sums["w2"] else None


def _ages_name(first: int, last: int) -> str:
    """Ends as every ratio does, which is what the table's cells go by."""
    return f"staleness_{first}_ratio" if first == last else f"staleness_{first}_to_{last}_ratio"
