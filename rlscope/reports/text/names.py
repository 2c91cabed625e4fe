"""Names and sentences for the parts of a model result: reasons, causes, limits, warnings, scaling and preemptions."""

from collections.abc import Mapping
from typing import Final

from rlscope import format as fmt
from rlscope.model.causes import Cause
from rlscope.model.decode.curves import Form
from rlscope.model.decode.measurements import Grade
from rlscope.model.forecast.gap import GapCause
from rlscope.model.forecast.layouts import Exclusion, Forecast, Preemption
from rlscope.model.forecast.recommend import Reason
from rlscope.model.forecast.result import STEPS_TO_PREDICT, ModelResult
from rlscope.model.warnings import ModelWarning

REASONS: Final[Mapping[Reason, str]] = {
    "worthwhile": "The recommended layout is clearly faster than the current one.",
    "unsure": "Likely faster, but uncertain: worth a short test.",
    "costly": "Faster, but at a price that a short test should show to be acceptable.",
    "lengths_drift": (
        "Likely faster, but response lengths drift by more than the gain covers; `rlscope what-if --length-factor` "
        "shows the effect of longer responses."
    ),
    "best_already": "No other split of the GPUs and no other limit on running requests is faster.",
    "small_gain": ("No other split of the GPUs and no other limit on running requests is likely to be 5% faster."),
    "no_other_layout": "No other layout is possible with this engine size, KV cache and staleness.",
    "too_short": (
        f"Likely faster, but the steady state is too short to test a prediction: that takes {STEPS_TO_PREDICT} steps."
    ),
    "not_replayed": "rlscope cannot reproduce the throughput of this run, so it predicts nothing about other layouts.",
}
MEANINGS: Final[Mapping[GapCause, str]] = {
    Cause.RUNNING_LIMIT: "Engines may run fewer requests at once than in the fastest layout.",
    Cause.WHOLE_GPUS: "No split into whole engines and trainers keeps both sides busy: no layout removes this.",
    Cause.LAYOUT_IMBALANCE: "Another split of whole GPUs would keep both sides busier at this limit.",
    Cause.SLOW_ENGINES: "Some engines take longer than the others for the same passes.",
    Cause.KV_CACHE: "It holds fewer requests than the engines may run.",
    Cause.BETWEEN_STEPS: "Checkpoints, evaluation, and time in no recorded phase.",
    Cause.WEIGHT_UPDATES: "Engines pause for new weights, and trainers publish them.",
    Cause.ENVIRONMENT: "Samples wait for tools or rewards and keep their slot meanwhile.",
    Cause.IN_FLIGHT_LIMIT: "The cap on running samples, or on running and queued ones.",
    Cause.STALENESS_CAP: "Samples start later or are dropped, so that no token exceeds the cap.",
    Cause.LOCKSTEP: "Each side waits while the other works.",
    Cause.TAIL: "A step or a group is complete only when its longest sample is.",
    Cause.UNDERFILLED_BATCHES: "Fewer requests ran than the engines may run.",
    Cause.UNEXPLAINED: "The prediction is higher than the measured throughput.",
}
"""Meanings of the causes of the gap; `causes.NAMES` has their names."""
BETTER_THAN_MODEL: Final = "The run is faster than predicted."
OTHER_CAUSES: Final = ("all other causes", "Each is too small for a line of its own.")
EXCLUSIONS: Final[Mapping[Exclusion, str]] = {
    "no_trainer": "no trainer GPU",
    "no_engine": "too few GPUs for an engine",
    "engine_granularity": "not a whole number of engines",
    "no_request": "no running requests allowed",
    "kv_memory": "KV cache too small",
    "synchronous": "only a synchronous run keeps this staleness cap",
    "too_stale": "staleness above the cap",
    "trainer_memory": "too few trainer GPUs for the training state",
    "never_trains": "fewer than one sample in a hundred would be trained",
}
EVIDENCE: Final[Mapping[Grade, str]] = {
    "measured": "decode speed measured at this batch size",
    "interpolated": "decode speed interpolated between measured batch sizes",
    "extrapolated": "decode speed extrapolated beyond measured batch sizes",
    "assumed": "decode speed was not measured near this number of requests",
}
"""Evidence behind a predicted rate, by its grade."""
FORMS: Final[Mapping[Form, str]] = {
    "pnorm": "p-norm of reading the weights and computing each request",
    "expert_hit": "weights of the experts that the batch hits",
}
WARNINGS: Final[Mapping[ModelWarning, str]] = {
    ModelWarning.LIMIT_BELOW_SETTING: (
        "Engines never ran as many requests as their setting allows; the largest observed number is used as the limit."
    ),
    ModelWarning.UNATTRIBUTED_ENGINE_TIME: (
        "Much of the engines' time is unattributed; rlscope counts it as idle time, not as slow passes."
    ),
    ModelWarning.PREFILL_NOT_RECORDED: "No engine step counts prefill tokens: prefill is assumed to be free.",
    ModelWarning.UNATTRIBUTED_TRAINER_TIME: (
        "Much of the trainers' time is unattributed; if they waited there, they are faster than predicted."
    ),
    ModelWarning.UNEQUAL_ENGINES: (
        "Engines differ in speed: a layout with fewer is predicted with the first ones by name, and an added engine "
        "with the usual speed."
    ),
    ModelWarning.SPECULATIVE_DECODING: (
        "A decode step yields several tokens per request (speculative decoding); predictions assume as many at every "
        "batch size."
    ),
    ModelWarning.UPDATES_SLOW_PASSES: (
        "Forward passes took longer while new weights were moved to the engines; the extra time counts as a cost of "
        "weight updates."
    ),
    ModelWarning.NO_PASSES: "No forward pass could be used: its time is estimated from the GPU type and the LLM alone.",
    ModelWarning.NO_HARDWARE_PRIOR: (
        "GPU type or LLM is unknown: beyond the measured batch sizes, the time of a forward pass is extrapolated from "
        "the fitted curve."
    ),
    ModelWarning.ONE_BATCH_SIZE: "All batches were about the same size: the speed at other sizes is uncertain.",
    ModelWarning.BATCH_AND_KV_MOVE_TOGETHER: (
        "The KV cache filled in proportion to the batch: only the sum of their effects is known."
    ),
    ModelWarning.KV_NOT_RECORDED: "KV cache use was not recorded: contexts are assumed to stay as long as they were.",
    ModelWarning.SLOPE_NOT_SEEN: (
        "Forward passes took about the same time at every measured batch size: where they get slower is unknown."
    ),
    ModelWarning.SHORT_STRETCH: (
        "The steady state is too short to test predictions on this run: their error is unknown."
    ),
    ModelWarning.LENGTHS_DRIFT: (
        "Response lengths drift over the steady state: figures are for its mean and will change."
    ),
    ModelWarning.STEP_TIME_DRIFTS: "The step time drifts over the steady state: figures are for its mean.",
    ModelWarning.MANNER_ASSUMED: (
        "How samples reach the engines, or what a full queue does to them, is assumed: the config lacks dispatch, "
        "queue_policy or both."
    ),
    ModelWarning.SCHEDULING_CONTRADICTED: (
        "run.json and the recorded data disagree on the rollout scheduling; the recorded data is used."
    ),
    ModelWarning.NOT_EXPLAINED: (
        "The predicted throughput of the current layout is more than 10% off the measured one: predictions for other "
        "layouts are unreliable."
    ),
    ModelWarning.PREDICTION_MISSED: (
        "The throughput that was predicted from the first half of the steady state for the second half is more than "
        "10% off: intervals allow for twice the usual error of the model."
    ),
    ModelWarning.PARTLY_EXPLAINED: (
        "A quarter or more of what the model predicts for the current layout differs from what was measured: intervals "
        "allow for twice the usual error of the model."
    ),
    ModelWarning.AHEAD_CONTRADICTED: (
        "The trainers did not prefetch as many batches as assumed: predicted staleness is off by the same"
        " number of steps. The query batches_ahead counts them."
    ),
    ModelWarning.SAME_TRAINERS: "it has as many trainer GPUs as this run, so it says nothing about scaling.",
    ModelWarning.MODEL_NOT_RECORDED: "the two runs do not both record their LLM: it is assumed to be the same.",
    ModelWarning.OTHER_LENGTHS: "its samples are much longer or shorter; the effect is attributed to scaling.",
    ModelWarning.CUT_LENGTHS: (
        "Responses at the cap are assumed to end there, because their full lengths were not observed. The throughput "
        "is an assumption."
    ),
    ModelWarning.FLAT_STEPS: (
        "In the run, the time of a training step hardly grew with its tokens, but it is assumed to be in proportion to"
        " them. The throughput is an assumption."
    ),
    ModelWarning.UPDATES_NOT_SEEN: (
        "The run recorded no cost of weight updates: both sides are assumed to pause for the whole update."
    ),
    ModelWarning.CAP_BY_ADMISSION: ("The run has no staleness cap: the new one is enforced by starting samples later."),
    ModelWarning.TRAINING_SCALING: (
        "Training was measured on one number of GPUs only; the interval includes the uncertainty of its scaling."
        " To measure it, pass a run with another number with --also."
    ),
}
"""Sentence for each warning; those about another run follow its name."""


def scaling_sentence(model: ModelResult) -> str:
    """Return the growth of the trainers' rate with their number, and whether it was measured or assumed."""
    training = model.calibration.training
    middle, low, high = (fmt.significant(each, 2) for each in training.scaling_exponent)
    power = f"{middle} (90% interval {low} to {high})"
    if not training.scaling_seen_at:
        return (
            f"Training speed is assumed to grow as (trainer GPUs)^{power}. To measure the exponent, pass a run with "
            "another number of trainer GPUs with --also."
        )
    counts = sorted({training.trainer.seen_gpus, *training.scaling_seen_at})
    listed = fmt.listed([*map(fmt.count, counts)])
    runs = 1 + sum(ModelWarning.SAME_TRAINERS not in other.warnings for other in model.others)
    return (
        f"Training speed grows as (trainer GPUs)^{power}, measured from {fmt.count(runs)} runs with {listed} trainer "
        "GPUs."
    )


def other_run_lines(model: ModelResult) -> list[str]:
    """The warnings about the other runs."""
    lines = [f"{other.run_id}: {WARNINGS[warning]}" for other in model.others for warning in other.warnings]
    if model.calibration.training.scaling_contradicted:
        lines.append(
            "No single scaling exponent fits the other runs: they differ in more than their trainer GPUs, so the "
            "interval is wider."
        )
    return lines


_FEW_PER_SAMPLE: Final = 0.005
"""Fewer preemptions per sample are not mentioned."""


def preemption_sentence(model: ModelResult) -> str | None:
    """Return the measured cost of preemptions; None if there are too few to mention."""
    lost = _lost_words(model.preemption)
    return f"The KV cache overflowed: {lost}." if lost else None


def overflow_line(forecast: Forecast) -> str | None:
    """Return the loss of a layout that runs more requests than the KV cache holds; None if it holds them."""
    state, running = forecast.state, forecast.layout.max_running
    if state is None or state.running_limit >= running:
        return None
    lost = _lost_words(forecast.preemption)
    text = f"The KV cache of an engine holds {fmt.significant(state.running_limit)} requests safely, not {running}"
    return f"{text}; predicted: {lost}." if lost else f"{text}."


def layout_remark(forecast: Forecast) -> str:
    """Why a layout is excluded; else the grade of its forecast and its preemptions."""
    if forecast.excluded:
        return EXCLUSIONS[forecast.excluded]
    grade = "" if forecast.grade is None else EVIDENCE[forecast.grade]
    limit = forecast.in_flight_limit
    held = "" if limit is None else f"with at most {fmt.count(limit)} samples in flight"
    return ", ".join(filter(None, (grade, held, _often(forecast.preemption))))


def _often(lost: Preemption | None) -> str:
    """Return the preemptions per sample; empty if there are too few to mention."""
    often = 0.0 if lost is None else lost.preemptions_per_sample
    return f"{fmt.preemptions(often)} a sample" if often >= _FEW_PER_SAMPLE else ""


def _lost_words(lost: Preemption | None) -> str:
    often = _often(lost)
    if lost is None or not often or lost.recompute_ratio is None:
        return often
    return f"{often}, {fmt.percent(lost.recompute_ratio)} of the engines' time to recompute them"
