"""Writes a finding as text: its title, its evidence as a sentence, its remedy. The texts are those of its rule."""

from typing import TYPE_CHECKING, Final

from rlscope import format as fmt
from rlscope.analysis.result import EvidenceValue, Finding
from rlscope.diagnose import RULES
from rlscope.reports.text.states import state_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlscope.model.forecast.actions import Action

_RULES: Final = {rule.name: rule for rule in RULES}


def title(finding: Finding) -> str:
    """The finding's title."""
    rule = _RULES.get(finding.rule)
    return rule.title if rule else finding.rule.replace("_", " ").capitalize()


def sentence(finding: Finding) -> str:
    """The evidence as a sentence; as a list if part of it is missing or the rule is unknown."""
    rule = _RULES.get(finding.rule)
    written = {name: _write(name, value) for name, value in finding.evidence.items() if value is not None}
    for pattern in rule.sentences if rule else ():
        try:
            return pattern.format_map(written)
        except KeyError:
            continue
    return "; ".join(f"{_noun(name)}: {text}" for name, text in written.items()) or "No evidence recorded."


def remedy(finding: Finding, ranked: "Sequence[Action]") -> str:
    """What to try; ranked: the actions of the ranking, whose first no remedy pulls against."""
    rule = _RULES.get(finding.rule)
    if rule is None:
        return "Check the evidence; there is no standard remedy."
    if not ranked:
        return f"{rule.remedy} {rule.besides}".rstrip()
    # Who has an action has the model, which `check` does without.
    from rlscope.reports.text import actions

    aim = actions.direction_of(ranked[0])
    if aim is not None and rule.towards in actions.OPPOSITES[aim]:
        return f"First {_lower(actions.imperative(ranked[0]))}; then look again."
    against = [number for number, each in enumerate(ranked, 1) if actions.direction_of(each) == rule.towards]
    if rule.towards is None or rule.keeps_remedy or not against:
        return f"{rule.remedy} {rule.besides}".rstrip()
    place = "The first action" if against[0] == 1 else f"Action {fmt.count(against[0])}"
    words = _lower(actions.imperative(ranked[against[0] - 1]))
    return f"{place} is against this: {words}. {rule.besides}".rstrip()


def _lower(words: str) -> str:
    return words[0].lower() + words[1:]


def _write(name: str, value: EvidenceValue) -> str:
    return state_of(value).label if name == "state" and isinstance(value, str) else fmt.quantity(name, value)


def _noun(name: str) -> str:
    for suffix in ("_gpu_s", "_tokens_per_s", "_per_s", "_ratio", "_versions", "_tokens", "_bytes", "_s"):
        if name.endswith(suffix):
            return name.removesuffix(suffix).replace("_", " ")
    return name.replace("_", " ")
