"""The smallest layout at the current rate."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from rlscope.model.calibration import Calibration
from rlscope.model.forecast import smaller
from rlscope.model.forecast.actions import Action
from rlscope.model.forecast.layouts import Forecast
from rlscope.model.forecast.predict import predict
from rlscope.model.forecast.price import Price, StalenessForecast
from rlscope.model.forecast.recommend import Grounds
from rlscope.model.forecast.smaller import cheaper_action
from rlscope.model.numerics.changepoints import Drift
from rlscope.model.system import Admission, Granularity, Layout, Side, smaller_layouts
from tests.model.few_draws import few_draws
from tests.model.known_run import TRUTH, calibration_of, observed, steady

PLAIN = Grounds(long_enough=True)
SPLITS = Granularity(gpus_per_engine=1)
FEW_SAMPLERS = Layout(trainer_gpus=8, sampler_gpus=2, max_running=64)
FEW_TRAINERS = Layout(trainer_gpus=1, sampler_gpus=9, max_running=64)
SLOWER_TRAINERS = replace(TRUTH, trainer=replace(TRUTH.trainer, tokens_per_gpu_s=TRUTH.trainer.tokens_per_gpu_s / 1.15))
"""As much slower as the model may err."""
FRESH = Price(StalenessForecast(1.0, 1, 1))


@pytest.mark.parametrize(
    ("side", "granularity", "gpus"),
    [
        ("trainer_gpus", Granularity(1), [1, 2, 3, 4, 5, 6, 7]),
        ("trainer_gpus", Granularity(1, gpus_per_trainer_replica=2), [2, 4, 6]),
        ("trainer_gpus", Granularity(1, gpus_per_trainer_replica=2, gpus_per_node=4), [4]),
        ("trainer_gpus", Granularity(1, gpus_per_trainer_replica=8), []),
        ("sampler_gpus", Granularity(4), [4, 8]),
        ("sampler_gpus", Granularity(5), [7]),  # the rest of one engine stays idle as before
    ],
)
def test_one_side_loses_whole_replicas_engines_and_nodes_and_keeps_one(
    side: Side, granularity: Granularity, gpus: list[int]
) -> None:
    found = smaller_layouts(Layout(8, 12, 64), granularity, side)
    assert [getattr(each, side) for each in found] == gpus
    kept = "sampler_gpus" if side == "trainer_gpus" else "trainer_gpus"
    assert {(getattr(each, kept), each.max_running) for each in found} <= {(getattr(Layout(8, 12, 64), kept), 64)}


@cache
def limited(layout: Layout = FEW_SAMPLERS) -> Calibration:
    with few_draws():
        return calibration_of(observed(layout=layout), Admission(max_in_flight_samples=1024))


def asked(found: Calibration, grounds: Grounds = PLAIN) -> Action | None:
    with few_draws():
        return cheaper_action(found, observed(layout=found.layout), predict(found, found.layout), grounds, SPLITS)


def test_trainers_that_wait_for_samples_give_gpus_back_until_the_rate_would_fall() -> None:
    action = asked(limited())
    assert (action.kind, action.what, action.cause, action.before) == ("cheaper", "layout", "samplers", FEW_SAMPLERS)
    assert (action.after.sampler_gpus, action.after.max_running) == (2, 64)
    now = steady(layout=FEW_SAMPLERS).trained_tokens_per_s
    assert steady(SLOWER_TRAINERS, action.after).trained_tokens_per_s >= 0.99 * now
    one_less = replace(action.after, trainer_gpus=action.after.trainer_gpus - 1)
    assert steady(SLOWER_TRAINERS, one_less).trained_tokens_per_s < 0.97 * now
    assert action.gain_ratio.value == pytest.approx(0.0, abs=0.01)


def test_samplers_that_wait_for_the_trainers_give_gpus_back_and_their_samples_are_no_staler() -> None:
    action = asked(limited(FEW_TRAINERS))
    assert (action.cause, action.after.trainer_gpus) == ("trainers", 1)
    assert action.after.sampler_gpus < FEW_TRAINERS.sampler_gpus
    now, then = steady(layout=FEW_TRAINERS), steady(layout=action.after)
    assert then.trained_tokens_per_s >= 0.99 * now.trained_tokens_per_s
    assert action.staleness is not None


@pytest.mark.parametrize(
    "grounds",
    [replace(PLAIN, long_enough=False), replace(PLAIN, lengths=Drift(0.2, drifts=True))],
    ids=["too short to check the model", "lengths drift"],
)
def test_nothing_is_given_back_where_the_other_side_may_be_the_slower_one_next(grounds: Grounds) -> None:
    assert asked(limited(), grounds) is None


def test_a_synchronous_run_gives_nothing_back() -> None:
    assert asked(limited()) is not None
    assert asked(replace(limited(), synchronous=True)) is None


def fake(
    monkeypatch: pytest.MonkeyPatch, price: Price = FRESH, rate: Callable[[Layout], float] = lambda layout: 1.0
) -> None:
    """Let every layout have this price, and a rate of its own in every draw."""

    def predicted(_calibration: Calibration, layout: Layout, **_how: bool) -> Forecast:
        return Forecast(layout, None, None, rate(layout), np.full(3, rate(layout)), price, "measured")

    monkeypatch.setattr(smaller, "predict", predicted)


def test_less_than_5_percent_of_the_gpus_is_not_worth_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer GPU of 20 GPUs is 5%, and of 21 less."""
    monkeypatch.setattr(smaller, "keeps_rate", lambda gains: True)
    fake(monkeypatch)
    found = limited()
    for sampler_gpus, spared in ((18, 19), (19, None)):
        of_two = replace(found, layout=Layout(2, sampler_gpus, 64))
        today, granularity = predict(found, found.layout), Granularity(sampler_gpus)
        action = cheaper_action(of_two, observed(layout=FEW_SAMPLERS), today, PLAIN, granularity)
        assert (action and action.after.gpus) == spared


@pytest.mark.parametrize(
    ("grounds", "p95", "spared"),
    [
        (replace(PLAIN, most_staleness=4, capped=True), 4, True),
        (replace(PLAIN, most_staleness=4, capped=True), 5, False),
        (replace(PLAIN, current_p95_steps=4.0), 6, True),  # one and a half times the current staleness
        (replace(PLAIN, current_p95_steps=4.0), 7, False),
        (replace(PLAIN, current_p95_steps=4.0, capped=True), 7, True),  # the run's own cap holds
        (replace(PLAIN, most_staleness=4, capped=True), None, False),
        (replace(PLAIN, current_p95_steps=4.0), None, False),
    ],
)
def test_a_smaller_layout_is_no_staler_than_is_allowed_or_than_a_change_may_be(
    monkeypatch: pytest.MonkeyPatch, grounds: Grounds, p95: int | None, spared: bool
) -> None:
    fake(monkeypatch, Price(None if p95 is None else StalenessForecast(1.0, p95, p95)))
    assert (asked(limited(), grounds) is not None) is spared


@pytest.mark.parametrize(("slower", "after"), [(0, 2), (1, 3), (2, None)])
def test_where_the_simulation_loses_the_rate_the_next_larger_layout_is_tried_and_no_third(
    monkeypatch: pytest.MonkeyPatch, slower: int, after: int | None
) -> None:
    """Two trainer GPUs keep the rate by the closed forms. slower: how many of the smallest layouts are simulated so."""
    tried: list[int] = []

    def rate(layout: Layout) -> float:
        tried.append(layout.trainer_gpus)
        return 0.5 if layout.trainer_gpus < 2 + slower else 1.0

    fake(monkeypatch, rate=rate)
    action = asked(limited())
    assert (action and action.after) == (after and replace(FEW_SAMPLERS, trainer_gpus=after))
    assert sorted({*tried} - {FEW_SAMPLERS.trainer_gpus}) == [2, 3][: 1 + slower]
