"""Blocks on a terminal, readable from 60 columns on and without color: bars and symbols repeat what colors show."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from rich.box import ROUNDED
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rlscope.format import bulleted, plain, printable
from rlscope.reports import blocks
from rlscope.reports.blocks import Block, Kind

_WIDTH_MAX: Final = 120
_WIDE: Final = 100
"""Columns from which tables have more columns."""
_FILLS: Final[Mapping[Kind | str, str]] = {"work": "█", "over": "█", "wait": "▒"}
_COLORS: Final[Mapping[Kind | str, str]] = {
    "work": "cyan",
    "over": "red",
    "wait": "dark_orange",
    "weights": "medium_purple",
    "housekeeping": "grey58",
    "unknown": "grey42",
}
_SEVERITIES: Final = {"critical": "bold red", "warning": "yellow", "info": "cyan"}
_MARKS: Final = {"there": ("+", "green"), "in part": ("~", "yellow"), "missing": ("-", "red")}
_NARROW: Final = 76
"""Columns below which tables have fewer columns, and bars are short."""
_SHORT: Final = 24
"""Characters up to which a cell does not wrap if wider ones can."""
_FOLDED: Final = 12
"""Least characters in a line of a cell that wraps."""


def print_blocks(shown: Iterable[Block], console: Console) -> None:
    """Print the blocks, as wide as the console, but no wider than is readable."""
    width = min(console.width, _WIDTH_MAX)
    console.print(on_terminal(shown, width), width=width, soft_wrap=False)


def on_terminal(shown: Iterable[Block], width: int) -> RenderableType:
    """Return the blocks for a terminal of this many columns."""
    rendered, above = list[RenderableType](), None
    for block in shown:
        rendered += [Text("")] * _is_apart(above, block) + [_RENDERERS[type(block)](block, width)]
        above = block
    return Group(*rendered)


def _is_apart(above: Block | None, block: Block) -> bool:
    """Whether there is a space between two blocks: below a part or headline, and between text and numbers or a note."""
    if isinstance(above, blocks.Part):
        return not isinstance(block, blocks.Part)
    if isinstance(above, blocks.Paragraph) and isinstance(block, blocks.Paragraph):
        return above.style == "headline" or (above.style == "" and block.style == "note")
    return isinstance(above, blocks.Paragraph | blocks.Facts) and isinstance(block, blocks.Bars | blocks.Table)


def _part(part: blocks.Part, width: int) -> RenderableType:
    body = on_terminal(part.blocks, width)
    if part.style:
        return _panel(part.title, body, part.style)
    return Group(Text(""), Text(part.title, style="bold underline"), Padding(body, (0, 0, 0, 2)))


def _panel(title: str, body: RenderableType, style: str) -> Panel:
    color = {"alarm": "red", "warning": "yellow"}.get(style, "none")
    return Panel(
        body,
        title=Text(f" {title} ", style="bold yellow" if style == "warning" else "bold"),
        title_align="left",
        border_style=color,
        box=ROUNDED,
        padding=(0, 2) if style == "warning" else (1, 2),
    )


def _answer(answer: blocks.Answer, _width: int) -> RenderableType:
    rows = [("Alarm", answer.alarm, "bold red"), (answer.name, answer.headline, "bold")]
    rows += [*(("Note", warning, "") for warning in answer.warnings)]
    rows += [(name, ", ".join(filter(None, (value, note))), "") for name, value, note in answer.reasons]
    table = _grid("dim", "")
    for name, text, style in rows:
        if text:
            table.add_row(name, Text(printable(text), style=style))
    return _panel(answer.label, table, "alarm" if answer.alarm else "")


def _fold(fold: blocks.Fold, width: int) -> RenderableType:
    return on_terminal(fold.blocks, width)


def _paragraph(paragraph: blocks.Paragraph, _width: int) -> RenderableType:
    text = plain(paragraph.text)
    text.stylize({"note": "dim", "headline": "bold"}.get(paragraph.style, ""))
    return text


def _bullets(bullets: blocks.Bullets, _width: int) -> RenderableType:
    return Group(*(bulleted(bullets.mark, line) for line in bullets.lines))


def _checks(block: blocks.Checks, _width: int) -> RenderableType:
    lines: list[RenderableType] = []
    for check in block.checks:
        mark, color = _MARKS[check.status]
        line = Table.grid(padding=(0, 1, 0, 0))
        line.add_row(Text(mark, style=color), Text.assemble((check.name, "bold"), ": ") + plain(check.found))
        lines += [line, *(Padding(plain(below), (0, 0, 0, 4)) for below in check.lines)]
    return Group(*lines)


def _facts(facts: blocks.Facts, _width: int) -> RenderableType:
    table = _grid("dim", "")
    for fact in facts.facts:
        table.add_row(plain(fact.name), plain(" · ".join(filter(None, (fact.value, fact.note)))))
    return table


def _grid(*styles: str) -> Table:
    """Return a table of columns of names, in these styles, and a last column that wraps."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for style in styles[:-1]:
        table.add_column(no_wrap=True, style=style)
    table.add_column(overflow="fold", style=styles[-1])
    return table


def _table(block: blocks.Table, width: int) -> RenderableType:
    is_wide = width >= _WIDE
    places = [place for place in range(len(block.columns)) if is_wide or place not in block.wide]
    shortened = frozenset[int]() if is_wide else block.numbers
    titles, rows = [block.columns[place] for place in places], list[list[str]]()
    for row in block.rows:
        rows.append([row[place].partition(" (")[0] if place in shortened else row[place] for place in places])
    texts = {number for number, place in enumerate(places) if place not in block.numbers}
    columns = zip(titles, *rows, strict=True)
    widths = [max(len(line) for cell in cells for line in cell.split("\n")) for cells in columns]
    folded = _folded(widths, texts, width)
    if folded and block.style == "stacks":
        return _stacks(titles, replace(block, rows=rows))
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim", show_header=any(titles))
    for number, (place, title) in enumerate(zip(places, titles, strict=True)):
        justify = "right" if place in block.numbers else "left"
        table.add_column(title, justify=justify, no_wrap=number not in folded, overflow="fold")
    for number, row in enumerate(rows):
        table.add_row(*map(plain, row), style="dim" if number in block.faint else "")
    return table


def _folded(widths: Sequence[int], texts: set[int], width: int) -> set[int]:
    """Return the places of the columns that wrap: those too wide for their share, or all of text if that is too few."""
    room = width - 2 - 2 * len(widths)
    if sum(widths) <= room:
        return set()
    share = max(room // len(widths), _SHORT)
    wide = {place for place in texts if widths[place] > share} or {max(texts, key=lambda place: widths[place])}
    left = room - sum(found for place, found in enumerate(widths) if place not in wide)
    return wide if left >= _FOLDED * len(wide) else texts


def _stacks(titles: Sequence[str], block: blocks.Table) -> RenderableType:
    """Return each row as its first cell, above the others beside their titles."""
    lines, width = list[RenderableType](), max(map(len, titles))
    for group, number, (what, *cells) in block.grouped:
        below = Table.grid(padding=(0, 2, 0, 0))
        below.add_column(no_wrap=True, style="dim", min_width=width)
        below.add_column(overflow="fold")
        for title, cell in zip(titles[1:], cells, strict=True):
            if cell:
                below.add_row(title.replace("\n", " "), plain(cell))
        head = Table.grid(padding=(0, 1, 0, 0))
        head.add_row(number or "·", Text(printable(what), style="bold"))
        lines += [*([Text(group)] if group else []), head, Padding(below, (0, 0, 0, 3))]
    return Group(*lines)


def _callout(callout: blocks.Callout, _width: int) -> RenderableType:
    head = Text(f"{callout.severity:<9}", style=_SEVERITIES[callout.severity])
    head.append_text(plain(callout.title)).stylize("bold", 9)
    head.append(f"  {callout.cost}" if callout.cost else "", style="not bold")
    below: list[RenderableType] = [plain(callout.text)] if callout.text else []
    below += [bulleted("→", callout.remedy), Text("")] if callout.remedy else []
    return Group(head, Padding(Group(*below), (0, 0, 0, 9)))


def _ledger(ledger: blocks.Ledger, width: int) -> RenderableType:
    key = Text("Bars show the whole run.  █ work  ▒ waiting  ░ overhead, unattributed", style="dim")
    return Group(*(_role(role, ledger, width) for role in ledger.roles), key)


def _role(role: blocks.LedgerRole, ledger: blocks.Ledger, width: int) -> Table:
    bar = 24 if width >= _WIDE else 6 if width >= _NARROW else 4
    label_width = 34 if width >= _WIDE else 27 if width >= _NARROW else 14
    has_steady = any(row.steady for row in role.rows)
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=True, header_style="dim")
    table.add_column(plain(f"{role.role} GPU time"), header_style="bold", overflow="fold", min_width=label_width)
    table.add_column("whole run", justify="right", no_wrap=True)
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True, min_width=bar)
    if has_steady:
        table.add_column("steady state", justify="right", no_wrap=True)
    if ledger.has_gpu_idle:
        table.add_column("GPU idle", justify="right", max_width=5)
    for row in role.rows:
        label = Text("  " if row.part_of == "row above" else "") + plain(row.label)
        filled = Text("") if row.part_of else _filled(0.0, row.share_ratio, row.state.kind, bar)
        more = [row.steady] * has_steady + [row.gpu_idle] * ledger.has_gpu_idle
        table.add_row(label, row.gpu_time, row.share, filled, *more, style="dim" if row.part_of else "")
    table.add_row("")
    return table


def _roles(block: blocks.Roles, _width: int) -> RenderableType:
    table = _grid("", "", "dim")
    for role in block.roles:
        table.add_row(plain(role.role), role.spent, plain(role.named_words))
    return table


def _bars(block: blocks.Bars, width: int) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(overflow="fold")
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for bar in block.bars:
        filled = _filled(bar.from_ratio, bar.to_ratio, bar.kind, 32 if width >= _WIDE else 24)
        table.add_row(plain(bar.name), bar.value, filled, plain(bar.note))
    return table


def _filled(from_ratio: float, to_ratio: float, kind: Kind | str, width: int) -> Text:
    """Return a bar that begins at a ratio of the width; one too short for a character is a thin line at the start."""
    first, last, fill = min(round(from_ratio * width), width - 1), round(to_ratio * width), _FILLS.get(kind, "░")
    least = "" if to_ratio == from_ratio else fill if from_ratio else "▏"
    return Text(" " * first + (fill * (last - first) or least), style=_COLORS[kind])


_RENDERERS: Final[Mapping[type[Block], Callable[[Any, int], RenderableType]]] = {
    blocks.Part: _part,
    blocks.Answer: _answer,
    blocks.Fold: _fold,
    blocks.Paragraph: _paragraph,
    blocks.Bullets: _bullets,
    blocks.Checks: _checks,
    blocks.Facts: _facts,
    blocks.Table: _table,
    blocks.Callout: _callout,
    blocks.Ledger: _ledger,
    blocks.Roles: _roles,
    blocks.Bars: _bars,
}
