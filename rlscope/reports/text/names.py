"""What the parts of a model result are called: a word or a sentence for every reason, cause, limit and assumption.

How training scales with the trainer GPUs, in words: measured from which runs or assumed, and how surely.

What is said of a KV cache that runs over: how often samples are put back, and what computing them again costs.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from rlscope import format as fmt
from rlscope.model.analytic.steady_state import Regime
from rlscope.model.calibration import Note
from rlscope.model.decode.curves import Form
from rlscope.model.decode.fit import Caveat
from rlscope.model.decode.measurements import Grade
from rlscope.model.forecast.gap import GapCause
from rlscope.model.forecast.holdout import PredictedQuantity
from rlscope.model.forecast.layouts import Exclusion, Forecast, Spread
from rlscope.model.forecast.preemption import Preemption
from rlscope.model.forecast.recommend import Reason
from rlscope.model.forecast.result import STEPS_TO_PREDICT, Caution, ModelResult
from rlscope.model.observed import OtherCaution
from rlscope.model.training.scaling import TrainingRate

REASONS: Final[Mapping[Reason, str]] = {
    "worthwhile": "It is worth a restart, and nine to one or better that it helps.",
    "too_short": (
        "The steady stretch is too short to check the model on, so nothing is recommended yet. Record at least "
        f"{STEPS_TO_PREDICT} steady steps and analyse again."
    ),
    "best_already": "No other layout of these GPUs is faster.",
    "small_gain": "No other layout is faster by a twentieth, and less is not worth the trouble of a change.",
    "unsure": "Another layout may be faster, but the run does not say so surely enough.",
    "updates_bind": "Weight updates are what the run waits for: make them cheaper before moving GPUs.",
    "environment_binds": "The environment is what the run waits for: make it faster, or keep more samples in flight.",
    "lengths_drift": (
        "Responses change in length by more than the interval of the gain covers: keep the layout, and analyse again "
        "when they have settled; --scale-lengths of what-if shows what they will ask for."
    ),
    "forms_disagree": (
        "Another form of the model, which fits the run as well, says that today's layout is the faster one."
    ),
    "no_other_layout": (
        "No other layout is possible: the size of an engine, the KV cache and the staleness cap leave none."
    ),
}
QUANTITIES: Final[Mapping[PredictedQuantity, str]] = {
    "tokens_per_s": "trained",
    "step_s": "step",
    "trainer_idle_ratio": "trainers waiting or publishing",
    "staleness_mean": "mean staleness",
}


class CauseWords(NamedTuple):
    """A cause of the gap."""

    name: str
    meaning: str


CAUSES: Final[Mapping[GapCause, CauseWords]] = {
    "layout_imbalance": CauseWords("split of the GPUs", "One side waits for the other, whatever else is mended."),
    "stragglers": CauseWords("slow engines", "Engines that take longer for the same passes than the others."),
    "kv_cache": CauseWords("KV cache", "It holds fewer requests than the engines may run."),
    "trainer_phases": CauseWords("time between steps", "Checkpoints, evaluation, and what no phase of a step covers."),
    "weight_updates": CauseWords("weight updates", "Engines that pause for new weights, trainers that publish them."),
    "environment": CauseWords("environment", "Samples that wait for tools or rewards and hold a place meanwhile."),
    "admission": CauseWords("cap in flight", "The cap on samples that run, or that run and queue."),
    "staleness_cap": CauseWords("staleness cap", "What is not begun, or is thrown away, to keep tokens young."),
    "synchronous_steps": CauseWords("taking turns", "Each side waits while the other works."),
    "tail": CauseWords("longest samples", "A step or a group is not whole before its longest sample is."),
    "underfilled_batches": CauseWords("batches not filled", "Fewer requests ran than the engines may run."),
    "unexplained": CauseWords("not explained", "What the model predicts of the run and the run does not reach."),
}
BETTER_THAN_MODEL: Final = "The run does better than the model says."
OTHER_CAUSES: Final = CauseWords("all other causes", "Each of them too small for a line of its own.")
EXCLUSIONS: Final[Mapping[Exclusion, str]] = {
    "no_trainer": "no GPU trains",
    "no_engine": "too few GPUs for an engine",
    "engine_granularity": "GPUs make no whole engine",
    "no_request": "no request may run",
    "kv_memory": "KV cache too small",
    "synchronous": "only a synchronous run keeps a staleness of 0",
    "too_stale": "tokens older than the cap",
    "trainer_memory": "too few trainers to hold what is trained",
}
REGIMES: Final[Mapping[Regime, str]] = {
    "balanced": "nothing much",
    "samplers": "samplers",
    "trainers": "trainers",
    "weight_updates": "weight updates",
    "environment": "environment",
    "admission": "cap on samples in flight",
    "staleness_cap": "staleness cap",
}
"""What a layout waits for."""
GRADES: Final[Mapping[Grade, str]] = {
    "measured": "the run made such passes",
    "interpolated": "between passes that the run made",
    "extrapolated": "beyond the passes that the run made",
    "assumed": "no pass was measured",
}
"""What the word for a forecast means."""
FORMS: Final[Mapping[Form, str]] = {
    "pnorm": "a p-norm of reading the weights and computing each request",
    "softplus": "flat, then affine, with a soft hinge",
    "sigmoid": "flat and affine, blended by a logistic",
    "expert_hit": "experts that are read once more of them are hit",
}
CAUTIONS: Final[Mapping[Caution, str]] = {
    "short_stretch": "The steady stretch is too short to hold a part of it out: how well the model does is unknown.",
    "lengths_drift": "Responses change in length over the steady stretch: figures are of its mean, and will move on.",
    "manner_assumed": (
        "The run does not say how samples get to its engines, or what a full queue does (dispatch and queue_policy in"
        " its config): both are assumed."
    ),
    "ahead_contradicted": (
        "When a step began, the trainers held another number of batches besides its own than they are taken to: its"
        " samples are forecast too old or too young by as many steps. The question batches_ahead counts them."
    ),
    "period_drifts": "The step period drifts over the steady stretch: figures are of its mean.",
}
NOTES: Final[Mapping[Note, str]] = {
    "limit_below_setting": (
        "Engines never ran as many requests as their setting allows; the most that ran is taken as today's limit."
    ),
    "unattributed_engine_time": (
        "Much of the engines' time is in no recorded state; the model takes it for idle time, not for slow passes."
    ),
    "prefill_not_recorded": "No prompt tokens were recorded: prefill is taken to be free.",
    "unattributed_trainer_time": (
        "Much of the trainers' time is in no recorded phase; if they waited there, they are faster than is said here."
    ),
}
CURVE_CAVEATS: Final[Mapping[Caveat, str]] = {
    "no_passes": "No pass could be used: what a pass costs rests on the device and the model alone.",
    "no_hardware_prior": (
        "Device or model is not known: beyond the batches that ran, only the form of the curve says what a pass costs."
    ),
    "one_batch_size": "Batches were all about of one size: what other sizes cost is hardly known.",
    "batch_and_kv_move_together": (
        "The KV cache filled in step with the batch: what each of them adds to a pass is known only as a sum."
    ),
    "kv_not_recorded": "The KV cache in use was not recorded: contexts are taken to stay as long as they were.",
    "slope_not_seen": (
        "Batches stayed where their size hardly matters: where larger ones begin to cost is not known from this run."
    ),
}


OTHER_CAUTIONS: Final[Mapping[OtherCaution, str]] = {
    "same_trainers": "it has as many trainer GPUs as this run, so it says nothing of how training scales.",
    "model_not_recorded": "the two runs do not both say what their model is: it is taken to be the same.",
    "other_settings": "its config says something else of training; what that changes is taken for scaling.",
    "other_lengths": "its samples are much longer or shorter; what that changes is taken for scaling.",
}


def scaling_exponent(training: TrainingRate) -> Spread:
    """The exponent of the best estimate, and the interval of its draws."""
    _, low, high = Spread.of(training.exponent_draws)
    return Spread(training.scaling_exponent, low, high)


def scaling_sentence(model: ModelResult) -> str:
    """How the trainers' rate grows with their number, and how that is known."""
    training = model.calibration.training
    middle, low, high = (fmt.significant(each, 2) for each in scaling_exponent(training))
    power = f"{middle} (90% between {low} and {high})"
    if not training.scaling_seen_at:
        return (
            f"How training scales is assumed: as the number of trainer GPUs to the power {power}. A run with another "
            "number of them, named with --also, measures it."
        )
    counts = sorted({training.seen_gpus, *training.scaling_seen_at})
    listed = f"{', '.join(map(fmt.count, counts[:-1]))} and {fmt.count(counts[-1])}"
    runs = 1 + sum("same_trainers" not in other.cautions for other in model.others)
    return (
        f"How training scales is measured from {fmt.count(runs)} runs, with {listed} trainer GPUs: as their number "
        f"to the power {power}."
    )


def other_run_lines(model: ModelResult) -> list[str]:
    """What to be careful with in the other runs."""
    lines = [f"{other.run_id}: {OTHER_CAUTIONS[caution]}" for other in model.others for caution in other.cautions]
    if model.calibration.training.scaling_contradicted:
        lines.append(
            "No way of scaling explains how fast the other runs train beside this one: they differ in more than their "
            "trainer GPUs, and the interval is the wider for it."
        )
    return lines


_FEW_PER_SAMPLE: Final = 0.005
"""Of half a sample in a hundred nothing is said."""


def preemption_sentence(model: ModelResult) -> str | None:
    """What preemptions cost the run, and were expected to; None where there are too few to speak of."""
    today = model.forecasts.today
    seen, expected = _worth_saying(model.preemption), _worth_saying(today.preemption)
    if seen is None and expected is None:
        return None
    grade = f" ({today.grade})" if today.grade else ""
    if seen is None:
        was = "did not count preemptions" if model.preemption is None else "put next to no request back"
        return f"Engines {was}; the model expects {_words(expected)}{grade}."
    text = f"The KV cache ran over: {_words(seen)}, as counted"
    return f"{text}." if today.preemption is None else f"{text}; the model expects {_words(today.preemption)}{grade}."


def overflow_line(forecast: Forecast) -> str | None:
    """What a layout that runs more requests than the KV cache holds loses; None where it holds them."""
    state, running = forecast.state, forecast.layout.running_per_engine
    if state is None or state.running_limit >= running:
        return None
    lost = _worth_saying(forecast.preemption)
    text = f"The KV cache of an engine holds {fmt.significant(state.running_limit)} requests safely, not {running}"
    return f"{text}." if lost is None else f"{text}: the model expects {_words(lost)}."


def layout_remark(forecast: Forecast) -> str:
    """Why a layout is out of the question, or how sure its forecast is and what it puts back."""
    if forecast.excluded:
        return EXCLUSIONS[forecast.excluded]
    lost = _worth_saying(forecast.preemption)
    parts = (forecast.grade or "", "" if lost is None else f"{fmt.preemptions(lost.per_sample)} a sample")
    return ", ".join(part for part in parts if part)


def _worth_saying(lost: Preemption | None) -> Preemption | None:
    return lost if lost is not None and lost.per_sample >= _FEW_PER_SAMPLE else None


def _words(lost: Preemption | None) -> str:
    if _worth_saying(lost) is None or lost is None:
        return "next to no preemption"
    often = f"{fmt.preemptions(lost.per_sample)} a sample"
    if lost.engine_ratio is None:
        return often
    return f"{often}, {fmt.percent(lost.engine_ratio)} of the engines' time to compute them again"
