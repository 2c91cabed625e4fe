"""A picture of the page: what it asks, how to read it, why it may be empty, and its numbers as a table.

Every figure comes with its numbers as a table, which is what a reader without the picture gets.
"""

# Polars names numpy in its signatures, and numpy is not installed: hence the unknown member types.
# pyright: reportUnknownMemberType=false
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import polars as pl
from markupsafe import Markup

from rlscope.analysis import Analysis, RunFacts
from rlscope.query_files import questions
from rlscope.report import numbers
from rlscope.report.charts.encoding import Chart, spec
from rlscope.report.series import drawable
from rlscope.report.states import reason_label, state_of
from rlscope.report.still import still
from rlscope.report.timeline_frames import update_moments

TABLE_ROWS_MAX: Final = 120
_OF_LANES: Final = ("role", "worker_id", "worker_count", "waiting_ratio", "mostly")
_OF_ALERTS: Final = ("alert", "severity", "value")
_NOT_OF_EVERY_ROW: Final = ("reason", *_OF_LANES, *_OF_ALERTS)
"""Columns in which nothing does not say that something is not known."""
_UNITS: Final = ("tokens_per_s", "tokens", "samples", "s")


class Figure(NamedTuple):
    """One picture of the page."""

    title: str
    reading: str
    """What it shows, and what it would look like if healthy."""
    frame: str
    """The answer that it draws; empty where the frame is made of the model or of several answers."""
    needs: str
    """The column without which there is nothing to see."""
    draw: Callable[[pl.DataFrame, RunFacts], Chart]
    empty: str
    """Why there may be no data."""
    wide: bool = False
    questions: tuple[str, ...] = ()
    """The questions that the frame is made of, where they are not `frame` alone."""
    in_table: Callable[[pl.DataFrame], pl.DataFrame] | None = None
    """What the table shows of the frame, where that is not the frame itself."""

    @property
    def asked(self) -> tuple[str, ...]:
        """The questions that it rests on, by the names of their SQL files."""
        return tuple(name for name in self.questions or (self.frame,) if name in questions())


class Drawn(NamedTuple):
    """A figure as the page takes it; without a spec there was nothing to draw."""

    anchor: str
    figure: Figure
    spec: str | None
    columns: list[str]
    rows: list[list[str]]
    rows_note: str
    picture_note: str = ""
    still: Markup | None = None
    """The picture for viewers that run no scripts; None without a spec."""

    @property
    def place(self) -> Markup:
        """Where its picture goes, once it is known whether the page has room for it."""
        return Markup("<!--picture {}-->").format(self.anchor)


def drawn(figure: Figure, analysis: Analysis) -> Drawn:
    """The figure with the run's data."""
    frame = analysis.answers.get(figure.frame)
    anchor = "figure-" + figure.frame.replace("_", "-")
    return drawn_frame(figure, anchor, frame, analysis.run, updates_s=update_moments(analysis))


def drawn_all(figures: Sequence[Figure], analysis: Analysis) -> list[Drawn]:
    """The figures with the run's data."""
    return [drawn(figure, analysis) for figure in figures]


def drawn_frame(
    figure: Figure, anchor: str, frame: pl.DataFrame | None, run: RunFacts, *, updates_s: Sequence[float] = ()
) -> Drawn:
    """The figure with a frame, which may have nothing in it; over time, with a tick at each weight update."""
    if frame is None or frame.is_empty() or frame[figure.needs].null_count() == frame.height:
        return Drawn(anchor, figure, None, [], [], "")
    picture = spec(figure.draw(frame, run), anchor, f"{figure.title}. {figure.reading}", run.duration_s, updates_s)
    whole = frame if figure.in_table is None else figure.in_table(frame)
    table = drawable(whole, run.started_ns, TABLE_ROWS_MAX)
    note = "" if table.height == whole.height else f"{numbers.count(whole.height)} rows, put together for this table."
    if table.height > TABLE_ROWS_MAX:
        note = f"{numbers.count(TABLE_ROWS_MAX)} of {numbers.count(table.height)} rows are shown."
        table = table.head(TABLE_ROWS_MAX)
    rows = [[_cell(name, value) for name, value in zip(table.columns, row, strict=True)] for row in table.iter_rows()]
    coarse = (
        f"Drawn from {numbers.count(frame.height)} rows, put together in equal stretches by their mean; maxima and "
        "latencies by their largest."
    )
    headings = [_heading(name) for name in table.columns]
    coarsened = coarse if drawable(frame, run.started_ns).height < frame.height else ""
    return Drawn(anchor, figure, picture, headings, rows, note, coarsened, still(picture, anchor))


def _heading(column: str) -> str:
    """The column's name with its unit apart."""
    unit = next((unit for unit in _UNITS if column.endswith("_" + unit)), None)
    if unit is None:
        return column.removesuffix("_ratio").replace("_", " ")
    return f"{column.removesuffix('_' + unit).replace('_', ' ')} ({unit.replace('_per_', '/').replace('_', ' ')})"


def _cell(column: str, value: object) -> str:
    """A value without its unit, which the heading has."""
    if value is None:
        return "–" if column in _NOT_OF_EVERY_ROW else numbers.NO_DATA
    if column in ("state", "reason"):
        return state_of(str(value)).label if column == "state" else reason_label(str(value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return numbers.percent(value) if column.endswith("_ratio") else numbers.significant(value, 4)
    return str(value)
