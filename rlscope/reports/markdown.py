"""Blocks as GitHub Markdown for a pull request or a chat.

Strings from the run are escaped: no markup, no mentions, no links.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from rlscope.reports import blocks
from rlscope.reports.blocks import Block
from rlscope.text_out import for_markdown


def markdown(shown: Iterable[Block]) -> str:
    """Return the whole text, without a trailing newline."""
    return "\n".join(_lines(shown)).rstrip()


def _lines(shown: Iterable[Block]) -> Iterator[str]:
    """Yield the lines of the blocks, each followed by an empty line."""
    for block in shown:
        yield from _RENDERERS[type(block)](block)


def _answer(answer: blocks.Answer) -> Iterator[str]:
    yield from (f"### {for_markdown(answer.label)} — {for_markdown(answer.headline)}", "")
    warnings = [
        *([f"**Alarm.** {for_markdown(answer.alarm)}"] if answer.alarm else []),
        *map(for_markdown, answer.warnings),
    ]
    if warnings:
        yield from ("\n>\n".join(f"> {warning}" for warning in warnings), "")
    yield from _facts(blocks.Facts(answer.reasons))


def _part(part: blocks.Part) -> Iterator[str]:
    yield from (f"#### {for_markdown(part.title)}", "", *_lines(part.blocks))


def _fold(fold: blocks.Fold) -> Iterator[str]:
    yield from (f"<details><summary>{for_markdown(fold.title)}</summary>", "", *_lines(fold.blocks), "</details>", "")


def _paragraph(paragraph: blocks.Paragraph) -> Iterator[str]:
    text = for_markdown(paragraph.text)
    yield from (f"<sub>{text}</sub>" if paragraph.style == "note" else text, "")


def _checks(block: blocks.Checks) -> Iterator[str]:
    for check in block.checks:
        mark = {"there": "✓", "in part": "~", "missing": "✗"}[check.status]
        yield f"- {mark} **{for_markdown(check.name)}:** {for_markdown(check.found)}"
        yield from (f"  - {for_markdown(line)}" for line in check.lines)
    yield ""


def _bullets(bullets: blocks.Bullets) -> Iterator[str]:
    yield from (*(f"- {for_markdown(line)}" for line in bullets.lines), "")


def _facts(facts: blocks.Facts) -> Iterator[str]:
    for name, value, note in facts.facts:
        yield from (f"**{for_markdown(name)}:** {for_markdown(', '.join(filter(None, (value, note))))}", "")


def _table(block: blocks.Table) -> Iterator[str]:
    if not block.groups:
        yield from table(block.columns, block.rows)
        return
    rows = list[Sequence[str]]()
    for group, number, row in block.grouped:
        rows += [*([("", group, *[""] * len(row[1:]))] if group else []), (number, *row)]
    yield from table(["", *block.columns], rows)


def _roles(block: blocks.Roles) -> Iterator[str]:
    rows = [(role.role, role.spent, role.named_words) for role in block.roles]
    yield from table(("", "GPU time", "largest states"), rows)


def _switch(block: blocks.Switch) -> Iterator[str]:
    for view in block.views:
        yield from (for_markdown(view.label), "", *_lines([view.block]))


def _links(block: blocks.Links) -> Iterator[str]:
    yield from (f"**{for_markdown(block.title)}:** {for_markdown(block.text)}", "")


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield a table followed by an empty line; nothing if there are no rows."""
    if rows:
        yield from (_row(headings), "|" + " --- |" * len(headings), *map(_row, rows), "")


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(for_markdown(cell.replace("\n", " ")) for cell in cells) + " |"


_RENDERERS: Final[Mapping[type[Block], Callable[[Any], Iterator[str]]]] = {
    blocks.Answer: _answer,
    blocks.Part: _part,
    blocks.Fold: _fold,
    blocks.Paragraph: _paragraph,
    blocks.Checks: _checks,
    blocks.Bullets: _bullets,
    blocks.Facts: _facts,
    blocks.Table: _table,
    blocks.Roles: _roles,
    blocks.Switch: _switch,
    blocks.Links: _links,
}
