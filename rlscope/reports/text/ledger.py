"""The ledger as rows: every state of a role over the whole run, with its share of the steady state beside it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from rlscope import format as fmt
from rlscope.analysis.bottleneck import dropped_ratio
from rlscope.analysis.ledger import GENERATING, SAMPLER_ROLES
from rlscope.analysis.result import AnalysisResult, LedgerState
from rlscope.diagnose.overproduction import dropped_tokens_ratio
from rlscope.reports.blocks import LedgerRole, LedgerRow
from rlscope.reports.text.phases import StateKey, judged_states
from rlscope.reports.text.states import UNDERFILLED, role_order, state_label, state_of

DROPPED: Final = "dropped samples (included above)"
"""Label of the part of all generation whose samples were dropped, below the states."""


def ledger_roles(analysis: AnalysisResult) -> list[LedgerRole]:
    """Return the states of every role, trainers first."""
    steady = judged_states(analysis) if analysis.run.window is not None else {}
    states = [state for state in analysis.ledger.states if state.gpu_ns > 0]
    roles: list[LedgerRole] = []
    for role in sorted({state.role for state in states}, key=role_order):
        of_role = [state for state in states if state.role == role]
        total = fmt.gpu_time(sum(state.gpu_ns for state in of_role) / 1e9)
        roles.append(LedgerRole(role.capitalize(), total, list(_rows(analysis, of_role, _shares(steady, role)))))
    return roles


def dropped_of(analysis: AnalysisResult) -> float:
    """Share of the tokens taken from the queue in the stretch of the verdict that were dropped, 0..1; 0 if unknown."""
    outcomes = analysis.answers.get("judged_outcomes")
    return 0.0 if outcomes is None or outcomes.is_empty() else dropped_ratio(outcomes)


def _shares(steady: Mapping[StateKey, float], role: str) -> Mapping[tuple[str, str | None], float]:
    """Shares of the role's GPU time in steady state, by state and reason; empty if they are unknown."""
    total_gpu_s = sum(gpu_s for key, gpu_s in steady.items() if key.role == role)
    return {(key.state, key.reason): gpu_s / total_gpu_s for key, gpu_s in steady.items() if key.role == role}


def _rows(
    analysis: AnalysisResult, states: Sequence[LedgerState], steady: Mapping[tuple[str, str | None], float]
) -> Iterator[LedgerRow]:
    generating = [state for state in states if state.state in GENERATING and state.role in SAMPLER_ROLES]
    for state in states:
        row = _row(state, steady)
        yield row
        if state.underfilled_gpu_ns is not None:
            ratio = state.share_ratio * state.underfilled_gpu_ns / state.gpu_ns
            gpu_time, unknown = fmt.gpu_time(state.underfilled_gpu_ns / 1e9), "–" if steady else ""
            yield LedgerRow(row.state, UNDERFILLED, ratio, unknown, gpu_time, part_of="row above")
    if generating:
        yield from _dropped_row(analysis, generating, steady)


def _row(state: LedgerState, steady: Mapping[tuple[str, str | None], float]) -> LedgerRow:
    idle = "" if state.gpu_idle_ratio is None else fmt.percent(state.gpu_idle_ratio)
    return LedgerRow(
        state_of(state.state),
        state_label(state.state, state.reason),
        state.share_ratio,
        fmt.percent(steady.get((state.state, state.reason), 0.0)) if steady else "",
        fmt.gpu_time(state.gpu_s),
        idle,
    )


def _dropped_row(
    analysis: AnalysisResult, generating: Sequence[LedgerState], steady: Mapping[tuple[str, str | None], float]
) -> Iterator[LedgerRow]:
    """The part of generation whose samples were dropped, by tokens; no row if none were."""
    balance = analysis.answers.get("token_balance")
    whole = 0.0 if balance is None else dropped_tokens_ratio(balance)
    dropped = dropped_of(analysis)
    if not whole and not dropped:
        return
    share = whole * sum(state.share_ratio for state in generating)
    steady_share = dropped * sum(ratio for (state, _), ratio in steady.items() if state in GENERATING)
    gpu_time = fmt.gpu_time(whole * sum(state.gpu_s for state in generating))
    shown = fmt.percent(steady_share) if steady else ""
    yield LedgerRow(state_of("discarded"), DROPPED, share, shown, gpu_time, part_of="rows above")
