"""Parts of the cards on a terminal: titled sections, panels, and names beside values."""

from collections.abc import Iterable
from typing import Final

from rich.box import ROUNDED
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rlscope.format import plain

WIDTH_MAX: Final = 120
WIDE: Final = 100
"""Columns from which tables have more columns."""


def section(title: str, body: RenderableType) -> RenderableType:
    """Return the body below its title."""
    return Group(Text(""), Text(title, style="bold underline"), Padding(body, (0, 0, 0, 2)))


def panel(title: str, body: RenderableType, border_style: str = "none") -> Panel:
    """Return the body in a frame with its title."""
    heading = Text(f" {title} ", style="bold")
    return Panel(body, title=heading, title_align="left", border_style=border_style, box=ROUNDED, padding=(1, 2))


def pairs(rows: Iterable[tuple[str, str | Text]], style: str = "dim") -> Table:
    """Return names and, beside them, their values."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style=style)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, plain(value) if isinstance(value, str) else value)
    return table
