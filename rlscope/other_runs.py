"""Reads other runs of the same model, whose train steps say how training scales with the number of trainer GPUs.

Only their steady train steps are read. A run whose trainers are known to be others is an error; what is not recorded,
or bears less on the speed of training, is a caution. Not covered: differences that nobody records, such as the network.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import polars as pl

from rlscope.errors import AnalysisError, UnreadableDataError
from rlscope.interval import Interval
from rlscope.model.other_run import OtherCaution, OtherRun
from rlscope.observation import Training, UnobservableError, observe_training
from rlscope.query import ask
from rlscope.run_facts import steady_window, window_reason
from rlscope.store import Run, open_run

_NOT_OF_TRAINING: Final = frozenset({"name", "bytes_per_kv", "bytes_per_weight"})
"""Entries of a model that engines may have otherwise than trainers: they serve it under a name, and may quantise it."""
_OF_TRAINING: Final = "train"
"""What the name of a setting of the user's own begins with where it is about training."""
_OF_LAYOUT: Final = "gpu"
"""What is in its name where it is of the layout, in which the runs are meant to differ."""
_ELSEWHERE: Final = "Leave it out, or name a run that differs in its layout only."
_TELLING: Final = ("train_steps/", "workers/")
"""Folders whose files all have to be read: with some of the trainers missing, the others seem to be all there were."""


def read_other_runs(run: Run, folders: Sequence[Path], progress: Callable[[str], None]) -> tuple[OtherRun, ...]:
    """The train steps of the runs in other folders. Raises RunFolderError for a folder that is no run, AnalysisError
    for one that is given twice, has other trainers, no steady train steps, or some that cannot be read.
    """
    found: list[OtherRun] = []
    read = {run.folder}
    for folder in folders:
        progress(f"reading the train steps of {folder}")
        if folder.resolve() in read:
            raise AnalysisError.of(
                folder,
                found="a run that is already given",
                expected="another run",
                next_step="Name each run once; the one that is analysed speaks for itself.",
            )
        read.add(folder.resolve())
        found.append(_read(run, folder))
    return tuple(found)


def _read(run: Run, folder: Path) -> OtherRun:
    try:
        with open_run(folder) as other:
            return _other_run(run, other, folder)
    except UnreadableDataError:
        with open_run(folder, read_all=True) as other:
            return _other_run(run, other, folder)


def _other_run(run: Run, other: Run, folder: Path) -> OtherRun:
    _refuse_a_part(other, folder)
    cautions = _compare(_trainers(run), _trainers(other), folder)
    training = _training(other, folder)
    return OtherRun(other.run_id, training.gpus, training.steps, cautions)


def _refuse_a_part(other: Run, folder: Path) -> None:
    lost = [file.path for file in other.skipped_files if file.path.startswith(_TELLING)]
    if lost:
        raise AnalysisError.of(
            folder,
            found=f"{lost[0]} that cannot be read",
            expected="all of its trainers and their steps: without some of them the others seem to scale otherwise",
            next_step="Leave it out, or copy its files once more.",
        )


def _training(other: Run, folder: Path) -> Training:
    answers = {name: ask(other, name) for name in ("training_steps", "trainer_steps")}
    window = steady_window(answers["training_steps"])
    if window is None:
        raise _unusable(folder, window_reason(None, len(answers["training_steps"])))
    try:
        training = observe_training(answers, Interval(window.start_ns, window.end_ns))
    except UnobservableError as error:
        raise _unusable(folder, str(error)) from error
    if not training.steps.trained.any():
        raise _unusable(folder, "no step in its steady stretch says how many tokens it trained on, and for how long")
    return training


def _unusable(folder: Path, found: str) -> AnalysisError:
    return AnalysisError.of(
        folder,
        found=found,
        expected="a run with a steady stretch of train steps",
        next_step="Leave it out, or record it for longer; `rlscope analyze` says what it does show.",
    )


class _Trainers(NamedTuple):
    """What run.json and the workers say of the trainers."""

    model: Mapping[str, object]
    facts: Mapping[str, object]
    """By the words for them; what is not recorded is left out."""
    settings: Mapping[str, object]
    """Settings of the user's own that are about training."""


def _trainers(run: Run) -> _Trainers:
    devices = ask(run, "worker_devices").filter(pl.col("role").is_in(["trainer", "colocated"]))["device_name"]
    config = run.config
    facts = {
        "config.framework": config.framework,
        "config.gpus_per_trainer_replica": config.gpus_per_trainer_replica,
        "the trainers' GPUs": " and ".join(sorted(devices.drop_nulls().unique())) or None,
    }
    return _Trainers(
        model=config.model or {},
        facts={name: value for name, value in facts.items() if value is not None},
        settings={
            name: value
            for name, value in run.settings.items()
            if name.startswith(_OF_TRAINING) and _OF_LAYOUT not in name
        },
    )


def _compare(own: _Trainers, theirs: _Trainers, folder: Path) -> tuple[OtherCaution, ...]:
    """What to be careful with. Raises AnalysisError where the trainers are known to be others."""
    shape = (own.model.keys() & theirs.model.keys()) - _NOT_OF_TRAINING
    named = {"name"} & own.model.keys() & theirs.model.keys()
    for name in sorted(shape or named):
        _same(folder, f"config.model.{name}", own.model[name], theirs.model[name])
    for name in sorted(own.facts.keys() & theirs.facts.keys()):
        _same(folder, name, own.facts[name], theirs.facts[name])
    known: Mapping[OtherCaution, bool] = {
        "model_not_recorded": not (shape or named),
        "other_settings": own.settings != theirs.settings,
    }
    return tuple(caution for caution, holds in known.items() if holds)


def _same(folder: Path, name: str, own: object, other: object) -> None:
    if own != other:
        raise AnalysisError.of(
            folder,
            found=f"{name} = {other!r}",
            expected=f"{own!r}, as in the run that is analysed: its trainers say nothing of others",
            next_step=_ELSEWHERE,
        )
