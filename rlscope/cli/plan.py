"""`rlscope plan`: the layout to start a run with, before there is one."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from rlscope.cli.app import STDOUT, app, print_or_write


@app.command()
def plan(
    plan_toml: Annotated[Path | None, typer.Argument(metavar="PLAN.toml", help="What the run is to be.")] = None,
    example: Annotated[
        bool, typer.Option("--example", help="Print a plan with every key explained, and exit.")
    ] = False,
    json_to: Annotated[
        str | None, typer.Option("--json", metavar="FILE|-", help="Write the answer as JSON; - is stdout.")
    ] = None,
    max_staleness: Annotated[
        int | None, typer.Option(min=0, help="Cap on staleness, in versions. [default: the plan's]")
    ] = None,
) -> None:
    """Which layout to start a run with, from model, device, lengths and batch."""
    from rlscope.planning.build import plan_ahead
    from rlscope.planning.schema import EXAMPLE
    from rlscope.reports.documents.plan import plan_document
    from rlscope.reports.terminal.model import print_plan

    if example == (plan_toml is not None):
        raise typer.BadParameter("give a PLAN.toml, or --example to print one")
    if plan_toml is None:
        print(EXAMPLE.read_text(encoding="utf-8"), end="")
        return
    notes = Console(stderr=True)
    with notes.status("sweeping the layouts"):
        file, planned = plan_ahead(plan_toml, max_staleness)
    if json_to is not None:
        print_or_write(json_to, plan_document(planned, file).as_json())
    print_plan(planned, file, notes if json_to == STDOUT else Console())
