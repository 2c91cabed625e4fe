"""Reads the JSON document of an analysis as the baseline of `rlscope check`.

Only the keys that a baseline needs are read, so documents of later rlscope versions work if they keep these keys.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rlscope.alerts.metrics import STEADY
from rlscope.analysis.ledger import IDLE_STATES
from rlscope.errors import AnalysisError

_VERSION: Final = 1
_ROLES: Final[Mapping[str, tuple[str, ...]]] = {
    "idle.trainer_ratio": ("trainer", "colocated"),
    "idle.sampler_ratio": ("sampler", "colocated"),
}


_Quantity = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
"""Excludes NaN and infinity, which would be thresholds that every run passes."""
_Count = Annotated[int, Field(ge=0)]


class DocumentMetrics(NamedTuple):
    """Alert-rule metrics over the whole run, without those that the document lacks."""

    run_id: str
    values: Mapping[str, float]


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _Run(_Part):
    run_id: str


class _Throughput(_Part):
    steady_tokens_per_s: _Quantity | None
    counted_tokens: _Count | None = None


class _State(_Part):
    role: str
    state: str
    gpu_ns: _Count


class _Ledger(_Part):
    states: tuple[_State, ...]


class _Tokens(_Part):
    mean: _Quantity
    p95: _Count


class _Staleness(_Part):
    tokens: _Tokens | None


class _Document(_Part):
    schema_version: Annotated[int, Field(ge=_VERSION, le=_VERSION)]
    run: _Run
    throughput: _Throughput
    ledger: _Ledger
    staleness: _Staleness


def read_document(path: Path) -> DocumentMetrics:
    """Read a file written by `rlscope analyze --json FILE`.

    Raises AnalysisError if the file cannot be read or is not such a document, naming the first invalid key.
    """
    try:
        document = _Document.model_validate_json(path.read_bytes())
    except OSError as error:
        raise _refused(path, error.strerror or str(error)) from error
    except ValidationError as error:
        raise _refused(path, _first_fault(error.errors(include_url=False)[0])) from None
    return DocumentMetrics(document.run.run_id, _metrics(document))


def _refused(path: Path, found: str) -> AnalysisError:
    return AnalysisError.of(
        path,
        found=found,
        expected="a run folder, or the JSON document of an analysis",
        next_step="Write one with `rlscope analyze RUN_DIR --json FILE`.",
    )


def _first_fault(fault: Any) -> str:  # noqa: ANN401  # of pydantic
    where = ".".join(map(str, fault["loc"]))
    return f"{where}: {fault['msg']}" if where else str(fault["msg"])


def _metrics(document: _Document) -> dict[str, float]:
    rates, tokens = document.throughput, document.staleness.tokens
    metrics: dict[str, float | None] = {
        # Rules count response tokens only.
        STEADY: rates.steady_tokens_per_s if rates.counted_tokens is None else None,
        "staleness.tokens.mean": None if tokens is None else tokens.mean,
        "staleness.tokens.p95": None if tokens is None else float(tokens.p95),
        **{metric: _idle_ratio(document.ledger, roles) for metric, roles in _ROLES.items()},
    }
    return {name: value for name, value in metrics.items() if value is not None}


def _idle_ratio(ledger: _Ledger, roles: tuple[str, ...]) -> float | None:
    states = [state for state in ledger.states if state.role in roles]
    total_ns = sum(state.gpu_ns for state in states)
    idle_ns = sum(state.gpu_ns for state in states if state.state in IDLE_STATES)
    return idle_ns / total_ns if total_ns else None
