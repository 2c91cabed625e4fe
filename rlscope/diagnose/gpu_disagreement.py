"""The hooks say busy, the GPU says idle.

Symptom: in a state that counts as work, the GPU ran no kernel for much of the time.
Evidence: the share of GPU readings without a kernel, over readings that lie entirely in the state. At least 10 readings
that cover at least 1% of the state's GPU-seconds.
Threshold: 30% idle; critical from 60%. Launch gaps and host work between kernels reach 10 to 20% in healthy runs.
Remedy: look for host work inside the phase (tokenizing, data loading, Python between passes), or record it as its own
phase.
Limits: a driver's utilization counts any kernel, including a polling one. A busy GPU therefore proves little; an idle
one proves much. It is renewed up to a second late, so a reading counts only if the state has lasted for a second
before the reading's period. States shorter than a second are not compared.
"""

from typing import Final

import polars as pl

from rlscope.analysis.ledger import ENGINE_STATES
from rlscope.analysis.result import Finding, LedgerState
from rlscope.diagnose.evidence import Evidence, FindingRule, column_total

# More than launch gaps and host work between kernels reach in healthy runs.
WARNING_IDLE_RATIO: Final = 0.30
# Clearly more idle than busy.
CRITICAL_IDLE_RATIO: Final = 0.60
# With ten, a single reading in a gap between kernels moves the ratio by at most 0.1.
LEAST_READINGS: Final = 10
# Readings of less than 1% of the state may all come from one unusual moment, such as warm-up.
LEAST_COVERED_RATIO: Final = 0.01


def find(evidence: Evidence) -> Finding | None:
    """Return the finding about the most expensive state, or None if GPU and hooks agree or no GPU was read."""
    states = [
        (state.gpu_idle_ratio * state.gpu_s, state.gpu_idle_ratio, state)
        for state in evidence.ledger.states
        if state.gpu_idle_ratio is not None
        and state.gpu_idle_ratio >= WARNING_IDLE_RATIO
        and _is_read_enough(state, evidence)
    ]
    if not states:
        return None
    idle_gpu_s, idle_ratio, state = max(states, key=lambda found: (found[0], found[2].state))
    return evidence.finding(
        "gpu_disagreement",
        severity="critical" if idle_ratio >= CRITICAL_IDLE_RATIO else "warning",
        cost_gpu_s=idle_gpu_s,
        facts={"state": state.state, "role": state.role, "gpu_idle_ratio": idle_ratio, "gpu_s": state.gpu_s},
    )


def _is_read_enough(state: LedgerState, evidence: Evidence) -> bool:
    """Whether there are enough readings in the state; all passes of an engine count as one state."""
    together = ENGINE_STATES if state.state in ENGINE_STATES else (state.state,)
    read_as = "engine_rows" if state.state in ENGINE_STATES else state.state
    workers = evidence.answers["worker_extents"].filter(role=state.role)["worker_id"]
    read = evidence.answers["gpu_agreement"].filter(
        pl.col("busy_ratio").is_not_null(), pl.col("worker_id").is_in(workers.implode()), state=read_as
    )
    state_gpu_s = evidence.state_gpu_s(*together, roles=(state.role,))
    return (
        column_total(read, "readings") >= LEAST_READINGS
        and column_total(read, "read_s") >= LEAST_COVERED_RATIO * state_gpu_s
    )


RULE = FindingRule(
    title="Hooks and GPU disagree",
    sentences=("Hooks report {gpu_s} of {state}, but no kernel ran for {gpu_idle_ratio} of it.",),
    remedy="That state hides idle time: look for host work, locks or transfers inside it, and record each as a span.",
    find=find,
)
