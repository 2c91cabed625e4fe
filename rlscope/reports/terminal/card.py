"""The analysis on a terminal: the verdict card, the gaps in the data, then the numbers.

Readable from 60 columns on and without color: bars and symbols repeat what colors show.
"""

from collections.abc import Sequence

from rich.box import ROUNDED
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rlscope import format as fmt
from rlscope.analysis.result import AnalysisResult, Finding, RunFacts
from rlscope.format import bulleted, plain
from rlscope.model.forecast.actions import Action
from rlscope.model.step_bounds import StepBounds
from rlscope.reports.blocks import Kind, LedgerRole, LedgerRow
from rlscope.reports.terminal.model import model_sections
from rlscope.reports.terminal.parts import WIDTH_MAX, pairs, panel, section
from rlscope.reports.text import findings, step_bounds
from rlscope.reports.text import verdict as verdict_words
from rlscope.reports.text.actions import COLUMNS
from rlscope.reports.text.actions import TITLE as ACTIONS_TITLE
from rlscope.reports.text.brief import brief_of, extent_words, no_gaps
from rlscope.reports.text.ledger import DROPPED, GPU_TIME, SHARE, STEADY_SHARE, ledger_roles
from rlscope.reports.text.origin import counted_words, file_words, reported_staleness, reported_throughput
from rlscope.reports.text.rules import TITLE, fired_rules
from rlscope.reports.text.states import publication_wait_sentence, startup_words, unrecorded_sentence

_BAR_EIGHTHS = "▏▎▍▌▋▊▉█"
_KIND_FILLS: dict[Kind, str] = {"work": "█", "wait": "▒", "weights": "░", "housekeeping": "░", "unknown": "░"}
_KIND_STYLES: dict[Kind, str] = {
    "work": "cyan",
    "wait": "dark_orange",
    "weights": "medium_purple",
    "housekeeping": "grey58",
    "unknown": "grey42",
}
_SEVERITY_STYLES = {"critical": "bold red", "warning": "yellow", "info": "cyan"}


def print_card(analysis: AnalysisResult, console: Console) -> None:
    """Print the whole analysis."""
    width = min(console.width, WIDTH_MAX)
    blocks: list[RenderableType] = [_verdict(analysis)]
    gaps = verdict_words.gap_lines(analysis)
    if gaps:
        blocks.append(_gaps(gaps))
    blocks += [
        section("Where the GPU time went", _ledger(analysis, width)),
        *_actions(analysis),
        *_bounds(analysis.step_bounds),
        *(section(title, body) for title, body in model_sections(analysis.model, analysis.run, width)),
        section("Throughput, measured", pairs(_throughput(analysis))),
        section("Staleness, whole run", _staleness(analysis, width)),
        section("Findings, whole run", _findings(analysis)),
        *([section(TITLE, _alerts(analysis))] if analysis.alerts else []),
    ]
    if not gaps:
        blocks.append(section("Data quality", Text(no_gaps(analysis.data_quality))))
    console.print(Group(*blocks), width=width, soft_wrap=False)


def _verdict(analysis: AnalysisResult) -> Panel:
    run, brief, imported = analysis.run, brief_of(analysis), analysis.data_quality.imported
    alarm = verdict_words.alarm(analysis)
    about = (
        run.run_id,
        *((f"from {file_words(imported)}",) if imported is not None and imported.files else ()),
        *extent_words(run),
        fmt.counted(run.steps, "step", "steps"),
    )
    rows = [
        *([] if alarm is None else [("Alarm", Text(alarm, style="bold red"))]),
        ("Verdict", Text(verdict_words.headline(analysis), style="bold")),
        ("Why", verdict_words.why(analysis)),
        ("Next", verdict_words.next_step(analysis)),
        *(("Or", line) for line in verdict_words.then_steps(analysis)),
        ("GPU time", f"{brief.spent}, whole run{startup_words(analysis.ledger)}"),
        (brief.achieved.name, f"{brief.achieved.value}, {brief.achieved.note}"),
        ("Run", " · ".join(about)),
    ]
    return panel(verdict_words.label(analysis), pairs(rows), "none" if alarm is None else "red")


def _actions(analysis: AnalysisResult) -> list[RenderableType]:
    """Return every action with its gain and cost, and how to verify one; empty without actions."""
    rows, below = verdict_words.action_rows(analysis), verdict_words.below_actions(analysis)
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for number, row in enumerate(rows, 1):
        table.add_row(f"{number}.", "", Text(row.what, style="bold"))
        named = zip(COLUMNS[1:], row[1:], strict=True)
        for name, value in named:
            if value:
                table.add_row("", name, plain(value))
    return [section(ACTIONS_TITLE, table), Padding(Text(below, style="dim"), (0, 0, 0, 2))] if rows else []


def _bounds(bounds: StepBounds | None) -> list[RenderableType]:
    """Return what each change could gain by the phases of a step; empty for a run with a model."""
    if bounds is None:
        return []
    lines: list[RenderableType] = [Text(step_bounds.phases_sentence(bounds.phases))]
    for row in step_bounds.bound_rows(bounds):
        head = Text(f"{row.change[:1].upper()}{row.change[1:]}: {row.throughput}", style="bold")
        below = f"assumes: {row.assumption}\nnarrowed by: {row.narrowed_by}"
        lines += [head, Padding(Text(below, style="dim"), (0, 0, 0, 2))]
    return [section(step_bounds.TITLE, Group(*lines))]


def _gaps(lines: Sequence[str]) -> Panel:
    return Panel(
        Group(*(bulleted("!", line) for line in lines)),
        title=Text(" The data has gaps ", style="bold yellow"),
        title_align="left",
        border_style="yellow",
        box=ROUNDED,
        padding=(0, 2),
    )


def _ledger(analysis: AnalysisResult, width: int) -> RenderableType:
    ledger = analysis.ledger
    if not ledger.states:
        return Text(f"{fmt.NO_DATA}: no worker with a GPU recorded anything.")
    has_idle = any(state.gpu_idle_ratio is not None for state in ledger.states)
    tables = [_role(role, width, has_idle=has_idle) for role in ledger_roles(analysis)]
    total = fmt.gpu_time(ledger.total_gpu_s)
    window = analysis.run.window
    steps = f"  Steady state: steps {fmt.count(window.first_step)} to {fmt.count(window.last_step)}." if window else ""
    closing = (
        f"Bars: % of run.  █ work  ▒ waiting  ░ overhead, unattributed{steps}\n"
        f"The rows add up to {total}. Indented rows and dropped samples are included in the rows above them."
    )
    notes = " ".join(filter(None, (closing, unrecorded_sentence(ledger), publication_wait_sentence(ledger))))
    return Group(*tables, Text(notes, style="dim"))


def _role(role: LedgerRole, width: int, *, has_idle: bool) -> Table:
    bar = 24 if width >= 100 else 6 if width >= 76 else 4
    label_width = 34 if width >= 100 else 27 if width >= 76 else 14
    has_steady = any(row.steady for row in role.rows)
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=True, header_style="dim")
    table.add_column(plain(f"{role.role} GPU time"), header_style="bold", overflow="fold", min_width=label_width)
    table.add_column(GPU_TIME, justify="right", no_wrap=True)
    table.add_column(SHARE.replace("of ", "of\n"), justify="right", no_wrap=True)
    table.add_column("", no_wrap=True, min_width=bar)
    if has_steady:
        table.add_column(STEADY_SHARE.replace("of ", "of\n"), justify="right", no_wrap=True)
    if has_idle:
        table.add_column("GPU idle", justify="right", max_width=5)
    for row in role.rows:
        cells = [row.steady] * has_steady, [row.gpu_idle] * has_idle
        label = Text(f"  {row.label}") if row.is_part and row.label != DROPPED else plain(row.label)
        bar_text = "" if row.is_part else _kind_bar(row, bar)
        style = "dim" if row.is_part else ""
        table.add_row(label, row.gpu_time, row.share, bar_text, *cells[0], *cells[1], style=style)
    table.add_row("")
    return table


def _kind_bar(row: LedgerRow, width: int) -> Text:
    kind = row.state.kind
    return Text(_KIND_FILLS[kind] * round(row.share_ratio * width) or "▏", style=_KIND_STYLES[kind])


def _throughput(analysis: AnalysisResult) -> list[tuple[str, str]]:
    rates = analysis.throughput
    counted = counted_words(rates)
    return [
        ("trained, steady state", fmt.tokens_per_second(rates.steady_tokens_per_s) + counted),
        ("trained, whole run", fmt.tokens_per_second(rates.achieved_tokens_per_s) + counted),
        ("effective (importance ratios)", fmt.tokens_per_second(rates.effective_tokens_per_s)),
        ("generated, whole run", fmt.tokens_per_second(rates.generated_tokens_per_s)),
        ("trained in total", _trained_in_total(analysis)),
        *(("", line) for line in reported_throughput(analysis)),
        ("steady state", verdict_words.window_sentence(analysis)),
    ]


def _trained_in_total(analysis: AnalysisResult) -> str:
    rates, run = analysis.throughput, analysis.run
    if rates.counted_tokens is not None:
        return f"{fmt.tokens(rates.counted_tokens)}, prompts included"
    if rates.achieved_tokens_per_s is None and not run.samples_trained:
        return fmt.NO_DATA
    return f"{fmt.tokens(run.tokens_trained)} in {fmt.counted(run.samples_trained, 'sample', 'samples')}"


def _staleness(analysis: AnalysisResult, width: int) -> RenderableType:
    staleness, cap = analysis.staleness, analysis.run.max_staleness
    tokens, samples = staleness.tokens, staleness.samples
    if tokens is None:
        lines = reported_staleness(analysis) or [f"{fmt.NO_DATA}: no trained token has a known version."]
        return Group(*map(plain, lines))
    lasting = verdict_words.version_lasts(analysis)
    facts = pairs(
        [
            (
                "tokens",
                f"mean {fmt.significant(tokens.mean)}, p50 {tokens.p50}, p95 {tokens.p95}, "
                f"p99 {tokens.p99}, max {tokens.max}",
            ),
            (
                "samples (oldest token)",
                "no data"
                if samples is None
                else f"mean {fmt.significant(samples.mean)}, p95 {samples.p95}, max {samples.max}",
            ),
            ("added in flight", fmt.versions(staleness.in_flight_mean)),
            ("added in the queue", fmt.versions(staleness.in_queue_mean)),
            *([("a version lasts", lasting)] if lasting else []),
            ("over the cap", _over_cap(analysis)),
        ]
    )
    return Group(facts, Text(""), _histogram(tokens.histogram, cap, 40 if width >= 100 else 24))


def _over_cap(analysis: AnalysisResult) -> str:
    cap = analysis.run.max_staleness
    return "the run has no cap" if cap is None else f"{fmt.tokens(analysis.staleness.over_cap_tokens)} (cap {cap})"


def _histogram(histogram: Sequence[tuple[int, int]], cap: int | None, width: int) -> Table:
    rows, total = _folded(histogram), sum(count for _, count in histogram) or 1
    largest = max((count for _, _, count in rows), default=1) or 1
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for first, last, count in rows:
        over = cap is not None and first > cap
        table.add_row(
            f"{first}" if first == last else f"{first}–{last}",
            Text(_bar(count / largest, width).ljust(width), style="red" if over else "cyan"),
            fmt.percent(count / total),
            fmt.tokens(count) + (" over the cap" if over else ""),
        )
    return table


def _folded(histogram: Sequence[tuple[int, int]], rows_max: int = 10) -> list[tuple[int, int, int]]:
    """(first, last, tokens) per bar: the last bars are merged if there are too many."""
    head, tail = histogram[: rows_max - 1], histogram[rows_max - 1 :]
    rows = [(age, age, count) for age, count in head]
    return [*rows, (tail[0][0], tail[-1][0], sum(count for _, count in tail))] if tail else rows


def _findings(analysis: AnalysisResult) -> RenderableType:
    if not analysis.findings:
        return Text(verdict_words.no_findings(analysis))
    ranked = verdict_words.actions_of(analysis)
    return Group(*(_finding(finding, ranked, analysis.run) for finding in analysis.findings))


def _finding(finding: Finding, ranked: Sequence[Action], run: RunFacts) -> RenderableType:
    head = Text(f"{finding.severity:<9}", style=_SEVERITY_STYLES[finding.severity])
    head.append_text(plain(findings.title(finding))).stylize("bold", 9)
    if finding.cost_gpu_s is not None:
        head.append(f"  {fmt.gpu_time(finding.cost_gpu_s)}", style="not bold")
    remedy = findings.remedy(finding, ranked, run.settings.get("framework"))
    words = Group(plain(findings.sentence(finding)), bulleted("→", remedy), Text(""))
    return Group(head, Padding(words, (0, 0, 0, 9)))


def _alerts(analysis: AnalysisResult) -> RenderableType:
    lines: list[RenderableType] = []
    for alert in fired_rules(analysis):
        head = Text(f"{alert.severity:<9}", style=_SEVERITY_STYLES[alert.severity])
        head.append_text(plain(f"{alert.rule}, {alert.when}")).stylize("bold", 9)
        head.append(f"  {alert.cost}" if alert.cost else "", style="not bold")
        lines += [head, Padding(plain(alert.what), (0, 0, 0, 9))]
    return Group(*lines)


def _bar(ratio: float, width: int) -> str:
    eighths = round(max(0.0, min(1.0, ratio)) * width * 8)
    if eighths == 0:
        return _BAR_EIGHTHS[0] if ratio > 0 else ""
    return "█" * (eighths // 8) + (_BAR_EIGHTHS[eighths % 8 - 1] if eighths % 8 else "")
