"""A judge beside a run is in its ledger and its cost. All that it says about the policy is a limit to gains."""

import json
import shutil
from pathlib import Path
from typing import Any, Final

import pytest

from rlscope.analysis.result import AnalysisResult
from rlscope.document import as_dict
from rlscope.model.forecast.result import NoModelResult
from rlscope.pipeline import analyze
from rlscope.reports.blocks import Roles
from rlscope.reports.documents.analysis import analysis_document
from rlscope.reports.text.ledger import steady_state
from tests.kept import TRACES, analyzed
from tests.model.few_draws import few_draws
from tests.reports.terminal_card import card_words
from tests.trace_folder import activity, engine_row, write_rows

TRACE: Final = "overproduction"
SECOND_NS: Final = 10**9


@pytest.fixture(scope="module")
def alone() -> AnalysisResult:
    """The trace as it was recorded."""
    with few_draws():
        return analyze(TRACES / TRACE, also_ask=())


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> AnalysisResult:
    """The trace beside a judge on two GPUs that decodes and scores for a quarter of each second."""
    return beside_a_judge(tmp_path_factory.mktemp("judged") / TRACE, decoding_ratio=0.25, scoring_ratio=0.25)


def beside_a_judge(folder: Path, decoding_ratio: float, scoring_ratio: float) -> AnalysisResult:
    """Analyze the trace of the folder's name, copied there, beside a judge that works these shares of each second."""
    shutil.copytree(TRACES / folder.name, folder)
    trainer = json.loads(next((folder / "workers").glob("trainer*.json")).read_text())
    starts_ns = range(trainer["started_ns"], trainer["stopped_ns"] - SECOND_NS, SECOND_NS)
    decoding_ns, scoring_ns = (round(SECOND_NS * ratio) for ratio in (decoding_ratio, scoring_ratio))
    tables = {
        "engine_steps": [
            engine_row("judge-0", at_ns, at_ns + decoding_ns, forward_passes=10, running=7, decode_tokens=70)
            for at_ns in starts_ns
        ],
        "activities": [
            activity("judge-0", at_ns + decoding_ns, at_ns + decoding_ns + scoring_ns, "reward") for at_ns in starts_ns
        ],
    }
    judge = {"worker_id": "judge-0", "name": "judge-0", "role": "auxiliary", "gpu_count": 2, "device_name": None}
    counts = {"rows": {table: len(rows) for table, rows in tables.items()}, "closed": {}, "dropped": {}}
    (folder / "workers" / "judge-0.json").write_text(json.dumps(trainer | judge | counts))
    for table, rows in tables.items():
        write_rows(folder, table, "judge-0", rows)
    with few_draws():
        return analyze(folder, also_ask=())


def without_the_judge(analysis: AnalysisResult) -> dict[str, Any]:
    """The document less what a judge may add to: the ledger, the numbers of GPUs, and its own finding and alerts."""
    document: dict[str, Any] = as_dict(analysis_document(analysis))
    for key in ("total_gpus", "auxiliary_gpus"):
        del document["run"][key]
    document["findings"] = [each for each in document["findings"] if each["rule"] != "idle_auxiliary"]
    document["ledger"] = [each for each in document["ledger"]["states"] if each["role"] != "auxiliary"]
    del document["data_quality"]["completeness"]
    return document


def test_verdict_model_actions_and_findings_are_those_without_a_judge(
    judged: AnalysisResult, alone: AnalysisResult
) -> None:
    assert without_the_judge(judged) == without_the_judge(alone)


def test_its_gpus_are_in_the_ledger_and_in_the_total(judged: AnalysisResult, alone: AnalysisResult) -> None:
    assert (judged.run.auxiliary_gpus, judged.run.total_gpus) == (2, alone.run.total_gpus + 2)
    own = {state.state: state.share_ratio for state in judged.ledger.states if state.role == "auxiliary"}
    assert own == {
        "decoding": pytest.approx(0.25, rel=0.05),
        "reward": pytest.approx(0.25, rel=0.05),
        "no_requests": pytest.approx(0.5, rel=0.05),
    }
    own_gpu_ns = sum(state.gpu_ns for state in judged.ledger.states if state.role == "auxiliary")
    assert judged.ledger.total_gpu_ns == alone.ledger.total_gpu_ns + own_gpu_ns


def test_no_gain_is_predicted_past_a_judge_that_is_full_while_trainers_wait(tmp_path: Path) -> None:
    analysis = beside_a_judge(tmp_path / "starved_trainer", decoding_ratio=0.02, scoring_ratio=0.98)
    assert isinstance(analysis.model, NoModelResult)
    assert analysis.model.reason.startswith("the auxiliary GPUs of judge worked 9")
    assert (analysis.verdict.bottleneck, analysis.verdict.unknown_reason) == ("samplers", None)
    document: dict[str, Any] = as_dict(analysis_document(analysis))
    assert document["verdict"]["headline"].endswith("while the judges or reward models are nearly always busy")
    assert document["verdict"]["next"].startswith("Speed up the judges and reward models, or give them more GPUs")
    card = card_words(analysis, 120)
    assert "→ Speed up the judges and reward models" in card and "Bottleneck:" not in card
    remedies = {each["rule"]: each["remedy"] for each in document["findings"]}
    assert remedies["starved_trainer"] == document["verdict"]["next"]


def test_no_gain_is_predicted_beyond_a_judge_that_always_works(tmp_path: Path) -> None:
    judged = beside_a_judge(tmp_path / "starved_trainer", decoding_ratio=0.02, scoring_ratio=0.8)
    runs = analyzed("starved_trainer"), judged
    gains = [max(each.gain_ratio.value for each in run.model.ranking.actions) for run in runs]
    # Work of 0.8 of the time becomes work of all of it.
    assert gains[0] > 0.5 and gains[1] == pytest.approx(1.0 / 0.8 - 1.0, abs=0.03)


def test_the_card_lists_its_states_and_says_that_the_verdict_leaves_it_out(
    judged: AnalysisResult, alone: AnalysisResult
) -> None:
    card = card_words(judged, 120)
    assert "Auxiliary" in card
    assert "The verdict and the actions leave out the 2 auxiliary GPUs." in card
    assert "auxiliary" not in card_words(alone, 120)


def test_none_of_its_decoding_is_drawn_as_generation_for_dropped_samples(judged: AnalysisResult) -> None:
    view = steady_state(judged)
    assert view is not None and isinstance(view.block, Roles)
    hatched = {
        bar.role: sum(part.share_ratio for part in bar.parts if part.state.name == "discarded")
        for bar in view.block.roles
    }
    assert hatched["Sampler"] > 0.0 == hatched["Auxiliary"]
