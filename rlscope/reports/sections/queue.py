"""The queue between samplers and trainers, and the propagation of weight updates to the engines."""

from typing import Final, NamedTuple

import polars as pl

from rlscope import format as fmt
from rlscope.analysis.result import AnalysisResult
from rlscope.reports.charts import queue, sampling
from rlscope.reports.page.figure import Drawn, Figure, drawn, drawn_frame, update_moments


def waits_frame(waits: pl.DataFrame | None) -> pl.DataFrame | None:
    """queue_waits with its bucket ends kept: buckets in which nothing left the queue stay missing."""
    return None if waits is None else waits.rename({"bucket_start_ns": "start_ns", "bucket_end_ns": "end_ns"})


def waits_sentence(counts: pl.DataFrame | None) -> str:
    """Upper bounds on the wait of 50% and 95% of samples, from the ends of the bins; empty without samples."""
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
    """The slowest version to reach all engines, and how long engines paused; empty without versions."""
    if spread is None or spread.is_empty():
        return ""
    slowest = spread.sort("to_last_s", descending=True, nulls_last=True).row(0, named=True)
    at = f"version {slowest['first_version']}"
    if slowest["last_version"] != slowest["first_version"]:
        at = f"one of the versions {slowest['first_version']} to {slowest['last_version']}"
    text = f"The slowest to reach all engines was {at}, after {fmt.duration(slowest['to_last_s'])}."
    if spread.select((pl.col("first_version") < pl.col("last_version")).any()).item():
        text = f"Adjacent versions share a line, from the shortest time to the longest. {text}"
    if spread["paused_mean_s"].null_count() == spread.height:
        return f"{text} Whether generation pauses during updates was not recorded."
    versions = pl.col("last_version") - pl.col("first_version") + 1
    paused = spread.filter(pl.col("paused_mean_s").is_not_null())
    mean_s = paused.select((pl.col("paused_mean_s") * versions).sum() / versions.sum()).item()
    if not paused["paused_max_s"].max():
        return f"{text} No engine paused generation for updates."
    return f"{text} Engines pause {fmt.duration(mean_s)} per version on average."


class QueueSection(NamedTuple):
    """What the section shows."""

    depth: Drawn
    waits: Drawn
    wait_counts: Drawn
    updates: Drawn


def queue_section(analysis: AnalysisResult) -> QueueSection:
    """Make the section."""
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
        wait_counts=drawn(_with_sentence(_COUNTS, waits_sentence(counts)), analysis),
        updates=drawn(_with_sentence(_UPDATES, updates_sentence(spread)), analysis),
    )


def _with_sentence(figure: Figure, sentence: str) -> Figure:
    return figure._replace(reading=f"{figure.reading} {sentence}".strip())


_NO_TIMES: Final = "no delivery recorded when its sample was queued"
_DEPTH: Final = Figure(
    "Queue depth",
    "Finished samples that no trainer has taken yet. Empty: samplers are the bottleneck. Full: trainers are. Healthy: "
    "in between.",
    "queue_depth", "depth_mean_samples", sampling.queue_depth, "no queue depth was recorded",
    True,
)  # fmt: skip
_WAITS: Final = Figure(
    "Queue wait over time",
    "Wait of the samples that left the queue, trained or dropped. Ticks: medians. Bars: 5th to 95th percentile. "
    "Healthy: steady and shorter than a step. A growing wait makes tokens ever staler.",
    "queue_waits", "wait_p50_s", queue.queue_waits, _NO_TIMES, False, ("queue_waits",),
)  # fmt: skip
_COUNTS: Final = Figure(
    "Queue wait, all samples",
    "Samples by wait. Healthy: short waits, and nothing dropped after long ones.",
    "queue_wait_counts", "trained", queue.queue_wait_counts, _NO_TIMES,
)  # fmt: skip
_UPDATES: Final = Figure(
    "Weight updates, from publication to the last engine",
    "Each line spans from the first engine that runs a version to the last, measured from the start of its "
    "publication. Healthy: much shorter than a training step, and short lines: engines update together.",
    "weight_update_spread", "to_last_s", queue.weight_update_spread,
    "no engine recorded applying a version whose publication was recorded", True,
)  # fmt: skip
