"""The template engine, and the style sheets, scripts and chart settings beside the templates."""

import json
import re
from collections.abc import Iterable
from functools import cache
from importlib import resources
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from rlscope.reports.blocks import Block
from rlscope.text_out import for_terminal

_CODE: Final = re.compile(r"`([^`\n]+)`")
CHART_CONFIG: Final = "chart_config.json"
"""Appearance of every chart, live or static."""


def filled(template: str, **words: object) -> str:
    """Return the rendered template; every string is escaped."""
    return _environment().get_template(template).render(**words)


def shown(blocks: Iterable[Block]) -> Markup:
    """Return the blocks as HTML: each by the macro that has the name of its class."""
    macros = _environment().get_template("blocks.html").module
    return Markup().join(getattr(macros, type(block).__name__.lower())(block) for block in blocks)


def packed(spec: str) -> Markup:
    """Return the chart with its data by column, so that names are stored once; `report.js` turns it into rows again."""
    document: dict[str, Any] = json.loads(spec)
    document["datasets"] = {name: _columns(rows) for name, rows in document.get("datasets", {}).items()}
    return Markup(json.dumps(document, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"))


def _columns(rows: list[dict[str, Any]]) -> list[dict[str, Any]] | dict[str, list[Any]]:
    """Return the rows as columns, or unchanged if they do not all have the same columns."""
    if not rows or any(row.keys() != rows[0].keys() for row in rows):
        return rows
    return {name: [row[name] for row in rows] for name in rows[0]}


@cache
def asset(name: str) -> str:
    """Return the text of a file beside the templates."""
    return resources.files("rlscope.reports").joinpath("templates", name).read_text(encoding="utf-8")


def _printable(value: object) -> object:
    """Return the escaped value for a template; markup is rlscope's own and stays unchanged."""
    return for_terminal(value) if type(value) is str else value


def with_code(text: str) -> Markup:
    """Return a sentence as markup, with text between backticks as code."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(for_terminal(text)))))


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("rlscope.reports"),
        autoescape=True,
        finalize=_printable,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"packed": packed, "shown": shown, "with_code": with_code}
    return made
