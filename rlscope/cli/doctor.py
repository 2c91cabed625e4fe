"""`rlscope doctor`: check what a run or a file records, what it lacks for which answer, and how to add that."""

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
    Phases,
    RunPath,
    TableFile,
    UtcOffset,
    With,
    Year,
    print_or_write,
    progress_on,
)


def doctor(
    path: RunPath,
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
    json_to: JsonTo = None,
) -> None:
    """Check what a run records, what it lacks, and which line of code, flag or file would add that."""
    from rlscope.importers.options import import_options
    from rlscope.importers.recognise import also_recognised

    options = import_options(
        framework,
        gpus,
        gpus_per_engine,
        utc_offset,
        year,
        gpu_owner or (),
        with_files or (),
        engine_log or (),
        table,
        phases,
    )
    notes = Console(stderr=True)
    out = notes if json_to == STDOUT else Console()
    with progress_on(notes) as progress:
        report = rlscope.doctor(path, progress, options)
    beside = also_recognised(path, {path, *options.with_files, *options.engine_logs})
    if json_to is not None:
        print_or_write(json_to, report.to_json(beside))
    for check in report:
        mark = {"there": "[green]+[/]", "in part": "[yellow]~[/]", "missing": "[red]-[/]"}[check.status]
        line = Table.grid(padding=(0, 1, 0, 0))
        line.add_row(mark, f"[bold]{check.name}[/]: {escape(check.found)}")
        out.print(line, highlight=False)
        if check.how:
            lines = f"would add: {escape(check.adds)}\nto get it: {escape(check.how)}"
            out.print(Padding(lines, (0, 0, 0, 4)), highlight=False)
    if beside:
        out.print("\n[bold]Other files in the folder[/], perhaps of the same run:", highlight=False)
    for name, kind, flag in beside:
        out.print(f"  {escape(str(name))}: {kind}; {flag}", highlight=False)
