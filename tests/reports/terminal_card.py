"""What a reader of the terminal sees of an analysis."""

from io import StringIO
from typing import Any

from rich.console import Console

from rlscope.analysis.result import AnalysisResult
from rlscope.reports.card import card_blocks
from rlscope.reports.terminal import print_blocks


def card(analysis: AnalysisResult, width: int = 80, **options: Any) -> str:
    out = StringIO()
    print_blocks(card_blocks(analysis), Console(file=out, width=width, **options))
    return out.getvalue()
