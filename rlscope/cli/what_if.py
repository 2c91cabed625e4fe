"""`rlscope what-if`: predict a run with changed settings and compare it with the current run."""

from typing import Annotated, Any, cast

import typer
from rich.console import Console

import rlscope
from rlscope.changes import CHANGE_LIMITS, Changes
from rlscope.cli.app import STDOUT, Also, JsonTo, RunFolder, print_or_write, progress_on
from rlscope.errors import ImpossibleChangeError


def _option(name: str, meaning: str) -> Any:  # noqa: ANN401  # what typer takes is of any type
    """Return an option with the limits that the Python interface sets for it."""
    limits = CHANGE_LIMITS[name]
    return typer.Option(min=limits.least, max=limits.most, help=meaning)


def what_if(
    context: typer.Context,
    run_dir: RunFolder,
    trainer_gpus: Annotated[
        int | None, _option("trainer_gpus", "Trainer GPUs. The remaining GPUs sample, unless --sampler-gpus is given.")
    ] = None,
    sampler_gpus: Annotated[
        int | None, _option("sampler_gpus", "Sampler GPUs. The remaining GPUs train, unless --trainer-gpus is given.")
    ] = None,
    total_gpus: Annotated[
        int | None, _option("total_gpus", "Total GPUs. Given alone, they are split in the fastest way.")
    ] = None,
    max_running: Annotated[int | None, _option("max_running", "Maximum running requests per engine.")] = None,
    max_staleness: Annotated[int | None, _option("max_staleness", "Staleness cap of samples, in versions.")] = None,
    length_factor: Annotated[float | None, _option("length_factor", "Factor on the response lengths.")] = None,
    max_output_tokens: Annotated[
        int | None, _option("max_output_tokens", "Maximum response length, in tokens.")
    ] = None,
    samples_per_step: Annotated[int | None, _option("samples_per_step", "Samples per training step.")] = None,
    trainer_speed: Annotated[
        float | None, _option("trainer_speed", "Relative speed of the trainers; 2 is twice as fast.")
    ] = None,
    engine_speed: Annotated[
        float | None, _option("engine_speed", "Relative speed of the engines; 2 is twice as fast.")
    ] = None,
    weight_update_s: Annotated[
        float | None, _option("weight_update_s", "Seconds from the end of a step until both sides continue.")
    ] = None,
    queue_capacity_samples: Annotated[
        int | None, _option("queue_capacity_samples", "Queue capacity, in samples; 0 means no limit.")
    ] = None,
    max_in_flight_samples: Annotated[
        int | None, _option("max_in_flight_samples", "Maximum samples in flight (running or queued); 0 means no limit.")
    ] = None,
    max_in_flight_groups: Annotated[
        int | None, _option("max_in_flight_groups", "Maximum groups in flight; 0 means no limit.")
    ] = None,
    publish_every: Annotated[int | None, _option("publish_every", "Optimizer steps per weight update.")] = None,
    also: Also = None,
    json_to: JsonTo = None,
) -> None:
    """Predict a run with changed settings, and list the settings that affect its speed the most."""
    from rlscope.reports.terminal.predictions import print_what_if

    notes = Console(stderr=True)
    try:
        with progress_on(notes) as progress:
            asked = rlscope.what_if(
                run_dir,
                also=also or (),
                progress=progress,
                **cast("Changes", {name: context.params[name] for name in CHANGE_LIMITS}),
            )
    except ImpossibleChangeError as error:
        raise typer.BadParameter(str(error)) from error
    if json_to is not None:
        print_or_write(json_to, asked.to_json())
    print_what_if(asked.model, asked, notes if json_to == STDOUT else Console())
