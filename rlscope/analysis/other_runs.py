"""Reads the train steps of other runs of the same model, which show how training scales.

Only the steady train steps are read. Trainers that are known to differ are an error; a model that is not recorded is a
warning. Differences that no run records go unnoticed.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import polars as pl

from rlscope.analysis.interval import Interval
from rlscope.analysis.ledger import TRAINER_ROLES
from rlscope.analysis.observe import UnobservableError, observe_steps, trainer_gpus
from rlscope.analysis.run_facts import steady_window, window_reason
from rlscope.errors import AnalysisError
from rlscope.model.observed import OtherRun, TrainerSteps
from rlscope.model.warnings import ModelWarning
from rlscope.trace.query import ask
from rlscope.trace.store import OpenRun, read_run

_NOT_OF_TRAINING: Final = frozenset({"name", "bytes_per_kv", "bytes_per_weight"})
"""Model settings that may differ between engines and trainers: engines serve it under a name and may quantize it."""
_TELLING: Final = ("train_steps/", "workers/")
"""Folders in which every file must be readable. If files of some trainers were missing, the run would look smaller."""


def read_other_runs(run: OpenRun, folders: Sequence[Path], progress: Callable[[str], None]) -> tuple[OtherRun, ...]:
    """Read the train steps of the runs in other folders.

    Raises:
        RunFolderError: A folder is not a run.
        AnalysisError: A run is given twice, has other trainers or no steady train steps, or cannot be read completely.
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
                next_step="Name each run once; the analyzed run is always included.",
            )
        read.add(folder.resolve())
        found.append(read_run(folder, partial(_other_run, run, folder)))
    return tuple(found)


def _other_run(run: OpenRun, folder: Path, other: OpenRun) -> OtherRun:
    lost = [file.path for file in other.skipped_files if file.path.startswith(_TELLING)]
    if lost:
        raise AnalysisError.of(
            folder,
            found=f"{lost[0]} that cannot be read",
            expected="all of its trainers and their steps: without some of them the others seem to scale otherwise",
            next_step="Leave it out, or copy its files once more.",
        )
    warnings = _compare(run, other, folder)
    return OtherRun(other.run_id, *_training(other, folder), warnings)


def _training(other: OpenRun, folder: Path) -> tuple[int, TrainerSteps]:
    """Return the trainer GPUs and the steps of the steady state."""
    answers = {name: ask(other, name) for name in ("training_steps", "trainer_steps")}
    window = steady_window(answers["training_steps"])
    if window is None:
        raise _unusable(folder, window_reason(None, answers["training_steps"]["step"]))
    try:
        steps, numbers = observe_steps(answers, Interval(window.start_ns, window.end_ns))
    except UnobservableError as error:
        raise _unusable(folder, str(error)) from error
    if not steps.trained.any():
        raise _unusable(folder, "no step in its steady state says how many tokens it trained on, and for how long")
    return trainer_gpus(answers["trainer_steps"], numbers), steps


def _unusable(folder: Path, found: str) -> AnalysisError:
    return AnalysisError.of(
        folder,
        found=found,
        expected="a run with a steady state of train steps",
        next_step="Leave it out, or record it for longer; `rlscope analyze` says what it does show.",
    )


def _compare(own: OpenRun, other: OpenRun, folder: Path) -> tuple[ModelWarning, ...]:
    """Return warnings about possible differences. Raises AnalysisError if the trainers are known to differ."""
    model, other_model = own.config.model or {}, other.config.model or {}
    stated = model.keys() & other_model.keys()
    compared = sorted(stated - _NOT_OF_TRAINING or stated & {"name"})
    pairs = {f"config.model.{name}": (model[name], other_model[name]) for name in compared}
    facts, other_facts = _trainer_facts(own), _trainer_facts(other)
    pairs |= {name: (facts[name], other_facts[name]) for name in sorted(facts.keys() & other_facts.keys())}
    for name, (value, other_value) in pairs.items():
        if value != other_value:
            raise AnalysisError.of(
                folder,
                found=f"{name} = {other_value!r}",
                expected=f"{value!r}, as in the analyzed run: trainers of different models cannot be compared",
                next_step="Leave it out, or name a run that differs in its layout only.",
            )
    return () if compared else (ModelWarning.MODEL_NOT_RECORDED,)


def _trainer_facts(run: OpenRun) -> dict[str, object]:
    """Return the recorded facts of the trainers, besides the model, by their names in messages."""
    devices = ask(run, "worker_devices").filter(pl.col("role").is_in(TRAINER_ROLES))["device_name"]
    facts = {
        "config.framework": run.config.framework,
        "config.gpus_per_trainer_replica": run.config.gpus_per_trainer_replica,
        "the trainers' GPUs": " and ".join(sorted(devices.drop_nulls().unique())) or None,
    }
    return {name: value for name, value in facts.items() if value is not None}
