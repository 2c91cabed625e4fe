"""`rlscope plan`: recommend a layout before the run exists."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import rlscope
from rlscope.cli.app import JsonTo, print_answer, progress_on, write_json


def plan(
    plan_toml: Annotated[
        Path | None, typer.Argument(metavar="PLAN.toml", help="The planned run: model, GPUs, lengths, batch.")
    ] = None,
    example: Annotated[bool, typer.Option("--example", help="Print an example plan that explains every key.")] = False,
    json_to: JsonTo = None,
    max_staleness: Annotated[
        int | None, typer.Option(min=0, show_default="the plan's", help="Staleness cap of samples, in versions.")
    ] = None,
) -> None:
    """Recommend a layout for a planned run from its model, GPUs, lengths and batch size."""
    from rlscope.planning.schema import EXAMPLE

    if example == (plan_toml is not None):
        raise typer.BadParameter("pass a PLAN.toml, or --example to print one")
    if plan_toml is None:
        print(EXAMPLE.read_text(encoding="utf-8"), end="")
        return
    notes = Console(stderr=True)
    with progress_on(notes, "sweeping the layouts"):
        answer = rlscope.plan(plan_toml, max_staleness)
    print_answer(answer, write_json(json_to, answer, notes))
