"""Which layout is recommended of forecasts given draw by draw, and what is said of the others."""

import math
from dataclasses import replace

import numpy as np
import pytest

from rlscope.model.calibration import Calibration
from rlscope.model.decode.measurements import Grade
from rlscope.model.estimate import Estimate
from rlscope.model.forecast.layouts import Forecast, Forecasts
from rlscope.model.forecast.price import Price, StalenessForecast
from rlscope.model.forecast.recommend import (
    Grounds,
    Reason,
    Recommendation,
    best_of,
    fastest_probabilities,
    is_sure,
    recommend,
    share_gaining,
)
from rlscope.model.numerics.changepoints import Drift
from rlscope.model.system import Layout
from tests.model.known_run import TODAY, calibrated

DRAWS = 200
PLAIN = Grounds(long_enough=True, current_p95_steps=1)


def calibration() -> Calibration:
    """Only its system and a few draws are read, for what the spread of a gain comes from."""
    return replace(calibrated(), draws=calibrated().draws[:3])


def forecast(
    rate: float,
    trainer_gpus: int = 3,
    *,
    slow_draws: int = 0,
    p95: int | None = 1,
    grade: Grade = "measured",
    running: int = 64,
) -> Forecast:
    """So many tokens per second in every draw but the slow ones, which train 1,000."""
    drawn = np.full(DRAWS, rate)
    drawn[:slow_draws] = 1_000.0
    return Forecast(
        layout=Layout(trainer_gpus, 8 - trainer_gpus, running),
        excluded=None,
        state=None,
        tokens_per_s=rate,
        drawn_tokens_per_s=drawn,
        price=Price(None if p95 is None else StalenessForecast(float(p95), p95, p95)),
        grade=grade,
    )


OWN = replace(forecast(1_000.0), layout=TODAY)


def advised(*others: Forecast, grounds: Grounds = PLAIN) -> Recommendation:
    return recommend(calibration(), Forecasts(OWN, others), grounds)


@pytest.mark.parametrize(
    ("rate", "slow_draws", "share", "reason", "advice"),
    [
        (1_050.0, 20, 0.9, "worthwhile", "change"),
        (1_050.0, 21, 0.895, "unsure", "probe"),
        (1_049.9, 0, 0.0, "small_gain", "keep"),
        (1_000.1, 0, 0.0, "small_gain", "keep"),
        (1_000.0, 0, 0.0, "best_already", "keep"),
    ],
)
def test_a_layout_is_changed_to_when_nine_draws_in_ten_gain_5_percent(
    rate: float, slow_draws: int, share: float, reason: Reason, advice: str
):
    other = forecast(rate, slow_draws=slow_draws)
    said = advised(other)
    assert (said.reason, said.advice, said.changes) == (reason, advice, advice == "change")
    assert share_gaining(other.gains_over(OWN)) == share


def costing(given: Forecast, dropped: float | None) -> Forecast:
    """The layout, which drops this share of the tokens."""
    return replace(
        given, price=replace(given.price, dropped_ratio=None if dropped is None else Estimate.exactly(dropped))
    )


@pytest.mark.parametrize(
    ("other", "is_named"),
    [
        (costing(forecast(1_901.0, p95=2), 0.03), True),
        # Less than 5% slower than the fastest, or nothing.
        (costing(forecast(1_900.0, p95=2), 0.03), False),
        (costing(forecast(1_950.0, p95=3), 0.024), True),
        (costing(forecast(1_950.0, p95=3), 0.026), False),
        # What it saves, it must not cost elsewhere.
        (costing(forecast(1_950.0, p95=2), 0.05), False),
        (costing(forecast(1_950.0, p95=2), None), False),
        (costing(forecast(1_950.0, p95=2, slow_draws=21), 0.03), False),
    ],
)
def test_beside_the_fastest_a_layout_is_named_that_is_nearly_as_fast_and_fresher_or_drops_less(
    other: Forecast, is_named: bool
):
    fastest = costing(forecast(1_995.0, trainer_gpus=4, p95=3), 0.03)
    said = advised(fastest, other)
    assert said.best is fastest
    assert (said.fresher is other) is is_named


def test_the_freshest_of_several_is_named():
    fastest, fresh, freshest = (
        costing(forecast(rate, trainer_gpus=gpus, p95=p95), 0.0)
        for gpus, (rate, p95) in enumerate([(2_000.0, 4), (1_960.0, 3), (1_940.0, 2)], 2)
    )
    assert advised(fastest, fresh, freshest).fresher is freshest
    assert advised(fastest).fresher is None


# The lengths grow by a tenth: a gain is then sure from 1.05 times 1.1.
@pytest.mark.parametrize(("rate", "covered"), [(1_155.0 + 1e-6, True), (1_155.0 - 1e-6, False)])
@pytest.mark.parametrize("grown_ratio", [0.1, 1.0 / 1.1 - 1.0], ids=["longer", "shorter"])
def test_a_drift_of_the_lengths_is_added_to_what_a_gain_must_reach(grown_ratio: float, rate: float, covered: bool):
    grounds = replace(PLAIN, lengths=Drift(grown_ratio, drifts=True))
    assert grounds.drift_log == pytest.approx(math.log(1.1))
    assert is_sure(forecast(rate), OWN, grounds.drift_log) is covered
    said = advised(forecast(rate), grounds=grounds)
    assert (said.reason, said.advice) == (("worthwhile", "change") if covered else ("lengths_drift", "probe"))


@pytest.mark.parametrize("lengths", [Drift(0.1, drifts=False), None])
def test_lengths_that_hardly_drift_cost_nothing(lengths: Drift | None):
    assert replace(PLAIN, lengths=lengths).drift_log == 0.0


def versions(p95: int) -> StalenessForecast:
    return StalenessForecast(float(p95), p95, p95)


@pytest.mark.parametrize(
    ("own", "p95", "fresh"),
    [
        (4, 6, True),
        (4, 7, False),
        (2, 4, True),
        (2, 5, False),
        (None, 1_000, True),
    ],
)
def test_without_a_cap_staleness_may_rise_by_half_and_to_four_versions(own: int | None, p95: int, fresh: bool):
    grounds = replace(PLAIN, current_p95_steps=own)
    assert grounds.within_staleness_budget(versions(p95)) is fresh
    said = advised(forecast(1_200.0, p95=p95), grounds=grounds)
    assert said.reason == ("worthwhile" if fresh else "no_other_layout")


@pytest.mark.parametrize(("steps_per_version", "fresh"), [(1.5, True), (1.51, False)])
def test_a_version_that_lasts_for_more_steps_makes_samples_staler(steps_per_version: float, fresh: bool):
    grounds = replace(PLAIN, current_p95_steps=4.0)
    assert grounds.within_staleness_budget(replace(versions(4), steps_per_version=steps_per_version)) is fresh


def test_samples_that_grow_staler_for_ever_are_recommended_only_where_a_cap_keeps_them():
    assert not PLAIN.within_staleness_budget(None)
    assert not replace(PLAIN, current_p95_steps=None).within_staleness_budget(None)
    capped = replace(PLAIN, capped=True)
    assert capped.within_staleness_budget(None)
    assert capped.within_staleness_budget(versions(1_000))


@pytest.mark.parametrize(
    ("other", "field"),
    [
        (forecast(1_260.0, 4, slow_draws=50), "untried"),
        (forecast(1_259.0, 4, slow_draws=50), None),
        (forecast(1_260.0, 4, p95=5), "staler"),
        (forecast(1_259.0, 4, p95=5), None),
        (forecast(1_500.0, 4, p95=5, slow_draws=21), None),
    ],
    ids=["unsure", "unsure and hardly faster", "too stale", "too stale and hardly faster", "both"],
)
def test_what_is_unsure_or_too_stale_is_named_where_it_is_faster_by_another_5_percent(
    other: Forecast, field: str | None
):
    sure = forecast(1_200.0, 3)
    said = advised(other, sure)
    assert (said.reason, said.best) == ("worthwhile", sure)
    assert {"untried": said.untried, "staler": said.staler} == {"untried": None, "staler": None} | (
        {field: other} if field else {}
    )


@pytest.mark.parametrize(
    ("rate", "reason", "advice"),
    [
        (1_049.0, "small_gain", "keep"),
        (1_207.4, "too_short", "probe"),
        (1_207.6, "worthwhile", "change"),
    ],
)
def test_in_a_short_stretch_a_gain_must_exceed_by_15_percent_what_a_change_is_worth(rate: float, reason, advice):
    said = advised(forecast(rate), grounds=replace(PLAIN, long_enough=False))
    assert (said.reason, said.advice) == (reason, advice)


@pytest.mark.parametrize("others", [(forecast(1_200.0),), (forecast(900.0),), ()], ids=["faster", "slower", "none"])
def test_a_model_that_does_not_replay_the_run_says_nothing_of_other_layouts(others: tuple[Forecast, ...]):
    said = advised(*others, grounds=replace(PLAIN, replayed=False))
    assert (said.reason, said.advice) == ("not_replayed", "unknown")


@pytest.mark.parametrize(("rate", "chosen"), [(1_176.0, "other"), (1_175.9, "fastest")])
def test_a_layout_nearer_to_what_ran_may_be_slower_by_2_percent(rate: float, chosen: str):
    fastest = forecast(1_200.0, 3, grade="extrapolated", running=96)
    other = forecast(rate, 4, grade="measured", running=48)
    assert best_of([fastest, other], OWN) is {"fastest": fastest, "other": other}[chosen]


def test_the_probability_of_being_the_fastest_is_taken_over_all_that_was_drawn():
    first, second = forecast(1_200.0, 3, slow_draws=20), forecast(1_100.0, 4)
    assert fastest_probabilities((first, second)) == {first.layout: 0.9, second.layout: pytest.approx(0.1)}


def dropping(rate: float, dropped_ratio: float, trainer_gpus: int, *, slow_draws: int = 0) -> Forecast:
    return costing(forecast(rate, trainer_gpus, slow_draws=slow_draws), dropped_ratio)


def test_a_sure_layout_with_a_high_price_is_tried_and_gives_way_to_one_that_is_nearly_as_fast():
    costly, enough = dropping(1_260.0, 0.11, 4), dropping(1_260.0, 0.10, 4)
    assert (advised(costly).reason, advised(costly).advice) == ("costly", "probe")
    assert (advised(enough).reason, advised(enough).advice) == ("worthwhile", "change")
    # A cheap one that is sure comes first however much slower it is, and the costly one is named beside it.
    cheap = dropping(1_100.0, 0.0, 5)
    said = advised(costly, cheap)
    assert (said.best, said.untried, said.advice) == (cheap, costly, "change")
    # Where no layout is sure, a cheap one is preferred if the costly one is less than 5% faster.
    for rate, best in ((1_201.0, 5), (1_200.0, 4)):
        unsure = dropping(1_260.0, 0.11, 4, slow_draws=30), dropping(rate, 0.0, 5, slow_draws=30)
        assert advised(*unsure).best.layout.trainer_gpus == best


@pytest.mark.parametrize(
    ("chosen", "other"),
    [
        (forecast(1_200.0, p95=3, running=128), forecast(1_200.0, p95=2, running=256, grade="extrapolated")),
        # Between batches that ran, a pass is as well known as at one of them.
        (forecast(1_200.0, p95=2, running=256, grade="interpolated"), forecast(1_200.0, p95=3, running=128)),
        (dropping(1_195.0, 0.02, 5), dropping(1_200.0, 0.06, 4)),
        (forecast(1_200.0, p95=3, running=128), forecast(1_200.0, p95=None, running=32)),
        (forecast(1_200.0, 3, running=32), forecast(1_190.0, 4, p95=2, running=64)),
        (forecast(1_190.0, 4, running=64), forecast(1_200.0, 3, running=32)),
        (forecast(1_200.0, 3, running=32), forecast(1_200.0, 4, running=128)),
    ],
    ids=["grade", "grades alike", "drops", "grows stale", "fresher", "own limit", "lower limit"],
)
def test_of_equally_fast_layouts_evidence_drops_freshness_and_the_limit_decide(chosen: Forecast, other: Forecast):
    assert best_of([other, chosen], OWN) is chosen
    assert best_of([chosen, other], OWN) is chosen
