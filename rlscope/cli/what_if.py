"""`rlscope what-if`: what the run would do with something changed, beside the run as it is."""

from typing import Annotated, Final

import typer
from rich.console import Console

from rlscope.cli.app import STDOUT, Also, RunFolder, app, print_or_write

_LEAST, _MOST = 0.01, 100.0
"""Factors beyond are no run that resembles this one."""
_MOST_SAMPLES: Final = 100_000
"""Of a step: more are not simulated in a minute."""
_MOST_GPUS: Final = 65_536
_MOST_SECONDS: Final = 86_400.0
Trainers = Annotated[int | None, typer.Option(min=1, help="Trainer GPUs; without --n-sample the rest sample.")]
Samplers = Annotated[int | None, typer.Option(min=1, help="Sampler GPUs; without --n-train the rest train.")]
Gpus = Annotated[int | None, typer.Option(min=2, max=_MOST_GPUS, help="GPUs in all; alone: in their fastest split.")]
Running = Annotated[int | None, typer.Option(min=1, help="Requests that an engine may run at once.")]
Staleness = Annotated[int | None, typer.Option(min=0, help="The cap on the staleness of samples, in versions.")]
Lengths = Annotated[
    float | None,
    typer.Option(min=_LEAST, max=_MOST, help="Responses so many times as long, up to the cap."),
]
Cap = Annotated[int | None, typer.Option(min=1, help="Tokens at which a response is cut.")]
Samples = Annotated[int | None, typer.Option(min=1, max=_MOST_SAMPLES, help="Samples that a training step takes.")]
Training = Annotated[
    float | None,
    typer.Option(min=_LEAST, max=_MOST, help="2: the trainers' passes take half as long."),
]
Passes = Annotated[
    float | None,
    typer.Option(min=_LEAST, max=_MOST, help="2: the engines' passes take half as long."),
]
Update = Annotated[
    float | None,
    typer.Option(min=0.0, max=_MOST_SECONDS, help="Seconds from a step's end until both sides go on."),
]
JsonTo = Annotated[str | None, typer.Option("--json", metavar="FILE|-", help="Write the answer as JSON; - is stdout.")]


@app.command("what-if")
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
    also: Also = None,
    json_to: JsonTo = None,
) -> None:
    """Say what the run would do with something changed, and what one per cent of each quantity buys."""
    from rlscope.analysis.advise import Constraints
    from rlscope.model.forecast.change import Change
    from rlscope.model.forecast.whatif import ImpossibleChangeError
    from rlscope.pipeline import ask_run
    from rlscope.reports.documents.what_if import what_if_document
    from rlscope.reports.terminal.model import print_what_if

    change = Change(
        trainer_gpus=n_train, sampler_gpus=n_sample, gpus=n_gpus, running_per_engine=max_running,
        max_staleness=max_staleness, length_factor=scale_lengths, max_output_tokens=max_output_tokens,
        samples_per_step=samples_per_step, trainer_speed=trainer_speed, forward_speed=forward_speed,
        weight_update_s=weight_update_s,
    )  # fmt: skip
    notes = Console(stderr=True)
    try:
        with notes.status("opening the run") as status:
            asked = ask_run(run_dir, change, progress=status.update, constraints=Constraints(also=tuple(also or ())))
    except ImpossibleChangeError as error:
        raise typer.BadParameter(str(error)) from error
    if json_to is not None:
        print_or_write(json_to, what_if_document(*asked).as_json())
    print_what_if(*asked, notes if json_to == STDOUT else Console())
