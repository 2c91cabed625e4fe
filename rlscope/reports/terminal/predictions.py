"""Answers about runs that were not made, on a terminal: a what-if and a plan, readable from 60 columns on."""

from typing import Final

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rlscope.format import bulleted, plain
from rlscope.model.forecast.plan import PlanResult
from rlscope.model.forecast.result import ModelResult
from rlscope.model.forecast.what_if import WhatIf
from rlscope.planning.schema import PlanFile
from rlscope.reports.terminal.parts import WIDE, WIDTH_MAX, panel, section
from rlscope.reports.text import model as model_words
from rlscope.reports.text import plan as plan_words
from rlscope.reports.text import what_if as what_if_words
from rlscope.reports.text.plan import NOTHING_MEASURED, assumption_lines, cost_line

_SHOWN: Final = 10


def print_what_if(model: ModelResult, answer: WhatIf, console: Console) -> None:
    """The answer, its assumptions, and the sensitivities of the current layout."""
    console.print(Text(what_if_words.headline(answer), style="bold"))
    console.print()
    console.print(_beside(answer))
    for line in what_if_words.what_if_lines(model, answer):
        console.print(bulleted("!", line))
    console.print()
    console.print(Text(model_words.SENSITIVITY_TITLE, style="bold"))
    console.print(_sensitivities(model))
    console.print(Text(model_words.sensitivity_sentence(model), style="dim"))


def _beside(answer: WhatIf) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("", no_wrap=True)
    for title in ("current", "changed", "difference"):
        table.add_column(title, overflow="fold")
    for row in what_if_words.what_if_rows(answer):
        table.add_row(*row)
    return table


def _sensitivities(model: ModelResult) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(justify="right")
    table.add_column(overflow="fold", style="dim")
    for row in model_words.sensitivity_rows(model):
        table.add_row(*row)
    return table


def print_plan(planned: PlanResult, file: PlanFile, console: Console) -> None:
    """Print the whole answer."""
    width = min(console.width, WIDTH_MAX)
    blocks = [
        _plan_advice(planned, file),
        section("Layouts", _plan_layouts(planned, wide=width >= WIDE)),
        *([section("Uncertainties", _unknowns(planned))] if planned.unknown_costs else []),
        section("Assumptions", Group(*(bulleted("·", line) for line in assumption_lines(planned)))),
    ]
    console.print(Group(*blocks), width=width, soft_wrap=False)


def _plan_advice(planned: PlanResult, file: PlanFile) -> Panel:
    cost = cost_line(planned, file)
    lines = [*plan_words.why(planned), *([] if cost is None else [cost])]
    body = Group(
        Text(f"{plan_words.headline(planned)}.", style="bold"),
        Text(""),
        *(plain(line) for line in lines),
        Text(""),
        Text(NOTHING_MEASURED, style="dim"),
    )
    return panel("Plan", body, "none" if planned.best is not None else "red")


def _plan_layouts(planned: PlanResult, *, wide: bool) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("", no_wrap=True)
    table.add_column("trainer : sampler\nGPUs × max running", no_wrap=True)
    table.add_column("predicted\ntokens/s", justify="right", no_wrap=True)
    for title in ("fastest\nin", "staleness\np95", *(["step time"] if wide else [])):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("limited by", overflow="fold")
    rows = plan_words.plan_rows(planned, _SHOWN)
    for row in rows:
        rate = row.rate.replace(" tokens/s", "")
        rate = rate if wide else rate.partition(" (")[0]
        step = (row.step,) if wide else ()
        table.add_row(
            row.mark, row.layout, rate, row.odds, row.staleness, *step, row.remark, style="dim" if row.excluded else ""
        )
    left_out = len(planned.candidates) - len(rows)
    return Group(table, *(Text(line, style="dim") for line in plan_words.sweep_lines(planned, left_out)))


def _unknowns(planned: PlanResult) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("", overflow="fold")
    table.add_column("effect on\nthroughput", justify="right", no_wrap=True)
    table.add_column("cost of not\nknowing it", justify="right", no_wrap=True)
    for row in plan_words.unknown_rows(planned):
        table.add_row(*row)
    first = plan_words.measure_first(planned)
    return Group(table, *([Text(first, style="dim")] if first else []))
