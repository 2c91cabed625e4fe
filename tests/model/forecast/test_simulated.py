"""Whose word counts: the simulator's where it was asked, the neighbours' where it was not, else the closed form's."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from rlscope.model.calibration import Calibration
from rlscope.model.forecast import simulated as simulated_forecasts
from rlscope.model.forecast.layouts import Forecast, forecast_layouts
from rlscope.model.forecast.price import Price, StalenessForecast
from rlscope.model.forecast.simulated import (
    _moved,
    correct_by_simulation,
    is_doubtful,
    simulated_run,
)
from rlscope.model.simulate import Settings, Simulated, simulate
from rlscope.model.system import Admission, Granularity, Layout, System, possible_layouts
from tests.model.known_run import calibration_of, observed

DRAWS = np.full(4000, 100.0)
TODAY = Layout(4, 4, 32)


def forecast(layout: Layout, tokens_per_s: float = 100.0) -> Forecast:
    plain = forecast_layouts(capped(), [layout]).others[0]
    return replace(plain, layout=layout, excluded=None, tokens_per_s=tokens_per_s, drawn_tokens_per_s=DRAWS)


@cache
def capped() -> Calibration:
    return calibration_of(observed(), Admission(max_in_flight_samples=300))


def test_a_doubtful_layout_that_was_not_asked_is_moved_as_its_neighbours_were() -> None:
    rivals = {each.layout: each for each in map(forecast, (Layout(2, 6, 32), Layout(3, 5, 32), Layout(1, 7, 32)))}
    now, other = forecast(TODAY, 64.0), forecast(Layout(2, 6, 32), 100.0)
    simulated = {TODAY: now, other.layout: other}
    moved = _moved(rivals, simulated, set(rivals) | {TODAY}, forecast(TODAY))
    assert moved[Layout(2, 6, 32)].tokens_per_s == 100.0
    # Halfway between no correction and 0.64: its square root. Beyond the outermost, as there.
    assert moved[Layout(3, 5, 32)].tokens_per_s == pytest.approx(80.0)
    assert moved[Layout(1, 7, 32)].tokens_per_s == pytest.approx(100.0)
    before, after = rivals[Layout(3, 5, 32)].timing, moved[Layout(3, 5, 32)].timing
    assert before is not None and after is not None
    assert after.step_s == pytest.approx(before.step_s / 0.8)
    drawn = moved[Layout(3, 5, 32)].drawn_tokens_per_s
    assert drawn is not None
    assert np.median(drawn) == pytest.approx(80.0, rel=0.01)
    assert np.log(drawn).std() == pytest.approx(0.07, rel=0.05)


def test_neighbours_with_the_same_limit_on_running_requests_go_first() -> None:
    rivals = {each.layout: each for each in map(forecast, (Layout(4, 4, 64), Layout(3, 5, 64)))}
    simulated = {TODAY: forecast(TODAY, 50.0), Layout(4, 4, 64): forecast(Layout(4, 4, 64), 90.0)}
    moved = _moved(rivals, simulated, set(rivals) | {TODAY}, forecast(TODAY))
    assert moved[Layout(3, 5, 64)].tokens_per_s == pytest.approx(90.0)


def test_a_layout_that_is_not_doubtful_keeps_its_closed_form() -> None:
    rivals = {Layout(3, 5, 32): forecast(Layout(3, 5, 32))}
    moved = _moved(rivals, {TODAY: forecast(TODAY, 50.0)}, {TODAY}, forecast(TODAY))
    assert moved[Layout(3, 5, 32)].tokens_per_s == 100.0


def test_the_fastest_are_asked_about_until_none_of_the_first_few_is_left_in_doubt() -> None:
    layouts = possible_layouts(8, Granularity(1), (32, 64))
    before = forecast_layouts(capped(), layouts)
    judged = correct_by_simulation(capped(), before, Settings(), None)
    assert 1 <= judged.simulated_layouts <= 10
    closed = {each.layout: each.tokens_per_s for each in before.others}
    leaders = [each for each in judged.rivals if is_doubtful(capped(), each.layout)][:1]
    assert leaders
    assert all(each.tokens_per_s != closed[each.layout] for each in leaders)
    rates = [each.tokens_per_s or 0.0 for each in judged.rivals]
    assert rates == sorted(rates, reverse=True)


def test_a_doubtful_layout_behind_the_leaders_that_was_not_simulated_is_rough_and_not_shown() -> None:
    before = forecast_layouts(capped(), possible_layouts(8, Granularity(1), (32, 64)))
    found = correct_by_simulation(capped(), before, Settings(), None)
    usable = [each for each in found.others if each.excluded is None]
    behind = [each for each in usable[4:] if is_doubtful(capped(), each.layout) and each.preemption is None]
    assert behind and [each for each in usable if each.is_rough] == behind
    assert found.shown == (found.today, *(each for each in found.others if each not in behind))


def test_a_cap_that_dropped_nothing_is_not_simulated_again_with_a_higher_one(monkeypatch: pytest.MonkeyPatch) -> None:
    caps = list[int | None]()

    def counted(system: System, *rest: Any, **how: Any) -> Simulated:
        caps.append(system.admission.max_staleness)
        return simulate(system, *rest, **how)

    monkeypatch.setattr(simulated_forecasts, "simulate", counted)
    plain, runs = capped(), list[Simulated | None]()
    for cap in (30, 31, 40, 29):
        admission = Admission(max_in_flight_samples=300, max_staleness=cap, staleness_policy="drop")
        runs.append(simulated_run(replace(plain, system=replace(plain.system, admission=admission)), TODAY, Settings()))
    assert caps == [30, 29]
    assert runs[0] is not None and not runs[0].dropped_groups
    assert runs[1] is runs[0] and runs[2] is runs[0] and runs[3] == runs[0]


def test_every_layout_of_a_run_with_slow_engines_is_simulated() -> None:
    plain = calibration_of(observed())
    slow = replace(plain, engine_slowness=(2.0, *[0.9] * 5))
    starved = Layout(6, 2, 64)
    assert not is_doubtful(plain, starved)
    assert is_doubtful(slow, starved)
    rates = [simulated_run(each, starved, Settings()) for each in (plain, slow)]
    assert rates[0] is not None
    assert rates[1] is not None
    # Of the two engines left one is slow: half of 1 / 2 + 1 / 0.9 as fast.
    expected = (1 / 2.0 + 1 / 0.9) / 2.0
    assert rates[1].trained_tokens_per_s / rates[0].trained_tokens_per_s == pytest.approx(expected, rel=0.05)


def test_without_a_neighbour_of_the_same_limit_the_limits_of_the_same_split_are_what_it_lies_between() -> None:
    rivals = {each.layout: each for each in map(forecast, (Layout(4, 4, 64), Layout(4, 4, 128), Layout(3, 5, 64)))}
    spanning = StalenessForecast(1.0, 1, 1, 5.0)
    simulated = {TODAY: forecast(TODAY), Layout(4, 4, 128): replace(forecast(TODAY, 64.0), price=Price(spanning))}
    moved = _moved(rivals, simulated, set(rivals) | {TODAY}, forecast(TODAY))
    # 64 requests are halfway between 32 and 128, by ratio; so is what a version of theirs lasts.
    assert moved[Layout(4, 4, 64)].tokens_per_s == pytest.approx(80.0)
    staleness = moved[Layout(4, 4, 64)].staleness
    assert staleness is not None
    assert staleness.steps_per_version == pytest.approx(3.0)
