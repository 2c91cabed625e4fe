"""`rlscope rules`: list the metrics and the active rules, and print an example and a Grafana dashboard."""

import shutil
import sys
from importlib.resources import files
from typing import Annotated

import typer

from rlscope.cli.check import RulesFile


def rules(
    rules: RulesFile = None,
    example: Annotated[
        bool, typer.Option("--example", help="Print the built-in rules as a file that you can edit.")
    ] = False,
    grafana: Annotated[
        bool, typer.Option("--grafana", help="Print a Grafana dashboard for the metrics of the hooks.")
    ] = False,
) -> None:
    """List the metrics that alert rules can use, and the active rules."""
    from rlscope.alerts.config import built_in_rules, load_rules
    from rlscope.alerts.config import example as example_file
    from rlscope.reports.text.rules import as_text

    if example and grafana:
        raise typer.BadParameter("pass only one of --example and --grafana")
    if example:
        print(example_file(), end="")
    elif grafana:
        print((files("rlscope.alerts") / "grafana.json").read_text(encoding="utf-8"), end="")
    else:
        active = load_rules(rules).rules if rules is not None else built_in_rules()
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        print(as_text(active, width))
