"""The trace is incomplete.

Symptom: unreadable files, rows dropped by capture, rows that are missing or stored twice, workers that never stopped,
unattributed time.
Evidence: their counts, and the share of GPU-seconds that is unattributed.
Threshold: any skipped file, dropped or missing row, or 10% unattributed, as much as the verdict tolerates on one side.
Critical from 25% unattributed, because the verdict can then be about the wrong cause.
Remedy: read the list of gaps under data quality; add the hooks, files or flags that `rlscope doctor` names; increase
the recorder's buffers.
Limits: in a run that is still being written, workers have no end yet. They are listed but do not trigger the rule.
"""

from typing import Final

from rlscope.analysis.result import Finding
from rlscope.diagnose.evidence import Evidence, FindingRule

# As much as the verdict tolerates as a loss on one side.
WARNING_SHARE_RATIO: Final = 0.10
# A quarter of the run can hide any other finding.
CRITICAL_SHARE_RATIO: Final = 0.25


def find(evidence: Evidence) -> Finding | None:
    """Return the finding, or None if nothing is missing."""
    quality = evidence.data_quality
    dropped_rows = sum(quality.dropped_rows.values())
    total_gpu_s = evidence.ledger.total_gpu_s
    unattributed_gpu_s = evidence.state_gpu_s("unattributed")
    share_ratio = unattributed_gpu_s / total_gpu_s if total_gpu_s else None
    hidden = share_ratio is not None and share_ratio >= WARNING_SHARE_RATIO
    concerned_rows = quality.completeness.concerned_rows
    if not quality.skipped_files and not dropped_rows and not concerned_rows and not hidden:
        return None
    return Finding(
        rule="data_quality_gaps",
        severity="critical" if share_ratio is not None and share_ratio >= CRITICAL_SHARE_RATIO else "warning",
        cost_gpu_s=None,
        evidence={
            "skipped_files": len(quality.skipped_files),
            "dropped_rows": dropped_rows,
            "missing_rows": concerned_rows,
            "workers_without_end": len(quality.workers_without_end),
            "unattributed_share_ratio": share_ratio,
        },
        start_ns=None,
        end_ns=None,
    )


RULE = FindingRule(
    title="Gaps in the data",
    sentences=(),
    counts={
        "skipped_files": "Skipped: {}.",
        "dropped_rows": "Dropped by capture: {}.",
        "missing_rows": "Missing, damaged or stored twice: {}.",
        "workers_without_end": "Without an end: {}.",
        "unattributed_share_ratio": "Unattributed: {} of GPU time.",
    },
    remedy="Read every number with these gaps in mind. Each is listed under data quality, and `rlscope doctor` says "
    "what would close them: a hook, a file or a flag.",
    find=find,
)
