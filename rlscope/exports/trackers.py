"""Export of an analysis to the tracker that has the run's metrics: Weights & Biases, MLflow or TensorBoard.

All trackers get the same numbers under the same names, the verdict in words, the staleness of each step, and the
report. Their libraries are optional and read address and login from their own environment variables. These are never
printed, and errors of the libraries are shown without credentials.
"""

import math
import os
import re
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal

from rlscope.analysis.result import AnalysisResult, LedgerState
from rlscope.document import single_values
from rlscope.errors import ArgumentError, OutputError, RlscopeError
from rlscope.model.forecast.result import NoModelResult
from rlscope.reports.documents.model import modeled_throughput
from rlscope.reports.page.html import render
from rlscope.reports.text import verdict as verdict_words
from rlscope.text_out import write_file

Tracker = Literal["wandb", "mlflow", "tensorboard"]
TRACKERS: Final[tuple[Tracker, ...]] = ("wandb", "mlflow", "tensorboard")
_PACKAGES: Final[Mapping[Tracker, str]] = {"wandb": "wandb", "mlflow": "mlflow", "tensorboard": "tensorboardX"}
PREFIX: Final = "rlscope"
PAGE: Final = "rlscope_report.html"
_STEP_COLUMNS: Final = ("staleness_mean", "staleness_p95", "staleness_max")
_MOST_IN_A_BATCH: Final = 100
"""Maximum tags per call of MLflow, which accepts 1,000 metrics per call."""
_MOST_CHARACTERS: Final = 5_000
"""Maximum length of a tag's value in MLflow, in characters."""
_SECRETS: Final = ("WANDB_API_KEY", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "AWS_SECRET_ACCESS_KEY")
_CREDENTIALS: Final = re.compile(r"(?<=://)[^/@\s]+@")
_UNUSUAL: Final = re.compile(r"[^A-Za-z0-9_.-]")


@dataclass(frozen=True, slots=True)
class Summary:
    """Data of an analysis for a tracker."""

    run_id: str
    numbers: Mapping[str, float]
    """Numbers by name, with units in the names. Unknown numbers are missing."""
    words: Mapping[str, str]
    steps: tuple[tuple[int, Mapping[str, float]], ...]
    """Numbers of each optimizer step."""
    page: str
    """The report, as HTML."""


@dataclass(frozen=True, slots=True)
class Target:
    """Destination in a tracker."""

    tracker: Tracker
    project: str | None = None
    """Weights & Biases project or MLflow experiment. None uses the tracker's environment."""
    into: str | None = None
    """Id of an existing tracker run to add to. None creates a new run."""
    folder: Path | None = None
    """Log folder, required for TensorBoard: it is not derived from a run's id, which may name any folder."""

    def __post_init__(self) -> None:
        if self.tracker == "tensorboard" and self.folder is None:
            raise ArgumentError.of(
                "folder", found="none", expected="the log folder of TensorBoard", next_step="Pass folder='logs/monday'."
            )


def push_analysis(analysis: AnalysisResult, target: Target) -> str:
    """Write an analysis to a tracker and return where it is, in words without credentials.

    Raises:
        RlscopeError: The tracker's library is not installed or fails.
        OutputError: The folder cannot be written.
    """
    library, summary = library_of(target.tracker), summary_of(analysis)
    with _without_credentials(target.tracker):
        return _WRITERS[target.tracker](library, summary, target)


def summary_of(analysis: AnalysisResult) -> Summary:
    """Return the numbers, the words and the report of an analysis."""
    model, staleness = analysis.model, analysis.staleness
    numbers: dict[str, object] = {
        **_named("throughput/", modeled_throughput(analysis.throughput, model)),
        **{f"ledger/{_state_name(state)}_ratio": state.share_ratio for state in analysis.ledger.states},
        **_named("staleness/", staleness),
        **_named("staleness/tokens_", staleness.tokens),
        **_named("staleness/samples_", staleness.samples),
        **{f"lost/{loss.cause}_gpu_s": loss.gpu_s for loss in analysis.verdict.losses},
    }
    if not isinstance(model, NoModelResult) and model.replay.explains:
        numbers["throughput/synchronous_tokens_per_s"] = model.synchronous_tokens_per_s
        numbers["recommendation/gain_ratio"] = model.recommendation.gain_ratio.value
    known = {name: value for name, value in numbers.items() if isinstance(value, int | float) and math.isfinite(value)}
    steps = analysis.answers["token_staleness_by_step"].sort("step").select("step", *_STEP_COLUMNS)
    return Summary(
        run_id=analysis.run.run_id,
        numbers={f"{PREFIX}/{name}": float(value) for name, value in known.items() if not isinstance(value, bool)},
        words={f"{PREFIX}/{name}": text for name, text in _words(analysis).items()},
        steps=tuple(
            (step, {f"{PREFIX}/steps/{name}": float(age) for name, age in zip(_STEP_COLUMNS, ages, strict=True)})
            for step, *ages in steps.iter_rows()
        ),
        page=render(analysis),
    )


def _named(before: str, document: object | None) -> dict[str, object]:
    values = {} if document is None else single_values(document)
    return {f"{before}{name}": value for name, value in values.items()}


def _state_name(state: LedgerState) -> str:
    return f"{state.role}/{state.state}" + (f"_{state.reason}" if state.reason else "")


def _words(analysis: AnalysisResult) -> dict[str, str]:
    return {
        "bottleneck": analysis.verdict.bottleneck,
        "verdict": verdict_words.headline(analysis),
        "why": verdict_words.why(analysis),
        "next": verdict_words.next_step(analysis),
        "findings": ", ".join(finding.rule for finding in analysis.findings) or "none",
    }


def _to_wandb(wandb: Any, summary: Summary, target: Target) -> str:  # noqa: ANN401
    """Write the numbers as the summary of a run, the steps as its history, and the report as an artifact."""
    settings = wandb.Settings(silent=True, console="off", disable_git=True)
    name = None if target.into else summary.run_id
    run = wandb.init(project=target.project, id=target.into, name=name, resume="allow", settings=settings)
    try:
        step = f"{PREFIX}/step"
        run.define_metric(step)
        run.define_metric(f"{PREFIX}/steps/*", step_metric=step)
        for number, values in summary.steps:
            run.log({step: number, **values})
        run.summary.update({**summary.numbers, **summary.words})
        with _page_file(summary) as page:
            artifact = wandb.Artifact(f"{PREFIX}-{_UNUSUAL.sub('-', summary.run_id)}", type="report")
            artifact.add_file(str(page))
            run.log_artifact(artifact)
            run.finish()
    except BaseException:
        run.finish(exit_code=1)
        raise
    place = "kept offline; `wandb sync` sends it" if run.offline else run.url
    return f"run {run.id} of Weights & Biases, {place}"


def _to_mlflow(mlflow: Any, summary: Summary, target: Target) -> str:  # noqa: ANN401
    """Write metrics, tags and an artifact of a run. The address is not printed, because it can hold a password."""
    client = mlflow.MlflowClient()
    if target.into is None:
        name = target.project or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "Default"
        experiment = client.get_experiment_by_name(name)
        experiment_id = client.create_experiment(name) if experiment is None else experiment.experiment_id
        run_id = client.create_run(experiment_id, run_name=summary.run_id).info.run_id
    else:
        run_id = client.get_run(target.into).info.run_id
    metric, tag = mlflow.entities.Metric, mlflow.entities.RunTag
    at_ms = mlflow.utils.time.get_current_time_millis()
    metrics = [metric(name, value, at_ms, 0) for name, value in summary.numbers.items()]
    metrics += [metric(name, value, at_ms, step) for step, found in summary.steps for name, value in found.items()]
    for first in range(0, len(metrics), _MOST_IN_A_BATCH):
        client.log_batch(run_id, metrics=metrics[first : first + _MOST_IN_A_BATCH])
    client.log_batch(run_id, tags=[tag(name, text[:_MOST_CHARACTERS]) for name, text in summary.words.items()])
    with _page_file(summary) as page:
        client.log_artifact(run_id, str(page), PREFIX)
    if target.into is None:
        client.set_terminated(run_id)
    return f"run {run_id} of MLflow"


def _to_tensorboard(tensorboard: Any, summary: Summary, target: Target) -> str:  # noqa: ANN401
    """Write scalars and texts to an event file, and the report next to it, because TensorBoard stores no files."""
    folder = target.folder
    assert folder is not None
    try:
        with tensorboard.SummaryWriter(str(folder)) as writer:
            for name, value in summary.numbers.items():
                writer.add_scalar(name, value, 0)
            for step, found in summary.steps:
                for name, value in found.items():
                    writer.add_scalar(name, value, step)
            for name, text in summary.words.items():
                writer.add_text(name, text, 0)
        write_file(folder / PAGE, summary.page.encode())
    except OSError as error:
        raise OutputError.of(
            folder,
            found=error.strerror or str(error),
            expected="a folder that can be written",
            next_step="Name another one.",
        ) from error
    return f"{folder}, with the page in {PAGE}"


_WRITERS: Final[Mapping[Tracker, Callable[[Any, Summary, Target], str]]] = {
    "wandb": _to_wandb,
    "mlflow": _to_mlflow,
    "tensorboard": _to_tensorboard,
}


@contextmanager
def _page_file(summary: Summary) -> Generator[Path]:
    with TemporaryDirectory(prefix="rlscope-") as folder:
        path = Path(folder) / PAGE
        path.write_text(summary.page, encoding="utf-8")
        yield path


def library_of(tracker: Tracker) -> Any:  # noqa: ANN401
    """Import the package that writes to a tracker. Raises RlscopeError if it is not installed."""
    module = _PACKAGES[tracker]
    try:
        return import_module(module)
    except ImportError as error:
        raise RlscopeError.of(
            tracker,
            found=f"no package {module}",
            expected="the package, which writes to the tracker",
            next_step=f"Install it: pip install 'rlscope[{tracker}]'.",
        ) from error


@contextmanager
def _without_credentials(tracker: Tracker) -> Generator[None]:
    """Turn exceptions of a tracker into RlscopeError. Neither its message nor its cause shows a credential."""
    try:
        yield
    except RlscopeError:
        raise
    except Exception as error:
        raise RlscopeError.of(
            tracker,
            found=f"{type(error).__name__}: {redacted(str(error))}",
            expected="a tracker that accepts the results",
            next_step="Check the tracker's address and your login, which its own client settings define.",
        ) from None


def redacted(text: str) -> str:
    """Return a text without credentials from the environment or from an address."""
    for name in _SECRETS:
        if secret := os.environ.get(name):
            text = text.replace(secret, "***")
    return _CREDENTIALS.sub("***@", text)
