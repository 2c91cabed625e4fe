"""A comparison on a terminal: one card for each run beside the baseline, then the numbers. Readable from 60 columns."""

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rlscope.comparison.runs import RunComparison
from rlscope.format import bulleted, plain
from rlscope.reports.blocks import DifferenceRow
from rlscope.reports.terminal.parts import WIDE, WIDTH_MAX, pairs, panel, section
from rlscope.reports.text.comparison import TESTED, ChangeCauseWords, PairWords, pairs_in_words, runs_in_words


def print_comparison(compared: RunComparison, console: Console) -> None:
    """Print the whole comparison."""
    width = min(console.width, WIDTH_MAX)
    blocks: list[RenderableType] = [
        pairs(((run.letter, f"{run.name}: {run.about}") for run in runs_in_words(compared)), "bold")
    ]
    for pair in pairs_in_words(compared):
        blocks += [_card(pair), *_sections(pair, width)]
    console.print(Group(*blocks), width=width, soft_wrap=False)


def _card(pair: PairWords) -> Panel:
    rows = [
        ("Result", Text(pair.headline, style="bold")),
        *(("Note", each) for each in pair.warnings),
        ("Why", pair.why),
        ("Cause", pair.causes_sentence),
        ("Prediction", pair.promise),
        ("Compared", pair.stretch),
    ]
    return panel(f"{pair.title}: {pair.label}", pairs((name, value) for name, value in rows if value))


def _sections(pair: PairWords, width: int) -> list[RenderableType]:
    letter = pair.title.split()[0]
    blocks = [section(f"{pair.title}, in numbers", _rows(pair.rows, letter, width))]
    if pair.causes:
        blocks.append(section("Changes", _causes(pair.causes, letter)))
    blocks += [section(each.title, _rows(each.rows, letter, width)) for each in pair.breakdowns]
    return blocks


def _rows(rows: Sequence[DifferenceRow], letter: str, width: int) -> RenderableType:
    is_wide = width >= WIDE
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
