# Polars names numpy in its signatures, and numpy is not installed: hence the unknown member types.
# pyright: reportUnknownMemberType=false
"""The samples that sample_strips chose: their names, their lives in a sentence, and the frames of their pictures."""

from typing import Final, NamedTuple

import polars as pl

from rlscope.report import numbers
from rlscope.report.charts.strips import GENERATED, HANDED_ON, QUEUED, SHADES, TAKEN

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
        f"{numbers.count(len(versions))} versions, {versions[0]} to {versions[-1]}"
    )  # fmt: skip
    where = engines[0] if len(engines) == 1 else numbers.counted(len(engines), "engine", "engines")
    return f"{numbers.counted(output_tokens, 'token', 'tokens')} by {by}, on {where}."


def _times(row: dict[str, int | None], started_ns: int) -> str:
    start, end, queued, taken = (row[name] for name in ("started_ns", "finished_ns", "queued_ns", "taken_ns"))
    said: list[str] = []
    if start is not None and end is not None:
        at, took = numbers.duration((start - started_ns) / 1e9), numbers.duration((end - start) / 1e9)
        said.append(f"Started {at} into the run and took {took}.")
    if queued is not None and taken is not None:
        said.append(f"Then {numbers.duration((taken - queued) / 1e9)} in the queue.")
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
        ages = numbers.counted(int(str(oldest)), "version", "versions")
    return f"Trained in {step}, when version {row['consumer_version']} was the last one out: {ages} stale."
