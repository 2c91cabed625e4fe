"""`rlscope doctor`: what a run or a file holds, what is missing for which answer, and what exactly brings it."""

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

import rlscope
from rlscope.cli.app import (
    STDOUT,
    As,
    EngineLog,
    GpuOwner,
    Gpus,
    GpusPerEngine,
    JsonTo,
    RunPath,
    UtcOffset,
    With,
    Year,
    print_or_write,
    progress_on,
)


def doctor(
    path: RunPath,
    framework: As = None,
    gpus: Gpus = None,
    gpus_per_engine: GpusPerEngine = None,
    with_files: With = None,
    engine_log: EngineLog = None,
    utc_offset: UtcOffset = None,
    year: Year = None,
    gpu_owner: GpuOwner = None,
    json_to: JsonTo = None,
) -> None:
    """Say what is there of a run, what each missing piece would add, and the line, flag or file that brings it."""
    from rlscope.importers.options import import_options
    from rlscope.importers.recognise import also_recognised

    options = import_options(
        framework, gpus, gpus_per_engine, utc_offset, year, gpu_owner or (), with_files or (), engine_log or ()
    )
    notes = Console(stderr=True)
    out = notes if json_to == STDOUT else Console()
    with progress_on(notes) as progress:
        found = rlscope.doctor(path, progress, options)
    beside = also_recognised(path, {path, *options.with_files, *options.engine_logs})
    if json_to is not None:
        print_or_write(json_to, found.to_json(beside))
    for piece in found:
        mark = {"there": "[green]+[/]", "in part": "[yellow]~[/]", "missing": "[red]-[/]"}[piece.status]
        line = Table.grid(padding=(0, 1, 0, 0))
        line.add_row(mark, f"[bold]{piece.name}[/]: {escape(piece.found)}")
        out.print(line, highlight=False)
        if piece.how:
            lines = f"would add: {escape(piece.adds)}\nto get it: {escape(piece.how)}"
            out.print(Padding(lines, (0, 0, 0, 4)), highlight=False)
    if beside:
        out.print("\n[bold]Beside it[/], perhaps of the same run:", highlight=False)
    for name, kind, flag in beside:
        out.print(f"  {escape(str(name))}: {kind}; {flag}", highlight=False)
