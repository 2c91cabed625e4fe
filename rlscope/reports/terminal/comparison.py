"""A comparison on a terminal: one card for each run beside the baseline, then the numbers. Readable from 60 columns."""

from collections.abc import Sequence

from rich.box import ROUNDED
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rlscope.comparison.runs import RunComparison
from rlscope.format import bulleted, plain
from rlscope.reports.blocks import DifferenceRow
from rlscope.reports.text.comparison import (
    TESTED,
    ChangeCauseWords,
    PairWords,
    RunWords,
    pairs_in_words,
    runs_in_words,
)

_WIDTH_MAX = 120
_WIDE = 100
"""Columns from which intervals have a column of their own."""


def print_comparison(compared: RunComparison, console: Console) -> None:
    """Print the whole comparison."""
    width = min(console.width, _WIDTH_MAX)
    blocks: list[RenderableType] = [_runs(runs_in_words(compared))]
    for pair in pairs_in_words(compared):
        blocks += [_card(pair), *_sections(pair, width)]
    console.print(Group(*blocks), width=width, soft_wrap=False)


def _runs(runs: Sequence[RunWords]) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for run in runs:
        table.add_row(run.letter, plain(f"{run.name}: {run.about}"))
    return table


def _card(pair: PairWords) -> Panel:
    body = Table.grid(padding=(0, 2))
    body.add_column(no_wrap=True, style="dim")
    body.add_column(overflow="fold")
    body.add_row("Result", Text(pair.headline, style="bold"))
    for each in pair.cautions:
        body.add_row("Note", plain(each))
    if pair.why:
        body.add_row("Why", plain(pair.why))
    body.add_row("Cause", plain(pair.causes_sentence))
    if pair.promise:
        body.add_row("Prediction", plain(pair.promise))
    body.add_row("Compared", plain(pair.stretch))
    title = Text(f" {pair.title}: {pair.label} ", style="bold")
    return Panel(body, title=title, title_align="left", box=ROUNDED, padding=(1, 2))


def _sections(pair: PairWords, width: int) -> list[RenderableType]:
    letter = pair.title.split()[0]
    blocks = [_section(f"{pair.title}, in numbers", _rows(pair.rows, letter, width))]
    if pair.causes:
        blocks.append(_section("Changes", _causes(pair.causes, letter)))
    blocks += [_section(each.title, _rows(each.rows, letter, width)) for each in pair.breakdowns]
    return blocks


def _rows(rows: Sequence[DifferenceRow], letter: str, width: int) -> RenderableType:
    is_wide = width >= _WIDE
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("", overflow="fold", min_width=22 if is_wide else 14)
    for name in ("A", letter, "change"):
        table.add_column(name, justify="right", no_wrap=is_wide, overflow="fold")
    if is_wide:
        table.add_column("95% interval", justify="right", no_wrap=True)
        table.add_column(TESTED, no_wrap=True)
    for row in rows:
        is_significant = row.verdict == "yes"
        change = Text(row.change, style="bold" if is_significant else "")
        if is_wide:
            table.add_row(plain(row.name), row.before, row.after, change, row.interval, row.verdict)
        else:
            table.add_row(plain(row.name), row.before, row.after, change + Text("*" if is_significant else ""))
    tested = any(row.verdict for row in rows)
    notes = [Text("* significant", style="dim")] if tested and not is_wide else []
    return Group(table, *notes)


def _causes(causes: Sequence[ChangeCauseWords], letter: str) -> RenderableType:
    lines: list[RenderableType] = []
    for each in causes:
        words = f"{each.name}: {each.before} in A, {each.after} in {letter}"
        if each.expected:
            words += f"; {each.expected} according to A's model"
        if each.share:
            words += f", {each.share} of the change"
        lines.append(bulleted("•", words))
    return Group(*lines)


def _section(title: str, body: RenderableType) -> RenderableType:
    return Group(Text(""), Text(title, style="bold underline"), Padding(body, (0, 0, 0, 2)))
