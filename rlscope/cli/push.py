"""`rlscope push`: write the results of an analysis to an experiment tracker."""

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
    wandb: Annotated[bool, typer.Option("--wandb", help="Push to Weights & Biases.")] = False,
    mlflow: Annotated[bool, typer.Option("--mlflow", help="Push to MLflow.")] = False,
    tensorboard: Annotated[
        Path | None, typer.Option("--tensorboard", metavar="LOG_DIR", help="Write event files for TensorBoard.")
    ] = None,
    project: Annotated[
        str | None,
        typer.Option(
            "--project",
            show_default="set by the tracker's environment",
            help="Weights & Biases project, or MLflow experiment.",
        ),
    ] = None,
    into: Annotated[
        str | None,
        typer.Option("--into", metavar="ID", show_default="a new run", help="Id of an existing tracker run to add to."),
    ] = None,
    also: Also = None,
) -> None:
    """Write verdict, rates, GPU time by state, staleness and the report to an experiment tracker."""
    requested = {"wandb": wandb, "mlflow": mlflow, "tensorboard": tensorboard is not None}
    chosen: list[Tracker] = [name for name in TRACKERS if requested[name]]
    if len(chosen) != 1:
        raise typer.BadParameter("pass exactly one tracker: --wandb, --mlflow or --tensorboard LOG_DIR")
    from rlscope.exports.trackers import library_of

    library_of(chosen[0])  # Fail before the analysis, which takes a while.
    notes = Console(stderr=True)
    with progress_on(notes) as progress:
        analysis = rlscope.analyze(run_dir, also=also or (), progress=progress)
        where = analysis.push(chosen[0], project=project, into=into, folder=tensorboard)
    notes.print(f"wrote {where}", highlight=False, soft_wrap=True)
