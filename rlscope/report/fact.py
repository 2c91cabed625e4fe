"""A figure of the text."""

from typing import NamedTuple


class Fact(NamedTuple):
    """A quantity in words: its name, its value, and what belongs beside it."""

    name: str
    value: str
    note: str = ""
