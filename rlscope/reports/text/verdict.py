"""The verdict in words: the bottleneck, the numbers behind it, the next step, and the gaps in the data."""

import math
from collections.abc import Iterator, Mapping
from typing import Final

import polars as pl

from rlscope import format as fmt
from rlscope.analysis.bottleneck import LEAST_STEPS_TO_JUDGE
from rlscope.analysis.data_quality import ClockOffset, SampledEngine
from rlscope.analysis.interval import Interval
from rlscope.analysis.ledger import SAMPLER_ROLES, TRAINER_ROLES
from rlscope.analysis.result import AnalysisResult, SteadyWindow
from rlscope.diagnose.stalled import SILENT_S
from rlscope.model.causes import Bottleneck, Cause, LossCause
from rlscope.model.forecast.actions import Action
from rlscope.model.forecast.ranking import Ranking
from rlscope.reports.text import actions, advice, causes, findings, phases, step_bounds
from rlscope.reports.text.ledger import dropped_of
from rlscope.reports.text.origin import MORE_DATA, MORE_STEPS, origin_lines, thinned_sentence
from rlscope.reports.text.sampling import sampling_words

# Smaller losses are not listed beside the largest.
_LEAST_NAMED_RATIO: Final = 0.02
_REPAIR: Final = (
    "Repair the data: restore lost files from a copy (`rlscope doctor` lists the lost rows), or record the run again, "
    "with a unique id for every sample and one worker that records the deliveries."
)
_BOTH_SIDES: Final = (
    "Move no GPUs yet: samplers and trainers lose about the same share of their time. Look up in the timelines what "
    "each side waits for, and fix that first."
)
_DROPPED: Final = (
    "Move no GPUs yet: trainers wait while samples are dropped as stale or abandoned. Abandon fewer, publish less "
    "often, raise the cap, or keep fewer samples in flight."
)
"""The next step if both sides lose: moving GPUs from one to the other would not help."""
_FOR_SAMPLERS: Final = {
    "full_kv_cache": "Speed up sampling: make room in the engines' KV caches, which hold requests back, or add "
    "engines. A higher limit on running requests alone gains nothing.",
    "underfilled_engines": "Speed up sampling: give the engines more samples. They run fewer requests than their limit "
    "allows, so something else holds samples back, such as a limit on samples in flight.",
}
"""The next step for slow samplers with one of these findings, the first that holds."""
_ONE_SIDE: Final = (
    "Pass the engines' logs with --engine-log: a trainer's log does not show whether samplers are slow or wait for "
    "the trainers. If they are slow:"
)
"""Before the next step of a log that shows the trainers only."""
_NO_PASSES: Final = (
    "The engines' logs do not show how long a pass takes, so samplers may be slow or wait for the trainers. If they "
    "are slow:"
)
"""Before that step if the engines' logs are read already."""
_SIDES: Final = (TRAINER_ROLES, SAMPLER_ROLES)
NO_FINDINGS: Final = "No findings. A check whose data was not recorded is skipped."
_WORKERS_NAMED: Final = 5
"""Workers without an end that a sentence names."""
_DROPPED_RATIO: Final = 0.05
"""Share of the tokens that left the queue from which dropping counts as the samplers' main loss."""
_DROPPING_CAP: Final = "The staleness cap limits throughput"
"""Headline of a cap that costs samples, so that nothing waits for it."""
_RECORD: Final = (
    "Record what the {side} do or wait for: `rlscope doctor` lists the lines of code to add. Then analyze a new run."
)
"""The next step if the GPU time of a side is mostly in no recorded state."""
_UNCOVERED: Final = "GPUs wait for something that rlscope has no verdict for"
"""Headline of a run with all data whose largest wait is for what no cause covers."""
_LOOK_UP: Final = (
    "Look up in the worker timelines of the report which workers wait, and shorten these waits first. If trainers wait "
    "for each other at a barrier, give each of them work that takes equally long."
)
"""The next step of such a run."""

_SUMMED_UP: Final = (actions.GAIN, actions.STALENESS, actions.DROPPED)
"""Effects of the first action that the next step names; the list of actions has all."""
_ALARMS: Final[Mapping[str, str]] = {
    "weights_not_applied": (
        "The samplers do not run the trained policy: weight updates do not reach them, or not completely. The run "
        "trains on samples of the wrong policy."
    ),
}
"""Findings that make the run's results invalid, and why."""


def label(analysis: AnalysisResult) -> str:
    """The verdict as a title, which claims no more than the headline."""
    if in_turn := _phases(analysis):
        return phases.label(in_turn[0])
    is_open = _is_reason_open(analysis) or analysis.verdict.waits_for_auxiliary
    bottleneck = _named(analysis.verdict.bottleneck, analysis)
    return causes.OPEN_LABEL if is_open else _only_recorded(causes.verdict_label(bottleneck), analysis)


def _only_recorded(text: str, analysis: AnalysisResult) -> str:
    """Name in a text about checkpoints and evaluation only what the trainers did."""
    states = phases.judged_states(analysis)
    return causes.only_recorded(text, {key.state for key in states if key.role in TRAINER_ROLES})


def headline(analysis: AnalysisResult) -> str:
    """The verdict as one short sentence, without a full stop."""
    return _only_recorded(_headline(analysis), analysis)


def _headline(analysis: AnalysisResult) -> str:
    verdict = analysis.verdict
    if in_turn := _phases(analysis):
        return phases.headline(in_turn[0])
    text, dropped = causes.headline(verdict, is_ranked=ranking_of(analysis) is not None), _dropped_by_cap(analysis)
    if dropped and verdict.bottleneck == Cause.STALENESS_CAP:
        text = _DROPPING_CAP
    if _is_uncovered(analysis):
        return _UNCOVERED
    if _is_reason_open(analysis):
        return f"{text}; the log does not show what delays the samples"
    if analysis.verdict.waits_for_auxiliary:
        return f"{text}{causes.BESIDE_AUXILIARY}"
    text += dropped or _held_up_by_updates(analysis)
    tied: list[Bottleneck] = [cause for cause in verdict.tied_with if not (dropped and cause == Cause.STALENESS_CAP)]
    if not tied:
        return text
    names = fmt.listed([causes.NAMES[_named(each, analysis)] for each in tied])
    return f"{text}; throughput is limited almost as much by the {names}"


def _named(cause: Bottleneck, analysis: AnalysisResult) -> Cause:
    """Return the cause that a text names: of a run without a staleness cap, its limit on samples in flight."""
    capped_gpu_s = sum(loss.gpu_s for loss in analysis.verdict.losses if loss.cause == Cause.STALENESS_CAP)
    is_uncapped = analysis.run.max_staleness is None and not capped_gpu_s
    return Cause.IN_FLIGHT_LIMIT if cause == Cause.STALENESS_CAP and is_uncapped else Cause(cause)


def _dropped_by_cap(analysis: AnalysisResult) -> str:
    """Why trainers wait, or what the cap costs, if the cap drops samples; as a clause after a comma."""
    verdict, model = analysis.verdict, analysis.modeled
    drops = model is not None and model.model_config.scheduling.admission.staleness_policy == "drop"
    by_cap = verdict.bottleneck == Cause.STALENESS_CAP
    by_cap |= verdict.bottleneck == Cause.SAMPLERS and Cause.STALENESS_CAP in verdict.tied_with
    if not drops or not by_cap:
        return ""
    shares = (loss.side_share_ratio * loss.dropped_gpu_s / loss.gpu_s for loss in verdict.losses if loss.dropped_gpu_s)
    share = next(shares, 0.0)
    if share < _DROPPED_RATIO:
        return ""
    return f", because samplers spend {fmt.percent(share)} of their time on samples that are dropped as too stale"


def _held_up_by_updates(analysis: AnalysisResult) -> str:
    """Why trainers wait, if engines pause for weight updates and those come first; as a clause after a comma.

    Empty if the updates are named beside the samplers.
    """
    verdict, first = analysis.verdict, first_action(analysis)
    loss = next((each for each in verdict.losses if each.cause == Cause.WEIGHT_UPDATES), None)
    is_first = first is not None and first.cause == Cause.WEIGHT_UPDATES and first.cause not in verdict.tied_with
    update = analysis.modeled and analysis.modeled.calibration.system.update
    # An update keeps engines from generating, or makes them compute their KV caches again.
    pauses = update is not None and (update.engine_pause_s > 0.0 or not update.kv_kept)
    if verdict.cause != Cause.SAMPLERS or not is_first or loss is None or not pauses:
        return ""
    return ", partly because weight updates pause the engines"


def ranking_of(analysis: AnalysisResult) -> Ranking | None:
    """Return the ranking behind the verdict; None if there is no model, or if it does not explain the run."""
    model = analysis.modeled
    return model.ranking if model is not None and model.ranking.losses else None


def why(analysis: AnalysisResult) -> str:
    """The losses behind the verdict, the part of the run they were measured over, and the steps that are missing."""
    said = _only_recorded(_losses_behind(analysis), analysis)
    parts = (said, _lost_sentence(analysis), thinned_sentence(analysis.data_quality.imported))
    return " ".join(filter(None, parts))


def _lost_samplers(analysis: AnalysisResult) -> pl.DataFrame:
    """Return the extents of samplers that died and were not started again, if the run lacks samples; else no row."""
    extents, verdict = analysis.answers["worker_extents"], analysis.verdict
    is_short = Cause.SAMPLERS in (verdict.bottleneck, *verdict.tied_with)
    silent_ns = analysis.run.started_ns + round((analysis.run.duration_s - SILENT_S) * 1e9)
    is_lost = (pl.col("role") == "sampler") & ~pl.col("is_over") & (pl.col("end_ns") < silent_ns)
    return extents.filter(is_lost & (is_short and analysis.data_quality.imported is None))


def _lost_sentence(analysis: AnalysisResult) -> str:
    """Say which samplers died and for how long they were missing; empty if none did."""
    lost = _lost_samplers(analysis)
    if lost.is_empty():
        return ""
    names = fmt.some(tuple(lost["worker_id"]), _WORKERS_NAMED)
    end_ns = analysis.run.started_ns + round(analysis.run.duration_s * 1e9)
    last_s = (end_ns - int(lost["end_ns"].max())) / 1e9  # type: ignore[arg-type]  # an integer column that is not empty
    gpus = fmt.counted(int(lost["gpu_count"].sum()), "sampler GPU")
    return f"{names} recorded no end and nothing in the last {fmt.duration(last_s)} of the run: {gpus} did not sample."


def _losses_behind(analysis: AnalysisResult) -> str:
    verdict = analysis.verdict
    if verdict.bottleneck == Cause.UNKNOWN:
        return _sentence(verdict.unknown_reason or "The run has too few training steps")
    in_turn, interval = _turns(analysis)
    if in_turn:
        return f"{_stretch(analysis, interval)}, {phases.why(in_turn, analysis)}"
    if verdict.bottleneck == Cause.TRAINERS and analysis.hides_samplers:
        states = phases.judged_states(analysis).items()
        spent = phases.by_share((key.state, gpu_s) for key, gpu_s in states if key.role == "trainer")
        return f"{_stretch(analysis, interval)}, trainers hardly waited for samples: {phases.shares(spent)}."
    losses = [loss for loss in verdict.losses if loss.gpu_s > 0]
    if verdict.bottleneck == Cause.BALANCED:
        losses.sort(key=lambda loss: -loss.gpu_s)
    named = [loss for loss in losses if loss is losses[0] or loss.side_share_ratio >= _LEAST_NAMED_RATIO]
    capped = frozenset(key.role for key in phases.judged_states(analysis) if key.is_capped)
    said = [causes.spent_words(loss, losses[0].cause, capped) for loss in named]
    first, *others = said or ["no GPU time was lost to a known cause"]
    return " ".join([f"{_stretch(analysis, interval)}, {first}.", *map(_sentence, others), *_pace(analysis)])


_HOLDING: Final = {
    "max_staleness": "the staleness cap",
    "max_in_flight_samples": "the limit on samples in flight",
    "max_running_samples": "the limit on running samples",
}
"""Limits that keep samples from starting."""
_SAME_GAIN: Final = 0.02
"""Gains that differ by less count as equal."""


def _pace(analysis: AnalysisResult) -> Iterator[str]:
    """Yield the gain from removing the cause, unless an action against it gains as much."""
    verdict = analysis.verdict
    loss = next((each for each in verdict.losses if each.cause == verdict.cause), None)
    if loss is None or loss.gain_ratio is None:
        return
    gain, listed = loss.gain_ratio, (each for each in actions_of(analysis) if each.cause == loss.cause)
    if not any(abs(each.gain_ratio.value - gain.value) <= _SAME_GAIN for each in listed):
        by = actions.gain_words(gain).removeprefix("+")
        yield f"{_removed(loss.cause, analysis)} would raise throughput by {by}."


def _removed(cause: LossCause, analysis: AnalysisResult) -> str:
    """Return the change that the model made to learn what a cause costs."""
    if cause != Cause.STALENESS_CAP or analysis.modeled is None:
        return causes.WORDS[cause].removed
    admission = analysis.modeled.model_config.scheduling.admission
    limits = [name for limit, name in _HOLDING.items() if getattr(admission, limit) is not None]
    return f"Removing {fmt.listed(limits)}"


def alarm(analysis: AnalysisResult) -> str | None:
    """Why the run's results are invalid; None if no finding says so."""
    return next((_ALARMS[finding.rule] for finding in analysis.findings if finding.rule in _ALARMS), None)


def next_step(analysis: AnalysisResult) -> str:
    """Return the first step and its gain."""
    lost = tuple(_lost_samplers(analysis)["worker_id"])
    names, them = fmt.some(lost, _WORKERS_NAMED), "it" if len(lost) == 1 else "them"
    first = f"Find out why {names} died, and start {them} again. " if lost else ""
    return first + _only_recorded(_next_step(analysis), analysis)


def _next_step(analysis: AnalysisResult) -> str:
    invalid = next((finding for finding in analysis.findings if finding.rule in _ALARMS), None)
    if invalid is not None:
        return f"Fix “{findings.title(invalid).lower()}” (below) before anything else, then record the run again."
    if analysis.verdict.bottleneck == Cause.UNKNOWN and analysis.data_quality.imported is not None:
        missing = MORE_STEPS if 0 < analysis.run.steps < LEAST_STEPS_TO_JUDGE else MORE_DATA
        return f"{missing} {step_bounds.largest_sentence(analysis.step_bounds)}".rstrip()
    if analysis.data_quality.no_verdict:
        return _REPAIR
    if analysis.verdict.unrecorded_side is not None:
        return _RECORD.format(side=analysis.verdict.unrecorded_side)
    if _is_uncovered(analysis):
        slow = next((finding for finding in analysis.findings if finding.rule == "straggling_trainer"), None)
        waits = slow and f"The other trainers wait for {slow.evidence['worker_id']}. {findings.told(slow).remedy}"
        return waits or _LOOK_UP
    if ranking_of(analysis) is None or analysis.verdict.bottleneck == Cause.UNKNOWN:
        return f"{_against_cause(analysis)} {step_bounds.largest_sentence(analysis.step_bounds)}".rstrip()
    first = first_action(analysis)
    if first is None:
        over_cap = advice.over_cap(analysis.modeled) if analysis.modeled else None
        if over_cap is not None:
            return f"{over_cap}, and no layout within it is faster. See “{advice.TITLE}” below."
        if analysis.verdict.cause is not None:
            return (
                "Keep the current layout. No setting is likely to gain 5%, and neither is making one side 10% faster."
            )
        return f"Keep the current layout. No change is predicted to gain 5%. {causes.WORDS[Cause.BALANCED].next_step}"
    slow = sampling_words(analysis) if first.what == "engine_speed" else ""
    changed = {} if analysis.modeled is None else actions.effects(first, analysis.modeled)
    effects = [_sentence(f"{name}: {cell}") for name in _SUMMED_UP if (cell := changed.get(name))]
    return " ".join(filter(None, (f"{actions.what_to_do(first)}.", *effects, slow, _aside(analysis, first))))


def _is_uncovered(analysis: AnalysisResult) -> bool:
    """Whether there is no verdict although both sides and enough steps are recorded: no cause covers the waits."""
    verdict, roles = analysis.verdict, {key.role for key in phases.judged_states(analysis)}
    is_recorded = analysis.run.steps >= LEAST_STEPS_TO_JUDGE and all(map(roles.intersection, _SIDES))
    is_refused = verdict.unrecorded_side is not None or analysis.data_quality.refusal
    return verdict.bottleneck == Cause.UNKNOWN and is_recorded and not is_refused


def _against_cause(analysis: AnalysisResult) -> str:
    """Return the next step against the cause if no gain is known."""
    verdict = analysis.verdict
    if analysis.verdict.waits_for_auxiliary:
        return findings.FULL_AUXILIARY
    if in_turn := _phases(analysis):
        return phases.next_step(in_turn[0], analysis)
    # Samplers that starve trainers may lose more themselves.
    largest = [loss.cause for loss in verdict.losses[:1] if verdict.bottleneck == Cause.SAMPLERS]
    if not {Cause.SAMPLERS, Cause.TRAINERS} <= {verdict.bottleneck, *verdict.tied_with, *largest}:
        rules = {each.rule for each in analysis.findings if verdict.bottleneck == Cause.SAMPLERS}
        hints = (hint for rule, hint in _FOR_SAMPLERS.items() if rule in rules)
        said = next(hints, causes.WORDS[verdict.bottleneck].next_step)
        imported = analysis.data_quality.imported
        why_open = _NO_PASSES if imported and "engine_steps" in imported.tables else _ONE_SIDE
        return f"{why_open} {_lowered(said)}" if _is_reason_open(analysis) else said
    return _DROPPED if dropped_of(analysis) >= _DROPPED_RATIO else _BOTH_SIDES


def _phases(analysis: AnalysisResult) -> list[phases.StepPhase]:
    """Return the phases of a balanced run whose GPUs sample and train in turn; none of another."""
    return _turns(analysis)[0] if analysis.verdict.bottleneck == Cause.BALANCED else []


def _turns(analysis: AnalysisResult) -> tuple[list[phases.StepPhase], Interval]:
    """Return the phases of a run without a ranking whose GPUs sample and train in turn, and their stretch."""
    return phases.in_turn(analysis) if ranking_of(analysis) is None else ([], phases.judged(analysis))


def _is_reason_open(analysis: AnalysisResult) -> bool:
    """Whether trainers wait for samples in a log that shows neither the samplers nor that steps are synchronous."""
    bounds = analysis.step_bounds
    is_synchronous = bounds is not None and bounds.phases.is_synchronous is True
    return analysis.verdict.bottleneck == Cause.SAMPLERS and analysis.hides_samplers and not is_synchronous


def _aside(analysis: AnalysisResult, first: Action) -> str:
    """Say that the first action does not address the verdict's cause, and which one does.

    Empty if the first action addresses it, or if the headline says why.
    """
    verdict = analysis.verdict
    if verdict.cause in (None, first.cause) or first.cause in verdict.tied_with or _held_up_by_updates(analysis):
        return ""
    numbers = (number for number, each in enumerate(actions_of(analysis), 1) if each.cause == verdict.cause)
    other = next((f": for that, see action {number}" for number in numbers), "")
    if first.kind in ("cheaper", "fresher"):
        return f"This {actions.saving_words(first)}, but does not remove the bottleneck{other}."
    return f"This addresses the {causes.NAMES[_named(first.cause, analysis)]}, not the bottleneck{other}."


def actions_of(analysis: AnalysisResult) -> tuple[Action, ...]:
    """Return the actions in order; none if the results are invalid or the verdict is unknown."""
    ranking = ranking_of(analysis)
    is_open = alarm(analysis) is None and analysis.verdict.bottleneck != Cause.UNKNOWN
    return ranking.actions if ranking is not None and is_open else ()


def first_action(analysis: AnalysisResult) -> Action | None:
    """Return the first action; None if nothing is ranked."""
    return next(iter(actions_of(analysis)), None)


def gap_lines(analysis: AnalysisResult) -> list[str]:
    """Everything missing from the data, one sentence each; empty if nothing is."""
    quality = analysis.data_quality
    lines = origin_lines(quality.imported)
    lines += [f"{file.path} was skipped: {file.why}." for file in quality.skipped_files]
    lines += [f"{gap}." for gap in quality.completeness.gaps]
    lines += [f"Capture dropped {fmt.counted(n, 'row')} of {t}." for t, n in quality.dropped_rows.items() if n]
    if quality.workers_without_end:
        names = fmt.some(quality.workers_without_end, _WORKERS_NAMED)
        lines.append(
            f"No end was recorded for {names} (killed, or still running). They are counted up to their last flush."
        )
    lines += [_clock_sentence(offset) for offset in quality.clock_offsets]
    lines += [_sampled_sentence(engine) for engine in quality.sampled_engines]
    return [*lines, *(gap if gap.endswith(".") else f"{gap}." for gap in quality.gaps)]


def window_sentence(analysis: AnalysisResult) -> str:
    """The steps of the steady state, and why these."""
    run, window = analysis.run, analysis.run.window
    reason = _sentence(run.window_reason) if run.window_reason else ""
    if window is None:
        return reason or "The run has no steady state."
    return f"Steady state: {_window_words(window)}. {reason}".rstrip()


def _clock_sentence(offset: ClockOffset) -> str:
    size = fmt.duration(abs(offset.offset_s))
    spread_s = offset.uncertainty_s
    amount = f"at least {size}" if spread_s is None else f"{size} ± {fmt.duration(spread_s)}"
    direction = "behind" if offset.offset_s < 0 else "ahead of"
    said = f"is {amount} {direction} that of {offset.against}"
    if offset.drift_ratio:
        said += f", drifts by {offset.drift_ratio * 1e6:+.3g} ppm"
    done = "its times are corrected" if offset.is_corrected else "times are not corrected"
    return f"The clock of {offset.host} {said}; {done}."


def between_hosts(analysis: AnalysisResult) -> str:
    """Return the uncertainty of times between hosts, as a sentence; empty for a run on one host."""
    spread_s = analysis.data_quality.clock_uncertainty_s
    if spread_s is None:
        return ""
    if math.isinf(spread_s):
        return "Times from one host to another may be off: nothing recorded bounds how far the hosts' clocks differ."
    return f"Times from one host to another are known to ± {fmt.duration(spread_s)}."


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


def _stretch(analysis: AnalysisResult, interval: Interval) -> str:
    """A part of the run, as the start of a sentence."""
    window = analysis.run.window
    if window and (window.start_ns, window.end_ns) == interval:
        return f"In steady state ({_window_words(window)})"
    return f"Over {fmt.duration((interval.end_ns - interval.start_ns) / 1e9)} of the run"


def _window_words(window: SteadyWindow) -> str:
    lasting = fmt.duration((window.end_ns - window.start_ns) / 1e9)
    return f"steps {fmt.count(window.first_step)} to {fmt.count(window.last_step)}, {lasting}"


def _lowered(text: str) -> str:
    return f"{text[0].lower()}{text[1:]}"


def _sentence(text: str) -> str:
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")
