"""What the model says, on a terminal."""

from typing import Final, NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rlscope.model.outlook import NoOutlook, Outlook
from rlscope.report import advice, numbers
from rlscope.report import outlook as words
from rlscope.report.plain import bulleted, plain
from rlscope.report.preemption_words import preemption_sentence

_ADVICE: Final = "Layout to use next"
_LAYOUTS_SHOWN: Final = 6
_WIDE: Final = 100


class Section(NamedTuple):
    """A titled block of the card."""

    title: str
    body: RenderableType


def outlook_sections(outlook: Outlook | NoOutlook, width: int) -> list[Section]:
    """The layout to use, predicted against achieved, and the way from the bound down."""
    if isinstance(outlook, NoOutlook):
        return [Section(_ADVICE, plain(words.silence_sentence(outlook)))]
    return [
        Section(_ADVICE, _advice(outlook, width)),
        Section("Predicted and achieved, steady stretch", _predicted(outlook)),
        Section("From the most that is possible to what was achieved", _gap(outlook, width)),
        Section("Time to finish", _finish(outlook)),
    ]


def _advice(outlook: Outlook, width: int) -> RenderableType:
    return Group(
        Text(advice.headline(outlook), style="bold"),
        Text(advice.why(outlook)),
        Text(""),
        _layouts(outlook, with_intervals=width >= _WIDE),
        *(bulleted("!", line) for line in words.remarks(outlook)),
    )


def _layouts(outlook: Outlook, *, with_intervals: bool) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("", no_wrap=True)
    table.add_column("trainers : samplers\n× running", no_wrap=True)
    for title in ("trained\ntokens/s", "gain", "staleness\np95"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for row in advice.layout_rows(outlook, _LAYOUTS_SHOWN):
        gain = row.gain if with_intervals else row.gain.partition(" (")[0]
        table.add_row(row.mark, row.layout, row.rate.removesuffix(" tokens/s"), gain, row.staleness, row.remark)
    return table


def _finish(outlook: Outlook) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    for style in ("dim", "", "", ""):
        table.add_column(overflow="fold", style=style)
    for row in words.finish_rows(outlook):
        table.add_row(*row)
    return Group(table, Text(words.finish_sentence(outlook), style="dim"))


def _predicted(outlook: Outlook) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("", "predicted", "achieved", ""):
        table.add_column(title, overflow="fold")
    for row in words.compared_rows(outlook):
        table.add_row(*row)
    sentence = Text(words.prediction_sentence(outlook), style="dim")
    return Group(table, sentence) if outlook.prediction else sentence


def _gap(outlook: Outlook, width: int) -> RenderableType:
    bar = 32 if width >= _WIDE else 24
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
    lines = [words.baseline_sentence(outlook), words.batch_sentence(outlook), preemption_sentence(outlook)]
    return Group(table, *(Text(line, style="dim") for line in lines if line))


def _step(row: words.LossRow, bound_tokens_per_s: float, bar: int) -> str:
    """A block from where a cause finds the rate to where it leaves it, at least one character wide."""
    ends = sorted((row.left_tokens_per_s, row.left_tokens_per_s + row.lost_tokens_per_s))
    first, last = (round(end / bound_tokens_per_s * bar) for end in ends)
    first = min(first, bar - 1)
    return " " * first + "▒" * max(1, last - first)
