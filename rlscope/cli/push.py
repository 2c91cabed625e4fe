"""`rlscope push`: the results of an analysis into the run's tracker."""

from pathlib import Path
from typing import Annotated, Final, Literal

import typer
from rich.console import Console

import rlscope
from rlscope.cli.app import Also, RunFolder, progress_on

Tracker = Literal["wandb", "mlflow", "tensorboard"]
TRACKERS: Final[tuple[Tracker, ...]] = ("wandb", "mlflow", "tensorboard")


def push(
    run_dir: RunFolder,
    wandb: Annotated[bool, typer.Option("--wandb", help="Into Weights & Biases.")] = False,
    mlflow: Annotated[bool, typer.Option("--mlflow", help="Into MLflow.")] = False,
    tensorboard: Annotated[
        Path | None, typer.Option("--tensorboard", metavar="LOG_DIR", help="Into event files for TensorBoard.")
    ] = None,
    project: Annotated[
        str | None,
        typer.Option(
            "--project",
            show_default="as the tracker's environment says",
            help="Project of Weights & Biases, or experiment of MLflow.",
        ),
    ] = None,
    into: Annotated[
        str | None,
        typer.Option("--into", metavar="ID", show_default="a new run", help="Id of the tracker's run to add to."),
    ] = None,
    also: Also = None,
) -> None:
    """Write verdict, rates, GPU time by state, staleness and the report into the run's experiment tracker."""
    asked = {"wandb": wandb, "mlflow": mlflow, "tensorboard": tensorboard is not None}
    chosen: list[Tracker] = [name for name in TRACKERS if asked[name]]
    if len(chosen) != 1:
        raise typer.BadParameter("name one tracker: --wandb, --mlflow or --tensorboard LOG_DIR")
    notes = Console(stderr=True)
    with progress_on(notes) as progress:
        where = rlscope.push(
            run_dir, chosen[0], project=project, into=into, folder=tensorboard, also=also or (), progress=progress
        )
    notes.print(f"wrote {where}", highlight=False, soft_wrap=True)
