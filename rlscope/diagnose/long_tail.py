"""Steps wait for the last few of their samples.

Symptom: most samples of a step have finished, and the trainers wait for the rest.
Evidence: per step, the trainers' wait for samples between the finish of the 90th-percentile sample and that of the last
one, minus a tenth of the step's wait. The last tenth of evenly spaced samples takes a tenth of the wait by definition.
A step counts if the engines ran at most half as many samples when its tail began as when its first sample finished:
engines that run samples of the next steps meanwhile lose nothing to the tail.
Threshold: 5% of the trainers' GPU-seconds, more than a weight update usually costs; critical from 20%.
Remedy: start the next step's samples before the last ones have finished (asynchronous, or more in flight), cap the
response length, abort the tail or carry it over to the next step.
Limits: if the starts of samples were not recorded, the batches of the engines tell how many ran; if neither was, every
step counts. In a run that takes samples from a queue the engines stay full, and trainers that wait there wait for all
samples, not for the last: the rule stays silent.
"""

from typing import Final

import polars as pl

from rlscope.analysis.ledger import TRAINER_ROLES
from rlscope.analysis.result import Finding
from rlscope.diagnose.evidence import Evidence, FindingRule, column_total

# More than a weight update usually costs.
WARNING_SHARE_RATIO: Final = 0.05
# Share of a wait that the last tenth of evenly spaced samples takes.
EVEN_TAIL_RATIO: Final = 0.10
# Samples running before the tail over samples running in it. Below this factor, engines work on other samples.
EMPTIED_FACTOR: Final = 2
# One trainer in five does nothing but wait for the last tenth of its samples.
CRITICAL_SHARE_RATIO: Final = 0.20


def find(evidence: Evidence) -> Finding | None:
    """Return the finding, or None below the threshold."""
    steps = evidence.answers["step_tails"].join(evidence.answers["step_waits"], on="step")
    trainer_gpus = evidence.run.trainer_gpus + evidence.run.colocated_gpus
    trainer_gpu_s = evidence.role_gpu_s(*TRAINER_ROLES)
    idle_gpu_s = column_total(steps.select(_beyond_even_s().alias("idle_s")), "idle_s") * trainer_gpus
    if not trainer_gpu_s or not len(steps) or idle_gpu_s < WARNING_SHARE_RATIO * trainer_gpu_s:
        return None
    return evidence.finding(
        "long_tail",
        severity="critical" if idle_gpu_s >= CRITICAL_SHARE_RATIO * trainer_gpu_s else "warning",
        cost_gpu_s=idle_gpu_s,
        facts={
            "steps": len(steps),
            "tail_s": float(steps["tail_s"].mean()),  # type: ignore[arg-type]
            "tail_share_ratio": idle_gpu_s / trainer_gpu_s,
            "idle_gpu_s": idle_gpu_s,
        },
    )


def _beyond_even_s() -> pl.Expr:
    """Seconds that a step's trainers waited in its tail, beyond the tail of evenly spaced samples."""
    from_ns = pl.max_horizontal("tail_start_ns", "wait_from_ns")
    to_ns = pl.min_horizontal("last_finish_ns", "wait_to_ns")
    even_ns = EVEN_TAIL_RATIO * (pl.col("wait_to_ns") - pl.col("wait_from_ns"))
    runs_on = EMPTIED_FACTOR * pl.col("running_in_tail") > pl.col("running_before")
    beyond_s = ((to_ns - from_ns - even_ns) / 1e9).clip(lower_bound=0)
    return pl.when(runs_on.fill_null(value=False)).then(0.0).otherwise(beyond_s)


RULE = FindingRule(
    title="Long tail",
    sentences=(
        "The last tenth of a step's samples took {tail_s} to finish, on average over {steps}. Over the whole run, "
        "trainers idled for {idle_gpu_s} meanwhile ({tail_share_ratio} of their GPU time), beyond the wait for evenly "
        "spaced samples.",
    ),
    remedy="Start the next samples before the last ones finish (asynchronous generation), cap or split long "
    "responses, or carry the tail over to the next step.",
    find=find,
)
