"""Two roles run on one GPU.

Symptom: a trainer and a sampler name the same GPU as theirs, and both run. Each slows the other, and the run's GPUs are
fewer than the workers say.
Evidence: the ids of the GPUs that the workers recorded: UUIDs, or indices on one host.
Threshold: both ran for at least 10% of the shorter one's time; a restart on a GPU that is still held is shorter.
Remedy: give each role its own GPUs. If the sharing is intended, record one colocated worker instead of two.
Limits: an index that a process counts from its own CUDA_VISIBLE_DEVICES can name another GPU; UUIDs, which are recorded
when the GPUs are sampled, cannot. Workers that record no id are not compared.
Cost: none is given, because the slowdown of each role is not recorded. The ledger counts the GPU once per worker.
"""

from typing import Final

import polars as pl

from rlscope.analysis.result import Finding
from rlscope.diagnose.evidence import Evidence, FindingRule

# A worker that replaces another one of a different role overlaps with it for less.
LEAST_SHARED_RATIO: Final = 0.10


def find(evidence: Evidence) -> Finding | None:
    """Return the finding about the first shared GPU, or None if no two roles share one."""
    shared = evidence.answers["shared_gpus"].filter(pl.col("shared_ratio") >= LEAST_SHARED_RATIO)
    if shared.is_empty():
        return None
    first = shared.row(0, named=True)
    return Finding(
        rule="shared_gpu",
        severity="critical",
        cost_gpu_s=None,
        evidence={
            "shared_gpus": shared["gpu_id"].n_unique(),
            "gpu_id": first["gpu_id"],
            "worker_id": first["worker_id"],
            "role": first["role"],
            "other_worker_id": first["other_worker_id"],
            "other_role": first["other_role"],
            "shared_s": (first["end_ns"] - first["start_ns"]) / 1e9,
        },
        start_ns=first["start_ns"],
        end_ns=first["end_ns"],
    )


RULE = FindingRule(
    title="Two roles on one GPU",
    sentences=(
        "GPUs shared by two roles: {shared_gpus}. The first is {gpu_id}: {worker_id} ({role}) and {other_worker_id} "
        "({other_role}) both ran on it for {shared_s}; the ledger counts it twice.",
    ),
    remedy="Give each role its own GPUs. If the sharing is intended, record one worker with the role colocated.",
    find=find,
)
