"""The terms of the page, and the states with their colors."""

from collections.abc import Sequence
from typing import Final

from rlscope.analysis.result import AnalysisResult
from rlscope.reports.blocks import Block, Term, Terms
from rlscope.reports.text.states import STATES


def glossary_section(_analysis: AnalysisResult) -> Sequence[Block]:
    """Return the glossary, which does not depend on the run."""
    return [Terms([*_TERMS, *(Term(state.label, state.meaning, state) for state in STATES)])]


_TERMS: Final = (
    Term("GPU-second", "one GPU allocated for one second, busy or idle"),
    Term("sample", "one generated response"),
    Term("policy version", "the number of weight publications to the samplers so far; 0 at the start"),
    Term(
        "staleness of a token",
        "policy versions published between the version that sampled the token and the step that trains on it",
    ),
    Term(
        "staleness added in flight, in the queue",
        "the policy versions that were published before, and after, the end of the token's sample",
    ),
    Term("steady state", "the latest stretch of steps with a stable step time; it leaves out startup"),
    Term(
        "trained throughput, steady state",
        "response tokens trained per second of wall-clock time, measured over the steady state",
    ),
    Term(
        "trained throughput, whole run",
        "response tokens trained per second of wall-clock time, measured over the whole run, including startup",
    ),
    Term("generated throughput", "response tokens sampled per second over the whole run, trained on or not"),
    Term(
        "effective throughput",
        "trained throughput times the effective sample size per trained token, which the importance ratios "
        "determine: stale tokens count less",
    ),
    Term(
        "predicted",
        "computed by rlscope's performance model of the run, which is calibrated on the steady state; everything else "
        "is measured",
    ),
    Term("90% interval", "the range that contains the true value with 90% probability"),
)
