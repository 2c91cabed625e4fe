"""What the JSON document of an analysis contributes to a comparison: totals of the whole run, and no steps.

Read are only the keys that a comparison needs, so a document of a later version of rlscope is understood as long as it
keeps them. Single steps are not in a document, nor in one of an earlier version settings and devices: they are never
shown as equal.
"""

from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rlscope.analysis.result import Bottleneck
from rlscope.comparison.facts import ComparedRun, GpuTime, PromisedAction, RunLayout, Setting, StateKey, Totals
from rlscope.errors import AnalysisError
from rlscope.model.forecast.actions import ActionWhat
from rlscope.model.forecast.layouts import Spread
from rlscope.model.system import Layout

_VERSION: Final = 2


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _Window(_Part):
    first_step: int
    last_step: int


class _Run(_Part):
    run_id: str
    started_ns: int
    duration_s: float
    trainer_gpus: int
    sampler_gpus: int
    colocated_gpus: int
    steps: int
    samples_trained: int
    tokens_trained: int
    window: _Window | None
    settings: dict[str, Setting] | None = None
    devices: dict[str, str] = Field(default_factory=dict)


class _Throughput(_Part):
    achieved_tokens_per_s: float | None
    steady_tokens_per_s: float | None
    counted_tokens: int | None = None


class _State(_Part):
    role: str
    state: str
    reason: str | None
    gpu_ns: int


class _Ledger(_Part):
    states: tuple[_State, ...]


class _Count(_Part):
    staleness: int
    tokens: int


class _Tokens(_Part):
    mean: float
    p95: int
    histogram: tuple[_Count, ...]


class _Staleness(_Part):
    tokens: _Tokens | None
    in_flight_mean: float | None
    in_queue_mean: float | None


class _Layout(_Part):
    n_train_gpus: int
    n_sample_gpus: int
    max_running_per_engine: int | None


class _Recommendation(_Part):
    current: _Layout | None = None


class _Action(_Part):
    what: ActionWhat
    to: _Layout | float | None
    gain_ratio: float
    gain_low_ratio: float
    gain_high_ratio: float


class _Verdict(_Part):
    bottleneck: Bottleneck


class _Document(_Part):
    schema_version: Annotated[int, Field(ge=_VERSION, le=_VERSION)]
    run: _Run
    verdict: _Verdict
    throughput: _Throughput
    ledger: _Ledger
    staleness: _Staleness
    recommendation: _Recommendation
    actions: tuple[_Action, ...]


def read_document(path: Path) -> ComparedRun:
    """Read what `rlscope analyze --json FILE` wrote.

    Raises AnalysisError for a file that cannot be read or is no such document, with the first key that does not fit.
    """
    try:
        document = _Document.model_validate_json(path.read_bytes())
    except OSError as error:
        raise _refused(path, error.strerror or str(error)) from error
    except ValidationError as error:
        raise _refused(path, _first_fault(error.errors(include_url=False)[0])) from None
    return _compared(document)


def _refused(path: Path, found: str) -> AnalysisError:
    return AnalysisError.of(
        path,
        found=found,
        expected="the folder of a run, or the JSON document of an analysis",
        next_step="`rlscope analyze RUN_DIR --json FILE` writes such a document.",
    )


def _first_fault(fault: Any) -> str:  # noqa: ANN401  # of pydantic
    where = ".".join(map(str, fault["loc"]))
    return f"{where}: {fault['msg']}" if where else str(fault["msg"])


def _compared(document: _Document) -> ComparedRun:
    run, current, tokens = document.run, document.recommendation.current, document.staleness.tokens
    return ComparedRun(
        name=run.run_id,
        run_id=run.run_id,
        source="document",
        started_ns=run.started_ns,
        duration_s=run.duration_s,
        layout=RunLayout(
            run.trainer_gpus,
            run.sampler_gpus,
            run.colocated_gpus,
            None if current is None else current.max_running_per_engine,
        ),
        steps=run.steps,
        samples_trained=run.samples_trained,
        tokens_trained=run.tokens_trained,
        bottleneck=document.verdict.bottleneck,
        has_window=run.window is not None,
        first_step=None if run.window is None else run.window.first_step,
        last_step=None if run.window is None else run.window.last_step,
        steady_tokens_per_s=document.throughput.steady_tokens_per_s,
        whole=_gpu_time(document),
        whole_totals=_totals(document),
        staleness_tokens=() if tokens is None else tuple((each.staleness, each.tokens) for each in tokens.histogram),
        promised=tuple(_promised(rank, each) for rank, each in enumerate(document.actions, start=1)),
        settings=run.settings,
        devices=run.devices,
        counts_prompts=document.throughput.counted_tokens is not None,
    )


def _gpu_time(document: _Document) -> GpuTime:
    run = document.run
    gpus = {"trainer": run.trainer_gpus, "sampler": run.sampler_gpus, "colocated": run.colocated_gpus}
    return GpuTime(
        {StateKey(each.role, each.state, each.reason): each.gpu_ns for each in document.ledger.states},
        {role: count for role, count in gpus.items() if count},
        round(run.duration_s * 1e9),
        run.tokens_trained,
        run.steps,
    )


def _totals(document: _Document) -> Totals:
    tokens = document.staleness.tokens
    return Totals(
        document.throughput.achieved_tokens_per_s,
        None if tokens is None else tokens.mean,
        None if tokens is None else float(tokens.p95),
        document.staleness.in_flight_mean,
        document.staleness.in_queue_mean,
    )


def _promised(rank: int, action: _Action) -> PromisedAction:
    after = action.to
    if isinstance(after, _Layout):
        after = Layout(after.n_train_gpus, after.n_sample_gpus, after.max_running_per_engine or 0)
    gain = Spread(action.gain_ratio, action.gain_low_ratio, action.gain_high_ratio)
    return PromisedAction(action.what, after, gain, rank)
