"""The summary of an analysis: the words and numbers of the first screen, which page, card and Markdown share.

Only sums and products of the analysis are computed here; `rlscope.format` writes the numbers.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from rlscope import format as fmt
from rlscope.analysis.data_quality import DataQuality
from rlscope.analysis.ledger import GENERATING, SAMPLER_ROLES, UNRECORDED_RATIO, StateKey
from rlscope.analysis.result import AnalysisResult, RunFacts
from rlscope.model.forecast.result import ModelResult
from rlscope.reports.blocks import Fact, RoleBar, RolePart, Roles, View
from rlscope.reports.text.ledger import dropped_of
from rlscope.reports.text.origin import counted_words, source_words
from rlscope.reports.text.phases import judged_states
from rlscope.reports.text.states import order_of, role_order, state_label, state_of

NO_GAPS: Final = "The recording is complete: no record is missing or unreadable, and every worker exited cleanly."
NOT_KNOWN: Final = (
    "Every file was read and every worker exited cleanly. Files may still be missing: the run does not state "
    "how many rows its workers wrote."
)
_SAME_RATIO: Final = 0.02
"""Closer, a measured rate is as predicted, without a number."""


def about(analysis: AnalysisResult) -> tuple[str, ...]:
    """Start, duration, GPUs, steps, framework and model."""
    run, imported = analysis.run, analysis.data_quality.imported
    has_dates = imported is None or imported.is_dated
    return (
        *((fmt.instant(run.started_ns),) if has_dates else ()),
        *((source_words(imported),) if imported is not None else ()),
        *_extent_words(run),
        fmt.counted(run.steps, "training step", "training steps"),
        *_made_with(run),
    )


def _made_with(run: RunFacts) -> tuple[str, ...]:
    """Return the framework and the name of the trained model, as run.json has them; without what it lacks.

    A model that is loaded from a folder named model has no name.
    """
    framework, model = run.settings.get("framework"), run.settings.get("model")
    name = model.get("name") if isinstance(model, Mapping) else None
    named = [f"model: {name}"] if isinstance(name, str) and name not in ("", "model") else []
    return (*([framework] if isinstance(framework, str) and framework else []), *named)


def _extent_words(run: RunFacts) -> tuple[str, ...]:
    """Return how long the run took and on how many GPUs; without a worker file, neither is known."""
    if not run.duration_s and not run.total_gpus:
        return ("duration and GPUs not known",)
    return fmt.duration(run.duration_s), fmt.counted(run.total_gpus, "GPU", "GPUs")


def whole_run(analysis: AnalysisResult) -> View:
    """Where the GPU time of the whole run went; labeled with that time, and its price if run.json has one."""
    run, ledger = analysis.run, analysis.ledger
    states = {StateKey(state.role, state.state, state.reason): state.gpu_s for state in ledger.states if state.gpu_ns}
    is_unknown = not ledger.total_gpu_s and not run.total_gpus
    spent = fmt.NO_DATA if is_unknown else spent_words(ledger.total_gpu_s, run)
    whole_gpu_s = run.total_gpus * run.duration_s
    is_part = not is_unknown and ledger.total_gpu_s < (1.0 - UNRECORDED_RATIO) * whole_gpu_s
    rest = f" (of {fmt.gpu_time(whole_gpu_s)}; no worker was recording during the rest)" if is_part else ""
    return View("whole", f"whole run, {spent}{rest}", Roles(_roles(run, states)))


def steady_state(analysis: AnalysisResult) -> View | None:
    """Where the GPU time of the steady state went, with the part of generation whose samples were dropped.

    None if there is no steady state, or if nothing is known of it.
    """
    run = analysis.run
    states = judged_states(analysis) if run.window is not None else {}
    roles = _roles(run, states, dropped_of(analysis))
    label = f"steady state, {spent_words(sum(states.values()), run)}"
    return View("steady", label, Roles(roles)) if roles else None


def use_words(run: RunFacts, auxiliary_gpus: int = 0) -> str:
    """GPUs by what they are for: 4 for training, 12 for sampling."""
    uses = {"training": run.trainer_gpus, "sampling": run.sampler_gpus, "both": run.colocated_gpus}
    uses["auxiliary models"] = auxiliary_gpus
    return ", ".join(f"{fmt.count(gpus)} for {use}" for use, gpus in uses.items() if gpus)


def spent_words(gpu_s: float, run: RunFacts) -> str:
    """GPU time, with its price if run.json has one."""
    return ", ".join(filter(None, (fmt.gpu_time(gpu_s), fmt.money(gpu_s, run.gpu_hour_price, run.currency))))


def _roles(run: RunFacts, states: Mapping[StateKey, float], dropped: float = 0.0) -> list[RoleBar]:
    """Where the GPU-seconds in these states went, by role; dropped: share of generation, 0..1."""
    bars: list[RoleBar] = []
    for role in sorted({key.role for key in states}, key=role_order):
        total_s, bar = sum(gpu_s for key, gpu_s in states.items() if key.role == role), role_bar(role, states, dropped)
        bars.append(bar._replace(role=role.capitalize(), spent=spent_words(total_s, run)))
    return bars


def role_bar(role: str, states: Mapping[StateKey, float], dropped: float) -> RoleBar:
    """Where the GPU time of a role went, with the dropped share of generation; no words on how much it was.

    states: GPU time by state, of any roles and in any unit. dropped: share of generation, 0..1.
    """
    own = {key: spent for key, spent in states.items() if key.role == role and spent > 0}
    total = sum(own.values())
    parts = _with_discarded(own, dropped if role in SAMPLER_ROLES else 0.0)
    shares = [
        RolePart(state_of(key.state), state_label(key.state, key.reason), spent / total)
        for key, spent in sorted(parts.items(), key=lambda item: order_of(item[0].state))
    ]
    return RoleBar(role, "", shares)


def _with_discarded(own: Mapping[StateKey, float], dropped: float) -> dict[StateKey, float]:
    """With the dropped share of every generation as a state of its own."""
    if not dropped:
        return dict(own)
    kept = {key: gpu_s * (1.0 - dropped if key.state in GENERATING else 1.0) for key, gpu_s in own.items()}
    lost_s = sum(own.values()) - sum(kept.values())
    return kept | ({StateKey("", "discarded", None): lost_s} if lost_s > 0 else {})


def achieved(analysis: AnalysisResult) -> Fact:
    """Measured throughput of the steady state."""
    rate = analysis.throughput.steady_tokens_per_s
    note = "" if rate is None else f"in steady state{counted_words(analysis.throughput)}"
    return Fact("Trained throughput", fmt.tokens_per_second(rate), note)


def prediction_check(model: ModelResult) -> Fact:
    """Whether the held-out steps of the steady state are as fast as predicted, and their distance from it."""
    prediction, title = model.prediction, "Prediction check"
    if prediction is None:
        return Fact(title, "not possible", "too few steps in steady state")
    last, off = fmt.count(prediction.held_out_steps), prediction.residual_ratio
    pace = f"{fmt.percent(abs(off))} {'faster' if off > 0 else 'slower'} than"
    if prediction.agrees and abs(off) < _SAME_RATIO:
        pace = "as fast as"
    basis = f"predicted from the {fmt.count(prediction.calibrated_steps)} steps before"
    margin = f"margin of error: {fmt.percent(prediction.margin_ratio)}"
    result = "passed" if prediction.agrees else "failed"
    return Fact(title, result, f"the last {last} steps ran {pace} {basis} ({margin})")


def quality(gaps: Sequence[str], found: DataQuality) -> str:
    """Data quality in one line: the first gap, or whether nothing is missing by the workers' counts."""
    if not gaps:
        return NO_GAPS if found.completeness.state == "complete" else NOT_KNOWN
    return f"The data has a gap. {gaps[0]}" if len(gaps) == 1 else f"The data has {len(gaps)} gaps. {gaps[0]}"
