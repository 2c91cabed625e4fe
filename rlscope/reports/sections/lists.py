"""The sections of the page that only list: findings, configuration and terms."""

import json
from collections.abc import Sequence
from typing import Final

from rlscope import format as fmt
from rlscope.analysis.result import AnalysisResult
from rlscope.comparison.facts import flattened
from rlscope.reports.blocks import Block, Fold, Paragraph, Table, Term, Terms
from rlscope.reports.text import verdict as verdict_words
from rlscope.reports.text.findings import callouts
from rlscope.reports.text.states import STATES

_FINDINGS_OPEN: Final = 3


def findings_section(analysis: AnalysisResult) -> Sequence[Block]:
    """Return the findings with evidence, cost and remedy: the most expensive open, the rest in a fold."""
    found = callouts(analysis, verdict_words.actions_of(analysis))
    if not found:
        return [Paragraph(verdict_words.NO_FINDINGS, "empty")]
    more = found[_FINDINGS_OPEN:]
    return [*found[:_FINDINGS_OPEN], *([Fold("findings-more", f"{len(more)} more", more)] if more else [])]


_SETTINGS_MAX: Final = 200
_TEXT_MAX: Final = 400
_NO_SETTINGS: Final = (
    "run.json has no settings. Pass them to the hooks as `config` so that the analysis knows caps, limits and the "
    "price per GPU-hour."
)


def configuration_section(analysis: AnalysisResult) -> Sequence[Block]:
    """Return the settings of run.json, any keys and values, by their paths; the first ones of many."""
    settings = sorted((_text(name), _text(value)) for name, value in flattened(analysis.run.settings))
    if not settings:
        return [Paragraph(_NO_SETTINGS, "empty")]
    more = len(settings) - _SETTINGS_MAX
    rest = [Paragraph(f"{fmt.counted(more, 'more setting')} in run.json.", "note")] if more > 0 else []
    return [Table("Settings from run.json", (), settings[:_SETTINGS_MAX], "settings"), *rest]


def _text(value: object) -> str:
    """A value as JSON, strings without quotes; long values are shortened."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]} … ({fmt.count(len(text))} characters)"


_TERMS: Final = (
    Term("GPU-second", "one GPU allocated for one second, busy or idle"),
    Term("sample", "one generated response"),
    Term("policy version", "the number of weight publications to the samplers so far; 0 at the start"),
    Term(
        "staleness of a token",
        "policy versions published between the version that sampled the token and the step that trains on it",
    ),
    Term(
        "staleness added during generation, in the queue",
        "the policy versions that were published before, and after, the end of the token's sample",
    ),
    Term("steady state", "the latest stretch of steps with stable step time and lengths; it leaves out startup"),
    Term(
        "training throughput, steady state",
        "response tokens trained per second of wall-clock time, measured over the steady state",
    ),
    Term(
        "training throughput, whole run",
        "response tokens trained per second of wall-clock time, measured over the whole run, including startup",
    ),
    Term("generated throughput", "response tokens sampled per second over the whole run, trained on or not"),
    Term(
        "effective throughput",
        "training throughput times the effective sample size per trained token, which the importance ratios "
        "determine: stale tokens count less",
    ),
    Term(
        "predicted",
        "computed by rlscope's performance model of the run, which is calibrated on the steady state; everything else "
        "is measured",
    ),
    Term("90% interval", "the range that contains the true value with 90% probability"),
)
GLOSSARY: Final = Terms([*_TERMS, *(Term(state.label, state.meaning, state) for state in STATES)])
"""The terms of the page and the states with their colors, which do not depend on the run."""
