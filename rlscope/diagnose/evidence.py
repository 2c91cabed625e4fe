"""The input of a finding rule (facts of the run and query results), and the rule itself with its texts."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import polars as pl

from rlscope.analysis.data_quality import DataQuality
from rlscope.analysis.result import EvidenceValue, Finding, Ledger, LedgerState, RunFacts, Severity, Staleness
from rlscope.trace.config import RunConfig


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything known about a run before the rules are evaluated."""

    run: RunFacts
    config: RunConfig
    ledger: Ledger
    staleness: Staleness
    data_quality: DataQuality
    answers: Mapping[str, pl.DataFrame]
    """Query results by query name."""

    @property
    def end_ns(self) -> int:
        """End of the run, UTC epoch."""
        return self.run.started_ns + round(self.run.duration_s * 1e9)

    def finding(
        self, rule: str, severity: Severity, facts: Mapping[str, EvidenceValue], cost_gpu_s: float | None = None
    ) -> Finding:
        """Return a finding over the whole run."""
        return Finding(rule, severity, cost_gpu_s, dict(facts), self.run.started_ns, self.end_ns)

    def role_gpu_s(self, *roles: str) -> float:
        """GPU-seconds of all workers with these roles."""
        return gpu_seconds(state for state in self.ledger.states if state.role in roles)

    def state_gpu_s(self, *states: str, roles: tuple[str, ...] | None = None, reason: str | None = None) -> float:
        """GPU-seconds in these states; only of these roles and this reason, if given."""
        return gpu_seconds(
            state
            for state in self.ledger.states
            if state.state in states
            and (roles is None or state.role in roles)
            and (reason is None or state.reason == reason)
        )


END_STEPS: Final = 5
"""Steps at each end of a run that are compared."""
_CLEAR_ERRORS: Final = 3.36
"""Standard errors of a change that chance makes in 1 of 100 runs: Student's t with 8 degrees of freedom."""


@dataclass(frozen=True, slots=True)
class FindingRule:
    """One finding that rlscope looks for, and the texts that describe it."""

    title: str
    sentences: tuple[str, ...]
    """Patterns over the finding's evidence; the first one whose evidence is complete is used, as that of the last is.
    Empty for a rule with `counts`."""
    remedy: str
    find: Callable[[Evidence], Finding | None]
    """The finding, or None if the run does not have it."""
    counts: Mapping[str, str] = field(default_factory=dict[str, str])
    """Words for each piece of evidence, with {} for the value, in place of a sentence; left out if the value is 0."""
    is_ranked: bool = False
    """Whether the model's actions weigh its remedy against all others, so that the first of them comes first."""

    @property
    def name(self) -> str:
        """The name of its module, and of its findings' `rule`."""
        return self.find.__module__.rpartition(".")[2]


def gpu_seconds(states: Iterable[LedgerState]) -> float:
    """The total of these states, summed in integer nanoseconds."""
    return sum(state.gpu_ns for state in states) / 1e9


def column_total(frame: pl.DataFrame, column: str) -> float:
    """The sum of a column; 0 without rows."""
    return float(frame[column].sum())


class Ends(NamedTuple):
    """The first and the last END_STEPS rows of a table of steps."""

    first: pl.DataFrame
    last: pl.DataFrame

    def means(self, column: str) -> tuple[float, float]:
        """Return the mean of a column at both ends."""
        first, last = (column_total(each, column) / END_STEPS for each in self)
        return first, last

    def clear_change(self, column: str) -> float:
        """Return the change of the mean of a column from one end to the other; 0 unless it is _CLEAR_ERRORS or more."""
        before, after = self.means(column)
        squares = sum(
            float(((each[column] - mean) ** 2).sum()) for each, mean in zip(self, (before, after), strict=True)
        )
        error = math.sqrt(squares / (END_STEPS - 1) / END_STEPS)
        return after - before if abs(after - before) >= _CLEAR_ERRORS * error else 0.0


def ends_of(steps: pl.DataFrame, column: str) -> Ends | None:
    """Return the ends of the steps with a value; None if these are too few."""
    known = steps.filter(pl.col(column).is_finite()).sort("step")
    return Ends(known.head(END_STEPS), known.tail(END_STEPS)) if known.height >= 2 * END_STEPS else None


def separate_ends(steps: pl.DataFrame, column: str) -> Ends | None:
    """Return the ends of the steps with a value; None if there are too few, or if the values of both ends overlap.

    They overlap unless every value of one end exceeds all of the other. Two sets of five steps of one run are apart
    that far, in a given direction, in 1 of 252 cases.
    """
    ends = ends_of(steps, column)
    if ends is None:
        return None
    before, after = (list(each[column]) for each in ends)
    return ends if min(after) > max(before) or max(after) < min(before) else None


def weighted_mean(frame: pl.DataFrame, column: str, weight: str) -> float:
    """The mean of a column, weighted by another column whose sum is above 0."""
    return float((frame[column] * frame[weight]).sum()) / column_total(frame, weight)
