"""Still pictures of the charts, for readers whose viewer runs no scripts: the same specs, drawn when the page is made.

Colours stay the page's CSS variables, so a still follows light and dark as the live chart does. A still is meant to be
seen, not asked: its marks carry no words of their own, which are in the table below it.
"""

import json
import re
from typing import Any, Final

import vl_convert
from markupsafe import Markup

from rlscope.report.templating import CHART_CONFIG, asset

WIDTH_PX: Final = 760
# Measured where the page is made, shown where it is read: a common family, and whatever the reader has.
_FONT: Final = "DejaVu Sans, Liberation Sans, Arial, sans-serif"
_WORDS_OF_MARKS: Final = re.compile(
    r'(<(?:path|text|line|rect|g)[^>]*?) aria-label="[^"]*" role="graphics-symbol" aria-roledescription="[^"]*"'
)
_LONG_FRACTION: Final = re.compile(r"(\.\d)\d+")
_ID: Final = re.compile(r'id="([\w-]+)"')


def still(spec: str, anchor: str) -> Markup:
    """The chart as SVG to stand in the page.

    `anchor` keeps its ids apart from those of other pictures.
    """
    document: dict[str, Any] = json.loads(spec)
    config = {"font": _FONT, **_merged(json.loads(asset(CHART_CONFIG)), document.get("config", {}))}
    drawn = vl_convert.vegalite_to_svg({**document, "width": WIDTH_PX, "config": config})
    return Markup(_own_ids(_shorter(drawn), anchor))


def _merged(config: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Both settings, one level down too; the chart's own win, as they do on the live page."""
    both = {name: {**value, **own[name]} for name, value in config.items() if isinstance(own.get(name), dict)}
    return {**config, **own, **both}


def _shorter(svg: str) -> str:
    """Without the words of single marks, and with no finer places than a screen has."""
    start = svg.index("<svg")
    head, marks = svg[start : svg.index(">", start) + 1], svg[svg.index(">", start) + 1 :]
    return head + "".join(map(_shorter_tag, re.split(r"(<[^>]*>)", marks)))


def _shorter_tag(part: str) -> str:
    """A tag made shorter; text between tags is left as it is."""
    return _LONG_FRACTION.sub(r"\1", _WORDS_OF_MARKS.sub(r"\1", part)) if part.startswith("<") else part


def _own_ids(svg: str, anchor: str) -> str:
    for name in dict.fromkeys(_ID.findall(svg)):
        svg = svg.replace(f'id="{name}"', f'id="{anchor}-{name}"').replace(f"url(#{name})", f"url(#{anchor}-{name})")
    return svg
