"""Options for facts that an imported file does not state. Three commands take them, as one argument `options`."""

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated

import typer

import rlscope

As = Annotated[
    str | None,
    typer.Option("--as", metavar="FRAMEWORK", help="Framework that wrote the file, if it cannot be detected."),
]
TableFile = Annotated[
    Path | None,
    typer.Option(
        "--framework",
        metavar="FILE",
        help="Your own table of a framework: a TOML file that docs/importers.md describes.",
    ),
]
Phases = Annotated[
    str | None,
    typer.Option(
        "--phases",
        metavar="PHASE=METRIC,...",
        help="Metrics in seconds of a framework that rlscope does not know: "
        "step=time/total,generate=time/sampling,train=time/train_step.",
    ),
]
Gpus = Annotated[
    str | None, typer.Option("--gpus", metavar="ROLE=N,...", help="GPUs by role, for example trainer=8,sampler=8.")
]
GpusPerEngine = Annotated[int | None, typer.Option("--gpus-per-engine", min=1, help="GPUs per engine.")]
UtcOffset = Annotated[
    str | None, typer.Option("--utc-offset", metavar="+HH:MM", help="Time zone of a log that does not state one.")
]
Year = Annotated[int | None, typer.Option("--year", help="Year of a log that does not state one.")]
GpuOwner = Annotated[
    list[str] | None,
    typer.Option("--gpu-owner", metavar="N-M=WORKER", help="Worker that owns GPUs N to M. Repeatable."),
]
With = Annotated[
    list[Path] | None, typer.Option("--with", metavar="PATH", help="Another file of the same run. Repeatable.")
]
EngineLog = Annotated[
    list[str] | None,
    typer.Option("--engine-log", metavar="PATTERN", help="Logs of the inference engines, one per file. Repeatable."),
]


def _options(
    framework: As = None,
    table: TableFile = None,
    phases: Phases = None,
    gpus: Gpus = None,
    gpus_per_engine: GpusPerEngine = None,
    with_files: With = None,
    engine_log: EngineLog = None,
    utc_offset: UtcOffset = None,
    year: Year = None,
    gpu_owner: GpuOwner = None,
) -> "rlscope.ImportOptions":
    from rlscope.importers.options import import_options

    return import_options(
        framework=framework,
        gpus=gpus,
        gpus_per_engine=gpus_per_engine,
        utc_offset=utc_offset,
        year=year,
        gpu_owners=gpu_owner or (),
        with_files=with_files or (),
        engine_logs=engine_log or (),
        table=table,
        phases=phases,
    )


def with_import_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with command-line options in place of its argument `options`."""
    given = signature(_options).parameters
    listed: list[Parameter] = []
    for name, parameter in signature(command).parameters.items():
        listed += given.values() if name == "options" else [parameter]

    @wraps(command)
    def run(**arguments: object) -> None:
        chosen = {name: arguments.pop(name) for name in given}
        command(**arguments, options=_options(**chosen))  # type: ignore[arg-type]

    run.__signature__ = Signature([each.replace(kind=Parameter.KEYWORD_ONLY) for each in listed])  # type: ignore[attr-defined]
    # Typer resolves annotations by name, and that of `options` is imported for type checkers alone.
    run.__annotations__ = {}
    return run
