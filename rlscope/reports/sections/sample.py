"""The samples that sample_strips chose: their names, their lives in a sentence, and the frames of their pictures.

Three samples from their first token to their step: the longest, the stalest, and one in the middle.
"""

from typing import Final, NamedTuple

import polars as pl

from rlscope import format as fmt
from rlscope.analysis.result import Analysis
from rlscope.reports.charts import strips
from rlscope.reports.charts.strips import GENERATED, HANDED_ON, QUEUED, SHADES, TAKEN
from rlscope.reports.page.figure import Drawn, Figure, drawn_frame

_NAMES: Final = {"longest": "the longest", "stalest": "the stalest", "median": "one in the middle"}
_KEY: Final = ["chosen_as", "sample_id", "step"]


class SampleLife(NamedTuple):
    """One chosen sample."""

    title: str
    sentence: str
    runs: pl.DataFrame
    """A row per run of tokens, with its shade from 1, the freshest, to SHADES, the oldest run of the chosen samples."""


def sample_lives(strips: pl.DataFrame | None, started_ns: int) -> list[SampleLife]:
    """The chosen samples, in the order of their choice; none where nothing was recorded."""
    if strips is None or strips.is_empty():
        return []
    shaded = _with_shades(strips)
    return [
        SampleLife(_title(runs["chosen_as"][0]), _sentence(runs, started_ns), runs.select(_SHOWN))
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
    """What each chosen sample did when, in seconds since it started; those without a start have no place."""
    if strips is None:
        return None
    rows: list[tuple[str, str, float, float, bool]] = []
    for runs in strips.partition_by(_KEY, maintain_order=True):
        row = runs.row(0, named=True)
        moments = (
            (GENERATED, row["started_ns"], row["finished_ns"]), (HANDED_ON, row["finished_ns"], row["queued_ns"]),
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
    """Ages are stalenesses; of what was not trained, versions behind the sample's own newest token."""
    newest = pl.col("version").max().over(_KEY)
    aged = strips.with_columns(age=pl.coalesce("staleness", newest - pl.col("version")).clip(lower_bound=0))
    # Few ages keep shades of their own; more than there are shades share them.
    top = max(SHADES - 1, int(aged["age"].max() or 0))  # pyright: ignore[reportArgumentType]
    return aged.with_columns(shade=(1 + (pl.col("age") * (SHADES - 1) / top).round()).cast(pl.Int64))


def _title(chosen_as: str) -> str:
    """The longest and the stalest."""
    text = " and ".join(_NAMES.get(name, name) for name in chosen_as.split(", "))
    return text[:1].upper() + text[1:]


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
    return f"{fmt.counted(output_tokens, 'token', 'tokens')} by {by}, on {where}."


def _times(row: dict[str, int | None], started_ns: int) -> str:
    start, end, queued, taken = (row[name] for name in ("started_ns", "finished_ns", "queued_ns", "taken_ns"))
    said: list[str] = []
    if start is not None and end is not None:
        at, took = fmt.duration((start - started_ns) / 1e9), fmt.duration((end - start) / 1e9)
        said.append(f"Started {at} into the run and took {took}.")
    if queued is not None and taken is not None:
        said.append(f"Then {fmt.duration((taken - queued) / 1e9)} in the queue.")
    return " ".join(said)


def _end(runs: pl.DataFrame, row: dict[str, int | str | None]) -> str:
    if row["outcome"] is None:
        return "Nothing took it."
    if row["outcome"] != "trained":
        return f"It was not trained on, but {str(row['outcome']).replace('_', ' ')}."
    step = "a step" if row["step"] is None else f"step {row['step']}"
    if row["consumer_version"] is None:
        return f"Trained in {step}, whose version is not known."
    youngest, oldest = runs["staleness"].min(), runs["staleness"].max()
    ages = f"{youngest} to {oldest} versions"
    if youngest == oldest:
        ages = fmt.counted(int(str(oldest)), "version", "versions")
    return f"Trained in {step}, when version {row['consumer_version']} was the last one out: {ages} stale."


class SampleSection(NamedTuple):
    """What the section shows."""

    none: str
    """Set where there is no sample: why."""
    strips: list[Drawn]
    lives: Drawn | None


def sample_section(analysis: Analysis) -> SampleSection:
    """The section's words and figures."""
    frame, run = analysis.answers.get("sample_strips"), analysis.run
    chosen = sample_lives(frame, run.started_ns)
    if not chosen:
        return SampleSection("No sample with a token was recorded: there is nothing to follow.", [], None)
    return SampleSection(
        "",
        [drawn_frame(_strip(life), f"figure-strip-{n}", life.runs, run) for n, life in enumerate(chosen)],
        drawn_frame(_LIVES, "figure-lives", stations_frame(frame), run),
    )


def _strip(life: SampleLife) -> Figure:
    return _STRIP._replace(title=life.title, reading=life.sentence)


_STRIP: Final = Figure("", "", "", "token_to", strips.strip, "it has no token", True, ("sample_strips",))
_LIVES: Final = Figure(
    "What they did when",
    "From the start of each sample to the step that trained on it. Healthy: most of the time goes into generating, "
    "little into the queue.",
    "", "to_s", strips.lives, "no start of a chosen sample was recorded", True, ("sample_strips",),
)  # fmt: skip
