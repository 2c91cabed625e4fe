"""`rlscope doctor`: check what a run or a file records, what it lacks for which answer, and how to add that."""

from rich.console import Console

import rlscope
from rlscope.cli.app import JsonTo, RunPath, print_answer, progress_on, write_json
from rlscope.cli.imported import with_import_options


@with_import_options
def doctor(path: RunPath, options: "rlscope.ImportOptions", json_to: JsonTo = None) -> None:
    """Check what a run records, what it lacks, and which line of code, flag or file would add that."""
    notes = Console(stderr=True)
    with progress_on(notes) as progress:
        report = rlscope.doctor(path, progress, options)
    print_answer(report, write_json(json_to, report, notes))
