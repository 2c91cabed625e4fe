"""Steps wait for the last few of their samples.

Symptom: most samples of a step have ended, and the trainers wait for the rest.
Evidence: for each step, the time from the end of the sample at 90 % to the end of the last, as far as the trainers
waited for samples in it, beyond a tenth of the step's wait: samples that end evenly spaced have a last tenth too, and
it lasts a tenth of the wait by definition.
Threshold: 5 % of the trainers' GPU-seconds: the tail is only worth work when it costs more than a weight update
usually does; critical from 20 %.
Remedy: let the next step's samples start before the last have ended (asynchronous, or more in flight), cap the
response length, abort or carry over the tail.
When it is wrong: in a run that takes samples from a queue the last sample of a batch was rarely waited for; the overlap
with the trainers' own waits keeps the rule quiet there.
"""

from typing import Final

import polars as pl

from rlscope.analysis.result import Finding
from rlscope.diagnose.evidence import Evidence, column_total

# More than a weight update usually costs.
WARNING_SHARE_RATIO: Final = 0.05
# The share of a wait in which the last tenth of evenly spaced samples ends.
EVEN_TAIL_RATIO: Final = 0.10
# One trainer in five only waits for the last tenth of its samples.
CRITICAL_SHARE_RATIO: Final = 0.20


def find(evidence: Evidence) -> Finding | None:
    """The finding, or None below the threshold."""
    steps = evidence.answers["step_tails"].join(evidence.answers["step_waits"], on="step")
    trainer_gpus = evidence.run.trainer_gpus + evidence.run.colocated_gpus
    trainer_gpu_s = evidence.role_gpu_s("trainer", "colocated")
    idle_gpu_s = column_total(steps.select(_beyond_even_s().alias("idle_s")), "idle_s") * trainer_gpus
    if not trainer_gpu_s or not len(steps) or idle_gpu_s < WARNING_SHARE_RATIO * trainer_gpu_s:
        return None
    return Finding(
        rule="long_tail",
        severity="critical" if idle_gpu_s >= CRITICAL_SHARE_RATIO * trainer_gpu_s else "warning",
        cost_gpu_s=idle_gpu_s,
        evidence={
            "steps": len(steps),
            "tail_s": float(steps["tail_s"].mean()),  # type: ignore[arg-type]
            "tail_share_ratio": idle_gpu_s / trainer_gpu_s,
            "idle_gpu_s": idle_gpu_s,
        },
        start_ns=evidence.run.started_ns,
        end_ns=evidence.end_ns,
    )


def _beyond_even_s() -> pl.Expr:
    """Seconds that a step's trainers waited in its tail, beyond what evenly spaced samples would have cost."""
    from_ns = pl.max_horizontal("tail_start_ns", "wait_from_ns")
    to_ns = pl.min_horizontal("last_finish_ns", "wait_to_ns")
    even_ns = EVEN_TAIL_RATIO * (pl.col("wait_to_ns") - pl.col("wait_from_ns"))
    return ((to_ns - from_ns - even_ns) / 1e9).clip(lower_bound=0)
