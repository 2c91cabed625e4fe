"""The verdict in words: what the bottleneck is, why that is said, and what to do next; findings have theirs."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from rlscope import format as fmt
from rlscope.analysis.data_quality import ClockOffset, SampledEngine
from rlscope.analysis.result import Analysis, Bottleneck, Finding, Loss
from rlscope.model.forecast.recommend import Reason
from rlscope.model.forecast.result import ModelResult
from rlscope.reports.text import advice, findings


class _Words(NamedTuple):
    label: str
    headline: str
    """Where {share} is the share of its GPU-seconds that the losing side lost, and {gpu_time} how much that is."""
    plain_headline: str
    """The same where the loss is not known."""
    cause: str
    """The loss as the subject of a sentence."""
    side: str
    """Whose GPU time is lost."""
    next: str
    rules: tuple[str, ...]
    """Findings that would explain it and are cheaper to mend than a change of the layout; dearest remedy last."""


# Half a per cent: a smaller loss is not worth a word beside the largest.
_WORTH_A_WORD_RATIO: Final = 0.005

_WORDS: Final[Mapping[Bottleneck, _Words]] = {
    "samplers": _Words(
        label="Samplers",
        headline="Trainers wait for samples {share} of their time",
        plain_headline="Trainers wait for samples",
        cause="trainers waiting for samples",
        side="trainer GPU time",
        next="Give the samplers more to work with: move GPUs from trainers to samplers, or make each engine faster.",
        rules=("lockstep", "underfilled_engines", "straggling_engine", "long_tail", "weight_update_cost"),
    ),
    "trainers": _Words(
        label="Trainers",
        headline="Samplers are held back or overproduce: {share} of their time is lost",
        plain_headline="Samplers are held back or overproduce",
        cause="samplers held back or overproducing",
        side="sampler GPU time",
        next="Make the training step faster, or move GPUs from samplers to trainers.",
        rules=("lockstep", "weight_update_cost"),
    ),
    "staleness_cap": _Words(
        label="Staleness cap",
        headline="The staleness cap holds GPUs back {share} of the time",
        plain_headline="The staleness cap holds GPUs back",
        cause="the staleness cap",
        side="all GPU time",
        next=(
            "Raise the cap if training stays stable with older tokens; otherwise shorten what makes tokens old: the "
            "queue, the samples in flight, the responses."
        ),
        rules=("long_tail", "overproduction"),
    ),
    "weight_updates": _Words(
        label="Weight updates",
        headline="Weight updates take {share} of the GPU time",
        plain_headline="Weight updates take most of what is lost",
        cause="weight updates",
        side="all GPU time",
        next="Publish less often, or make an update cheaper: transfer during generation, apply without draining.",
        rules=(),
    ),
    "environment": _Words(
        label="Environment",
        headline="Waiting for the environment takes {share} of the GPU time",
        plain_headline="Samplers wait for the environment",
        cause="the environment",
        side="all GPU time",
        next=(
            "Run more environments at once, keep more samples in flight so that others generate meanwhile, or make the "
            "environment faster."
        ),
        rules=("underfilled_engines",),
    ),
    "balanced": _Words(
        label="Balanced",
        headline="No side loses more than 10% of its time",
        plain_headline="No side loses more than 10% of its time",
        cause="a balance",
        side="GPU time",
        next="The layout fits. To go faster, make both sides faster, or add GPUs in the same ratio.",
        rules=("underfilled_engines", "straggling_engine", "overproduction"),
    ),
    "unknown": _Words(
        label="No verdict",
        headline="Too little data for a verdict",
        plain_headline="Too little data for a verdict",
        cause="something unknown",
        side="GPU time",
        next=(
            "Record what is missing and analyse again: a verdict needs at least one sampler and one trainer that own "
            "GPUs, and some tens of training steps."
        ),
        rules=(),
    ),
}

_KEPT: Final[Mapping[Bottleneck, str]] = {
    "samplers": "Make each engine faster",
    "trainers": "Make the training step faster",
}
"""What to do next where the model keeps the layout, so that moving GPUs is no remedy. The others never move any."""
_KEPT_BECAUSE: Final[Mapping[Reason, str]] = {
    "best_already": "no other layout of these GPUs is faster",
    "small_gain": "no other layout of these GPUs is faster by a twentieth",
    "no_other_layout": "no other layout of these GPUs is possible",
}
_BINDING: Final[Mapping[Reason, Bottleneck]] = {
    "updates_bind": "weight_updates",
    "environment_binds": "environment",
}
"""What the model holds for the bottleneck of a layout that it keeps, whatever the ledger says."""

_ALARMS: Final[Mapping[str, str]] = {
    "weights_not_applied": (
        "The policy that samples is not the policy that is trained: new weights do not reach the samplers, or not all "
        "of them. The run learns from the wrong samples, wherever its GPU time goes."
    ),
}
"""Rules that find the run worthless, and what that means."""


def verdict_label(bottleneck: Bottleneck) -> str:
    """The verdict's word as a title."""
    label = _WORDS[bottleneck].label
    return label if bottleneck in ("balanced", "unknown") else f"Bottleneck: {label.lower()}"


def headline(analysis: Analysis) -> str:
    """The verdict as one short sentence, without a full stop."""
    words, loss = _WORDS[analysis.verdict.bottleneck], _main_loss(analysis)
    if loss is None:
        return words.plain_headline
    return words.headline.format(share=fmt.percent(loss.side_share_ratio), gpu_time=fmt.gpu_time(loss.gpu_s))


def why(analysis: Analysis) -> str:
    """The numbers that the verdict was chosen from, and over which stretch of the run."""
    verdict = analysis.verdict
    if verdict.bottleneck == "unknown":
        return _sentence(verdict.unknown_reason or "The run holds too few training steps")
    losses = [loss for loss in verdict.losses if loss.gpu_s > 0]
    if not losses:
        return f"{stretch(analysis)}, no GPU time was lost to any cause that is told apart."
    first, *rest = losses
    words = _WORDS[first.cause]
    text = (
        f"{stretch(analysis)}, {words.cause} cost {fmt.gpu_time(first.gpu_s)}, "
        f"{fmt.percent(first.side_share_ratio)} of {words.side}."
    )
    others = [_briefly(loss) for loss in rest if loss.side_share_ratio >= _WORTH_A_WORD_RATIO]
    return f"{text} Also lost: {'; '.join(others)}." if others else text


def cause_words(loss: Loss) -> str:
    """What the GPU time was lost to."""
    return _WORDS[loss.cause].cause


def side_words(loss: Loss) -> str:
    """What the loss is a share of."""
    return _WORDS[loss.cause].side


def alarm(analysis: Analysis) -> str | None:
    """What makes the run itself worthless, whatever it spends; None when nothing found does."""
    return next((_ALARMS[finding.rule] for finding in analysis.findings if finding.rule in _ALARMS), None)


def next_step(analysis: Analysis) -> str:
    """What to change first; then how to see whether it helped."""
    words = _WORDS[analysis.verdict.bottleneck]
    worthless = next((finding for finding in analysis.findings if finding.rule in _ALARMS), None)
    if worthless is not None:
        return f"Mend “{findings.title(worthless).lower()}” (below) before anything else, and record the run again."
    if analysis.verdict.bottleneck == "unknown":
        return words.next
    step = words.next
    if isinstance(analysis.model, ModelResult):
        step = _modelled_step(analysis.model, analysis.verdict.bottleneck)
    cheaper = cheapest_finding(analysis)
    if cheaper is None:
        return f"{step} Change one thing, and compare the steady rate."
    return f"{step} Look first at “{findings.title(cheaper).lower()}” (below), which may be cheaper to mend."


def _modelled_step(model: ModelResult, bottleneck: Bottleneck) -> str:
    """What to do next that does not gainsay the model's advice on the layout."""
    reason = model.recommendation.reason
    if model.recommendation.changes:
        return f"{advice.change_words(model)}."
    binding = _BINDING.get(reason) or bottleneck
    step, because, first = _WORDS[binding].next, _KEPT_BECAUSE.get(reason), advice.measure_first(model)
    if binding in _KEPT:
        step = f"{_KEPT[binding]}: {because}." if because else f"{_KEPT[binding]}."
    return step if first is None else f"{step} Before changing the layout, {first}."


def cheapest_finding(analysis: Analysis) -> Finding | None:
    """The finding to mend before the layout is changed; None when no finding explains the bottleneck."""
    found = {finding.rule: finding for finding in analysis.findings}
    rules = _WORDS[analysis.verdict.bottleneck].rules
    return next((found[rule] for rule in rules if rule in found), None)


def gap_lines(analysis: Analysis) -> list[str]:
    """Everything that the analysis could not see, one line each; empty when it saw all."""
    quality = analysis.data_quality
    lines = [f"{file.path} was skipped: {file.why}." for file in quality.skipped_files]
    lines += [f"Capture dropped {fmt.counted(n, 'row', 'rows')} of {t}." for t, n in quality.dropped_rows.items() if n]
    if quality.workers_without_end:
        names = _some(quality.workers_without_end)
        lines.append(
            f"Never said that they stopped (killed, or still running): {names}. They count up to their last flush."
        )
    lines += [_clock_sentence(offset) for offset in quality.clock_offsets]
    lines += [_sampled_sentence(engine) for engine in quality.sampled_engines]
    return [*lines, *(gap if gap.endswith(".") else f"{gap}." for gap in quality.gaps)]


def window_sentence(analysis: Analysis) -> str:
    """Over which stretch steady rates and the verdict are taken, and why."""
    run, window = analysis.run, analysis.run.window
    reason = _sentence(run.window_reason) if run.window_reason else ""
    if window is None:
        return reason or "The run has no stable stretch."
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
        "time inside forward passes is the engine's own counter"
        if engine.knows_busy
        else "time between forward passes cannot be told and counts as generating"
    )
    return (
        f"{engine.worker_id} was sampled from outside about every {fmt.duration(engine.interval_s)}: its batch "
        f"sizes are readings, {split}, and waits of one interval or less are missed."
    )


def _main_loss(analysis: Analysis) -> Loss | None:
    verdict = analysis.verdict
    return next((loss for loss in verdict.losses if loss.cause == verdict.bottleneck), None)


def _briefly(loss: Loss) -> str:
    share = fmt.percent(loss.side_share_ratio)
    return f"{_WORDS[loss.cause].cause}, {fmt.gpu_time(loss.gpu_s)} ({share})"


def stretch(analysis: Analysis) -> str:
    """Over which part of the run the verdict was taken, as the start of a sentence."""
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
