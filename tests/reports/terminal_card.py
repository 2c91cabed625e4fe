"""What a reader of the terminal sees of an analysis, or of other blocks."""

import re
from collections.abc import Iterable
from io import StringIO
from typing import Any

from rich.console import Console

from rlscope.analysis.result import AnalysisResult
from rlscope.reports.blocks import Block
from rlscope.reports.card import card_blocks
from rlscope.reports.terminal import print_blocks


def printed(blocks: Iterable[Block], width: int, **options: Any) -> str:
    out = StringIO()
    print_blocks(blocks, Console(file=out, width=width, **options))
    return out.getvalue()


def card(analysis: AnalysisResult, width: int = 80) -> str:
    return printed(card_blocks(analysis), width)


def card_words(analysis: AnalysisResult, width: int = 80) -> str:
    """The words of the card in a line, without its frames."""
    return " ".join(re.sub("[│╭╮╰╯─]", " ", card(analysis, width)).split())
