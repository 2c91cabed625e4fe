"""From a run folder and a change to what the run would do: the analysis of the run, and one question to its model."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from rlscope.analyze import analyze, say_nothing
from rlscope.errors import AnalysisError
from rlscope.look_ahead import NO_WISHES, Wishes
from rlscope.model.change import Change
from rlscope.model.outlook import NoOutlook, Outlook
from rlscope.model.what_if import WhatIf, what_if


class Asked(NamedTuple):
    """What the model says of the run, and its answer."""

    outlook: Outlook
    answer: WhatIf


def ask_run(
    folder: Path | str, change: Change, *, progress: Callable[[str], None] = say_nothing, wishes: Wishes = NO_WISHES
) -> Asked:
    """Analyse the run in a folder and ask its model; progress is told what is being done, wishes are an analysis's.

    Who has several questions analyses once and asks `rlscope.model.what_if.what_if` each. Raises RunFolderError for a
    folder that is no run, AnalysisError for one that the model says nothing of, ImpossibleChangeError for GPUs that
    make no layout.
    """
    outlook = analyze(folder, progress=progress, wishes=wishes).outlook
    if isinstance(outlook, NoOutlook):
        raise AnalysisError.of(
            folder,
            found=outlook.reason,
            expected="a run that the model can be fitted to",
            next_step="`rlscope analyze` says what the run does show.",
        )
    progress("asking the model")
    return Asked(outlook, what_if(outlook, change))
