"""The card as a picture for a slide: 1280 x 720, drawn without a browser.

The picture is an SVG template filled with the words of the first screen. SVG does not wrap text, so lines are broken
here, based on upper bounds of letter widths in common sans-serif fonts. Text that does not fit ends in an ellipsis.
"""

from collections.abc import Sequence
from functools import cache
from typing import Final, NamedTuple

import vl_convert

from rlscope.analysis.result import AnalysisResult
from rlscope.errors import RlscopeError
from rlscope.format import printable
from rlscope.reports.blocks import RoleBar, RolePart, StateStyle
from rlscope.reports.page.templating import filled
from rlscope.reports.text import brief, verdict

WIDTH_PX: Final = 1280
HEIGHT_PX: Final = 720
# The picture is rendered at twice its size to be sharp on a projector.
_SCALE: Final = 2.0
FONT: Final = "DejaVu Sans, Liberation Sans, Noto Sans, Helvetica, Arial, Segoe UI, Verdana, Roboto, sans-serif"
_HEADLINES_PX: Final = (38, 34, 30, 26)
"""Sizes of a headline. The largest size that fits into two lines is used."""
_BAR_PX: Final = 560.0
_LEGEND_LINES: Final = 2
_ACTIONS: Final = 3
# Width of the color swatch and of the space after the label.
_KEY_PX: Final = 30.0
_NARROW: Final = frozenset("fijlrtI.,:;'|!()[] ")
_BROAD: Final = frozenset("mwMW%@—→✓+−±")
# Letter widths relative to the font size, in DejaVu Sans, the widest of the fonts above.
_NARROW_EM: Final = 0.40
_BROAD_EM: Final = 0.98
_CAPITAL_EM: Final = 0.72
_OTHER_EM: Final = 0.625
_BOLD: Final = 1.11


class DrawnBar(NamedTuple):
    """The bar of a role with the positions of its parts."""

    role: RoleBar
    segments: list[tuple[StateStyle, float, float]]
    """State, left edge and width of each part, in pixels."""
    legend: list[tuple[RolePart, float, int]]
    """Part, left edge in pixels and line of each color with its label."""


def as_svg(analysis: AnalysisResult) -> str:
    """Return the picture as SVG, with strings from the run escaped."""
    run, whole, gaps = analysis.run, brief.whole_run(analysis), verdict.gap_lines(analysis)
    shown, headline = brief.steady_state(analysis) or whole, verdict.headline(analysis)
    headline_px = _fitting_px(headline, _HEADLINES_PX, 1200, 2)
    achieved = brief.achieved(analysis)
    return filled(
        "verdict.svg",
        font=FONT,
        label=verdict.label(analysis),
        alarm=broken_lines(verdict.alarm(analysis) or "", 16, 1180, 2),
        headline=broken_lines(headline, headline_px, 1200, 2, bold=True),
        headline_px=headline_px,
        next_step=broken_lines(f"Next: {verdict.next_step(analysis)}".replace(" (below)", ""), 18, 1200, 2),
        spent=f"{shown.name}: {shown.spent}",
        bars=[drawn_bar(role, _BAR_PX, _LEGEND_LINES) for role in shown.roles[:2]],
        why=broken_lines(verdict.why(analysis), 15, 560, 6),
        actions=[
            (broken_lines(f"{number}. {row['what']}", 16, 540, 2), broken_lines(row["predicted gain"], 14, 520, 2))
            for number, row in enumerate(verdict.action_rows(analysis)[:_ACTIONS], 1)
        ],
        no_model=broken_lines(brief.no_choice(analysis), 16, 540, 6),
        achieved=broken_lines(f"{achieved.name}: {achieved.value}, {achieved.note}", 14, 1200, 2),
        gaps=gaps,
        quality=broken_lines(brief.quality(gaps, analysis.data_quality), 14, 1160, 1),
        run=broken_lines(" · ".join((run.run_id, *brief.about(analysis), whole.spent)), 14, 1200, 1)[0],
    )


def as_png(analysis: AnalysisResult) -> bytes:
    """The picture as PNG at twice its size. Raises RlscopeError without a usable font."""
    return drawn_png(as_svg(analysis))


def drawn_png(svg: str) -> bytes:
    """A picture as PNG at twice its size. Raises RlscopeError without a usable font."""
    if not _has_font():
        raise RlscopeError.of(
            "the picture",
            found="no font to draw text with",
            expected="one of " + FONT.removesuffix(", sans-serif"),
            next_step="Install a font, for example the package fonts-dejavu-core, and try again.",
        )
    return vl_convert.svg_to_png(svg, scale=_SCALE)


@cache
def _has_font() -> bool:
    """Return whether text is drawn at all: without a font, it is silently left out."""
    frame = '<svg xmlns="http://www.w3.org/2000/svg" width="40" height="40">{}</svg>'
    letter = f'<text x="4" y="30" font-size="30" font-family="{FONT}">M</text>'
    return vl_convert.svg_to_png(frame.format(letter)) != vl_convert.svg_to_png(frame.format(""))


def drawn_bar(role: RoleBar, bar_px: float, legend_lines: int) -> DrawnBar:
    """Return the bar of a role at the given width, with at most the given number of legend lines."""
    segments, x_px = list[tuple[StateStyle, float, float]](), 0.0
    for part in role.parts:
        width_px = part.share_ratio * bar_px
        segments.append((part.state, x_px, width_px))
        x_px += width_px
    return DrawnBar(role, segments, _legend(role.named, bar_px, legend_lines))


def _legend(parts: Sequence[RolePart], bar_px: float, lines: int) -> list[tuple[RolePart, float, int]]:
    keys, x_px, line = list[tuple[RolePart, float, int]](), 0.0, 0
    for part in parts:
        width_px = _KEY_PX + _width_px(f"{part.label} {part.share}", 13, bold=False)
        if x_px and x_px + width_px > bar_px:
            x_px, line = 0.0, line + 1
        keys.append((part, x_px, line))
        x_px += width_px
    return [key for key in keys if key[-1] < lines]


def broken_lines(text: str, size_px: float, width_px: float, most: int, *, bold: bool = False) -> list[str]:
    """Return the text in at most `most` lines of that width; the last ends in an ellipsis if text is left out."""
    # XML cannot represent control characters.
    lines, words = list[str](), printable(text).split()
    while words and len(lines) < most:
        line = words.pop(0)
        while words and _width_px(f"{line} {words[0]}", size_px, bold=bold) <= width_px:
            line = f"{line} {words.pop(0)}"
        lines.append(line)
    is_cut = bool(words)
    return [_cut(line, size_px, width_px, bold=bold, goes_on=is_cut and line is lines[-1]) for line in lines]


def _fitting_px(text: str, sizes_px: Sequence[int], width_px: float, most: int) -> int:
    """The largest of the sizes, given largest first, in which bold text needs no ellipsis; else the smallest."""
    wholes = (px for px in sizes_px if "…" not in "".join(broken_lines(text, px, width_px, most, bold=True)[-1:]))
    return next(wholes, sizes_px[-1])


def _cut(line: str, size_px: float, width_px: float, *, bold: bool, goes_on: bool) -> str:
    """The line with an ellipsis if it goes on or is too wide: after a whole word, unless it is a single one."""
    ending = " …" if goes_on else ""
    while _width_px(line + ending, size_px, bold=bold) > width_px and line:
        head, _, _ = line.rpartition(" ")
        line, ending = head or line[:-1], " …"
    return line + ending


def _width_px(text: str, size_px: float, *, bold: bool) -> float:
    return sum(map(_width_em, text)) * size_px * (_BOLD if bold else 1.0)


def _width_em(char: str) -> float:
    if char in _NARROW:
        return _NARROW_EM
    if char in _BROAD or ord(char) > 0x2E80:
        return _BROAD_EM
    return _CAPITAL_EM if char.isupper() else _OTHER_EM
