"""The trace does not say enough about the run.

Symptom: files that cannot be read, rows that capture dropped, workers that never stopped, time that nothing explains.
Evidence: their counts, and the share of the GPU-seconds that is unattributed.
Threshold: any skipped file or dropped row; 10 % unattributed, as much as the verdict tolerates on a side; critical
when a quarter is unattributed, since the verdict may then be about the wrong thing.
Remedy: read the list of gaps; hook the phases that are missing; keep the recorder's buffers larger.
When it is wrong: a run that is still being written has workers without an end, which is told but no illness.
"""

from typing import Final

from rlscope.analysis.result import Finding
from rlscope.diagnose.evidence import Evidence

# As much as the verdict tolerates as a loss of a side.
WARNING_SHARE_RATIO: Final = 0.10
# A quarter of the run could hold any illness.
CRITICAL_SHARE_RATIO: Final = 0.25


def find(evidence: Evidence) -> Finding | None:
    """The finding, or None when nothing is missing."""
    quality = evidence.data_quality
    dropped_rows = sum(quality.dropped_rows.values())
    total_gpu_s = evidence.ledger.total_gpu_s
    unattributed_gpu_s = evidence.state_gpu_s("unattributed")
    share_ratio = unattributed_gpu_s / total_gpu_s if total_gpu_s else None
    hidden = share_ratio is not None and share_ratio >= WARNING_SHARE_RATIO
    if not quality.skipped_files and not dropped_rows and not hidden:
        return None
    return Finding(
        rule="data_quality_gaps",
        severity="critical" if share_ratio is not None and share_ratio >= CRITICAL_SHARE_RATIO else "warning",
        cost_gpu_s=None,
        evidence={
            "skipped_files": len(quality.skipped_files),
            "dropped_rows": dropped_rows,
            "workers_without_end": len(quality.workers_without_end),
            "unattributed_share_ratio": share_ratio,
        },
        start_ns=None,
        end_ns=None,
    )
