"""Where the GPU time went: every state of a role as a row, and as a part of a bar; whole run and steady state."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from rlscope import format as fmt
from rlscope.analysis.bottleneck import dropped_ratio
from rlscope.analysis.ledger import GENERATING, SAMPLER_ROLES, UNRECORDED_RATIO, StateKey
from rlscope.analysis.result import AnalysisResult, LedgerState, RunFacts
from rlscope.diagnose.overproduction import dropped_tokens_ratio
from rlscope.reports.blocks import LedgerRole, LedgerRow, RoleBar, RolePart, Roles, View
from rlscope.reports.text.phases import judged_states
from rlscope.reports.text.states import UNDERFILLED, order_of, role_order, state_label, state_of

DROPPED: Final = "dropped samples (included above)"
"""Label of the part of all generation whose samples were dropped, below the states."""


def ledger_roles(analysis: AnalysisResult) -> list[LedgerRole]:
    """Return the states of every role, trainers first."""
    steady, states = _steady_states(analysis), [state for state in analysis.ledger.states if state.gpu_ns > 0]
    roles: list[LedgerRole] = []
    for role in sorted({state.role for state in states}, key=role_order):
        of_role = [state for state in states if state.role == role]
        total = fmt.gpu_time(sum(state.gpu_ns for state in of_role) / 1e9)
        roles.append(LedgerRole(role.capitalize(), total, list(_rows(analysis, of_role, _shares(steady, role)))))
    return roles


def dropped_of(analysis: AnalysisResult) -> float:
    """Share of the tokens taken from the queue in the stretch of the verdict that were dropped, 0..1; 0 if unknown."""
    return dropped_ratio(analysis.answers["judged_outcomes"])


def _steady_states(analysis: AnalysisResult) -> Mapping[StateKey, float]:
    """Return the GPU-seconds of the steady state by state; empty if there is none."""
    return judged_states(analysis) if analysis.run.window is not None else {}


def _shares(steady: Mapping[StateKey, float], role: str) -> Mapping[tuple[str, str | None], float]:
    """Shares of the role's GPU time in steady state, by state and reason; empty if they are unknown."""
    total_gpu_s = sum(gpu_s for key, gpu_s in steady.items() if key.role == role)
    return {(key.state, key.reason): gpu_s / total_gpu_s for key, gpu_s in steady.items() if key.role == role}


def _rows(
    analysis: AnalysisResult, states: Sequence[LedgerState], steady: Mapping[tuple[str, str | None], float]
) -> Iterator[LedgerRow]:
    """Yield a row per state, one for its part that fuller batches save, and one for the dropped part of generation."""
    for each in states:
        state, name = state_of(each.state), state_label(each.state, each.reason)
        in_steady = fmt.percent(steady.get((each.state, each.reason), 0.0)) if steady else ""
        idle = "" if each.gpu_idle_ratio is None else fmt.percent(each.gpu_idle_ratio)
        yield LedgerRow(state, name, each.share_ratio, in_steady, fmt.gpu_time(each.gpu_s), idle)
        if each.underfilled_gpu_ns is not None:
            ratio = each.share_ratio * each.underfilled_gpu_ns / each.gpu_ns
            gpu_time, unknown = fmt.gpu_time(each.underfilled_gpu_ns / 1e9), "–" if steady else ""
            yield LedgerRow(state, UNDERFILLED, ratio, unknown, gpu_time, part_of="row above")
    generating = [each for each in states if each.state in GENERATING and each.role in SAMPLER_ROLES]
    whole, dropped = dropped_tokens_ratio(analysis.answers["token_balance"]), dropped_of(analysis)
    if generating and (whole or dropped):
        share = whole * sum(each.share_ratio for each in generating)
        in_steady = dropped * sum(ratio for (state, _), ratio in steady.items() if state in GENERATING)
        gpu_time = fmt.gpu_time(whole * sum(each.gpu_s for each in generating))
        shown = fmt.percent(in_steady) if steady else ""
        yield LedgerRow(state_of("discarded"), DROPPED, share, shown, gpu_time, part_of="rows above")


def whole_run(analysis: AnalysisResult) -> View:
    """Where the GPU time of the whole run went; labeled with that time, and its price if run.json has one."""
    run, ledger = analysis.run, analysis.ledger
    states = {StateKey(state.role, state.state, state.reason): state.gpu_s for state in ledger.states if state.gpu_ns}
    is_unknown = not ledger.total_gpu_s and not run.total_gpus
    spent = fmt.NO_DATA if is_unknown else spent_words(ledger.total_gpu_s, run)
    whole_gpu_s = run.total_gpus * run.duration_s
    is_part = not is_unknown and ledger.total_gpu_s < (1.0 - UNRECORDED_RATIO) * whole_gpu_s
    rest = f" (workers were up for {fmt.percent(ledger.total_gpu_s / whole_gpu_s)} of the time)" if is_part else ""
    return View("whole", f"whole run, {spent}{rest}", Roles(_roles(run, states)))


def steady_state(analysis: AnalysisResult) -> View | None:
    """Where the GPU time of the steady state went, with the part of generation whose samples were dropped.

    None if there is no steady state, or if nothing is known of it.
    """
    run, states = analysis.run, _steady_states(analysis)
    roles = _roles(run, states, dropped_of(analysis))
    label = f"steady state, {spent_words(sum(states.values()), run)}"
    return View("steady", label, Roles(roles)) if roles else None


def spent_words(gpu_s: float, run: RunFacts) -> str:
    """GPU time, with its price if run.json has one."""
    return ", ".join(filter(None, (fmt.gpu_time(gpu_s), fmt.money(gpu_s, run.gpu_hour_price, run.currency))))


def _roles(run: RunFacts, states: Mapping[StateKey, float], dropped: float = 0.0) -> list[RoleBar]:
    """Where the GPU-seconds in these states went, by role; dropped: share of generation, 0..1."""
    bars = [role_bar(role, states, dropped) for role in sorted({key.role for key in states}, key=role_order)]
    spent = [spent_words(sum(gpu_s for key, gpu_s in states.items() if key.role == bar.role), run) for bar in bars]
    return [bar._replace(role=bar.role.capitalize(), spent=words) for bar, words in zip(bars, spent, strict=True)]


def role_bar(role: str, states: Mapping[StateKey, float], dropped: float) -> RoleBar:
    """Where the GPU time of a role went, with the dropped share of generation; no words on how much it was.

    states: GPU time by state, of any roles and in any unit. dropped: share of generation, 0..1.
    """
    own = {key: spent for key, spent in states.items() if key.role == role and spent > 0}
    total = sum(own.values())
    parts = _with_discarded(own, dropped if role in SAMPLER_ROLES else 0.0)
    shares = [
        RolePart(state_of(key.state), state_label(key.state, key.reason), spent / total)
        for key, spent in sorted(parts.items(), key=lambda item: order_of(item[0].state))
    ]
    return RoleBar(role, "", shares)


def _with_discarded(own: Mapping[StateKey, float], dropped: float) -> dict[StateKey, float]:
    """With the dropped share of every generation as a state of its own."""
    if not dropped:
        return dict(own)
    kept = {key: gpu_s * (1.0 - dropped if key.state in GENERATING else 1.0) for key, gpu_s in own.items()}
    lost_s = sum(own.values()) - sum(kept.values())
    return kept | ({StateKey("", "discarded", None): lost_s} if lost_s > 0 else {})
