"""The analysis as one HTML file that needs no network: scripts, styles, charts and numbers are inside.

The templates render blocks, each by the macro that has the name of its class.
Its content policy lists every script by hash, so no other script runs. Chart data are stored by column, and no chart
has more than a few thousand marks, so that a page of a thousand workers takes 1.5 MB. In a notebook the first screen is
a card without scripts, and the charts of the page are there by name.
"""

import base64
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import cache, cached_property, partial
from importlib import metadata, resources
from typing import Any, Final

import vl_convert
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from rlscope import format as fmt
from rlscope.analysis.result import AnalysisResult
from rlscope.comparison.history import cache_folder
from rlscope.errors import OutputError
from rlscope.reports.blocks import Block, Bullets, Paragraph, Part
from rlscope.reports.card import first_screen
from rlscope.reports.charts.encoding import Chart, shown_from_s, standalone
from rlscope.reports.figure import WIDTH_PX, Drawn, figures_in
from rlscope.reports.sections import DATA_QUALITY, Section, sections_of
from rlscope.reports.text import verdict
from rlscope.reports.text.origin import about, start_words
from rlscope.reports.text.states import STATES
from rlscope.text_out import for_terminal, write_file

SCRIPTS: Final = ("zoom.js", "folds.js", "report.js", "panel.js")
"""Scripts of the report, in the order in which they run after the bundle."""
_CODE: Final = re.compile(r"`([^`\n]+)`")
CHART_CONFIG: Final = "chart_config.json"
"""Appearance of every chart, live or static."""


def render(analysis: AnalysisResult) -> str:
    """Return the report as one string."""
    run, first = analysis.run, first_screen(analysis)
    del first["about"]  # The header of the page has it.
    started = start_words(run.started_ns, analysis.data_quality.imported)
    words = dict[str, object](
        header=run.run_id,
        about=about(analysis),
        first=first,
        sections=_sections(analysis),
        # The charts over time begin at from_s; both are seconds since the run started.
        zoom={"from_s": shown_from_s(run), "to_s": run.duration_s},
        foot=f"Run {run.run_id}, analyzed by rlscope {metadata.version('rlscope')}. Times are relative to the start of "
        f"the run, {started}.",
    )
    return page("report.html", f"{verdict.label(analysis)} · {run.run_id}", words, page_scripts())


def content_policy(scripts: Sequence[str]) -> str:
    """A policy that allows these scripts only: no eval, no requests.

    Inline styles are allowed, because the lengths of bars are styles; they cannot load anything.
    """
    hashes = " ".join(f"'sha256-{_hash(script)}'" for script in scripts)
    others = "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    return f"default-src 'none'; script-src {hashes}; {others}"


def _sections(analysis: AnalysisResult) -> list[Section]:
    """Return the sections with something to show; the one on data quality says what the others do not show."""
    every = sections_of(analysis)
    reasons = [(each.title, each.left_out or each.no_data) for each in every if each.anchor != DATA_QUALITY]
    not_shown = [f"{title}: {why.removesuffix('.')}." for title, why in reasons if why]
    for place, each in enumerate(every):
        if each.anchor == DATA_QUALITY and not_shown:
            gaps = [Paragraph(each.left_out)] if each.left_out else each.blocks
            every[place] = each._replace(blocks=[*gaps, Part("Not shown", [Bullets(not_shown)])])
    return [each for each in every if not each.left_out]


def page(template: str, title: str, words: Mapping[str, object], scripts: Sequence[Markup] = ()) -> str:
    """Return a page with its styles and scripts; the template extends `page.html`."""
    return filled(
        template,
        title=title,
        version=metadata.version("rlscope"),
        states=STATES,
        style=Markup(asset("report.css")),
        chart_config=Markup(asset(CHART_CONFIG)),
        scripts=scripts,
        policy=content_policy(scripts),
        **words,
    )


@cache
def page_scripts(names: tuple[str, ...] = SCRIPTS) -> tuple[Markup, ...]:
    """Vega, Vega-Lite and Vega-Embed as one script, then those of the page; none contains a closing script tag.

    Line ends are normalized, because a parser does that before hashing.
    """
    texts = (_bundle(), *(asset(name) for name in names))
    return tuple(Markup(text.replace("\r\n", "\n").replace("\r", "\n")) for text in texts)


def _bundle() -> str:
    """Return the libraries as one script, from the user's cache if it has this version: bundling takes a second.

    A cached bundle is used only if it is complete and belongs to this user, because it becomes part of every report.
    """
    kept = cache_folder().with_name(f"vega-{metadata.version('vl-convert-python')}.js")
    with suppress(OSError, ValueError):
        digest, newline, known = kept.read_bytes().decode().partition("\n")
        if newline and digest == f"// {_hash(known)}" and kept.stat().st_uid == os.getuid():
            return known
    # The type stub lacks the argument's default.
    made: str = vl_convert.javascript_bundle()  # pyright: ignore[reportCallIssue]
    with suppress(OSError, OutputError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_file(kept, f"// {_hash(made)}\n{made}".encode())
    return made


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def notebook(shown: Iterable[Block]) -> str:
    """Return the blocks as an HTML fragment with its own style, without scripts and without links into a page."""
    html = filled("card.html", blocks=shown, version=metadata.version("rlscope"), style=Markup(asset("card.css")))
    return re.sub(r'<a href="#[^"]*">(.*?)</a>', r"\1", html)


class Charts:
    """Charts of a report: `charts.workers_all()` is an Altair chart with its data; `dir(charts)` lists their names.

    A chart is listed only if there is data for it, and it is drawn when it is first called.
    """

    def __init__(self, draw: Callable[[], Iterable[Drawn]]) -> None:
        self._draw = draw

    def __getattr__(self, name: str) -> Callable[[], Chart]:
        if name.startswith("_"):
            raise AttributeError(name)
        drawn = self._drawn
        if name not in drawn:
            near = get_close_matches(name, drawn, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(drawn) or 'none'}"
            raise AttributeError(f"no chart {name!r}; {hint}")
        made = partial(standalone, drawn[name].spec or "", json.loads(asset(CHART_CONFIG)), WIDTH_PX)
        made.__doc__ = f"{drawn[name].figure.title}. {drawn[name].figure.reading}"
        return made

    def __dir__(self) -> list[str]:
        return list(self._drawn)

    def __repr__(self) -> str:
        return fmt.printable(f"Charts({', '.join(self._drawn)})")

    @cached_property
    def _drawn(self) -> Mapping[str, Drawn]:
        """Every figure with something to draw, by the name of its anchor in the report."""
        return {each.anchor.removeprefix("figure-").replace("-", "_"): each for each in self._draw() if each.spec}


def charts_of(analysis: AnalysisResult) -> Charts:
    """Return the charts of a report."""
    return Charts(lambda: (figure for section in sections_of(analysis) for figure in figures_in(section.blocks)))


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
