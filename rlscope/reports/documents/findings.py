"""A finding in the JSON documents: its evidence, with its words."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlscope.analysis.result import Finding
from rlscope.document import extended
from rlscope.reports.text import findings

if TYPE_CHECKING:
    from rlscope.model.forecast.actions import Action


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldFinding(Finding):
    """One problem found in the run."""

    title: str
    """The finding in a few words."""
    sentence: str
    """The finding with its evidence, in words."""
    remedy: str
    """The recommended fix."""


def told_finding(
    finding: Finding, ranked: "Sequence[Action]" = (), framework: object = None, *, waits_for_auxiliary: bool = False
) -> ToldFinding:
    """Return a finding in words. The other arguments are those of `findings.remedy`."""
    return extended(
        ToldFinding,
        finding,
        title=findings.title(finding),
        sentence=findings.sentence(finding),
        remedy=findings.remedy(finding, ranked, framework, waits_for_auxiliary=waits_for_auxiliary),
    )
