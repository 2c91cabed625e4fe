"""The queue between samplers and trainers, and the propagation of weight updates to the engines."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import polars as pl

from rlscope import format as fmt
from rlscope.analysis.result import AnalysisResult
from rlscope.model.weight_transfer import published_transfer_s
from rlscope.reports.blocks import Block, Charts, Fold, Paragraph, Table
from rlscope.reports.charts import queue
from rlscope.reports.figure import Figure, drawn_frame
from rlscope.reports.text.verdict import between_hosts


def waits_sentence(counts: pl.DataFrame) -> str:
    """Upper bounds on the wait of 50% and 95% of samples, from the ends of the bins; empty without samples."""
    if counts.is_empty():
        return ""
    samples = counts["trained"] + counts["not_trained"]
    up_to = samples.cum_sum()
    half, most = (
        fmt.duration(float(counts.filter(up_to * 100 >= samples.sum() * percent)["wait_to_s"][0]))
        for percent in (50, 95)
    )
    return f"Half of the samples waited less than {half}, 95% less than {most}."


def depth_sentence(depths: pl.DataFrame) -> str:
    """Return the median of the queue's depth, and of how many samples; empty without a depth."""
    known = depths.drop_nulls("depth_mean_samples")
    if known.is_empty():
        return ""
    median = float(known["depth_mean_samples"].median() or 0.0)  # pyright: ignore[reportArgumentType]
    capacities = known["capacity_samples"].drop_nulls().unique()
    of = f" of {fmt.count(capacities[0])}" if len(capacities) == 1 else ""
    return f"Half of the time it holds less than {fmt.significant(max(1.0, median))}{of} samples."


def updates_sentence(spread: pl.DataFrame) -> str:
    """The slowest version to reach all engines, and how long engines paused; empty without versions."""
    if spread.is_empty():
        return ""
    slowest = spread.sort("to_last_s", descending=True, nulls_last=True).row(0, named=True)
    at = f"version {slowest['first_version']}"
    if slowest["last_version"] != slowest["first_version"]:
        at = f"one of the versions {slowest['first_version']} to {slowest['last_version']}, which share a line"
    text = f"The slowest to reach all engines was {at}, after {fmt.duration(slowest['to_last_s'])}."
    paused = spread.drop_nulls("paused_mean_s")
    if paused.is_empty():
        return f"{text} Whether generation pauses during updates was not recorded."
    versions = pl.col("last_version") - pl.col("first_version") + 1
    mean_s = paused.select((pl.col("paused_mean_s") * versions).sum() / versions.sum()).item()
    return f"{text} Engines pause {fmt.duration(mean_s)} per version on average."


def queue_section(analysis: AnalysisResult) -> Sequence[Block]:
    """Return the blocks of the section."""
    answers, run = analysis.answers, analysis.run
    depths, spread = answers["queue_depth"], answers["weight_update_spread"]
    depth = _DEPTH.saying(depth_sentence(depths)).saying(waits_sentence(answers["queue_wait_counts"]))
    updates = _UPDATES.saying(updates_sentence(spread)).saying(between_hosts(analysis))
    charts = Charts([drawn_frame(depth, depths, run), drawn_frame(updates, spread, run)])
    return [charts, *update_parts(answers["weight_update_parts"])]


def update_parts(parts: pl.DataFrame) -> Sequence[Block]:
    """Return the parts of weight updates as a table that folds; empty if no part was recorded."""
    if not set(parts["phase"]).intersection(_PARTS):
        return []
    by_phase = {row["phase"]: row for row in parts.iter_rows(named=True)}
    times = ("median_s", "first_half_s", "second_half_s", "longest_s")
    rows = [
        (words, *(fmt.duration(by_phase[phase][time]) for time in times))
        for phase, words in _PHASES.items()
        if phase in by_phase
    ]
    table = Table("Time per version", _PART_COLUMNS, rows)
    return [Fold("update-parts", "Parts of a weight update", [Paragraph(parts_sentence(by_phase), "lead"), table])]


def parts_sentence(by_phase: Mapping[str, Mapping[str, Any]]) -> str:
    """Return which part takes longest and what shortens it, what has grown, and what a transfer is known to take.

    by_phase: the rows of weight_update_parts, with at least one part.
    """
    phase, longest = max(by_phase.items(), key=lambda item: (item[0] in _PARTS, item[1]["median_s"]))
    whole = by_phase.get("publish") or by_phase.get("apply")
    of = "" if whole is None else f" of {fmt.duration(whole['median_s'])}"
    time = f"{fmt.duration(longest['median_s'])}{of} per version"
    noun, advice = _PARTS[phase]
    said = [f"The longest recorded part is the {noun}: {time}. To shorten it, {advice}"]
    said += [
        f"The {_PARTS[name][0]} grew from {fmt.duration(row['first_half_s'])} in the first half of the versions to "
        f"{fmt.duration(row['second_half_s'])} in the second."
        for name, row in by_phase.items()
        if name in _PARTS and row["versions"] >= _LEAST_VERSIONS
        if row["second_half_s"] >= max(_GROWTH * row["first_half_s"], row["first_half_s"] + _GROWTH_S)
    ]
    return " ".join([*said, _slow_transfer(by_phase.get("transfer"))]).rstrip()


def _slow_transfer(row: Mapping[str, Any] | None) -> str:
    published_s = published_transfer_s(row["bytes"] or 0) if row is not None else None
    if row is None or published_s is None or row["median_s"] < _SLOW_TRANSFER * published_s:
        return ""
    return (
        f"A transfer of {fmt.size(row['bytes'])} takes {fmt.duration(row['median_s'])}; the fastest published "
        f"transfers of this size take about {fmt.duration(published_s)}."
    )


_PARTS: Final = {
    "drain": ("drain", "load weights while requests stay in the engines, or abort and continue them."),
    "gather": ("gathering", "send shards as they are, or gather them while the trainer still computes."),
    "convert": ("conversion", "convert weights on the GPUs, once for all engines."),
    "transfer": ("transfer", "send weights from GPU to GPU in large buckets, or only those that changed."),
    "install": ("installation", "write weights into the model's own buffers, without a reload."),
    "resume": ("resumption", "keep the KV cache and the compiled graphs."),
}
"""Noun of each part of a weight update, and how to shorten it."""
_PHASES: Final = {
    "publish": "publication, whole, on the trainer",
    "drain": "drain, until the engines take weights",
    "gather": "gathering of shards",
    "convert": "conversion",
    "transfer": "transfer",
    "apply": "application, whole, on an engine",
    "install": "installation",
    "resume": "resumption of generation",
}
_PART_COLUMNS: Final = ("part", "per version, median", "first half", "second half", "longest")
_LEAST_VERSIONS: Final = 8
"""Versions from which two halves are compared."""
_GROWTH: Final = 1.5
_GROWTH_S: Final = 0.1
"""Least ratio and least difference between the halves that count as growth."""
_SLOW_TRANSFER: Final = 2.0
"""Multiple of the published time from which a transfer counts as slow: published times differ by less."""
_DEPTH: Final = Figure(
    "Queue depth",
    "Finished samples that no trainer has taken yet, mean and maximum. Healthy: neither empty nor full.",
    "queue_depth", "depth_mean_samples", queue.queue_depth, "no queue depth was recorded",
    True,
)  # fmt: skip
_UPDATES: Final = Figure(
    "Weight updates, from publication to the last engine",
    "From the start of a publication to the first and the last engine that runs it. Healthy: short lines, much "
    "shorter than a step.",
    "weight_update_spread", "to_last_s", queue.weight_update_spread,
    "no engine recorded applying a version whose publication was recorded", True,
)  # fmt: skip
