"""The verdict in words: the bottleneck, the numbers behind it, the next step, and the gaps in the data."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from rlscope import format as fmt
from rlscope.analysis.data_quality import ClockOffset, SampledEngine
from rlscope.analysis.result import AnalysisResult, Bottleneck, Finding, Loss
from rlscope.model.forecast.recommend import Reason
from rlscope.model.forecast.result import ModelResult
from rlscope.reports.text import advice, findings


class _Words(NamedTuple):
    label: str
    headline: str
    """{share}: the lost share of that side's GPU time. {gpu_time}: the lost GPU time."""
    plain_headline: str
    """The headline if the loss is unknown."""
    cause: str
    """The cause of the loss as a noun phrase."""
    side: str
    """The GPU time that the loss is a share of."""
    next: str
    rules: tuple[str, ...]
    """Findings that would explain it and are cheaper to fix than a layout change; cheapest fix first."""


# Smaller losses are not listed beside the largest.
_LEAST_NAMED_RATIO: Final = 0.005

_WORDS: Final[Mapping[Bottleneck, _Words]] = {
    "samplers": _Words(
        label="Samplers",
        headline="Trainers wait for samples {share} of the time",
        plain_headline="Trainers wait for samples",
        cause="trainer waits for samples",
        side="trainer GPU time",
        next="Speed up sampling: move GPUs from trainers to samplers, or make each engine faster.",
        rules=("lockstep", "underfilled_engines", "straggling_engine", "long_tail", "weight_update_cost"),
    ),
    "trainers": _Words(
        label="Trainers",
        headline="Samplers lose {share} of their time to waits and dropped samples",
        plain_headline="Samplers lose time to waits and dropped samples",
        cause="sampler waits and dropped samples",
        side="sampler GPU time",
        next="Make the training step faster, or move GPUs from samplers to trainers.",
        rules=("lockstep", "weight_update_cost"),
    ),
    "staleness_cap": _Words(
        label="Staleness cap",
        headline="GPUs wait for the staleness cap {share} of the time",
        plain_headline="GPUs wait for the staleness cap",
        cause="waits for the staleness cap",
        side="all GPU time",
        next=(
            "Raise the cap if training stays stable with staler tokens. Otherwise shorten the queue, keep fewer "
            "samples in flight, or shorten responses."
        ),
        rules=("long_tail", "overproduction"),
    ),
    "weight_updates": _Words(
        label="Weight updates",
        headline="Weight updates take {share} of the GPU time",
        plain_headline="Weight updates are the largest loss",
        cause="weight updates",
        side="all GPU time",
        next="Publish less often, or make updates cheaper: transfer during generation, apply without draining engines.",
        rules=(),
    ),
    "environment": _Words(
        label="Environment",
        headline="Waiting for the environment takes {share} of the GPU time",
        plain_headline="Waiting for the environment is the largest loss",
        cause="waits for the environment",
        side="all GPU time",
        next=(
            "Run more environments in parallel, keep more samples in flight so that engines stay busy, or make the "
            "environment faster."
        ),
        rules=("underfilled_engines",),
    ),
    "balanced": _Words(
        label="Balanced",
        headline="Neither side loses more than 10% of its time",
        plain_headline="Neither side loses more than 10% of its time",
        cause="no bottleneck",
        side="GPU time",
        next="The layout is balanced. To go faster, speed up both sides, or add GPUs in the same ratio.",
        rules=("underfilled_engines", "straggling_engine", "overproduction"),
    ),
    "unknown": _Words(
        label="No verdict",
        headline="Not enough data for a verdict",
        plain_headline="Not enough data for a verdict",
        cause="unknown causes",
        side="GPU time",
        next=(
            "Record the missing data and analyse again. A verdict needs at least one sampler and one trainer with "
            "GPUs, and a few tens of training steps."
        ),
        rules=(),
    ),
}

_RECORD: Final[Mapping[str, str]] = {
    "samplers": (
        'Record what the samplers wait for and analyse again: put `with run.wait("backpressure"):` around `queue.put`, '
        '`with run.wait("requests"):` around the wait for prompts and `with run.wait("environment"):` around tool '
        "calls, and call `run.engine_step(...)` after every forward pass."
    ),
    "trainers": (
        'Record what the trainers wait for and analyse again: put `with run.wait("samples"):` around the call that '
        "takes a batch from the queue, `with run.train_step(...):` around the step, and `with run.logprobs():`, "
        "`run.reward()`, `run.evaluation()` and `run.checkpoint()` around what comes between steps."
    ),
}
"""What to add to the code of the side whose GPU time is mostly in no recorded state."""
_KEPT: Final[Mapping[Bottleneck, str]] = {
    "samplers": "Make each engine faster",
    "trainers": "Make the training step faster",
}
"""The next step if the model keeps the layout. The texts of the other bottlenecks never suggest moving GPUs."""
_KEPT_BECAUSE: Final[Mapping[Reason, str]] = {
    "best_already": "no other layout of these GPUs is faster",
    "small_gain": "no other layout of these GPUs is faster by 5%",
    "no_other_layout": "these GPUs allow no other layout",
}
_BINDING: Final[Mapping[Reason, Bottleneck]] = {
    "updates_bind": "weight_updates",
    "environment_binds": "environment",
}
"""The bottleneck that the model sees in the layout it keeps; it overrides the ledger's."""

_ALARMS: Final[Mapping[str, str]] = {
    "weights_not_applied": (
        "The samplers do not run the trained policy: weight updates do not reach them, or not completely. The run "
        "trains on samples of the wrong policy."
    ),
}
"""Findings that make the run's results invalid, and why."""


def verdict_label(bottleneck: Bottleneck) -> str:
    """The verdict as a title."""
    label = _WORDS[bottleneck].label
    return label if bottleneck in ("balanced", "unknown") else f"Bottleneck: {label.lower()}"


def headline(analysis: AnalysisResult) -> str:
    """The verdict as one short sentence, without a full stop."""
    words, loss = _WORDS[analysis.verdict.bottleneck], _main_loss(analysis)
    if loss is None:
        return words.plain_headline
    return words.headline.format(share=fmt.percent(loss.side_share_ratio), gpu_time=fmt.gpu_time(loss.gpu_s))


def why(analysis: AnalysisResult) -> str:
    """The losses behind the verdict, and the part of the run they were measured over."""
    verdict = analysis.verdict
    if verdict.bottleneck == "unknown":
        return _sentence(verdict.unknown_reason or "The run has too few training steps")
    losses = [loss for loss in verdict.losses if loss.gpu_s > 0]
    if not losses:
        return f"{stretch(analysis)}, no GPU time was lost to a known cause."
    first, *rest = losses
    words = _WORDS[first.cause]
    text = (
        f"{stretch(analysis)}, {words.cause} cost {fmt.gpu_time(first.gpu_s)}, "
        f"{fmt.percent(first.side_share_ratio)} of {words.side}."
    )
    others = [_briefly(loss) for loss in rest if loss.side_share_ratio >= _LEAST_NAMED_RATIO]
    return f"{text} Also lost: {'; '.join(others)}." if others else text


def cause_words(loss: Loss) -> str:
    """The cause of a loss, as a noun phrase."""
    return _WORDS[loss.cause].cause


def side_words(loss: Loss) -> str:
    """The GPU time that the loss is a share of."""
    return _WORDS[loss.cause].side


def alarm(analysis: AnalysisResult) -> str | None:
    """Why the run's results are invalid; None if no finding says so."""
    return next((_ALARMS[finding.rule] for finding in analysis.findings if finding.rule in _ALARMS), None)


def next_step(analysis: AnalysisResult) -> str:
    """What to change first, and how to check the effect."""
    words = _WORDS[analysis.verdict.bottleneck]
    invalid = next((finding for finding in analysis.findings if finding.rule in _ALARMS), None)
    if invalid is not None:
        return f"Fix “{findings.title(invalid).lower()}” (below) before anything else, then record the run again."
    if analysis.verdict.bottleneck == "unknown":
        return _RECORD.get(analysis.verdict.unrecorded_side or "", words.next)
    step = words.next
    if isinstance(analysis.model, ModelResult):
        step = _modelled_step(analysis.model, analysis.verdict.bottleneck)
    cheaper = cheapest_finding(analysis)
    if cheaper is None:
        return f"{step} Change one thing at a time and compare the steady throughput."
    return f"{step} First check “{findings.title(cheaper).lower()}” (below): it may be cheaper to fix."


def _modelled_step(model: ModelResult, bottleneck: Bottleneck) -> str:
    """The next step, consistent with the recommended layout."""
    reason = model.recommendation.reason
    if model.recommendation.changes:
        return f"{advice.change_words(model)}."
    binding = _BINDING.get(reason) or bottleneck
    step, because, first = _WORDS[binding].next, _KEPT_BECAUSE.get(reason), advice.measure_first(model)
    if binding in _KEPT:
        step = f"{_KEPT[binding]}: {because}." if because else f"{_KEPT[binding]}."
    return step if first is None else f"{step} Before changing the layout, {first}."


def cheapest_finding(analysis: AnalysisResult) -> Finding | None:
    """The finding to fix before changing the layout; None if no finding explains the bottleneck."""
    found = {finding.rule: finding for finding in analysis.findings}
    rules = _WORDS[analysis.verdict.bottleneck].rules
    return next((found[rule] for rule in rules if rule in found), None)


def no_findings(analysis: AnalysisResult) -> str:
    """What to say if nothing was found: that, or that there was not enough data to look."""
    if analysis.verdict.bottleneck == "unknown":
        return "No findings: the run has too little data to judge."
    return "No findings. A check whose data was not recorded is skipped."


def gap_lines(analysis: AnalysisResult) -> list[str]:
    """Everything missing from the data, one sentence each; empty if nothing is."""
    quality = analysis.data_quality
    lines = [f"{file.path} was skipped: {file.why}." for file in quality.skipped_files]
    lines += [f"Capture dropped {fmt.counted(n, 'row', 'rows')} of {t}." for t, n in quality.dropped_rows.items() if n]
    if quality.workers_without_end:
        names = _some(quality.workers_without_end)
        lines.append(
            f"No end was recorded for {names} (killed, or still running). They are counted up to their last flush."
        )
    lines += [_clock_sentence(offset) for offset in quality.clock_offsets]
    lines += [_sampled_sentence(engine) for engine in quality.sampled_engines]
    return [*lines, *(gap if gap.endswith(".") else f"{gap}." for gap in quality.gaps)]


def window_sentence(analysis: AnalysisResult) -> str:
    """The steps of the steady stretch, and why these."""
    run, window = analysis.run, analysis.run.window
    reason = _sentence(run.window_reason) if run.window_reason else ""
    if window is None:
        return reason or "The run has no steady stretch."
    lasting = fmt.duration((window.end_ns - window.start_ns) / 1e9)
    return f"Steps {fmt.count(window.first_step)} to {fmt.count(window.last_step)}, {lasting}. {reason}".rstrip()


def _clock_sentence(offset: ClockOffset) -> str:
    size = fmt.duration(abs(offset.offset_s))
    spread_s = offset.uncertainty_s
    amount = f"at least {size}" if spread_s is None else f"{size} ± {fmt.duration(spread_s)}"
    direction = "behind" if offset.offset_s < 0 else "ahead of"
    return f"The clock of {offset.host} is {amount} {direction} that of {offset.against}; times are not corrected."


def _sampled_sentence(engine: SampledEngine) -> str:
    split = (
        "time in forward passes comes from the engine's own counter"
        if engine.knows_busy
        else "time between forward passes is unknown and counted as generating"
    )
    return (
        f"{engine.worker_id} was polled about every {fmt.duration(engine.interval_s)}: its batch sizes are polled "
        f"values, {split}, and waits of one interval or less are missed."
    )


def _main_loss(analysis: AnalysisResult) -> Loss | None:
    verdict = analysis.verdict
    return next((loss for loss in verdict.losses if loss.cause == verdict.bottleneck), None)


def _briefly(loss: Loss) -> str:
    share = fmt.percent(loss.side_share_ratio)
    return f"{_WORDS[loss.cause].cause}, {fmt.gpu_time(loss.gpu_s)} ({share} of {_WORDS[loss.cause].side})"


def stretch(analysis: AnalysisResult) -> str:
    """The part of the run that the verdict covers, as the start of a sentence."""
    window, verdict = analysis.run.window, analysis.verdict
    if window and (window.start_ns, window.end_ns) == (verdict.start_ns, verdict.end_ns):
        lasting = fmt.duration((window.end_ns - window.start_ns) / 1e9)
        return f"Over steps {fmt.count(window.first_step)} to {fmt.count(window.last_step)} ({lasting})"
    return f"Over {fmt.duration((verdict.end_ns - verdict.start_ns) / 1e9)} of the run"


def _some(names: tuple[str, ...], shown: int = 5) -> str:
    rest = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + rest


def _sentence(text: str) -> str:
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")
