"""The findings, each with evidence, cost and remedy."""

from collections.abc import Sequence
from typing import Final

from rlscope import format as fmt
from rlscope.analysis.result import AnalysisResult, Finding, RunFacts
from rlscope.model.forecast.actions import Action
from rlscope.reports.blocks import Block, Callout, Fold, Paragraph
from rlscope.reports.sections.latency import MEASURED
from rlscope.reports.text import findings
from rlscope.reports.text.verdict import actions_of, no_findings

_OPEN: Final = 3


def findings_section(analysis: AnalysisResult) -> Sequence[Block]:
    """Return the blocks of the section: the most expensive findings open, the rest in a fold."""
    found = callouts(analysis)
    if not found:
        return [Paragraph(no_findings(analysis), "empty")]
    more = found[_OPEN:]
    return [*found[:_OPEN], *([Fold("findings-more", f"{len(more)} more", more)] if more else [])]


def callouts(analysis: AnalysisResult) -> list[Callout]:
    """Return the findings, the most expensive first."""
    ranked = actions_of(analysis)
    return [_callout(number, each, analysis.run, ranked) for number, each in enumerate(analysis.findings, 1)]


def _callout(number: int, finding: Finding, run: RunFacts, ranked: Sequence[Action]) -> Callout:
    return Callout(
        anchor=f"finding-{number}",
        severity=finding.severity,
        title=findings.title(finding),
        cost="" if finding.cost_gpu_s is None else fmt.gpu_time(finding.cost_gpu_s),
        when=_interval(finding, run),
        text=findings.sentence(finding),
        remedy=findings.remedy(finding, ranked, run.settings.get("framework")),
        chart=("figure-pass-latency", MEASURED) if finding.rule == "straggling_engine" else None,
    )


def _interval(finding: Finding, run: RunFacts) -> str:
    if finding.start_ns is None or finding.end_ns is None:
        return ""
    start_s, end_s = (finding.start_ns - run.started_ns) / 1e9, (finding.end_ns - run.started_ns) / 1e9
    if start_s <= 0 and end_s >= run.duration_s:
        return "over the whole run"
    return f"from {fmt.duration(start_s)} to {fmt.duration(end_s)} into the run"
