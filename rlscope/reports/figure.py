"""A figure of the report: a chart, its caption, its queries, and its numbers as a table."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import polars as pl

from rlscope import format as fmt
from rlscope.analysis.result import RunFacts
from rlscope.reports.blocks import Block, flat
from rlscope.reports.charts.encoding import Chart, spec, unchecked
from rlscope.reports.charts.series import drawable
from rlscope.trace.questions import questions

WIDTH_PX: Final = 760
TABLE_ROWS_MAX: Final = 120
_UNITS: Final = ("tokens_per_s", "tokens", "samples", "s")


class Figure(NamedTuple):
    """One figure of the report."""

    title: str
    reading: str
    """The caption: what the chart shows and what a healthy run looks like."""
    name: str
    """Name in the page and in Python; that of the query behind the chart, unless it shows something else."""
    needs: str
    """The column that the chart requires."""
    draw: Callable[[pl.DataFrame, RunFacts], Chart]
    empty: str
    """The reason to show if there is no data."""
    wide: bool = False
    questions: tuple[str, ...] = ()
    """The queries behind the frame, if it is not the one of that name."""

    def saying(self, sentence: str) -> "Figure":
        """Return the figure with a sentence about this run at the end of its caption."""
        return self._replace(reading=f"{self.reading} {sentence}".strip())

    @property
    def asked(self) -> tuple[str, ...]:
        """Names of the SQL files of the queries behind the figure."""
        return tuple(name for name in self.questions or (self.name,) if name in questions())


@dataclass(frozen=True, slots=True)
class Drawn(Block):
    """A figure ready for the report. Without a spec, there is nothing to draw."""

    anchor: str
    figure: Figure
    spec: str | None
    columns: list[str]
    rows: list[list[str]]
    note: str
    """Rows that the chart or the table merges or leaves out, as a sentence; empty if none."""


def figures_in(blocks: Iterable[Block]) -> Iterator[Drawn]:
    """Return every figure among the blocks, at any depth."""
    return (block for block in flat(blocks) if isinstance(block, Drawn))


def drawn_frame(figure: Figure, frame: pl.DataFrame | None, run: RunFacts) -> Drawn:
    """Return the figure with a frame, which may be empty."""
    anchor = "figure-" + figure.name.replace("_", "-")
    if frame is None or frame.is_empty() or frame[figure.needs].null_count() == frame.height:
        return Drawn(anchor, figure, None, [], [], "")
    with unchecked():
        picture = spec(figure.draw(frame, run), anchor, f"{figure.title}. {figure.reading}", run)
    table = drawable(frame, run.started_ns, TABLE_ROWS_MAX)
    note = "" if table.height == frame.height else f"Aggregated from {fmt.count(frame.height)} rows."
    if table.height > TABLE_ROWS_MAX:
        note = f"First {fmt.count(TABLE_ROWS_MAX)} of {fmt.count(table.height)} rows."
        table = table.head(TABLE_ROWS_MAX)
    rows = [[_cell(name, value) for name, value in zip(table.columns, row, strict=True)] for row in table.iter_rows()]
    return Drawn(anchor, figure, picture, [_heading(name) for name in table.columns], rows, note)


def _heading(column: str) -> str:
    """The name of a column with its unit in brackets."""
    unit = next((unit for unit in _UNITS if column.endswith("_" + unit)), None)
    if unit is None:
        return column.removesuffix("_ratio").replace("_", " ")
    return f"{column.removesuffix('_' + unit).replace('_', ' ')} ({unit.replace('_per_', '/').replace('_', ' ')})"


def _cell(column: str, value: object) -> str:
    """A value without its unit, which is in the heading."""
    if value is None:
        # A lane of several workers has no name.
        return "–" if column == "worker_id" else fmt.NO_DATA
    if isinstance(value, int | float):
        return fmt.percent(value) if column.endswith("_ratio") else fmt.significant(value, 4)
    return str(value)
