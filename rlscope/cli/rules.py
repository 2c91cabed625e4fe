"""`rlscope rules`: list the metrics and the active rules, and write them for Prometheus and Grafana."""

import shutil
import sys
from typing import Annotated

import typer

from rlscope.cli.check import RulesFile


def rules(
    rules: RulesFile = None,
    example: Annotated[
        bool, typer.Option("--example", help="Print the built-in rules as a file that you can edit.")
    ] = False,
    prometheus: Annotated[bool, typer.Option("--prometheus", help="Print the rules as Prometheus rules.")] = False,
    grafana: Annotated[bool, typer.Option("--grafana", help="Print a Grafana dashboard for the metrics.")] = False,
) -> None:
    """List the metrics that alert rules can use, and the active rules."""
    from rlscope.alerts.config import built_in_rules, load_rules
    from rlscope.alerts.config import example as example_file
    from rlscope.alerts.prometheus import as_rule_file, dashboard
    from rlscope.reports.text.rules import as_text

    if example + prometheus + grafana > 1:
        raise typer.BadParameter("pass only one of --example, --prometheus and --grafana")
    if example:
        print(example_file(), end="")
    elif grafana:
        print(dashboard(), end="")
    else:
        active = load_rules(rules) if rules is not None else built_in_rules()
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        print(as_rule_file(active) if prometheus else as_text(active, width) + "\n", end="")
