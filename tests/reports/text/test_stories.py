"""A card tells one story: statements that a reader would set against each other agree, or say how they differ.

On the sample traces whose cards once contradicted themselves.
"""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from rlscope import format as fmt
from rlscope.model.forecast.result import ModelResult
from rlscope.reports.blocks import Fact, Facts
from rlscope.reports.card import card_blocks, prediction_check
from rlscope.reports.text import verdict
from rlscope.reports.text.ledger import DROPPED, LedgerRow, ledger_roles, whole_run
from tests.kept import analyzed


def row_of(trace: str, role: str, label: str) -> LedgerRow:
    (found,) = (
        row for each in ledger_roles(analyzed(trace)) if each.role == role for row in each.rows if row.label == label
    )
    return found


def facts(trace: str) -> Sequence[Fact]:
    """The figures of the first screen."""
    return next(block.facts for block in card_blocks(analyzed(trace)) if isinstance(block, Facts))


@pytest.mark.parametrize(
    ("recorded_s", "label"),
    [
        (100.0, "whole run, 100 GPU-s"),
        (95.0, "whole run, 95 GPU-s"),
        (94.0, "whole run, 94 GPU-s (workers were up for 94.0% of the time)"),
    ],
)
def test_gpu_time_that_lacks_more_than_a_twentieth_of_the_run_says_how_much_there_was(
    recorded_s: float, label: str
) -> None:
    whole = analyzed("fleet")
    run = replace(whole.run, duration_s=50.0, total_gpus=2, gpu_hour_price=None)
    ledger = replace(whole.ledger, total_gpu_ns=round(recorded_s * 1e9))
    assert whole_run(replace(whole, run=run, ledger=ledger)).label == label


def ratio_of(percent: str) -> float:
    return 0.0005 if percent == "<0.1%" else float(percent.removesuffix("%")) / 100.0


@pytest.mark.parametrize("trace", ["fleet", "vllm_trl", "synchronous"])
def test_the_share_of_the_headline_stands_in_the_ledger_beside_that_of_the_whole_run(trace: str) -> None:
    waiting = row_of(trace, "Trainer", "waiting for samples")
    assert waiting.steady in verdict.headline(analyzed(trace)) or trace == "synchronous"
    assert waiting.steady and waiting.steady != waiting.share


def test_a_card_that_counts_staleness_in_steps_and_in_versions_says_how_many_steps_a_version_is() -> None:
    delayed, at_once = ({each.name: each.note for each in facts(trace)} for trace in ("capped_staleness", "fleet"))
    assert delayed["Token staleness, whole run"] == "p95 1, max 1, cap 1; 1 version = 4.6 optimizer steps on average"
    assert at_once["Token staleness, whole run"].endswith("cap 4; 1 version = 1 optimizer step")


def test_what_samplers_lose_to_waits_and_dropped_samples_adds_up_in_the_ledger() -> None:
    (loss,) = (each for each in analyzed("overproduction").verdict.losses if each.cause == "trainers")
    parts = [row_of("overproduction", "Sampler", label).steady for label in ("idle (sample queue full)", DROPPED)]
    assert sum(map(ratio_of, parts)) == pytest.approx(loss.side_share_ratio, abs=0.001)
    assert fmt.percent(loss.side_share_ratio) in verdict.headline(analyzed("overproduction"))


def test_samplers_without_requests_at_the_start_are_not_idle_in_steady_state() -> None:
    idle = row_of("vllm_trl", "Sampler", "idle (no requests submitted)")
    assert ratio_of(idle.share) > 0.2 and ratio_of(idle.steady) < 0.001


def test_a_measured_rate_says_how_far_it_is_from_its_prediction_and_whether_that_is_error() -> None:
    analysis = analyzed("vllm_trl")
    model = analysis.model
    assert isinstance(model, ModelResult) and model.prediction is not None
    prediction = model.prediction
    assert prediction.agrees and prediction.residual_ratio > 0.02
    off = f"the last {prediction.held_out_steps} steps ran {fmt.percent(prediction.residual_ratio)} faster"
    margin = f"(tolerance: {fmt.percent(prediction.margin_ratio)})"
    said = prediction_check(model)
    told = f"{off} than predicted from the first {prediction.calibrated_steps} {margin}"
    assert (said.value, said.note) == ("passed", told)
