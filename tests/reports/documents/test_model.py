"""What the JSON document says of runs that the model can say much, little and nothing of."""

import re
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache

import pytest

from rlscope.analysis.result import AnalysisResult, Verdict
from rlscope.document import as_dict
from rlscope.model.forecast.recommend import fastest_probabilities
from rlscope.model.forecast.result import ModelResult, NoModelResult, model_run
from rlscope.reports.card import first_screen
from rlscope.reports.documents.analysis import analysis_document
from rlscope.reports.text.advice import headline
from tests.kept import ROOT, analysis_of
from tests.reports.analysis_fixture import empty_analysis, full_analysis
from tests.reports.model_fixture import QUESTION, changing_model, observed, short_model

PRESENT_LAYOUT = {"trainer_gpus": 2, "sampler_gpus": 6, "max_running": 32}


@cache
def synchronous_model() -> ModelResult:
    """The run of the fixture with every token of the newest version."""
    run = observed(40)
    return model_run(replace(run, staleness=((0, run.delivered.trained_tokens),)), None, QUESTION)


def with_model(model: ModelResult | NoModelResult) -> AnalysisResult:
    return replace(full_analysis(), model=model)


ANALYSES: dict[str, Callable[[], AnalysisResult]] = {
    "a model result": lambda: with_model(changing_model()),
    "a short stretch": lambda: with_model(short_model()),
    "synchronous": lambda: with_model(synchronous_model()),
    "no model result": lambda: with_model(NoModelResult("no pass was recorded")),
    "nothing at all": empty_analysis,
}


def layout_of(entry):
    return {name: entry[name] for name in PRESENT_LAYOUT}


def test_a_run_to_change_names_the_layout_to_use_and_what_it_brings():
    advised, forecasts = changing_model().recommendation, changing_model().forecasts
    advice = as_dict(analysis_document(with_model(changing_model())))["recommendation"]
    assert advice["action"] == "change"
    assert advice["headline"] == headline(changing_model())
    assert layout_of(advice["best"]) == asdict(advised.best.layout)
    assert advice["best"]["gain_ratio"] == asdict(advised.gain_ratio)
    odds = fastest_probabilities((forecasts.today, *forecasts.rivals))
    assert advice["best"]["probability_best"] == odds[advised.best.layout]
    assert advice["best"] in advice["candidates"]
    assert layout_of(advice["current"]) == PRESENT_LAYOUT


def advised(reason):
    """What the document of the made model recommends for this reason."""
    model = changing_model()
    made = replace(model, recommendation=replace(model.recommendation, reason=reason))
    return as_dict(analysis_document(with_model(made)))["recommendation"]


@pytest.mark.parametrize("reason", ["best_already", "small_gain", "no_other_layout"])
def test_a_run_to_keep_has_its_own_layout_as_the_best_and_names_no_gain(reason):
    advice = advised(reason)
    assert advice["action"] == "keep"
    assert {name: advice["best"][name] for name in advice["current"]} == advice["current"]
    gains = [each["gain_ratio"] for each in advice["candidates"] if layout_of(each) != layout_of(advice["current"])]
    assert (advice["best"]["gain_ratio"]["value"], set(gains)) == (0.0, {None})


def test_a_run_that_the_model_does_not_reproduce_has_no_best_layout():
    advice = advised("not_replayed")
    assert (advice["action"], advice["best"], advice["probability_worthwhile"]) == ("unknown", None, None)


def test_the_documented_jq_gives_what_the_card_says_to_do_first():
    """In this run the recommended layout is the second action, and gains less than the first."""
    written = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    paths = [path for page in written for path in re.findall(r"\| jq '?\.([^'\s]+)", page.read_text(encoding="utf-8"))]
    analysis = analysis_of("fleet")
    document = as_dict(analysis_document(analysis))
    assert paths == ["actions[0]"]
    first = document["actions"][0]
    (what, *_), *_ = first_screen(analysis)["actions"].blocks[0].rows
    assert first["headline"].startswith(what)
    assert first["gain_ratio"]["value"] > document["recommendation"]["best"]["gain_ratio"]["value"]


def test_an_action_names_its_rate_on_the_measured_one_and_what_it_costs():
    analysis = with_model(changing_model())
    steady = analysis.throughput.steady_tokens_per_s
    first, ranked = as_dict(analysis_document(analysis))["actions"][0], changing_model().ranking.actions[0]
    assert first["tokens_per_s"] == pytest.approx(steady * (1.0 + ranked.gain_ratio.value))
    assert first["gain_ratio"] == asdict(ranked.gain_ratio)
    told = {"kind": "change", "target": "layout", "cause": "trainers", "cost": "restart"}
    assert first.items() >= told.items()
    priced = replace(analysis, run=replace(analysis.run, gpu_hour_price=2.5))
    paid = as_dict(analysis_document(priced))["actions"][0]["cost_per_million_tokens"]
    gpu_h = 1e6 * sum(first["after"][side] for side in ("trainer_gpus", "sampler_gpus")) / first["tokens_per_s"] / 3600
    assert (paid, first["cost_per_million_tokens"]) == (pytest.approx(2.5 * gpu_h), None)
    assert first["probability"] == ranked.worthwhile_probability >= 0.9
    assert first["headline"].startswith("Use 4 trainer GPUs and 4 sampler GPUs instead of 2 and 6")


@pytest.mark.parametrize("bottleneck", ["balanced", "unknown"])
def test_a_verdict_without_a_cause_has_none(bottleneck):
    verdict = Verdict(bottleneck, (), "too few steps" if bottleneck == "unknown" else None, 0, 10**10)
    said = as_dict(analysis_document(replace(full_analysis(), verdict=verdict)))["verdict"]
    assert (said["bottleneck"], said["cause"], said["tied_with"]) == (bottleneck, None, [])


def test_without_an_model_the_advice_is_unknown_and_says_what_is_missing():
    document = as_dict(analysis_document(with_model(NoModelResult("no pass was recorded"))))
    advice = document["recommendation"]
    assert (advice["action"], advice["why"], advice["candidates"]) == ("unknown", "no pass was recorded", [])
    assert {advice[name] for name in ("current", "best")} == {None}
    assert {document[name] for name in ("latency", "model", "time_to_finish")} == {None}
    assert document["throughput"]["gap"] is None


def test_a_prediction_is_held_to_the_part_of_the_run_that_it_did_not_see():
    throughput = as_dict(analysis_document(with_model(changing_model())))["throughput"]
    held_out, predicted = (throughput[name] for name in ("held_out_tokens_per_s", "predicted_tokens_per_s"))
    assert predicted["low"] < predicted["value"] < predicted["high"]
    assert throughput["residual_ratio"] == pytest.approx(held_out["value"] / predicted["value"] - 1.0)
    short = as_dict(analysis_document(with_model(short_model())))["throughput"]
    assert short["predicted_tokens_per_s"] is None and short["residual_ratio"] is None
    assert short["bound_tokens_per_s"] > 0.0


def test_a_step_is_one_of_the_optimizer_where_several_make_a_version():
    model = changing_model()
    halved = replace(model, calibration=replace(model.calibration, steps_per_version=2.0))
    one, two = (
        as_dict(analysis_document(with_model(said)))["recommendation"]["best"]["step_s"] for said in (model, halved)
    )
    assert two == pytest.approx(one / 2.0)
    best = model.recommendation.best
    assert one == pytest.approx(best.timing.step_s, rel=0.05)  # at the median of the draws, not at the best estimate


def test_the_candidates_stand_by_the_rate_that_is_said_of_them():
    usable = [each for each in as_dict(analysis_document(with_model(changing_model())))["recommendation"]["candidates"]
              if each["excluded"] is None]  # fmt: skip
    rates = [each["tokens_per_s"]["value"] for each in usable]
    assert len(rates) > 2 and rates == sorted(rates, reverse=True)
    today = changing_model().forecasts.today
    gains = [each["gain_ratio"]["value"] for each in usable]
    now = rates[next(at for at, each in enumerate(usable) if layout_of(each) == asdict(today.layout))]
    assert now == pytest.approx(observed(40).trained_tokens_per_s, rel=1e-12), (
        "the current layout has the measured rate"
    )
    assert rates == pytest.approx([now * (1 + gain) for gain in gains])
