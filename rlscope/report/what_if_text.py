"""The answer to a what-if, on a terminal."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlscope.model.outlook import Outlook
from rlscope.model.what_if import WhatIf
from rlscope.report import levers
from rlscope.report import what_if as words
from rlscope.report.plain import bulleted


def print_what_if(outlook: Outlook, answer: WhatIf, console: Console) -> None:
    """The answer, what it rests on, and what one per cent of each quantity buys today."""
    console.print(Text(words.headline(answer), style="bold"))
    console.print()
    console.print(_beside(answer))
    for line in words.what_if_lines(outlook, answer):
        console.print(bulleted("!", line))
    console.print()
    console.print(Text(levers.TITLE, style="bold"))
    console.print(_levers(outlook))
    console.print(Text(levers.lever_sentence(outlook), style="dim"))


def _beside(answer: WhatIf) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("", no_wrap=True)
    for title in ("as it is", "as asked", "difference"):
        table.add_column(title, overflow="fold")
    for row in words.what_if_rows(answer):
        table.add_row(*row)
    return table


def _levers(outlook: Outlook) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(justify="right")
    table.add_column(overflow="fold", style="dim")
    for row in levers.lever_rows(outlook):
        table.add_row(*row)
    return table
