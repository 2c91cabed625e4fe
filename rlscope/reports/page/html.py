"""The analysis as one HTML file that needs no network: scripts, styles, charts and numbers are inside.

Its content policy lists every script by hash, so no other script runs. To stay below PAGE_MAX_BYTES the page stores
chart data by column and leaves out charts, largest first: static ones, which only viewers without scripts need, before
those drawn by scripts. The numbers of a chart always stay. In a notebook the first screen is a card without scripts,
and the charts of the page are there by name.
"""

import base64
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import cache, partial
from importlib import metadata
from typing import Any, Final, NamedTuple

import vl_convert
from markupsafe import Markup

from rlscope import format as fmt
from rlscope.analysis.result import AnalysisResult
from rlscope.comparison.history import cache_folder
from rlscope.errors import OutputError
from rlscope.reports.charts.encoding import Chart, shown_from_s, standalone
from rlscope.reports.page.figure import WIDTH_PX, Drawn
from rlscope.reports.page.templating import CHART_CONFIG, asset, filled
from rlscope.reports.sections import SECTIONS, Section
from rlscope.reports.sections.findings import FindingsSection, findings_section
from rlscope.reports.sections.queries import QueriesSection, figures_in, queries_section
from rlscope.reports.sections.throughput import per_gpu_facts
from rlscope.reports.text.actions import COLUMNS
from rlscope.reports.text.actions import TITLE as ACTIONS_TITLE
from rlscope.reports.text.brief import Brief, Fact, brief_of
from rlscope.reports.text.origin import start_words
from rlscope.reports.text.states import STATES, State
from rlscope.reports.text.verdict import below_actions
from rlscope.text_out import write_file

PAGE_MAX_BYTES: Final = 3_000_000


def packed(spec: str) -> str:
    """The chart with its data by column, so that names are stored once; `report.js` turns it back into rows."""
    document: dict[str, Any] = json.loads(spec)
    document["datasets"] = {name: _columns(rows) for name, rows in document.get("datasets", {}).items()}
    return json.dumps(document, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def fitting(sizes_bytes: Mapping[str, int], room_bytes: int) -> set[str]:
    """The names to keep so that the rest fits the room: the largest are dropped first."""
    kept, sum_bytes = set[str](), 0
    for name in sorted(sizes_bytes, key=lambda name: (sizes_bytes[name], name)):
        sum_bytes += sizes_bytes[name]
        if sum_bytes > room_bytes:
            break
        kept.add(name)
    return kept


def _columns(rows: list[dict[str, Any]]) -> list[dict[str, Any]] | dict[str, list[Any]]:
    """The rows as columns; as they are where not all of them have the same ones."""
    if not rows or any(row.keys() != rows[0].keys() for row in rows):
        return rows
    return {name: [row[name] for row in rows] for name in rows[0]}


class FirstScreen(NamedTuple):
    """What the first screen shows."""

    brief: Brief
    facts: list[Fact]


def first_screen(analysis: AnalysisResult) -> FirstScreen:
    """Make the first screen."""
    brief = brief_of(analysis)
    return FirstScreen(brief, [brief.achieved, *_facts(analysis)])


def _facts(analysis: AnalysisResult) -> list[Fact]:
    run, tokens = analysis.run, analysis.staleness.tokens
    # A log that counts the tokens of a step does not say which of them were trained on.
    is_unknown = analysis.throughput.counted_tokens or run.tokens_trained is None
    trained = "" if is_unknown else f"{fmt.tokens(run.tokens_trained)} trained"
    cap = "no cap" if run.max_staleness is None else f"cap\N{NO-BREAK SPACE}{run.max_staleness}"
    sides = [(run.trainer_gpus, "train"), (run.sampler_gpus, "sample"), (run.colocated_gpus, "colocated")]
    layout = ", ".join(f"{fmt.count(gpus)} {does}" for gpus, does in sides if gpus)
    return [
        Fact(
            "Token staleness, whole run",
            fmt.NO_DATA if tokens is None else f"{fmt.significant(tokens.mean)} mean",
            # A number stays beside its name where the line ends.
            cap if tokens is None else f"p95\N{NO-BREAK SPACE}{tokens.p95}, max\N{NO-BREAK SPACE}{tokens.max}, {cap}",
        ),
        Fact("GPUs", fmt.count(run.n_gpus), layout),
        Fact("Training steps", fmt.count(run.steps), trained),
        *per_gpu_facts(analysis),
    ]


SCRIPTS: Final = ("zoom.js", "folds.js", "report.js", "tables.js")
"""Our scripts, in the order in which they run after the bundle."""


class _Made(NamedTuple):
    """A section with its words."""

    section: Section
    words: NamedTuple

    @property
    def no_data(self) -> list[str]:
        """Why charts are missing, each reason once."""
        reasons = [drawn.figure.empty for drawn in figures_in(self.words) if not drawn.spec]
        return list(dict.fromkeys(reasons))

    @property
    def left_out(self) -> str:
        """Why the section is left out; empty where it has something to show."""
        said = str(getattr(self.words, "no_reason", None) or getattr(self.words, "nothing", None) or "")
        figures = list(figures_in(self.words))
        is_bare = bool(figures) and not any(drawn.spec for drawn in figures)
        return said or ("; ".join(self.no_data) if is_bare else "")


class NotShown(NamedTuple):
    """Something that the page leaves out for want of data."""

    title: str
    why: str


class _Zoom(NamedTuple):
    """The stretch that charts over time show at first, in seconds since the run started; the run ends at to_s."""

    from_s: float
    to_s: float


class _Page(NamedTuple):
    """Everything that the template shows."""

    version: str
    run_id: str
    started: str
    duration: str
    first: FirstScreen
    found: FindingsSection
    sections: list[_Made]
    """Those with something to show."""
    not_shown: list[NotShown]
    queries: QueriesSection
    states: tuple[State, ...]
    actions_title: str
    action_columns: list[str]
    action_rows: list[list[str]]
    how_to_verify: str
    """Without the columns that are empty in every row; the setting is second, and stands beside what to do."""
    zoom: _Zoom
    style: Markup
    chart_config: Markup
    scripts: tuple[Markup, ...]
    policy: str


class _Picture(NamedTuple):
    """The chart in a figure's place; without a spec the page says that it was left out."""

    anchor: str
    spec: str | None


def render(analysis: AnalysisResult) -> str:
    """Return the report as one string of at most PAGE_MAX_BYTES."""
    page = _page(analysis)
    figures = [figure for made in page.sections for figure in figures_in(made.words)]
    return with_pictures(filled("report.html", page=page), {figure.anchor: figure for figure in figures})


def with_pictures(html: str, figures: Mapping[str, Drawn]) -> str:
    """Return the page with as many charts as fit."""
    specs = {anchor: packed(figure.spec) for anchor, figure in figures.items() if figure.spec}
    place_bytes = len(filled("picture.html", picture=_Picture("", "0")).encode())
    room_bytes = PAGE_MAX_BYTES - len(html.encode()) - sum(place_bytes + 2 * len(anchor) for anchor in specs)
    live = fitting({anchor: len(spec.encode()) for anchor, spec in specs.items()}, room_bytes)
    for anchor, spec in specs.items():
        shown = _Picture(anchor, spec if anchor in live else None)
        html = html.replace(str(figures[anchor].place), filled("picture.html", picture=shown))
    return html


def content_policy(scripts: Sequence[str]) -> str:
    """A policy that allows these scripts only: no eval, no requests.

    Inline styles are allowed, because the lengths of bars are styles; they cannot load anything.
    """
    hashes = " ".join(f"'sha256-{_hash(script)}'" for script in scripts)
    return f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; " + (
        "form-action 'none'"
    )


def _page(analysis: AnalysisResult) -> _Page:
    run, scripts = analysis.run, page_scripts()
    first = first_screen(analysis)
    filled_in = [
        place
        for place in range(len(COLUMNS))
        if COLUMNS[place] != COLUMNS.setting and any(row[place] for row in first.brief.actions)
    ]
    every = [_Made(section, section.make(analysis)) for section in SECTIONS]
    not_shown = _not_shown(every)
    # The reasons stand in the section on data quality.
    made = [each for each in every if not each.left_out or (not_shown and each.section.anchor == "data-quality")]
    return _Page(
        version=metadata.version("rlscope"),
        run_id=run.run_id,
        started=start_words(run.started_ns, analysis.data_quality.imported),
        duration=fmt.duration(run.duration_s),
        first=first,
        found=findings_section(analysis),
        sections=made,
        not_shown=not_shown,
        queries=queries_section(analysis, _uses(made)),
        states=STATES,
        actions_title=ACTIONS_TITLE,
        action_columns=[COLUMNS[place] for place in filled_in],
        action_rows=[[row.what, row.setting, *(row[place] for place in filled_in[1:])] for row in first.brief.actions],
        how_to_verify=below_actions(analysis),
        zoom=_Zoom(shown_from_s(run), run.duration_s),
        style=Markup(asset("report.css")),
        chart_config=Markup(asset(CHART_CONFIG)),
        scripts=scripts,
        policy=content_policy(scripts),
    )


def _not_shown(sections: Sequence[_Made]) -> list[NotShown]:
    """What is left out: whole sections, and single charts of the others."""
    left_out = [(each.section, each.left_out or "; ".join(each.no_data)) for each in sections]
    return [NotShown(section.title, why) for section, why in left_out if why and section.anchor != "data-quality"]


def _uses(sections: Sequence[_Made]) -> dict[str, list[str]]:
    """Where each query is used: the titles of its figures, and of the sections whose facts and tables need it."""
    uses: dict[str, list[str]] = {}
    for section, words in sections:
        for name in section.questions:
            uses.setdefault(name, []).append(f"the section “{section.title}”")
        for drawn in figures_in(words):
            for name in drawn.figure.asked if drawn.spec else ():
                uses.setdefault(name, []).append(drawn.figure.title)
    return uses


@cache
def page_scripts(names: tuple[str, ...] = SCRIPTS) -> tuple[Markup, ...]:
    """Vega, Vega-Lite and Vega-Embed as one script, then those of the page; none contains a closing script tag.

    Line ends are normalised, because a parser does that before hashing.
    """
    texts = (_bundle(), *(asset(name) for name in names))
    return tuple(Markup(text.replace("\r\n", "\n").replace("\r", "\n")) for text in texts)


def _bundle() -> str:
    """The libraries as one script. Bundling them takes a second, so it is kept in the user's cache, by its version.

    What is kept is taken only if it is whole, and if it belongs to this user: it becomes part of every page.
    """
    kept = cache_folder().with_name(f"vega-{metadata.version('vl-convert-python')}.js")
    with suppress(OSError, ValueError):
        digest, newline, known = kept.read_bytes().decode().partition("\n")
        if newline and digest == f"// {_hash(known)}" and kept.stat().st_uid == os.getuid():
            return known
    # The stub has the argument without its default.
    made: str = vl_convert.javascript_bundle()  # pyright: ignore[reportCallIssue]
    with suppress(OSError, OutputError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_file(kept, f"// {_hash(made)}\n{made}".encode())
    return made


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def card(analysis: AnalysisResult) -> str:
    """The first screen of the page: verdict, GPU time by role, recommended layout, and the facts beside them."""
    return filled("card.html", first=first_screen(analysis), version=metadata.version("rlscope"))


class Charts:
    """The charts of the page: `charts.ledger()` is an Altair chart with its data inside; `dir(charts)` names them all.

    Which there are depends on the run: a chart without data is not among them. Nothing is drawn before it is asked for.
    """

    def __init__(self, analysis: AnalysisResult) -> None:
        self._analysis = analysis
        self._known: Mapping[str, Drawn] | None = None

    def __getattr__(self, name: str) -> Callable[[], Chart]:
        if name.startswith("_"):
            raise AttributeError(name)
        drawn = self._drawn()
        if name not in drawn:
            near = get_close_matches(name, drawn, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(drawn) or 'none'}"
            raise AttributeError(f"no chart {name!r} of this run; {hint}")
        made = partial(chart_alone, drawn[name].spec or "")
        made.__doc__ = f"{drawn[name].figure.title}. {drawn[name].figure.reading}"
        return made

    def __dir__(self) -> list[str]:
        return list(self._drawn())

    def __repr__(self) -> str:
        return fmt.printable(f"Charts({', '.join(self._drawn())})")

    def _drawn(self) -> Mapping[str, Drawn]:
        """Every figure with something to draw, by the name of its anchor on the page."""
        if self._known is None:
            figures = [figure for section in SECTIONS for figure in figures_in(section.make(self._analysis))]
            self._known = {_chart_name(figure): figure for figure in figures if figure.spec}
        return self._known


def _chart_name(figure: Drawn) -> str:
    return figure.anchor.removeprefix("figure-").replace("-", "_")


def chart_alone(spec: str) -> Chart:
    """The chart of a spec to stand outside the page."""
    config: dict[str, Any] = json.loads(asset(CHART_CONFIG))
    return standalone(spec, config, WIDTH_PX)
