"""The analysis in blocks: the first screen of every format, and the card that `rlscope analyze` prints."""

from collections.abc import Iterator
from typing import Final

from rlscope import format as fmt
from rlscope.analysis.result import AnalysisResult
from rlscope.analysis.staleness import effective_share_of_all
from rlscope.model.forecast.result import ModelResult
from rlscope.reports.blocks import (
    Answer,
    Bar,
    Bars,
    Block,
    Bullets,
    Fact,
    Facts,
    Ledger,
    Link,
    Links,
    Paragraph,
    Part,
    Switch,
    Table,
)
from rlscope.reports.text import actions, advice, findings, learning, rules, shifts
from rlscope.reports.text import model as model_words
from rlscope.reports.text import verdict as verdict_words
from rlscope.reports.text.ledger import ledger_roles, steady_state, whole_run
from rlscope.reports.text.origin import about, counted_words, no_model_words, reported_staleness, reported_throughput
from rlscope.reports.text.price import million_gpu_s
from rlscope.reports.text.states import auxiliary_sentence, cap_sentence, unrecorded_sentence, use_words
from rlscope.reports.text.step_bounds import bounds_part

NO_GAPS: Final = "The recording is complete: no record is missing or unreadable, and every worker exited cleanly."
_NOT_KNOWN: Final = (
    "Every file was read and every worker exited cleanly. Files may still be missing: the run does not state "
    "how many rows its workers wrote."
)
_IN_DETAIL: Final = ("spent", "found", "alerts")
"""Blocks of the first screen that sum up what the card shows in full."""
_FILTERED_RATIO: Final = 0.10
"""Filtered share of the tokens that left the queue below which it is not stated."""
_BARS_MAX: Final = 10
"""Rows of a histogram: the last ones are merged if there are more."""


def card_blocks(analysis: AnalysisResult) -> Iterator[Block]:
    """Yield the whole analysis: the first screen without what the details below it repeat, then the details."""
    gaps = verdict_words.gap_lines(analysis)
    yield from (block for name, block in first_screen(analysis).items() if name not in _IN_DETAIL)
    if gaps:
        yield Part("The data has gaps", [Bullets(gaps)], "warning")
    total = Paragraph(whole_run(analysis).label, "note")
    yield Part("Where the GPU time went", [total, *ledger_blocks(analysis)])
    if analysis.events:
        yield Part(shifts.TITLE, [shifts.events_block(analysis.events, analysis.run.started_ns)])
    yield from _model(analysis)
    yield Part("Throughput, measured", throughput_blocks(analysis))
    yield Part("Staleness, whole run", [*staleness_blocks(analysis), *_histogram(analysis)])
    if rewarded := learning.all_sentences(analysis):
        yield Part(learning.TITLE, [Bullets(rewarded, "·")])
    found = findings.callouts(analysis, verdict_words.actions_of(analysis))
    yield Part(findings.TITLE, found or [Paragraph(verdict_words.NO_FINDINGS)])
    if analysis.alerts:
        yield Part(rules.TITLE, [alerts_table(analysis)])


def first_screen(analysis: AnalysisResult) -> dict[str, Block]:
    """Return what a reader should know after thirty seconds, by name.

    These blocks are the top of the card and of the page, and all of an analysis as Markdown and in a notebook.
    """
    found, fired = findings.callouts(analysis, verdict_words.actions_of(analysis)), rules.fired_rules(analysis)
    blocks: dict[str, Block | None] = {
        "verdict": _verdict(analysis),
        "quality": _quality(analysis),
        "actions": actions.actions_part(verdict_words.actions_of(analysis), analysis),
        "bounds": analysis.step_bounds and bounds_part(analysis.step_bounds),
        "spent": Part("GPU time", list(_spent(analysis))),
        "advice": _advice(analysis),
        "strip": Facts(_figures(analysis)),
        "found": Links(findings.TITLE, [Link(each.anchor, each.title, each.cost) for each in found]) if found else None,
        "alerts": Links(rules.TITLE, [Link("alerts", each.title, each.severity) for each in fired]) if fired else None,
        "about": Paragraph(f"{analysis.run.run_id} · {' · '.join(about(analysis))}", "note"),
    }
    return {name: block for name, block in blocks.items() if block is not None}


def _verdict(analysis: AnalysisResult) -> Answer:
    reasons = [Fact("Why", verdict_words.why(analysis)), Fact("Next", verdict_words.next_step(analysis))]
    label, headline = verdict_words.label(analysis), verdict_words.headline(analysis)
    return Answer(label, headline, reasons, verdict_words.alarm(analysis) or "", name="Verdict")


def _quality(analysis: AnalysisResult) -> Paragraph:
    """Return in one line the first gap, or whether nothing is missing by the workers' counts."""
    gaps = verdict_words.gap_lines(analysis)
    if not gaps:
        is_complete = analysis.data_quality.completeness.state == "complete"
        return Paragraph(f"✓ {NO_GAPS if is_complete else _NOT_KNOWN}")
    many = "a gap" if len(gaps) == 1 else f"{len(gaps)} gaps"
    return Paragraph(f"! The data has {many}. {gaps[0]}", more="data-quality")


def _spent(analysis: AnalysisResult) -> Iterator[Block]:
    """Yield where the GPU time went: in steady state if it is known, and in the whole run."""
    steady, whole = steady_state(analysis), whole_run(analysis)
    if steady is None:
        yield from (Paragraph(whole.label, "note"), whole.block)
    else:
        yield Switch("spent", "Stretch of the GPU time", [steady, whole])


def _advice(analysis: AnalysisResult) -> Part:
    model = analysis.model
    if isinstance(model, ModelResult):
        return advice.layouts_part(model)
    reason = model_words.no_result_sentence(model) + no_model_words(analysis.data_quality.imported)
    return Part(advice.TITLE, [Paragraph(reason)])


def _figures(analysis: AnalysisResult) -> list[Fact]:
    """Return throughput, staleness, GPUs, steps and costs."""
    run = analysis.run
    # A log with the token count of a step does not tell how many of them were trained on.
    is_unknown = analysis.throughput.counted_tokens or run.tokens_trained is None
    trained = "" if is_unknown else f"{fmt.tokens(run.tokens_trained)} trained"
    return [
        achieved(analysis),
        *([prediction_check(analysis.modeled)] if analysis.modeled else []),
        _staleness_fact(analysis),
        *_filtered_facts(analysis),
        Fact("GPUs", fmt.count(run.total_gpus or None), use_words(run, run.auxiliary_gpus)),
        Fact("Training steps", fmt.count(run.steps), trained),
        *per_gpu_facts(analysis),
    ]


def achieved(analysis: AnalysisResult) -> Fact:
    """Measured throughput of the steady state."""
    rate = analysis.throughput.steady_tokens_per_s
    note = "" if rate is None else f"in steady state{counted_words(analysis.throughput)}"
    return Fact("Training throughput", fmt.tokens_per_second(rate), note)


def prediction_check(model: ModelResult) -> Fact:
    """Whether the held-out steps of the steady state are as fast as predicted, and their distance from it."""
    prediction, title = model.prediction, "Prediction check"
    if prediction is None:
        return Fact(title, "not possible", "too few steps in steady state")
    fitted, last = fmt.count(prediction.calibrated_steps), fmt.count(prediction.held_out_steps)
    off, margin = prediction.residual_ratio, fmt.percent(prediction.margin_ratio)
    ran = f"the last {last} steps ran {fmt.percent(abs(off))} {'faster' if off > 0 else 'slower'}"
    result = "passed" if prediction.agrees else "failed"
    return Fact(title, result, f"{ran} than predicted from the first {fitted} (tolerance: {margin})")


def _staleness_fact(analysis: AnalysisResult) -> Fact:
    """Return the measured staleness, else the one that the framework of an imported run reports."""
    tokens, imported, cap = analysis.staleness.tokens, analysis.data_quality.imported, analysis.run.max_staleness
    no_cap = "no cap" if imported is None else "no cap in the log"
    cap_words = no_cap if cap is None else f"cap {cap}"
    if tokens is not None and cap is not None and tokens.max > cap and analysis.run.settings.get("batches_ahead"):
        cap_words += " (checked when a batch is fetched; tokens can be staler once they are trained on)"
    if tokens is not None:
        spread = f"p95 {tokens.p95}, max {tokens.max}, {cap_words}{_version_words(analysis)}"
        return Fact("Token staleness, whole run", f"mean {fmt.significant(tokens.mean)} versions", spread)
    if imported is None or not analysis.staleness.reported:
        return Fact("Token staleness, whole run", fmt.NO_DATA, cap_words)
    first = analysis.staleness.reported[0]
    return Fact("Staleness, whole run", f"{fmt.significant(first.mean)} mean", f"as reported by {imported.framework}")


def _filtered_facts(analysis: AnalysisResult) -> list[Fact]:
    """Return the filtered share of the tokens that left the queue, and what a trained token costs; empty if small."""
    outcomes = analysis.answers["judged_outcomes"]
    tokens = dict(zip(outcomes["outcome"], outcomes["tokens"], strict=True))
    filtered, trained, left = tokens.get("filtered", 0), tokens.get("trained", 0), sum(tokens.values())
    if not trained or filtered < _FILTERED_RATIO * left:
        return []
    each = f"{fmt.significant(left / trained)} tokens sampled for each one trained on, in steady state"
    return [Fact("Tokens filtered", fmt.percent(filtered / left), each)]


def _version_words(analysis: AnalysisResult) -> str:
    """Say how many optimizer steps a version is; empty if unknown."""
    model = analysis.modeled
    own = model and model.forecasts.today.staleness
    if model is None or own is None:
        return ""
    steps = fmt.significant(own.steps_per_version * model.calibration.steps_per_version, 2)
    average = " on average" if "." in steps else ""
    return f"; 1 version = {steps} optimizer step{'' if steps == '1' else 's'}{average}"


def per_gpu_facts(analysis: AnalysisResult) -> list[Fact]:
    """Steady throughput per GPU, and GPU-hours and money per million trained tokens; empty without a steady rate."""
    run, rate = analysis.run, analysis.throughput.steady_tokens_per_s
    gpu_s = million_gpu_s(run.total_gpus, rate)
    if rate is None or gpu_s is None:
        return []
    price, hours = fmt.money(gpu_s, run.gpu_hour_price, run.currency), fmt.significant(gpu_s / 3600.0)
    cost = Fact("GPU-hours per 1M trained tokens", hours, "steady state")
    if price:
        cost = Fact("Price of 1M trained tokens", price, f"{hours} GPU-hours, steady state")
    return [Fact("Throughput per GPU", fmt.tokens_per_second(rate / run.total_gpus), "steady state"), cost]


def ledger_blocks(analysis: AnalysisResult) -> list[Block]:
    """Return every state of each role, and what the rows add up to."""
    ledger, block = analysis.ledger, Ledger(ledger_roles(analysis))
    if not block.roles:
        return [Paragraph(f"{fmt.NO_DATA}: no worker with a GPU recorded anything.")]
    notes = (
        f"Total {fmt.gpu_time(ledger.total_gpu_s)}. Every GPU-second, from a worker's start to its end, is in exactly "
        "one state.",
        cap_sentence(ledger),
        unrecorded_sentence(ledger),
        auxiliary_sentence(analysis.run),
        "GPU idle: the part of a state in which the GPU ran no kernel." if block.has_gpu_idle else "",
    )
    return [block, Paragraph(" ".join(filter(None, notes)), "note")]


def _model(analysis: AnalysisResult) -> Iterator[Block]:
    """Yield the losses from the upper bound, the time to finish, and what the predictions assume."""
    model = analysis.modeled
    if model is None:
        return
    notes = [Paragraph(sentence, "note") for sentence in model_words.gap_sentences(model)]
    yield Part(model_words.GAP_TITLE, [model_words.loss_bars(model), *notes])
    yield from model_words.outlook_parts(model)


def throughput_blocks(analysis: AnalysisResult) -> list[Block]:
    """Return the measured rates, those that the framework reports, and the steps of the steady state."""
    rates, run, reported = analysis.throughput, analysis.run, reported_throughput(analysis)
    # Of a log that counts tokens by step, no sample is known.
    counted = counted_words(rates).removeprefix(", ")
    samples = counted or fmt.counted(run.samples_trained, "sample")
    facts = [
        _rate("Trained, steady state", rates.steady_tokens_per_s, counted),
        _rate("Trained, whole run", rates.achieved_tokens_per_s, samples),
        _rate("Effective, whole run", rates.effective_tokens_per_s, "from importance ratios"),
        _rate("Generated, whole run", rates.generated_tokens_per_s),
    ]
    window = Paragraph(verdict_words.window_sentence(analysis), "note")
    return [Facts(facts), *([Bullets(reported, "·")] if reported else []), window]


def _rate(name: str, tokens_per_s: float | None, note: str = "") -> Fact:
    return Fact(name, fmt.tokens_per_second(tokens_per_s), "" if tokens_per_s is None else note)


def staleness_blocks(analysis: AnalysisResult) -> Iterator[Block]:
    """Yield how stale tokens and samples were and where it came from, else what the framework reports."""
    ages, cap, reported = analysis.staleness, analysis.run.max_staleness, reported_staleness(analysis)
    if ages.tokens is None and reported:
        yield Bullets(reported, "·")
        return
    facts: list[Fact] = []
    if (tokens := ages.tokens) is not None:
        spread = f"p50 {tokens.p50}, p95 {tokens.p95}, p99 {tokens.p99}, max {tokens.max}"
        facts.append(Fact("Tokens", f"{fmt.significant(tokens.mean)} mean", spread))
    if (samples := ages.samples) is not None:
        oldest = f"{fmt.significant(samples.mean)} mean"
        facts.append(Fact("Oldest in a sample", oldest, f"p95 {samples.p95}, max {samples.max}"))
    over = "the run has no cap" if cap is None else fmt.tokens(ages.over_cap_tokens)
    facts += [
        Fact("Added during generation", fmt.versions(ages.in_flight_mean)),
        Fact("Added in the queue", fmt.versions(ages.in_queue_mean), "from the end of a sample to its step"),
        Fact("Over the cap", over, "" if cap is None else f"cap {cap}"),
    ]
    effective = effective_share_of_all(analysis.answers["version_moments"])
    if effective is not None:
        facts.append(Fact("Effective tokens", fmt.percent(effective), "of trained tokens, from importance ratios"))
    yield Facts(facts)


def _histogram(analysis: AnalysisResult) -> Iterator[Bars]:
    tokens, cap = analysis.staleness.tokens, analysis.run.max_staleness
    if tokens is None:
        return
    head, tail = tokens.histogram[: _BARS_MAX - 1], tokens.histogram[_BARS_MAX - 1 :]
    rows = [(age, age, count) for age, count in head]
    rows += [(tail[0][0], tail[-1][0], sum(count for _, count in tail))] if tail else []
    counts = [count for _, _, count in rows]
    total, most = sum(counts) or 1, max(counts, default=1) or 1
    yield Bars(
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


def alerts_table(analysis: AnalysisResult) -> Table:
    """Return the alerts of the built-in rules."""
    rows = [(each.title, each.severity, each.when, each.text) for each in rules.fired_rules(analysis)]
    return Table("Built-in alert rules that fired", ("rule", "severity", "when", "value"), rows, "stacks")
