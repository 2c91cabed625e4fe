"""Describe a run, and where an imported one comes from: what was read, and how sure each table is."""

from collections.abc import Mapping, Sequence
from typing import Final

from rlscope import format as fmt
from rlscope.analysis.bottleneck import LEAST_STEPS_TO_JUDGE
from rlscope.analysis.result import AnalysisResult, ReportedMetric, Throughput
from rlscope.trace.imported import Certainty, Imported, SourceFile

_CARRIERS: Final[Mapping[str, str]] = {
    "console": "console log",
    "jsonl": "JSON lines",
    "wandb": ".wandb file",
    "tensorboard": "TensorBoard events",
    "csv": "CSV export",
    "trainer_state": "JSON file",
    "sqlite": "SQLite database",
    "parquet": "Parquet file",
    "mlflow": "MLflow files",
    "swanlab": "SwanLab file",
}
_OF_STEPS: Final = ("activities", "train_steps", "weight_updates")
"""The tables whose times are laid out inside a step, where the durations are all that is recorded."""
_LEFT_OUT: Final[Mapping[str, str]] = {
    "weight_updates": "how long after a publication each engine runs the new weights",
    "samples": "when each sample ran",
}
MORE_DATA: Final = (
    "`rlscope doctor PATH` lists what each missing file would add: the engines' logs (--engine-log), the number of "
    "GPUs (--gpus), and further files of the run (--with)."
)
"""Next step for missing data of an imported run."""
MORE_STEPS: Final = f"Pass a longer part of the log, with {LEAST_STEPS_TO_JUDGE} training steps or more."
"""Next step for an imported run if the log has only a few steps."""


def about(analysis: AnalysisResult) -> tuple[str, ...]:
    """Return start, duration, GPUs, steps, framework and model, without those that are unknown."""
    run, imported = analysis.run, analysis.data_quality.imported
    framework, model = run.settings.get("framework"), run.settings.get("model")
    name = model.get("name") if isinstance(model, Mapping) else None
    said = [fmt.instant(run.started_ns)] if imported is None or imported.is_dated else []
    said += [] if imported is None else [source_words(imported)]
    if run.duration_s or run.total_gpus:
        said += [fmt.duration(run.duration_s), fmt.counted(run.total_gpus, "GPU")]
    else:
        said.append("duration and GPUs not known")
    said.append(fmt.counted(run.steps, "training step"))
    said += [framework] if isinstance(framework, str) and framework else []
    # A model that is loaded from a folder named model has no name.
    said += [f"model: {name}"] if isinstance(name, str) and name not in ("", "model") else []
    return tuple(said)


def source_words(imported: Imported) -> str:
    """Return whose file was read, such as "imported from verl's console log train.log"."""
    kinds = " and ".join(_CARRIERS.get(each, each) for each in imported.carriers)
    if not kinds:
        return f"imported from {imported.framework}"
    names = [file.name for file in imported.files[:1]]
    if len(imported.files) > 1:
        names.append(fmt.counted(len(imported.files) - 1, "other file"))
    return f"imported from {imported.framework}'s {kinds} {' and '.join(names)}".rstrip()


def start_words(started_ns: int, imported: Imported | None) -> str:
    """Return the start of a run; "at an unknown date" if its files have no times."""
    return fmt.instant(started_ns) if imported is None or imported.is_dated else "at an unknown date"


def origin_lines(imported: Imported | None) -> list[str]:
    """Return the caveats of an imported run, one sentence each; none for a recorded run."""
    if imported is None:
        return []
    lines = [f"The run was {source_words(imported)}, not recorded by hooks."]
    if imported.clock == "relative":
        lines.append("The file has no times: steps are placed back to back, and dates are unknown.")
    elif imported.clock == "local":
        lines.append("The file has local times without a zone, shown as if they were UTC. Pass --utc-offset +HH:MM.")
    lines += _certainty_lines(imported)
    if imported.thinned_evenly:
        lines.append("The export left out steps at regular intervals, as exports limited to 500 rows do.")
    lines += [bad_lines(file) for file in imported.files if file.bad_lines]
    return [*lines, *(note if note.endswith(".") else f"{note}." for note in imported.notes)]


def _certainty_lines(imported: Imported) -> list[str]:
    unsure = {table: origin for table, origin in imported.tables.items() if origin.certainty is not Certainty.RECORDED}
    placed = [table for table in unsure if table in _OF_STEPS]
    lines: list[str] = []
    if any(origin.certainty is Certainty.PLACED for origin in unsure.values()):
        lines.append(
            f"The log states how long each phase of a step took, not when it began ({', '.join(placed)}): phases are "
            "placed in the order in which the program runs them."
        )
    left_out = [words for table, words in _LEFT_OUT.items() if table in unsure]
    if left_out:
        lines.append(f"So the report does not show {' and '.join(left_out)}.")
    for table, origin in imported.tables.items():
        if origin.certainty is Certainty.INFERRED:
            lines.append(f"Assumed in {table}: {origin.rule}.")
    return lines


def bad_lines(file: SourceFile) -> str:
    """Return how much of a file could not be read, as a sentence."""
    return (
        f"{file.name}: {fmt.count(file.bad_lines)} of {fmt.counted(file.lines, 'line')} could not be read and "
        "are left out."
    )


def thinned_sentence(imported: Imported | None) -> str:
    """Return the caveat of a verdict on a fair sample of the steps, as a sentence; empty for any other verdict."""
    if imported is None or not imported.thinned_evenly or imported.refusal is not None:
        return ""
    kept = " and ".join(f"{fmt.percent(imported.coverage[each])} of {each}" for each in imported.thinned_evenly)
    return f"The export kept only some steps ({kept}), spread evenly over the run: shares of time hold, totals do not."


def counted_words(rates: Throughput) -> str:
    """Return the end of a note if trained rates include prompts; empty if they count response tokens alone."""
    return "" if rates.counted_tokens is None else ", counting prompt and response tokens"


def reported_staleness(analysis: AnalysisResult) -> list[str]:
    """Return the staleness that the framework reports itself, a line per metric; empty if it reports none."""
    return _reported(analysis.staleness.reported, analysis.data_quality.imported)


def reported_throughput(analysis: AnalysisResult) -> list[str]:
    """Return the throughput that the framework reports itself, a line per metric; empty if trained tokens are known."""
    rates = analysis.throughput
    return _reported(rates.reported, analysis.data_quality.imported) if rates.achieved_tokens_per_s is None else []


def _reported(metrics: Sequence[ReportedMetric], imported: Imported | None) -> list[str]:
    by = "" if imported is None else imported.framework
    return [
        f"As reported by {by}, {each.name}: mean {fmt.significant(each.mean)}, max {fmt.significant(each.max)}, "
        f"{fmt.counted(each.steps, 'step')}"
        for each in metrics
    ]


def no_model_words(imported: Imported | None) -> str:
    """Return the data that a model of an imported run needs, as a sentence after a space; empty for a recorded run."""
    if imported is None:
        return ""
    return " A model needs the engines' logs (--engine-log) and the sample lengths; see `rlscope doctor`."
