"""The queue between samplers and trainers, and the way of new weights back.

What the waits in the queue and the weight updates say in a sentence, and the frame of the waits over time.
"""

from typing import Final, NamedTuple

import polars as pl

from rlscope import format as fmt
from rlscope.analysis.result import Analysis
from rlscope.reports.charts import queue, sampling
from rlscope.reports.page.figure import Drawn, Figure, drawn, drawn_frame, update_moments


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
        fmt.duration(float(counts.filter(up_to * 100 >= samples.sum() * percent)["wait_to_s"][0]))
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
    said = f"The slowest to reach all engines was {at}, after {fmt.duration(slowest['to_last_s'])}."
    if spread.select((pl.col("first_version") < pl.col("last_version")).any()).item():
        said = f"Neighbouring versions share a line, from the shortest way to the longest. {said}"
    if spread["paused_mean_s"].null_count() == spread.height:
        return f"{said} Whether generation pauses meanwhile was not recorded."
    versions = pl.col("last_version") - pl.col("first_version") + 1
    told = spread.filter(pl.col("paused_mean_s").is_not_null())
    mean_s = told.select((pl.col("paused_mean_s") * versions).sum() / versions.sum()).item()
    if not told["paused_max_s"].max():
        return f"{said} No engine paused generation for it."
    return f"{said} An engine stands still for {fmt.duration(mean_s)} a version on average."


class QueueSection(NamedTuple):
    """What the section shows."""

    depth: Drawn
    waits: Drawn
    wait_counts: Drawn
    updates: Drawn


def queue_section(analysis: Analysis) -> QueueSection:
    """The section's figures."""
    answers = analysis.answers
    counts, spread = answers.get("queue_wait_counts"), answers.get("weight_update_spread")
    return QueueSection(
        depth=drawn(_DEPTH, analysis),
        waits=drawn_frame(
            _WAITS,
            "figure-queue-waits",
            waits_frame(answers.get("queue_waits")),
            analysis.run,
            updates_s=update_moments(analysis),
        ),
        wait_counts=drawn(_saying(_COUNTS, waits_sentence(counts)), analysis),
        updates=drawn(_saying(_UPDATES, updates_sentence(spread)), analysis),
    )


def _saying(figure: Figure, sentence: str) -> Figure:
    return figure._replace(reading=f"{figure.reading} {sentence}".strip())


_NO_TIMES: Final = "no delivery says when its sample was queued"
_DEPTH: Final = Figure(
    "Queue depth",
    "Samples that are finished and not yet taken. Empty: samplers are the slower side. Full: trainers are. "
    "Healthy: in between.",
    "queue_depth", "depth_mean_samples", sampling.queue_depth, "the run does not report queue depths",
    True,
)  # fmt: skip
_WAITS: Final = Figure(
    "Waiting in the queue, over time",
    "The wait of the samples that left the queue at each time, used or dropped: ticks are medians, bars hold 90%. "
    "Healthy: level and shorter than a step; a wait that grows makes tokens older and older.",
    "queue_waits", "wait_p50_s", queue.queue_waits, _NO_TIMES, False, ("queue_waits",),
)  # fmt: skip
_COUNTS: Final = Figure(
    "Waiting in the queue, all samples",
    "Healthy: a heap at the left, and nothing dropped at its right.",
    "queue_wait_counts", "trained", queue.queue_wait_counts, _NO_TIMES,
)  # fmt: skip
_UPDATES: Final = Figure(
    "Weight updates, from publication to the last engine",
    "Each line goes from the first engine that runs a version to the last, counted from the start of its publication. "
    "Healthy: low beside a training step, and short lines, that is, engines that change together.",
    "weight_update_spread", "to_last_s", queue.weight_update_spread,
    "no engine recorded applying a version whose publication is recorded", True,
)  # fmt: skip
