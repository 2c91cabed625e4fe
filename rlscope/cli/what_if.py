"""`rlscope what-if`: what the run would do with something changed, beside the run as it is."""

from typing import Annotated, Any

import typer
from rich.console import Console

import rlscope
from rlscope.api import CHANGE_LIMITS
from rlscope.cli.app import STDOUT, Also, JsonTo, RunFolder, print_or_write, progress_on
from rlscope.errors import ImpossibleChangeError


def _option(name: str, meaning: str) -> Any:  # noqa: ANN401  # what typer takes is of any type
    """An option with the limits that the front door has for it."""
    limits = CHANGE_LIMITS[name]
    return typer.Option(min=limits.least, max=limits.most, help=meaning)


Trainers = Annotated[int | None, _option("n_train", "Trainer GPUs; unless --n-sample is given, the rest sample.")]
Samplers = Annotated[int | None, _option("n_sample", "Sampler GPUs; unless --n-train is given, the rest train.")]
Gpus = Annotated[int | None, _option("n_gpus", "GPUs in total; on its own, in their fastest split.")]
Running = Annotated[int | None, _option("max_running", "Requests that an engine may run at once.")]
Staleness = Annotated[int | None, _option("max_staleness", "Staleness cap of samples, in versions.")]
Lengths = Annotated[float | None, _option("scale_lengths", "Scale response lengths by this factor.")]
Cap = Annotated[int | None, _option("max_output_tokens", "Cap on the length of a response, in tokens.")]
Samples = Annotated[int | None, _option("samples_per_step", "Samples per training step.")]
Training = Annotated[float | None, _option("trainer_speed", "Speed of the trainers' passes; 2: twice as fast.")]
Passes = Annotated[float | None, _option("forward_speed", "Speed of the engines' passes; 2: twice as fast.")]
Update = Annotated[float | None, _option("weight_update_s", "Seconds from a step's end until both sides continue.")]

Queue = Annotated[int | None, _option("queue_capacity", "Samples that the queue holds; 0: no limit.")]
InFlight = Annotated[int | None, _option("max_in_flight", "Samples that may run and be queued at once; 0: no limit.")]
Groups = Annotated[int | None, _option("max_in_flight_groups", "The same limit in groups; 0: no limit.")]
Publish = Annotated[int | None, _option("publish_every", "Optimizer steps per weight update.")]


def what_if(
    run_dir: RunFolder,
    n_train: Trainers = None,
    n_sample: Samplers = None,
    n_gpus: Gpus = None,
    max_running: Running = None,
    max_staleness: Staleness = None,
    scale_lengths: Lengths = None,
    max_output_tokens: Cap = None,
    samples_per_step: Samples = None,
    trainer_speed: Training = None,
    forward_speed: Passes = None,
    weight_update_s: Update = None,
    queue_capacity: Queue = None,
    max_in_flight: InFlight = None,
    max_in_flight_groups: Groups = None,
    publish_every: Publish = None,
    also: Also = None,
    json_to: JsonTo = None,
) -> None:
    """Predict the run with something changed, and list what it is most sensitive to."""
    from rlscope.reports.terminal.predictions import print_what_if

    notes = Console(stderr=True)
    try:
        with progress_on(notes) as progress:
            asked = rlscope.what_if(
                run_dir, also=also or (), progress=progress, n_train=n_train, n_sample=n_sample, n_gpus=n_gpus,
                max_running=max_running, max_staleness=max_staleness, scale_lengths=scale_lengths,
                max_output_tokens=max_output_tokens, samples_per_step=samples_per_step, trainer_speed=trainer_speed,
                forward_speed=forward_speed, weight_update_s=weight_update_s, queue_capacity=queue_capacity,
                max_in_flight=max_in_flight, max_in_flight_groups=max_in_flight_groups, publish_every=publish_every,
            )  # fmt: skip
    except ImpossibleChangeError as error:
        raise typer.BadParameter(str(error)) from error
    if json_to is not None:
        print_or_write(json_to, asked.to_json())
    print_what_if(asked.model, asked.answer, notes if json_to == STDOUT else Console())
