"""`rlscope what-if`: predict a run with changed settings and compare it with the current run."""

import typer
from rich.console import Console

import rlscope
from rlscope.changes import CHANGEABLE, Changes
from rlscope.cli.app import Also, JsonTo, RunFolder, option, print_answer, progress_on, with_options, write_json
from rlscope.errors import ImpossibleChangeError

_OPTIONS = tuple(
    option(name, each.kind, min=each.limits.least, max=each.limits.most, help=each.meaning)
    for name, each in CHANGEABLE.items()
)


@with_options("changes", _OPTIONS, Changes)
def what_if(run_dir: RunFolder, changes: Changes, also: Also = None, json_to: JsonTo = None) -> None:
    """Predict a run with changed settings, and list the settings that affect its speed the most."""
    notes = Console(stderr=True)
    try:
        with progress_on(notes) as progress:
            analysis = rlscope.analyze(run_dir, also=also or (), progress=progress, page=False)
            asked = analysis.what_if(**changes)
    except ImpossibleChangeError as error:
        raise typer.BadParameter(str(error)) from error
    print_answer(asked, write_json(json_to, asked, notes))
