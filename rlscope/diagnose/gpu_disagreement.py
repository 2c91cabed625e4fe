"""The hooks say busy, the GPU says idle.

Symptom: in a state that counts as work, the GPU ran no kernel for a good part of the time.
Evidence: GPU readings whose whole period lies in the state: the share of them without a kernel.
Threshold: 30 % idle: launch gaps and host work between kernels reach 10 to 20 % in healthy runs; critical from 60 %.
Remedy: look for host work inside the phase (tokenizing, data loading, Python between passes), or hook it as its own.
When it is wrong: a driver's utilisation counts any kernel, a polling one too, so a busy GPU proves little; an idle one
proves much.
"""

from typing import Final

from rlscope.diagnose.evidence import Evidence
from rlscope.diagnose.finding import Finding

# Above what launch gaps and host work between kernels reach in healthy runs.
WARNING_IDLE_RATIO: Final = 0.30
# More idle than busy by any reading.
CRITICAL_IDLE_RATIO: Final = 0.60


def find(evidence: Evidence) -> Finding | None:
    """The finding about the state that cost most, or None when GPU and hooks agree or no GPU was read."""
    states = [
        (state.gpu_idle_ratio * state.gpu_s, state.gpu_idle_ratio, state)
        for state in evidence.ledger.states
        if state.gpu_idle_ratio is not None and state.gpu_idle_ratio >= WARNING_IDLE_RATIO
    ]
    if not states:
        return None
    idle_gpu_s, idle_ratio, state = max(states, key=lambda found: (found[0], found[2].state))
    return Finding(
        rule="gpu_disagreement",
        severity="critical" if idle_ratio >= CRITICAL_IDLE_RATIO else "warning",
        cost_gpu_s=idle_gpu_s,
        evidence={"state": state.state, "role": state.role, "gpu_idle_ratio": idle_ratio, "gpu_s": state.gpu_s},
        start_ns=evidence.run.started_ns,
        end_ns=evidence.end_ns,
    )
