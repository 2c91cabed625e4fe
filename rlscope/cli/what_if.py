"""`rlscope what-if`: predict a run with changed settings and compare it with the current run."""

from typing import Annotated, Any

import typer
from rich.console import Console

import rlscope
from rlscope.api import CHANGE_LIMITS
from rlscope.cli.app import STDOUT, Also, JsonTo, RunFolder, print_or_write, progress_on
from rlscope.errors import ImpossibleChangeError


def _option(name: str, meaning: str) -> Any:  # noqa: ANN401  # what typer takes is of any type
    """Return an option with the limits that the Python interface sets for it."""
    limits = CHANGE_LIMITS[name]
    return typer.Option(min=limits.least, max=limits.most, help=meaning)


Trainers = Annotated[
    int | None, _option("trainer_gpus", "Trainer GPUs. The remaining GPUs sample, unless --sampler-gpus is given.")
]
Samplers = Annotated[
    int | None, _option("sampler_gpus", "Sampler GPUs. The remaining GPUs train, unless --trainer-gpus is given.")
]
Gpus = Annotated[int | None, _option("total_gpus", "Total GPUs. Given alone, they are split in the fastest way.")]
Running = Annotated[int | None, _option("max_running", "Maximum running requests per engine.")]
Staleness = Annotated[int | None, _option("max_staleness", "Staleness cap of samples, in versions.")]
Lengths = Annotated[float | None, _option("length_factor", "Factor on the response lengths.")]
Cap = Annotated[int | None, _option("max_output_tokens", "Maximum response length, in tokens.")]
Samples = Annotated[int | None, _option("samples_per_step", "Samples per training step.")]
Training = Annotated[float | None, _option("trainer_speed", "Relative speed of the trainers; 2 is twice as fast.")]
Passes = Annotated[float | None, _option("engine_speed", "Relative speed of the engines; 2 is twice as fast.")]
Update = Annotated[
    float | None, _option("weight_update_s", "Seconds from the end of a step until both sides continue.")
]

Queue = Annotated[int | None, _option("queue_capacity_samples", "Queue capacity, in samples; 0 means no limit.")]
InFlight = Annotated[
    int | None, _option("max_in_flight_samples", "Maximum samples in flight (running or queued); 0 means no limit.")
]
Groups = Annotated[int | None, _option("max_in_flight_groups", "Maximum groups in flight; 0 means no limit.")]
Publish = Annotated[int | None, _option("publish_every", "Optimizer steps per weight update.")]


def what_if(
    run_dir: RunFolder,
    trainer_gpus: Trainers = None,
    sampler_gpus: Samplers = None,
    total_gpus: Gpus = None,
    max_running: Running = None,
    max_staleness: Staleness = None,
    length_factor: Lengths = None,
    max_output_tokens: Cap = None,
    samples_per_step: Samples = None,
    trainer_speed: Training = None,
    engine_speed: Passes = None,
    weight_update_s: Update = None,
    queue_capacity_samples: Queue = None,
    max_in_flight_samples: InFlight = None,
    max_in_flight_groups: Groups = None,
    publish_every: Publish = None,
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
                trainer_gpus=trainer_gpus,
                sampler_gpus=sampler_gpus,
                total_gpus=total_gpus,
                max_running=max_running,
                max_staleness=max_staleness,
                length_factor=length_factor,
                max_output_tokens=max_output_tokens,
                samples_per_step=samples_per_step,
                trainer_speed=trainer_speed,
                engine_speed=engine_speed,
                weight_update_s=weight_update_s,
                queue_capacity_samples=queue_capacity_samples,
                max_in_flight_samples=max_in_flight_samples,
                max_in_flight_groups=max_in_flight_groups,
                publish_every=publish_every,
            )
    except ImpossibleChangeError as error:
        raise typer.BadParameter(str(error)) from error
    if json_to is not None:
        print_or_write(json_to, asked.to_json())
    print_what_if(asked.model, asked.answer, notes if json_to == STDOUT else Console())
