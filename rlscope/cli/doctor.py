"""`rlscope doctor`: check what a run or a file records, what it lacks for which answer, and how to add that."""

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

import rlscope
from rlscope.cli.app import JsonTo, RunPath, progress_on, write_json
from rlscope.cli.imported import with_import_options


@with_import_options
def doctor(
    path: RunPath,
    options: "rlscope.ImportOptions",
    json_to: JsonTo = None,
) -> None:
    """Check what a run records, what it lacks, and which line of code, flag or file would add that."""
    notes = Console(stderr=True)
    with progress_on(notes) as progress:
        report = rlscope.doctor(path, progress, options)
    out = write_json(json_to, report, notes)
    for check in report.checks:
        mark = {"there": "[green]+[/]", "in part": "[yellow]~[/]", "missing": "[red]-[/]"}[check.status]
        line = Table.grid(padding=(0, 1, 0, 0))
        line.add_row(mark, f"[bold]{check.name}[/]: {escape(check.found)}")
        out.print(line, highlight=False)
        if check.how:
            lines = f"would add: {escape(check.adds)}\nto get it: {escape(check.how)}"
            out.print(Padding(lines, (0, 0, 0, 4)), highlight=False)
    if report.beside:
        out.print("\n[bold]Other files in the folder[/], perhaps of the same run:", highlight=False)
    for file in report.beside:
        out.print(f"  {escape(str(file.path))}: {file.kind}; {file.how}", highlight=False)
