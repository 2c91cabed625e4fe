"""The answer to a plan on a terminal: the layout first, all others, what matters most, and what it rests on.

It reads the same at any width from 60 columns on and without colour.
"""

from typing import Final

from rich.box import ROUNDED
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rlscope.model.plan import Planned
from rlscope.plan_file import PlanFile
from rlscope.report import plan_words as words
from rlscope.report.plain import bulleted, plain
from rlscope.report.plan_assumptions import NOTHING_MEASURED, assumption_lines, cost_line

_WIDTH_MAX: Final = 120
_WIDE: Final = 100
_SHOWN: Final = 10


def print_plan(planned: Planned, file: PlanFile, console: Console) -> None:
    """Print the whole answer."""
    width = min(console.width, _WIDTH_MAX)
    blocks = [
        _advice(planned, file),
        _section("Layouts", _layouts(planned, wide=width >= _WIDE)),
        *([_section("What the answer depends on", _unknowns(planned))] if planned.unknown_costs else []),
        _section("What it rests on", Group(*(bulleted("·", line) for line in assumption_lines(planned)))),
    ]
    console.print(Group(*blocks), width=width, soft_wrap=False)


def _advice(planned: Planned, file: PlanFile) -> Panel:
    cost = cost_line(planned, file)
    lines = [*words.why(planned), *([] if cost is None else [cost])]
    body = Group(
        Text(f"{words.headline(planned)}.", style="bold"),
        Text(""),
        *(plain(line) for line in lines),
        Text(""),
        Text(NOTHING_MEASURED, style="dim"),
    )
    return Panel(
        body,
        title=Text(" Plan ", style="bold"),
        title_align="left",
        border_style="none" if planned.best is not None else "red",
        box=ROUNDED,
        padding=(1, 2),
    )


def _layouts(planned: Planned, *, wide: bool) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("", no_wrap=True)
    table.add_column("trainers : samplers\n× running", no_wrap=True)
    table.add_column("trained\ntokens/s", justify="right", no_wrap=True)
    for title in ("fastest\nin", "staleness\np95", *(["step"] if wide else [])):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("waits for", overflow="fold")
    rows = words.plan_rows(planned, _SHOWN)
    for row in rows:
        rate = row.rate.replace(" tokens/s", "")
        rate = rate if wide else rate.partition(" (")[0]
        step = (row.step,) if wide else ()
        table.add_row(
            row.mark, row.layout, rate, row.odds, row.staleness, *step, row.remark, style="dim" if row.excluded else ""
        )
    left_out = len(planned.candidates) - len(rows)
    return Group(table, *(Text(line, style="dim") for line in words.sweep_lines(planned, left_out)))


def _unknowns(planned: Planned) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("", overflow="fold")
    table.add_column("moves the\nrate by", justify="right", no_wrap=True)
    table.add_column("not knowing it\ncosts the choice", justify="right", no_wrap=True)
    for row in words.unknown_rows(planned):
        table.add_row(*row)
    first = words.measure_first(planned)
    return Group(table, *([Text(first, style="dim")] if first else []))


def _section(title: str, body: RenderableType) -> RenderableType:
    return Group(Text(""), Text(title, style="bold underline"), Padding(body, (0, 0, 0, 2)))
