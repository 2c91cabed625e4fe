"""Warnings that the model attaches to its results. The value of each is its name in JSON.

`rlscope.reports.text.names.WARNINGS` has the sentences that users read.
"""

from enum import StrEnum


class ModelWarning(StrEnum):
    """Reason why a result is less certain than it looks, or an assumption that it rests on."""

    LIMIT_BELOW_SETTING = "limit_below_setting"
    """Fewer requests ran than the setting allows; the maximum seen is taken as the current limit."""
    UNATTRIBUTED_ENGINE_TIME = "unattributed_engine_time"
    """Too much engine time is unattributed to count it as time between passes, so it is left out."""
    PREFILL_NOT_RECORDED = "prefill_not_recorded"
    """No pass recorded prompt tokens, so prefill is assumed to be free."""
    UNATTRIBUTED_TRAINER_TIME = "unattributed_trainer_time"
    """So much of a step is unattributed that waits for samples may be part of it."""
    UNEQUAL_ENGINES = "unequal_engines"
    """Some engines are much slower than others: which ones a layout keeps is an assumption."""
    UPDATES_SLOW_PASSES = "updates_slow_passes"
    """Passes take longer during weight updates that do not pause the engines; their excess is a cost of the update."""

    NO_PASSES = "no_passes"
    """No decode pass could be used: the curve rests on the hardware alone."""
    NO_HARDWARE_PRIOR = "no_hardware_prior"
    """The device or the model is unknown: the curve rests on the measured passes alone."""
    ONE_BATCH_SIZE = "one_batch_size"
    """All batches had about the same size, so the slope of the curve was not measured."""
    BATCH_AND_KV_MOVE_TOGETHER = "batch_and_kv_move_together"
    """Batch size and resident tokens grew in proportion, so only the sum of their costs is known."""
    KV_NOT_RECORDED = "kv_not_recorded"
    """Resident tokens were not recorded, so the curve assumes that they do not change."""
    SLOPE_NOT_SEEN = "slope_not_seen"
    """Batches stayed so small that the time of a pass hardly depended on their size."""

    SHORT_STRETCH = "short_stretch"
    """The steady state has too few steps to hold out a part of it, so the model could not be checked."""
    LENGTHS_DRIFT = "lengths_drift"
    """Response lengths grow or shrink over the steady state."""
    STEP_TIME_DRIFTS = "step_time_drifts"
    """The step time grows or shrinks over the steady state."""
    MANNER_ASSUMED = "manner_assumed"
    """Layouts were simulated, and the run states neither its dispatch nor the behavior of its full queue."""
    AHEAD_CONTRADICTED = "ahead_contradicted"
    """The trainers prefetched a different number of batches than the model assumes."""

    SCHEDULING_CONTRADICTED = "scheduling_contradicted"
    """run.json states a different rollout scheduling than the run shows; the one shown is used."""
    NOT_EXPLAINED = "not_explained"
    """In the replay, the rate of the current layout is off by more than 10%."""
    PREDICTION_MISSED = "prediction_missed"
    """Calibrated on the first half, the model is off by more than 10% on the second half, beyond both intervals."""
    PARTLY_EXPLAINED = "partly_explained"
    """The replay reproduces the rate of the current layout, but 25% or more of the compared quantities are off."""

    SAME_TRAINERS = "same_trainers"
    """Another run has as many trainer GPUs as this one, so it carries no information about scaling."""
    MODEL_NOT_RECORDED = "model_not_recorded"
    """Nothing recorded shows that another run trains the same model."""
    OTHER_LENGTHS = "other_lengths"
    """Another run's samples are so much longer or shorter that attention alone may change the time per token."""

    CUT_LENGTHS = "cut_lengths"
    """The tokens that samples would have generated beyond the cap on their length were not seen."""
    FLAT_STEPS = "flat_steps"
    """The time of a training step did not grow with its tokens, but is assumed to."""
    UPDATES_NOT_SEEN = "updates_not_seen"
    """The run shows no cost of a weight update, so both sides are assumed to pause for all of it."""
    CAP_BY_ADMISSION = "cap_by_admission"
    """The run has no staleness cap; a new one is assumed to delay the start of samples."""
    TRAINING_SCALING = "training_scaling"
    """The layout has a number of trainer GPUs that no run has used."""
