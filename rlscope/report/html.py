"""The analysis as one HTML file that needs no network: its scripts, styles, pictures and numbers are inside."""

from collections.abc import Sequence
from functools import cache
from importlib import metadata, resources
from typing import NamedTuple

import vl_convert
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from rlscope.analysis import Analysis, LedgerState, RunFacts
from rlscope.diagnose.finding import Finding
from rlscope.report import figures, findings, numbers, wording
from rlscope.report.outlook_figures import OutlookWords, outlook_words
from rlscope.report.states import STATES, State, role_order, state_label, state_of


class _Fact(NamedTuple):
    name: str
    value: str
    note: str = ""


class _LedgerRow(NamedTuple):
    state: State
    label: str
    share: str
    share_ratio: float
    gpu_time: str
    gpu_idle: str


class _LedgerRole(NamedTuple):
    role: str
    gpu_time: str
    rows: list[_LedgerRow]


class _FindingWords(NamedTuple):
    anchor: str
    severity: str
    title: str
    sentence: str
    remedy: str
    cost: str
    interval: str


class _Page(NamedTuple):
    """Everything that the template shows, in words."""

    analysis: Analysis
    version: str
    label: str
    alarm: str | None
    headline: str
    why: str
    next_step: str
    window: str
    started: str
    duration: str
    facts: list[_Fact]
    gaps: list[str]
    outlook: OutlookWords
    ledger_total: figures.Drawn
    ledger_roles: list[_LedgerRole]
    ledger_gpu_time: str
    has_gpu_idle: bool
    timelines: list[figures.Drawn]
    throughput_facts: list[_Fact]
    throughput: list[figures.Drawn]
    staleness_facts: list[_Fact]
    version_sources: str
    staleness: list[figures.Drawn]
    findings: list[_FindingWords]
    engines: list[figures.Drawn]
    balance_facts: list[_Fact]
    samples: list[figures.Drawn]
    weight_updates: list[figures.Drawn]
    states: tuple[State, ...]


def render(analysis: Analysis) -> str:
    """The page as one string."""
    return _environment().get_template("report.html").render(page=_page(analysis), asset=_asset, bundle=_bundle())


def _page(analysis: Analysis) -> _Page:
    run = analysis.run
    return _Page(
        analysis=analysis,
        version=metadata.version("rlscope"),
        label=wording.verdict_label(analysis.verdict.bottleneck),
        alarm=wording.alarm(analysis),
        headline=wording.headline(analysis),
        why=wording.why(analysis),
        next_step=wording.next_step(analysis),
        window=wording.window_sentence(analysis),
        started=numbers.instant(run.started_ns),
        duration=numbers.duration(run.duration_s),
        facts=_facts(analysis),
        gaps=wording.gap_lines(analysis),
        outlook=outlook_words(analysis),
        ledger_total=figures.drawn_total(analysis),
        ledger_roles=_ledger_roles(analysis.ledger.states),
        ledger_gpu_time=numbers.gpu_time(analysis.ledger.total_gpu_s),
        has_gpu_idle=any(state.gpu_idle_ratio is not None for state in analysis.ledger.states),
        timelines=figures.drawn_ledger(analysis),
        throughput_facts=_throughput_facts(analysis),
        throughput=_draw(figures.THROUGHPUT, analysis),
        staleness_facts=_staleness_facts(analysis),
        version_sources=_version_sources(analysis),
        staleness=_draw(figures.STALENESS, analysis),
        findings=_findings(analysis),
        engines=_draw(figures.ENGINES, analysis),
        balance_facts=_balance_facts(analysis),
        samples=_draw(figures.SAMPLES, analysis),
        weight_updates=_draw(figures.WEIGHT_UPDATES, analysis),
        states=STATES,
    )


def _draw(wanted: Sequence[figures.Figure], analysis: Analysis) -> list[figures.Drawn]:
    return [figures.drawn(figure, analysis) for figure in wanted]


def _facts(analysis: Analysis) -> list[_Fact]:
    run, rates, tokens = analysis.run, analysis.throughput, analysis.staleness.tokens
    whole = rates.achieved_tokens_per_s
    cap = "no cap stated" if run.max_staleness is None else f"cap {run.max_staleness}"
    sides = [(run.trainer_gpus, "train"), (run.sampler_gpus, "sample"), (run.colocated_gpus, "do both")]
    layout = ", ".join(f"{numbers.count(gpus)} {does}" for gpus, does in sides if gpus)
    return [
        _Fact(
            "Trained, steady",
            numbers.tokens_per_second(rates.steady_tokens_per_s),
            "" if whole is None else f"{numbers.tokens_per_second(whole)} over the whole run",
        ),
        _Fact(
            "Token staleness",
            numbers.NO_DATA if tokens is None else f"{numbers.significant(tokens.mean)} mean",
            cap if tokens is None else f"p95 {tokens.p95}, max {tokens.max}, {cap}",
        ),
        _Fact("GPUs", numbers.count(run.n_gpus), layout),
        _Fact("GPU time", numbers.gpu_time(analysis.ledger.total_gpu_s), f"in {numbers.duration(run.duration_s)}"),
        _Fact("Training steps", numbers.count(run.steps), numbers.tokens(run.tokens_trained)),
    ]


def _ledger_roles(states: Sequence[LedgerState]) -> list[_LedgerRole]:
    roles: list[_LedgerRole] = []
    for role in sorted({state.role for state in states}, key=role_order):
        own = [state for state in states if state.role == role and state.gpu_ns > 0]
        total_s = sum(state.gpu_ns for state in own) / 1e9
        roles.append(_LedgerRole(role.capitalize(), numbers.gpu_time(total_s), [_ledger_row(state) for state in own]))
    return roles


def _ledger_row(state: LedgerState) -> _LedgerRow:
    idle = "" if state.gpu_idle_ratio is None else numbers.percent(state.gpu_idle_ratio)
    return _LedgerRow(
        state_of(state.state),
        state_label(state.state, state.reason),
        numbers.percent(state.share_ratio),
        numbers.finite(state.share_ratio) or 0.0,
        numbers.gpu_time(state.gpu_s),
        idle,
    )


def _throughput_facts(analysis: Analysis) -> list[_Fact]:
    rates, run = analysis.throughput, analysis.run
    return [
        _Fact("Trained, steady", numbers.tokens_per_second(rates.steady_tokens_per_s)),
        _Fact("Trained, whole run", numbers.tokens_per_second(rates.achieved_tokens_per_s)),
        _Fact("Generated, whole run", numbers.tokens_per_second(rates.generated_tokens_per_s)),
        _Fact("Samples trained", numbers.count(run.samples_trained)),
    ]


def _staleness_facts(analysis: Analysis) -> list[_Fact]:
    staleness, cap = analysis.staleness, analysis.run.max_staleness
    tokens, samples = staleness.tokens, staleness.samples
    over = "the run states no cap" if cap is None else numbers.tokens(staleness.over_cap_tokens)
    facts = [
        _Fact("Gained in flight", numbers.versions(staleness.in_flight_mean), "while the sample was generated"),
        _Fact("Gained in the queue", numbers.versions(staleness.in_queue_mean), "between its end and its step"),
        _Fact("Beyond the cap", over, "" if cap is None else f"cap {cap}"),
    ]
    if samples is not None:
        facts.insert(
            0, _Fact("Oldest token of a sample", f"{numbers.significant(samples.mean)} mean", f"max {samples.max}")
        )
    if tokens is not None:
        spread = f"p50 {tokens.p50}, p95 {tokens.p95}, p99 {tokens.p99}, max\u00a0{tokens.max}"
        facts.insert(0, _Fact("Tokens", f"{numbers.significant(tokens.mean)} mean", spread))
    return facts


def _version_sources(analysis: Analysis) -> str:
    sources = analysis.staleness.version_source_tokens
    return ", ".join(f"{numbers.tokens(n)} by {source.replace('_', ' ')}" for source, n in sources.items())


def _balance_facts(analysis: Analysis) -> list[_Fact]:
    frame = analysis.answers.get("token_balance")
    if frame is None or frame.is_empty():
        return []
    return [
        _Fact(name.removesuffix("_tokens").replace("_", " ").capitalize(), numbers.tokens(value))
        for name, value in frame.row(0, named=True).items()
    ]


def _findings(analysis: Analysis) -> list[_FindingWords]:
    words: list[_FindingWords] = []
    for number, finding in enumerate(analysis.findings, start=1):
        words.append(
            _FindingWords(
                f"finding-{number}",
                finding.severity,
                findings.title(finding),
                findings.sentence(finding),
                findings.remedy(finding),
                "" if finding.cost_gpu_s is None else numbers.gpu_time(finding.cost_gpu_s),
                _interval(finding, analysis.run),
            )
        )
    return words


def _interval(finding: Finding, run: RunFacts) -> str:
    if finding.start_ns is None or finding.end_ns is None:
        return ""
    start_s, end_s = (finding.start_ns - run.started_ns) / 1e9, (finding.end_ns - run.started_ns) / 1e9
    if start_s <= 0 and end_s >= run.duration_s:
        return "over the whole run"
    return f"from {numbers.duration(start_s)} to {numbers.duration(end_s)} into the run"


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
