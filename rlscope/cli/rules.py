"""`rlscope rules`: the metrics there are, the rules that hold, and files made of them."""

from typing import Annotated

import typer

from rlscope.cli.app import app
from rlscope.cli.check import RulesFile


@app.command()
def rules(
    rules: RulesFile = None,
    example: Annotated[
        bool, typer.Option("--example", help="Print the built-in rules as a file to start from.")
    ] = False,
) -> None:
    """List the metrics that a rule may name and the rules that hold."""
    from rlscope.alerts.rules import built_in_rules, load_rules
    from rlscope.alerts.rules import example as example_file
    from rlscope.report.rule_list import as_text

    if example:
        print(example_file(), end="")
        return
    print(as_text(load_rules(rules) if rules is not None else built_in_rules()))
