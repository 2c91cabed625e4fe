"""What the model says, on a terminal."""

from typing import Final, NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rlscope.model.outlook import NoOutlook, Outlook
from rlscope.report import numbers
from rlscope.report import outlook as words
from rlscope.report.plain import bulleted, plain

_ADVICE: Final = "Layout to use next"


class Section(NamedTuple):
    """A titled block of the card."""

    title: str
    body: RenderableType


def outlook_sections(outlook: Outlook | NoOutlook, width: int) -> list[Section]:
    """The layout to use, predicted against achieved, and the way from the bound down."""
    if isinstance(outlook, NoOutlook):
        return [Section(_ADVICE, plain(f"The model says nothing of this run: {outlook.reason}."))]
    return [
        Section(_ADVICE, _advice(outlook)),
        Section("Predicted and achieved, steady stretch", _predicted(outlook)),
        Section("From the most that is possible to what was achieved", _gap(outlook, width)),
    ]


def _advice(outlook: Outlook) -> RenderableType:
    finish = words.finish_sentence(outlook)
    return Group(
        Text(words.headline(outlook), style="bold"),
        Text(words.why(outlook)),
        Text(""),
        _layouts(outlook),
        *(bulleted("!", line) for line in words.remarks(outlook)),
        *([Text(finish)] if finish else []),
    )


def _layouts(outlook: Outlook) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("", no_wrap=True)
    table.add_column("trainers : samplers × running", no_wrap=True)
    for title in ("trained", "gain", "staleness p95"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for row in words.layout_rows(outlook):
        mark = "today" if row.is_today else "best" if row.is_best else ""
        table.add_row(mark, row.layout, row.rate, row.gain, row.staleness, row.remark)
    return table


def _predicted(outlook: Outlook) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("", "predicted", "achieved", ""):
        table.add_column(title, overflow="fold")
    for row in words.compared_rows(outlook):
        table.add_row(*row)
    sentence = Text(words.prediction_sentence(outlook), style="dim")
    return Group(table, sentence) if outlook.prediction else sentence


def _gap(outlook: Outlook, width: int) -> RenderableType:
    bar = 32 if width >= 100 else 14
    gap = outlook.gap
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(overflow="fold")
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_row("the most that is possible", numbers.tokens_per_second(gap.bound_tokens_per_s), "█" * bar)
    for row in words.loss_rows(outlook):
        table.add_row(row.name, row.lost, Text("▒" * max(1, round(abs(row.share_ratio) * bar)), style="dark_orange"))
    kept = gap.achieved_tokens_per_s / gap.bound_tokens_per_s if gap.bound_tokens_per_s else 0.0
    table.add_row("achieved", numbers.tokens_per_second(gap.achieved_tokens_per_s), "█" * max(1, round(kept * bar)))
    lines = [words.baseline_sentence(outlook), words.batch_sentence(outlook)]
    return Group(table, *(Text(line, style="dim") for line in lines if line))
