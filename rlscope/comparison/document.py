"""Reads the JSON document of an analysis as the baseline of `rlscope check`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rlscope.alerts.metrics import STEADY
from rlscope.analysis.ledger import IDLE_STATES
from rlscope.analysis.result import Ledger, RunFacts, Staleness, Throughput
from rlscope.document import Document, load
from rlscope.errors import AnalysisError

_ROLES: Final[Mapping[str, tuple[str, ...]]] = {
    "idle.trainer_ratio": ("trainer", "colocated"),
    "idle.sampler_ratio": ("sampler", "colocated"),
}


@dataclass(frozen=True, slots=True)
class BaselineDocument(Document):
    """The keys of an analysis that a baseline needs. Its other keys, and those of later versions, are not read."""

    run: RunFacts
    throughput: Throughput
    ledger: Ledger
    staleness: Staleness

    @property
    def metrics(self) -> dict[str, float]:
        """Alert-rule metrics over the whole run, without those that the document lacks."""
        rates, tokens = self.throughput, self.staleness.tokens
        metrics: dict[str, float | None] = {
            # Rules count response tokens only.
            STEADY: rates.steady_tokens_per_s if rates.counted_tokens is None else None,
            "staleness.tokens.mean": None if tokens is None else tokens.mean,
            "staleness.tokens.p95": None if tokens is None else float(tokens.p95),
            **{metric: _idle_ratio(self.ledger, roles) for metric, roles in _ROLES.items()},
        }
        return {name: value for name, value in metrics.items() if value is not None}


def read_document(path: Path) -> BaselineDocument:
    """Read a file written by `rlscope analyze --json FILE`.

    Raises AnalysisError if the file cannot be read or is not such a document, naming the first invalid key.
    """
    try:
        document = load(BaselineDocument, path.read_bytes())
    except OSError as error:
        raise _refused(path, error.strerror or str(error)) from error
    except ValueError as error:
        raise _refused(path, str(error)) from None
    for place, value in _quantities(document):
        # A threshold below 0 is one that every run passes.
        if value is not None and value < 0:
            raise _refused(path, f"{place}: Input should be at least 0")
    return document


def _quantities(document: BaselineDocument) -> Iterator[tuple[str, float | None]]:
    yield "throughput.steady_tokens_per_s", document.throughput.steady_tokens_per_s
    if document.staleness.tokens is not None:
        yield "staleness.tokens.mean", document.staleness.tokens.mean
        yield "staleness.tokens.p95", document.staleness.tokens.p95
    yield from ((f"ledger.states.{at}.gpu_ns", state.gpu_ns) for at, state in enumerate(document.ledger.states))


def _refused(path: Path, found: str) -> AnalysisError:
    return AnalysisError.of(
        path,
        found=found,
        expected="a run folder, or the JSON document of an analysis",
        next_step="Write one with `rlscope analyze RUN_DIR --json FILE`.",
    )


def _idle_ratio(ledger: Ledger, roles: tuple[str, ...]) -> float | None:
    states = [state for state in ledger.states if state.role in roles]
    total_ns = sum(state.gpu_ns for state in states)
    idle_ns = sum(state.gpu_ns for state in states if state.state in IDLE_STATES)
    return idle_ns / total_ns if total_ns else None
