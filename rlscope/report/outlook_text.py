"""What the model says, on a terminal."""

from typing import Final, NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rlscope.model.outlook import NoOutlook, Outlook
from rlscope.report import advice, numbers
from rlscope.report import outlook as words
from rlscope.report.plain import bulleted, plain

_ADVICE: Final = "Layout to use next"
_LAYOUTS_SHOWN: Final = 6


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
        Text(advice.headline(outlook), style="bold"),
        Text(advice.why(outlook)),
        Text(""),
        _layouts(outlook),
        *(bulleted("!", line) for line in words.remarks(outlook)),
        *([Text(finish)] if finish else []),
    )


def _layouts(outlook: Outlook) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("trainers : samplers × running", no_wrap=True)
    for title in ("tokens/s", "gain", "staleness p95"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for row in advice.layout_rows(outlook, _LAYOUTS_SHOWN):
        remark = ", ".join(part for part in (row.mark, row.remark) if part)
        table.add_row(row.layout, row.rate.removesuffix(" tokens/s"), row.gain, row.staleness, remark)
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
    bar = 32 if width >= 100 else 24
    gap = outlook.gap
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(overflow="fold")
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_row("the most that is possible", numbers.tokens_per_second(gap.bound_tokens_per_s), "█" * bar)
    for row in words.loss_rows(outlook):
        table.add_row(row.cause.name, row.lost, Text(_step(row, gap.bound_tokens_per_s, bar), style="dark_orange"))
    kept = gap.achieved_tokens_per_s / gap.bound_tokens_per_s if gap.bound_tokens_per_s else 0.0
    table.add_row("achieved", numbers.tokens_per_second(gap.achieved_tokens_per_s), "█" * max(1, round(kept * bar)))
    lines = [words.baseline_sentence(outlook), words.batch_sentence(outlook)]
    return Group(table, *(Text(line, style="dim") for line in lines if line))


def _step(row: words.LossRow, bound_tokens_per_s: float, bar: int) -> str:
    """A block from where a cause finds the rate to where it leaves it, at least one character wide."""
    ends = sorted((row.left_tokens_per_s, row.left_tokens_per_s + row.lost_tokens_per_s))
    first, last = (round(end / bound_tokens_per_s * bar) for end in ends)
    first = min(first, bar - 1)
    return " " * first + "▒" * max(1, last - first)
