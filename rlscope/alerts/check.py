"""`rlscope check`: a run that ended, or as far as it is written, held to rules. Prints nothing."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rlscope.alerts.alert import Severity, at_least
from rlscope.alerts.metrics import RESIDUAL
from rlscope.alerts.rule import RuleSet
from rlscope.alerts.rules import built_in_rules, load_rules, one_off
from rlscope.alerts.whole_run import RuleReport, hold_to_rules
from rlscope.errors import UnreadableDataError
from rlscope.store import Run, open_run


def check(folder: Path, rules: RuleSet) -> RuleReport:
    """Hold the run in a folder to rules.

    A file that turns out to be damaged inside is left out, as `analyze` does. Raises RunFolderError for a folder that
    is no run, RuleError for a rule's SELECT that is refused.
    """
    try:
        with open_run(folder) as run:
            return _hold(run, rules)
    except UnreadableDataError:
        with open_run(folder, read_all=True) as run:
            return _hold(run, rules)


def rules_to_check(file: Path | None, one_offs: Sequence[str]) -> RuleSet:
    """The rules of a file, and one-offs beside them; one-offs alone where only they are given; else the built-in ones.

    Raises RuleError.
    """
    extra = tuple(one_off(text) for text in one_offs)
    rules = load_rules(file) if file is not None else built_in_rules()
    return replace(rules, rules=extra if file is None and extra else (*rules.rules, *extra))


def failed(report: RuleReport, fail_on: Severity) -> bool:
    """Whether a rule of that severity or a graver one fired."""
    return any(at_least(alert.severity, fail_on) for alert in report.alerts)


def _hold(run: Run, rules: RuleSet) -> RuleReport:
    asks_model = any(rule.metric == RESIDUAL for rule in rules.rules)
    return hold_to_rules(run, rules, _residual_ratio(run) if asks_model else None)


def _residual_ratio(run: Run) -> float | None:
    """What the model's prediction of the trained tokens per second leaves unexplained; None without a prediction."""
    # The model is slow to import, and hardly any rule asks for it.
    from rlscope.analyze import analyze_run
    from rlscope.model.outlook import NoOutlook

    outlook = analyze_run(run).outlook
    if isinstance(outlook, NoOutlook) or outlook.prediction is None:
        return None
    return next((each.residual_ratio for each in outlook.prediction.compared if each.quantity == "tokens_per_s"), None)
