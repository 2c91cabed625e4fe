"""GPUs of judges and of reward, reference or critic models are mostly idle.

Symptom: an auxiliary model has GPUs of its own and little to do on them.
Evidence: the auxiliary workers' GPU-seconds in waiting states, and all of their GPU-seconds.
Threshold: half of the auxiliary GPU-seconds.
Remedy: fewer GPUs for these models, or one engine for several of them.
Limits: a model that answers in bursts needs its GPUs while they last, and holds up the samples with fewer.
"""

from typing import Final

from rlscope.analysis.ledger import AUXILIARY_ROLE, IDLE_STATES
from rlscope.analysis.result import Finding
from rlscope.diagnose.evidence import Evidence, FindingRule

# Half as many GPUs would do the same work if it were spread evenly.
WARNING_SHARE_RATIO: Final = 0.50


def find(evidence: Evidence) -> Finding | None:
    """Return the finding, or None below the threshold or without auxiliary GPUs."""
    auxiliary_gpu_s = evidence.role_gpu_s(AUXILIARY_ROLE)
    idle_gpu_s = evidence.state_gpu_s(*IDLE_STATES, roles=(AUXILIARY_ROLE,))
    if not auxiliary_gpu_s or idle_gpu_s < WARNING_SHARE_RATIO * auxiliary_gpu_s:
        return None
    return evidence.finding(
        "idle_auxiliary",
        severity="warning",
        cost_gpu_s=idle_gpu_s,
        facts={
            "idle_gpu_s": idle_gpu_s,
            "auxiliary_share_ratio": idle_gpu_s / auxiliary_gpu_s,
        },
    )


RULE = FindingRule(
    title="Idle auxiliary GPUs",
    sentences=(
        "Over the whole run, the auxiliary GPUs were idle for {idle_gpu_s} ({auxiliary_share_ratio} of their time).",
    ),
    remedy="Give the auxiliary models fewer GPUs, or let several of them share one engine.",
    find=find,
)
