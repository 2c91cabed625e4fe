"""Three samples from first token to training step: the longest, the stalest, and one of median length."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import polars as pl

from rlscope import format as fmt
from rlscope.analysis.result import AnalysisResult
from rlscope.reports.blocks import Block, Nothing, Paragraph
from rlscope.reports.charts import strips
from rlscope.reports.charts.strips import HANDED_ON, QUEUED, SAMPLED, SHADES, TAKEN
from rlscope.reports.figure import Figure, drawn_frame

_KEY: Final = ["chosen_as", "sample_id", "step"]


class SampleTrace(NamedTuple):
    """One chosen sample."""

    title: str
    sentence: str
    runs: pl.DataFrame
    """A row per run of tokens of one version; shade goes from 1, the freshest, to SHADES, the stalest of all."""


def sample_traces(strips: pl.DataFrame | None, started_ns: int) -> list[SampleTrace]:
    """The chosen samples in order; empty if no sample was recorded."""
    if strips is None or strips.is_empty():
        return []
    shaded = _with_shades(strips)
    return [
        SampleTrace(f"{_title(runs['chosen_as'][0])} sample", _sentence(runs, started_ns), runs.select(_SHOWN))
        for runs in shaded.partition_by(_KEY, maintain_order=True)
    ]


_SHOWN: Final = [
    "sample_id", "worker_id", "token_from", "token_to", pl.col("version").alias("policy_version"), "staleness", "shade",
]  # fmt: skip


_STATIONS: Final = {
    "sample": pl.String,
    "station": pl.String,
    "from_s": pl.Float64,
    "to_s": pl.Float64,
    "is_trained": pl.Boolean,
}


def stations_frame(strips: pl.DataFrame | None) -> pl.DataFrame | None:
    """The stages of each chosen sample, in seconds since it started; samples without a start are left out."""
    if strips is None:
        return None
    rows: list[tuple[str, str, float, float, bool]] = []
    for runs in strips.partition_by(_KEY, maintain_order=True):
        row = runs.row(0, named=True)
        moments = (
            (SAMPLED, row["started_ns"], row["finished_ns"]), (HANDED_ON, row["finished_ns"], row["queued_ns"]),
            (QUEUED, row["queued_ns"], row["taken_ns"]), (TAKEN, row["taken_ns"], row["trained_ns"]),
        )  # fmt: skip
        rows += [
            (_title(row["chosen_as"]), name, (start - row["started_ns"]) / 1e9, (end - row["started_ns"]) / 1e9,
             name == TAKEN)
            for name, start, end in moments
            if row["started_ns"] is not None and start is not None and end is not None and end >= start
        ]  # fmt: skip
    return pl.DataFrame(rows, schema=_STATIONS, orient="row")


def _with_shades(strips: pl.DataFrame) -> pl.DataFrame:
    """Shades by staleness; for untrained samples by versions behind the sample's newest token."""
    newest = pl.col("version").max().over(_KEY)
    aged = strips.with_columns(age=pl.coalesce("staleness", newest - pl.col("version")).clip(lower_bound=0))
    # With few ages each has its own shade; with more ages than shades they share.
    top = max(SHADES - 1, int(aged["age"].max() or 0))  # pyright: ignore[reportArgumentType]
    return aged.with_columns(shade=(1 + (pl.col("age") * (SHADES - 1) / top).round()).cast(pl.Int64))


def _title(chosen_as: str) -> str:
    """Such as: Longest and stalest."""
    return " and ".join(chosen_as.split(", ")).capitalize()


def _sentence(runs: pl.DataFrame, started_ns: int) -> str:
    row = runs.row(0, named=True)
    return " ".join(filter(None, (_made(runs, row["output_tokens"]), _times(row, started_ns), _end(runs, row))))


def _made(runs: pl.DataFrame, output_tokens: int) -> str:
    versions = runs["version"].unique().sort()
    engines = runs["worker_id"].unique().sort()
    by = f"version {versions[0]}" if len(versions) == 1 else (
        f"{fmt.count(len(versions))} versions, {versions[0]} to {versions[-1]}"
    )  # fmt: skip
    where = engines[0] if len(engines) == 1 else fmt.counted(len(engines), "engine", "engines")
    return f"{fmt.counted(output_tokens, 'token', 'tokens')} from {by}, on {where}."


def _times(row: dict[str, int | None], started_ns: int) -> str:
    start, end, queued, taken = (row[name] for name in ("started_ns", "finished_ns", "queued_ns", "taken_ns"))
    parts: list[str] = []
    if start is not None and end is not None:
        at, took = fmt.duration((start - started_ns) / 1e9), fmt.duration((end - start) / 1e9)
        parts.append(f"Started {at} into the run and took {took}.")
    if queued is not None and taken is not None:
        parts.append(f"Waited {fmt.duration((taken - queued) / 1e9)} in the queue.")
    return " ".join(parts)


def _end(runs: pl.DataFrame, row: dict[str, int | str | None]) -> str:
    if row["outcome"] is None:
        return "Never taken from the queue."
    if row["outcome"] != "trained":
        return f"Not trained on: {str(row['outcome']).replace('_', ' ')}."
    step = "a step" if row["step"] is None else f"step {row['step']}"
    if row["consumer_version"] is None:
        return f"Trained in {step}, at an unknown version."
    youngest, oldest = runs["staleness"].min(), runs["staleness"].max()
    ages = f"{youngest} to {oldest} versions"
    if youngest == oldest:
        ages = fmt.counted(int(str(oldest)), "version", "versions")
    return f"Trained in {step}, when the newest version was {row['consumer_version']}: {ages} stale."


def sample_section(analysis: AnalysisResult) -> Sequence[Block]:
    """Return the blocks of the section."""
    frame, run = analysis.answers.get("sample_strips"), analysis.run
    chosen = sample_traces(frame, run.started_ns)
    if not chosen:
        return [Nothing("No sample with a token was recorded.")]
    return [
        Paragraph(_HOW_TO_READ, "lead"),
        *(
            drawn_frame(_STRIP._replace(title=trace.title, reading=trace.sentence, name=f"strip_{n}"), trace.runs, run)
            for n, trace in enumerate(chosen)
        ),
        drawn_frame(_TIMELINE, stations_frame(frame), run),
    ]


_HOW_TO_READ: Final = (
    "Each strip is one response, token by token. A block is a run of tokens from one policy version, labeled with the "
    "version if it fits. The stronger the color, the staler the block when trained on; all strips share the colour "
    "scale. Healthy: few blocks, all of them faint."
)
_STRIP: Final = Figure("", "", "", "token_to", strips.strip, "the sample has no token", True, ("sample_strips",))
_TIMELINE: Final = Figure(
    "Sample timelines",
    "From the start of each sample to the step that trained on it. Healthy: mostly generation, little time in the "
    "queue.",
    "lives", "to_s", strips.sample_timelines, "no start of a chosen sample was recorded", True, ("sample_strips",),
)  # fmt: skip
