"""Writes a finding as text: its title, its evidence as a sentence, its remedy. The texts are those of its rule."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rlscope import format as fmt
from rlscope.analysis.result import AnalysisResult, Finding, RunFacts
from rlscope.diagnose import RULES
from rlscope.diagnose.evidence import FindingRule
from rlscope.document import extended
from rlscope.frameworks import framework_of
from rlscope.reports.blocks import Callout
from rlscope.reports.text.states import state_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlscope.model.forecast.actions import Action

TITLE: Final = "Findings, whole run"
FULL_AUXILIARY: Final = (
    "Speed up the judges and reward models, or give them more GPUs: they are nearly always busy, so samples wait for "
    "them."
)
"""The next step, and the remedy of findings on idle GPUs, if samples wait for auxiliary workers."""
_RUN_AHEAD: Final = ("staleness_cap", "in_flight_limit", "running_samples_limit")
"""Actions on the settings that limit how far samplers run ahead."""
_SETTINGS: Final[Mapping[str, Mapping[str, str]]] = {
    "starved_trainer": {
        "running_limit": "requests per engine",
        "ahead": "how far samplers run ahead",
        "sampler_gpus": "sampler GPUs",
    },
    "weight_update_cost": {"publish_every": "how often weights are published"},
    "checkpoint_cost": {"checkpoints": "how often it saves", "evaluation": "how often it evaluates"},
}
"""The settings that a remedy is about, by their name in a framework's table, with their meaning."""
_RULES: Final = {rule.name: rule for rule in RULES}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldFinding(Finding):
    """One problem found in the run."""

    title: str
    """The finding in a few words."""
    sentence: str
    """The finding with its evidence, in words."""
    remedy: str
    """The recommended fix."""


def told(finding: Finding, analysis: AnalysisResult | None = None, ranked: "Sequence[Action]" = ()) -> ToldFinding:
    """Return a finding in words; analysis: that of its run, with its ranked actions, if the remedy can rest on them."""
    framework = None if analysis is None else analysis.run.settings.get("framework")
    waits = analysis is not None and analysis.verdict.waits_for_auxiliary
    said = remedy(finding, ranked, framework, waits_for_auxiliary=waits)
    return extended(ToldFinding, finding, title=title(finding), sentence=sentence(finding), remedy=said)


def title(finding: Finding) -> str:
    """The finding's title."""
    return _RULES[finding.rule].title


def sentence(finding: Finding) -> str:
    """The evidence as a sentence: the first of the rule's patterns whose evidence is complete."""
    rule = _RULES[finding.rule]
    written = {name: fmt.quantity(name, value) for name, value in finding.evidence.items() if value is not None}
    if "state" in written:
        written["state"] = state_of(written["state"]).label
    if rule.counts:
        found = [said.format(written[name]) for name, said in rule.counts.items() if finding.evidence.get(name)]
        return " ".join(found)
    *fuller, plainest = rule.sentences
    for pattern in fuller:
        with suppress(KeyError):
            return pattern.format_map(written)
    return plainest.format_map(written)


def remedy(
    finding: Finding, ranked: "Sequence[Action]", framework: object = None, *, waits_for_auxiliary: bool = False
) -> str:
    """Return the remedy; ranked: the ranked actions. Where they are the remedy, the first of them comes first.

    framework: of the run's config; without such an action, its own settings are named.
    waits_for_auxiliary: whether the samples wait for judges or reward models.
    """
    rule = _RULES[finding.rule]
    if waits_for_auxiliary and rule.is_ranked:
        return FULL_AUXILIARY
    if not ranked or not rule.is_ranked:
        return f"{rule.remedy} {_settings_sentence(rule, framework)}".rstrip()
    # Who has an action has the model, which `check` does without.
    from rlscope.reports.text.actions import imperative

    first = imperative(ranked[0])
    return f"First {first[0].lower()}{first[1:]}; then look again."


def callouts(analysis: AnalysisResult, ranked: "Sequence[Action]") -> list[Callout]:
    """Return the findings, the most expensive first; ranked: the ranked actions."""
    return [
        Callout(
            anchor=f"finding-{number}",
            severity=each.severity,
            title=each.title,
            cost="" if each.cost_gpu_s is None else fmt.gpu_time(each.cost_gpu_s),
            when=_interval(each, analysis.run),
            text=each.sentence,
            remedy=each.remedy,
        )
        for number, each in enumerate((told(found, analysis, ranked) for found in analysis.findings), 1)
    ]


def _interval(finding: Finding, run: RunFacts) -> str:
    if finding.start_ns is None or finding.end_ns is None:
        return ""
    start_s, end_s = (finding.start_ns - run.started_ns) / 1e9, (finding.end_ns - run.started_ns) / 1e9
    if start_s <= 0 and end_s >= run.duration_s:
        return "over the whole run"
    return f"from {fmt.duration(start_s)} to {fmt.duration(end_s)} into the run"


def _settings_sentence(rule: FindingRule, framework: object) -> str:
    """Return the settings of the framework that the remedy is about; empty if unknown."""
    table = framework_of(framework)
    if table is None:
        return ""
    named: Mapping[str, str] = table.actions
    limits = " and ".join(named[name] for name in _RUN_AHEAD if name in named)
    settings = {"ahead": limits, **named}
    words = "; ".join(
        f"{settings[name]} ({what})" for name, what in _SETTINGS.get(rule.name, {}).items() if settings.get(name)
    )
    return f"In {table.name}: {words}." if words else ""
