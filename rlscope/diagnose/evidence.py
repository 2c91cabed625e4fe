"""What a rule looks at: the facts of the run and the answers to its questions."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import polars as pl

from rlscope.analysis.data_quality import DataQuality
from rlscope.analysis.result import Ledger, LedgerState, RunFacts, Staleness
from rlscope.trace.config import RunConfig


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that is known of a run before it is judged."""

    run: RunFacts
    config: RunConfig
    ledger: Ledger
    staleness: Staleness
    data_quality: DataQuality
    answers: Mapping[str, pl.DataFrame]
    """Answers by the question's name."""

    @property
    def end_ns(self) -> int:
        """End of the run, UTC epoch."""
        return self.run.started_ns + round(self.run.duration_s * 1e9)

    def role_gpu_s(self, *roles: str) -> float:
        """GPU-seconds of all workers of these roles."""
        return gpu_seconds(state for state in self.ledger.states if state.role in roles)

    def state_gpu_s(self, *states: str, roles: tuple[str, ...] | None = None, reason: str | None = None) -> float:
        """GPU-seconds in these states, of these roles and for this reason where they are given."""
        return gpu_seconds(
            state
            for state in self.ledger.states
            if state.state in states
            and (roles is None or state.role in roles)
            and (reason is None or state.reason == reason)
        )


def gpu_seconds(states: Iterable[LedgerState]) -> float:
    """Their sum, exact until it is made a float."""
    return sum(state.gpu_ns for state in states) / 1e9


def column_total(frame: pl.DataFrame, column: str) -> float:
    """The sum of a column, 0 for no rows."""
    return float(frame[column].sum())


def weighted_mean(frame: pl.DataFrame, column: str, weight: str) -> float:
    """The mean of a column, weighted by another whose sum is above 0."""
    return float((frame[column] * frame[weight]).sum()) / column_total(frame, weight)
