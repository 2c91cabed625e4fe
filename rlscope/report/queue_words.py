# Polars names numpy in its signatures, and numpy is not installed: hence the unknown member types.
# pyright: reportUnknownMemberType=false
"""What the waits in the queue and the weight updates say in a sentence, and the frame of the waits over time."""

import polars as pl

from rlscope.report import numbers


def waits_frame(waits: pl.DataFrame | None) -> pl.DataFrame | None:
    """queue_waits with ends of its own: buckets in which nothing left the queue are missing, and stay so."""
    return None if waits is None else waits.rename({"bucket_start_ns": "start_ns", "bucket_end_ns": "end_ns"})


def waits_sentence(counts: pl.DataFrame | None) -> str:
    """How long half of the samples and 95 % of them waited at most, by the ends of the bins; empty without samples."""
    if counts is None or counts.is_empty():
        return ""
    samples = counts["trained"] + counts["not_trained"]
    up_to = samples.cum_sum()
    half, most = (
        numbers.duration(float(counts.filter(up_to * 100 >= samples.sum() * percent)["wait_to_s"][0]))
        for percent in (50, 95)
    )
    return f"Half of the samples waited less than {half}, 95% less than {most}."


def updates_sentence(spread: pl.DataFrame | None) -> str:
    """The longest way of a version to its last engine, and how long engines stood still; empty without versions."""
    if spread is None or spread.is_empty():
        return ""
    slowest = spread.sort("to_last_s", descending=True, nulls_last=True).row(0, named=True)
    at = f"version {slowest['first_version']}"
    if slowest["last_version"] != slowest["first_version"]:
        at = f"one of the versions {slowest['first_version']} to {slowest['last_version']}"
    said = f"The slowest to reach all engines was {at}, after {numbers.duration(slowest['to_last_s'])}."
    if spread.select((pl.col("first_version") < pl.col("last_version")).any()).item():
        said = f"Neighbouring versions share a line, from the shortest way to the longest. {said}"
    if spread["paused_mean_s"].null_count() == spread.height:
        return f"{said} Whether generation pauses meanwhile was not recorded."
    versions = pl.col("last_version") - pl.col("first_version") + 1
    told = spread.filter(pl.col("paused_mean_s").is_not_null())
    mean_s = told.select((pl.col("paused_mean_s") * versions).sum() / versions.sum()).item()
    if not told["paused_max_s"].max():
        return f"{said} No engine paused generation for it."
    return f"{said} An engine stands still for {numbers.duration(mean_s)} a version on average."
