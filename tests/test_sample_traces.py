"""Every sample trace is analyzed whole, agrees with what its own pipeline counted, and with its golden file.

After a trace was recorded again, or the analysis says something else on purpose, write the golden files with
`python -m tests.test_sample_traces --write` and read what changed.
"""

import json
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from rlscope.alerts.config import built_in_rules
from rlscope.document import as_dict, dump
from rlscope.model.forecast.change import Change
from rlscope.model.forecast.what_if import what_if
from rlscope.pipeline import check
from rlscope.reports.check import as_json
from rlscope.reports.documents.analysis import analysis_document
from rlscope.reports.documents.what_if import what_if_document
from tests.kept import TRACES as SAMPLES
from tests.kept import analyzed
from tests.schemas import faults

TRACES: Final = sorted(path.parent for path in SAMPLES.glob("*/run.json"))
GOLDEN: Final = Path(__file__).parent / "golden"
HOW_TO_WRITE: Final = "python -m tests.test_sample_traces --write"
_DIGITS: Final = 9
"""Significant digits kept of a number: sums of floats in another order differ beyond them."""

_GAIN: Final = re.compile(r"[+−][\d.,]+%( \(90% interval [^)]*\))?|(?<=throughput by )[\d.,]+% \(90% interval [^)]*\)")
_AGES: Final = re.compile(r" \(90% interval [\d.]+ to [\d.]+\)")
_FAR_AHEAD: Final = 0.05
"""Actions whose gains differ by less may change places on another machine."""
_ACHIEVED: Final = ("achieved_tokens_per_s", "steady_tokens_per_s", "generated_tokens_per_s")
_LAYOUT: Final = ("trainer_gpus", "sampler_gpus", "max_running")


@cache
def summary_of(trace: Path) -> dict[str, Any]:
    """What the pipeline counted itself while it ran."""
    return json.loads((trace / "pipeline_summary.json").read_text(encoding="utf-8"))


def golden_text(trace: Path) -> str:
    """The analysis as JSON; nothing in it depends on where or when it is made."""
    document = as_dict(analysis_document(analyzed(trace.name)))
    document = {**document, **_settled(document)}
    for state in document["ledger"]["states"]:
        del state["underfilled_gpu_s"], state["underfilled_gpu_ns"]
    document["verdict"] = _settled_verdict(document)
    del document["actions"]
    for finding in document["findings"]:
        del finding["remedy"]  # Names the first action, where that is against its cause.
    return json.dumps(_rounded(document), indent=2, allow_nan=False) + "\n"


def without_gains(words: str) -> str:
    """A sentence with modeled gains and all modeled intervals left open."""
    return _AGES.sub("", _GAIN.sub("+…%", words))


def _settled_verdict(document: Any) -> Any:
    """The verdict as measured: neither gains nor what is ranked by them, but the first action where it is far ahead."""
    verdict, first = document["verdict"], document["actions"][:1]
    gains = [each["gain_ratio"]["value"] for each in document["actions"]]
    is_first = len(gains) < 2 or gains[0] - gains[1] > _FAR_AHEAD
    is_settled = is_first and [each["kind"] for each in first] != ["probe"]
    losses = [{name: loss[name] for name in ("cause", "gpu_s", "side_share_ratio")} for loss in verdict["losses"]]
    return {
        **{name: entry for name, entry in verdict.items() if name != "tied_with"},
        "headline": verdict["headline"].partition("; ")[0],
        "why": without_gains(verdict["why"].partition(" Also, ")[0]),
        "next": without_gains(verdict["next"]) if is_settled else None,
        "losses": sorted(losses, key=lambda loss: loss["cause"]),
    }


def _settled(document: Any) -> Any:
    """What a run settles of its model result: the advice and its reason, and what was assumed for it.

    The rest rests on draws from a chain of random steps, which another order of adding up leads elsewhere: its figures
    agree between machines to within their intervals, not to digits, and with them what is best measured next. They are
    held to the truth in `tests/model`.
    """
    advice, model, latency, finish = (
        document[name] or {} for name in ("recommendation", "model", "latency", "time_to_finish")
    )
    # Of layouts to try several are as fast.
    best = {} if advice["action"] == "probe" else advice["best"] or {}
    settled = {name: document["throughput"][name] for name in _ACHIEVED}
    settled["predicts"] = document["throughput"]["predicted_tokens_per_s"] is not None
    return {
        "throughput": settled,
        "latency": {name: latency.get(name) for name in ("form", "warnings")},
        "recommendation": {
            "action": advice["action"],
            "reason": advice["reason"],
            "best": {name: best.get(name) for name in _LAYOUT},
        },
        "time_to_finish": {"remaining_steps": finish.get("remaining_steps")},
        "model": {name: model.get(name) for name in ("synchronous", "warnings")},
    }


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(entry) for entry in value]
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


every_trace = pytest.mark.parametrize("trace", TRACES, ids=lambda trace: trace.name)


@every_trace
def test_nothing_of_the_trace_is_skipped_or_dropped_and_no_row_contradicts_the_format(trace: Path) -> None:
    analysis = analyzed(trace.name)
    assert analysis.data_quality.skipped_files == ()
    assert analysis.data_quality.dropped_rows == {}
    assert analysis.answers["row_faults"].rows() == []


@every_trace
def test_the_ledger_closes_to_the_nanosecond(trace: Path) -> None:
    ledger, extents = analyzed(trace.name).ledger, analyzed(trace.name).answers["worker_extents"]
    of_workers = [(row["end_ns"] - row["start_ns"]) * row["gpu_count"] for row in extents.iter_rows(named=True)]
    assert sum(state.gpu_ns for state in ledger.states) == sum(of_workers) == ledger.total_gpu_ns > 0


@pytest.mark.parametrize("trace", [trace for trace in TRACES if trace.name != "vllm_trl"], ids=lambda trace: trace.name)
def test_the_staleness_of_tokens_is_what_the_pipeline_counted(trace: Path) -> None:
    tokens = analyzed(trace.name).staleness.tokens
    assert [list(line) for line in tokens.histogram] == summary_of(trace)["token_staleness_histogram"]


@every_trace
def test_steps_samples_and_tokens_are_what_the_pipeline_counted(trace: Path) -> None:
    analysis, summary = analyzed(trace.name), summary_of(trace)
    balance = analysis.answers["token_balance"].row(0, named=True)
    assert analysis.run.steps == summary["steps"]
    assert analysis.run.samples_trained == summary["samples_trained"]
    assert analysis.run.tokens_trained == summary["response_tokens_trained"]
    if "response_tokens_dropped_stale" in summary:
        assert balance["dropped_stale_tokens"] == summary["response_tokens_dropped_stale"]
    else:  # TRL counts the samples that it drops, not their tokens.
        assert (balance["dropped_stale_tokens"] > 0) == (summary["samples_dropped_stale"] > 0)


def test_no_token_of_trl_and_vllm_is_older_than_trl_logged_of_its_sample_and_one_publication_more() -> None:
    """TRL dates a sample by its group's admission, when it takes it; nobody but vLLM knows the versions of tokens."""
    trace = SAMPLES / "vllm_trl"
    tokens = analyzed(trace.name).staleness.tokens
    logged = [entry["sample/staleness_max"] for entry in summary_of(trace)["logged"]]
    assert max(logged) <= tokens.max <= max(logged) + 1


@every_trace
def test_the_analysis_is_the_golden_one(trace: Path) -> None:
    golden = GOLDEN / f"{trace.name}.json"
    assert golden.is_file(), f"{golden.name} is missing: make it with `{HOW_TO_WRITE}`"
    expected, found = json.loads(golden.read_text(encoding="utf-8")), json.loads(golden_text(trace))
    assert found == expected, f"if that is meant: `{HOW_TO_WRITE}`"


@every_trace
def test_the_document_of_a_trace_fits_the_published_schema(trace: Path) -> None:
    assert faults("analysis", dump(analysis_document(analyzed(trace.name)))) == []


def test_the_documents_of_check_and_what_if_fit_the_published_schemas() -> None:
    model = analyzed("vllm_trl").model
    assert faults("check", as_json(check(SAMPLES / "vllm_trl", built_in_rules()), "critical")) == []
    for change in (Change(), Change(trainer_gpus=1, max_running=24), Change(max_in_flight_samples=4)):
        assert faults("what-if", dump(what_if_document(model, what_if(model, change)))) == []


def test_every_golden_file_has_a_trace() -> None:
    assert {path.stem for path in GOLDEN.glob("*.json")} == {trace.name for trace in TRACES} != set()


def _write() -> None:
    GOLDEN.mkdir(exist_ok=True)
    for trace in TRACES:
        (GOLDEN / f"{trace.name}.json").write_text(golden_text(trace), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(f"usage: {HOW_TO_WRITE}")
    _write()
