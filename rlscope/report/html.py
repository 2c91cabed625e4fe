"""The analysis as one HTML file that needs no network: its scripts, styles, pictures and numbers are inside.

What the page says is made in `first_screen.py` and `sections/`; here it is only put together.
"""

from functools import cache
from importlib import metadata, resources
from typing import NamedTuple

import vl_convert
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from rlscope.analysis import Analysis
from rlscope.report import numbers, wording
from rlscope.report.first_screen import FirstScreen, first_screen
from rlscope.report.sections import SECTIONS, Section
from rlscope.report.sections.findings import FindingsSection, findings_section
from rlscope.report.states import STATES, State


class _Made(NamedTuple):
    """A section with its words."""

    section: Section
    words: NamedTuple


class _Page(NamedTuple):
    """Everything that the template shows, in words."""

    version: str
    run_id: str
    started: str
    duration: str
    first: FirstScreen
    found: FindingsSection
    gaps: list[str]
    sections: list[_Made]
    states: tuple[State, ...]


def render(analysis: Analysis) -> str:
    """The page as one string."""
    return _environment().get_template("report.html").render(page=_page(analysis), asset=_asset, bundle=_bundle())


def _page(analysis: Analysis) -> _Page:
    run = analysis.run
    return _Page(
        version=metadata.version("rlscope"),
        run_id=run.run_id,
        started=numbers.instant(run.started_ns),
        duration=numbers.duration(run.duration_s),
        first=first_screen(analysis),
        found=findings_section(analysis),
        gaps=wording.gap_lines(analysis),
        sections=[_Made(section, section.make(analysis)) for section in SECTIONS],
        states=STATES,
    )


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("rlscope.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@cache
def _bundle() -> Markup:
    """Vega, Vega-Lite and Vega-Embed as one script; it holds no closing tag, which would end its element."""
    # The stub has the argument without its default.
    return Markup(vl_convert.javascript_bundle())  # pyright: ignore[reportCallIssue]


@cache
def _asset(name: str) -> Markup:
    """A style sheet or script of our own."""
    return Markup(resources.files("rlscope.report").joinpath("templates", name).read_text(encoding="utf-8"))
