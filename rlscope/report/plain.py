"""Words of a run on a terminal: text that may hold anything, and lines with a mark before them."""

from rich.table import Table
from rich.text import Text


def bulleted(mark: str, text: str) -> Table:
    """A mark, and beside it a text that folds."""
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(Text(mark), plain(text))
    return table


def plain(text: str) -> Text:
    """Text that a run may have supplied: no markup, and no control character reaches the terminal."""
    return Text(printable(text))


def printable(text: str) -> str:
    """The text on one line, its control characters shown as such."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
