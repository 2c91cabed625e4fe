"""The analysis in blocks: the card that `rlscope analyze` prints, and its digest for a pull request or a chat."""

from collections.abc import Iterator

from rlscope import format as fmt
from rlscope.analysis.result import AnalysisResult, TokenStaleness
from rlscope.model.forecast.result import ModelResult
from rlscope.reports.blocks import (
    Answer,
    Bar,
    Bars,
    Block,
    Bullets,
    Callout,
    Fact,
    Facts,
    Paragraph,
    Part,
    RoleBar,
    Table,
)
from rlscope.reports.text import model as model_words
from rlscope.reports.text import verdict as verdict_words
from rlscope.reports.text.actions import COLUMNS, below_table, filled_columns
from rlscope.reports.text.actions import TITLE as ACTIONS_TITLE
from rlscope.reports.text.advice import TITLE as ADVICE_TITLE
from rlscope.reports.text.advice import advice_part
from rlscope.reports.text.brief import brief_of, extent_words, made_with, no_gaps
from rlscope.reports.text.findings import callouts
from rlscope.reports.text.ledger import ledger_block
from rlscope.reports.text.names import preemption_sentence
from rlscope.reports.text.origin import counted_words, file_words, reported_staleness, reported_throughput
from rlscope.reports.text.rules import TITLE as ALERTS_TITLE
from rlscope.reports.text.rules import FiredRule, fired_rules
from rlscope.reports.text.shifts import TITLE as EVENTS_TITLE
from rlscope.reports.text.shifts import events_block
from rlscope.reports.text.states import (
    auxiliary_sentence,
    row_notes,
    startup_words,
    unrecorded_sentence,
)
from rlscope.reports.text.step_bounds import bounds_part

_BARS_MAX = 10
"""Rows of a histogram: the last ones are merged if there are more."""


def card_blocks(analysis: AnalysisResult) -> Iterator[Block]:
    """Yield the whole analysis."""
    gaps, bounds = verdict_words.gap_lines(analysis), analysis.step_bounds
    yield _verdict(analysis)
    if gaps:
        yield Part("The data has gaps", [Bullets(gaps)], "warning")
    yield Part("Where the GPU time went", list(_ledger(analysis)))
    if analysis.events:
        yield Part(EVENTS_TITLE, [events_block(analysis.events, analysis.run.started_ns)])
    yield from _actions(analysis)
    if bounds is not None:
        yield bounds_part(bounds)
    yield from _model(analysis)
    yield Part("Throughput, measured", [Facts(_throughput(analysis))])
    yield Part("Staleness, whole run", list(_staleness(analysis)))
    found = callouts(analysis, verdict_words.actions_of(analysis))
    yield Part("Findings, whole run", found or [Paragraph(verdict_words.no_findings(analysis))])
    if analysis.alerts:
        yield Part(ALERTS_TITLE, _alerts(analysis))
    if not gaps:
        yield Part("Data quality", [Paragraph(no_gaps(analysis.data_quality))])


def _verdict(analysis: AnalysisResult) -> Answer:
    run, brief, imported = analysis.run, brief_of(analysis), analysis.data_quality.imported
    about = (
        run.run_id,
        *((f"from {file_words(imported)}",) if imported is not None and imported.files else ()),
        *extent_words(run),
        fmt.counted(run.steps, "step", "steps"),
        *made_with(run),
    )
    reasons = [
        Fact("Why", brief.why),
        Fact("Next", brief.next_step),
        *(Fact("Or", line) for line in verdict_words.then_steps(analysis)),
        Fact("GPU time", f"{brief.spent}, whole run{startup_words(analysis.ledger)}"),
        brief.achieved,
        Fact("Run", " · ".join(about)),
    ]
    return Answer(brief.label, brief.headline, reasons, brief.alarm or "", name="Verdict")


def _ledger(analysis: AnalysisResult) -> Iterator[Block]:
    ledger, run, window = analysis.ledger, analysis.run, analysis.run.window
    if not ledger.states:
        yield Paragraph(f"{fmt.NO_DATA}: no worker with a GPU recorded anything.")
        return
    yield ledger_block(analysis)
    steps = f"Steady state: steps {fmt.count(window.first_step)} to {fmt.count(window.last_step)}." if window else ""
    total = f"The rows add up to {fmt.gpu_time(ledger.total_gpu_s)}."
    rows = row_notes(ledger, has_steady=window is not None)
    notes = (steps, total, *rows, unrecorded_sentence(ledger), auxiliary_sentence(run))
    yield Paragraph("Bars show the whole run.  █ work  ▒ waiting  ░ overhead, unattributed", "note")
    yield Paragraph(" ".join(filter(None, notes)), "note")


def _actions(analysis: AnalysisResult) -> Iterator[Block]:
    """Yield every action with its gain and cost, and how to verify one; nothing without actions."""
    rows = verdict_words.action_rows(analysis)
    if rows:
        table = Table(ACTIONS_TITLE, COLUMNS, rows, "stacks", is_numbered=True)
        yield Part(ACTIONS_TITLE, [table, Paragraph(below_table(verdict_words.actions_of(analysis)), "note")])


def _model(analysis: AnalysisResult) -> Iterator[Block]:
    """Yield the recommended layout, predicted, measured and replayed, losses from the upper bound, time to finish."""
    model = analysis.model
    if not isinstance(model, ModelResult):
        yield Part(ADVICE_TITLE, [Paragraph(model_words.no_result_sentence(model))])
        return
    yield advice_part(model)
    yield model_words.prediction_part(model)
    yield model_words.replay_part(model, is_short=True)
    notes = [Paragraph(sentence, "note") for sentence in model_words.gap_sentences(model)]
    yield Part(model_words.GAP_TITLE, [_losses(model), *notes])
    yield model_words.finish_part(model, analysis.run)


def _losses(model: ModelResult) -> Bars:
    """Return a bar for each loss, from the throughput before it to the throughput after it."""
    bound, achieved = model.gap.bound_tokens_per_s, model.gap.achieved_tokens_per_s
    bars = [Bar(model_words.BOUND, fmt.tokens_per_second(bound), 1.0)]
    for row in model_words.loss_rows(model):
        ends = sorted((row.left_tokens_per_s / bound, (row.left_tokens_per_s + row.lost_tokens_per_s) / bound))
        bars.append(Bar(row.cause.name, row.lost, ends[1], ends[0], "wait"))
    return Bars([*bars, Bar(model_words.MEASURED, fmt.tokens_per_second(achieved), achieved / bound if bound else 0.0)])


def _throughput(analysis: AnalysisResult) -> list[Fact]:
    rates = analysis.throughput
    counted = counted_words(rates)
    return [
        Fact("trained, steady state", fmt.tokens_per_second(rates.steady_tokens_per_s) + counted),
        Fact("trained, whole run", fmt.tokens_per_second(rates.achieved_tokens_per_s) + counted),
        Fact("effective (importance ratios)", fmt.tokens_per_second(rates.effective_tokens_per_s)),
        Fact("generated, whole run", fmt.tokens_per_second(rates.generated_tokens_per_s)),
        Fact("trained in total", _trained_in_total(analysis)),
        *(Fact("", line) for line in reported_throughput(analysis)),
        Fact("steady state", verdict_words.window_sentence(analysis)),
    ]


def _trained_in_total(analysis: AnalysisResult) -> str:
    rates, run = analysis.throughput, analysis.run
    if rates.counted_tokens is not None:
        return f"{fmt.tokens(rates.counted_tokens)}, prompts included"
    if rates.achieved_tokens_per_s is None and not run.samples_trained:
        return fmt.NO_DATA
    return f"{fmt.tokens(run.tokens_trained)} in {fmt.counted(run.samples_trained, 'sample', 'samples')}"


def _staleness(analysis: AnalysisResult) -> Iterator[Block]:
    staleness, cap = analysis.staleness, analysis.run.max_staleness
    tokens, samples = staleness.tokens, staleness.samples
    if tokens is None:
        lines = reported_staleness(analysis) or [f"{fmt.NO_DATA}: no trained token has a known version."]
        yield from map(Paragraph, lines)
        return
    lasting = verdict_words.version_lasts(analysis)
    spread = f"p50 {tokens.p50}, p95 {tokens.p95}, p99 {tokens.p99}, max {tokens.max}"
    oldest = fmt.NO_DATA
    if samples is not None:
        oldest = f"mean {fmt.significant(samples.mean)}, p95 {samples.p95}, max {samples.max}"
    over_cap = "the run has no cap" if cap is None else f"{fmt.tokens(staleness.over_cap_tokens)} (cap {cap})"
    yield Facts(
        [
            Fact("tokens", f"mean {fmt.significant(tokens.mean)}, {spread}"),
            Fact("samples (oldest token)", oldest),
            Fact("added during generation", fmt.versions(staleness.in_flight_mean)),
            Fact("added in the queue", fmt.versions(staleness.in_queue_mean)),
            *([Fact("a version lasts", lasting)] if lasting else []),
            Fact("over the cap", over_cap),
        ]
    )
    yield _histogram(tokens, cap)


def _histogram(tokens: TokenStaleness, cap: int | None) -> Bars:
    head, tail = tokens.histogram[: _BARS_MAX - 1], tokens.histogram[_BARS_MAX - 1 :]
    rows = [(age, age, count) for age, count in head]
    rows += [(tail[0][0], tail[-1][0], sum(count for _, count in tail))] if tail else []
    counts = [count for _, _, count in rows]
    total, most = sum(counts) or 1, max(counts, default=1) or 1
    return Bars(
        [
            Bar(
                f"{first}" if first == last else f"{first}–{last}",
                fmt.percent(count / total),
                count / most,
                kind="over" if cap is not None and first > cap else "work",
                note=fmt.tokens(count) + (" over the cap" if cap is not None and first > cap else ""),
            )
            for first, last, count in rows
        ]
    )


def _alerts(analysis: AnalysisResult) -> list[Block]:
    return [
        Callout("", alert.severity, f"{alert.rule}, {alert.when}", alert.cost, "", alert.what, "")
        for alert in fired_rules(analysis)
    ]


def digest_blocks(analysis: AnalysisResult) -> Iterator[Block]:
    """Yield the card without its numbers."""
    brief, model = brief_of(analysis), analysis.model
    yield Answer(
        brief.label, brief.headline, [Fact("Why", brief.why), Fact("Next", brief.next_step)], brief.alarm or ""
    )
    if brief.actions:
        places = filled_columns(brief.actions)
        rows = [[row[place] for place in places] for row in brief.actions]
        yield Part(ACTIONS_TITLE, [Table("", [COLUMNS[place] for place in places], rows, is_numbered=True)])
    if analysis.step_bounds is not None:
        yield bounds_part(analysis.step_bounds)
    yield Facts([Fact("GPU time, whole run", brief.spent)])
    spent = [(role.role, _priced(role.gpu_time, role.money), _named(role)) for role in brief.roles]
    yield Table("", ("", "GPU time", "largest states"), spent)
    losses = [(cause.words, _priced(cause.gpu_time, cause.money), cause.share) for cause in brief.causes]
    yield Table("", (f"losses, {brief.stretch[:1].lower()}{brief.stretch[1:]}", "GPU time", "share"), losses)
    choice = brief.choice
    yield Facts([Fact(ADVICE_TITLE, brief.no_choice if choice is None else f"{choice.headline}. {choice.why}")])
    if choice is not None:
        yield choice.table
    preempted = preemption_sentence(model) if isinstance(model, ModelResult) else None
    yield Facts([brief.achieved, *([Fact("KV cache", preempted)] if preempted else [])])
    found = [(each.severity, each.title, each.cost) for each in callouts(analysis, verdict_words.actions_of(analysis))]
    yield Table("", ("severity", "finding", "GPU time"), found)
    if analysis.alerts:
        yield Part(ALERTS_TITLE, [Table("", FiredRule._fields, fired_rules(analysis))])
    yield Paragraph(f"{'⚠' if brief.gaps else '✓'} {brief.quality}")
    yield Paragraph(f"{brief.run_id} · {brief.about}", "note")


def _named(role: RoleBar) -> str:
    return ", ".join(f"{part.label} {part.share}" for part in role.named)


def _priced(gpu_time: str, money: str) -> str:
    return f"{gpu_time}, {money}" if money else gpu_time
