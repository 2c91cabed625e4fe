"""The findings, each with evidence, cost and remedy."""

from collections.abc import Sequence
from typing import NamedTuple

from rlscope import format as fmt
from rlscope.analysis.result import AnalysisResult, Finding, RunFacts
from rlscope.model.forecast.actions import Action
from rlscope.reports.sections.latency import MEASURED
from rlscope.reports.text import findings
from rlscope.reports.text.verdict import actions_of, no_findings


class FindingWords(NamedTuple):
    """One finding."""

    anchor: str
    severity: str
    title: str
    sentence: str
    remedy: str
    cost: str
    interval: str
    figure: str
    """Title of the chart of engines, if it shows the finding; empty otherwise."""


class FindingsSection(NamedTuple):
    """Content of the section."""

    findings: list[FindingWords]
    none: str
    """Shown without findings."""


def findings_section(analysis: AnalysisResult) -> FindingsSection:
    """Return the content of the section."""
    ranked = actions_of(analysis)
    found = [_words(number, each, analysis.run, ranked) for number, each in enumerate(analysis.findings, 1)]
    return FindingsSection(found, no_findings(analysis))


def _words(number: int, finding: Finding, run: RunFacts, ranked: Sequence[Action]) -> FindingWords:
    return FindingWords(
        f"finding-{number}",
        finding.severity,
        findings.title(finding),
        findings.sentence(finding),
        findings.remedy(finding, ranked, run.settings.get("framework")),
        "" if finding.cost_gpu_s is None else fmt.gpu_time(finding.cost_gpu_s),
        _interval(finding, run),
        MEASURED if finding.rule == "straggling_engine" else "",
    )


def _interval(finding: Finding, run: RunFacts) -> str:
    if finding.start_ns is None or finding.end_ns is None:
        return ""
    start_s, end_s = (finding.start_ns - run.started_ns) / 1e9, (finding.end_ns - run.started_ns) / 1e9
    if start_s <= 0 and end_s >= run.duration_s:
        return "over the whole run"
    return f"from {fmt.duration(start_s)} to {fmt.duration(end_s)} into the run"
