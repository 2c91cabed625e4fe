"""Settings that were run several times: each run counts once."""

import math

import pytest

from rlscope.comparison.facts import ComparedRun
from rlscope.comparison.repeats import repeated_settings
from rlscope.comparison.runs import compare_runs
from rlscope.comparison.statistics import difference_of_runs
from rlscope.reports.text.comparison import repeated_parts
from tests.comparison.made_runs import made_run


def run(cap: int, tokens: int, seed: int = 0, rewards: list[float] | None = None) -> ComparedRun:
    """Ten steps of a second."""
    settings = {"max_staleness": cap, "data.seed": seed}
    return made_run(
        f"cap {cap}, seed {seed}", periods_s=[1.0] * 10, tokens=[tokens] * 10, settings=settings, rewards=rewards
    )


@pytest.mark.parametrize(
    ("runs", "groups"),
    [
        ([run(1, 1000, 1), run(4, 2000, 1), run(1, 1100, 2), run(4, 2200, 2)], [((0, 2), (1, 3))]),
        ([run(1, 1000), run(4, 2000, 1), run(4, 2200, 2), run(8, 2000)], [((0,), (1, 2))]),
        ([run(1, 1000), run(4, 2000)], []),
        ([run(1, 1000), run(1, 1100)], []),
    ],
    ids=["two of each", "one and several", "one of each", "one setting"],
)
def test_runs_that_differ_in_a_seed_only_are_one_setting_and_compared_if_one_was_repeated(runs, groups) -> None:
    found = repeated_settings(runs)
    assert [(each.baseline_runs, each.runs) for each in found] == groups
    assert {each.basis for each in found} <= {"steady"}


def test_the_spread_between_runs_is_the_error_and_not_that_between_steps() -> None:
    # Logarithms: means ln 1000 + d / 2 and ln 2000 + d / 2 with d = ln 1.1; d^2 / 2 a group, 2 degrees of freedom.
    (found,) = repeated_settings([run(1, 1000, 1), run(1, 1100, 2), run(4, 2000, 1), run(4, 2200, 2)])
    rate = found.rows[0].difference
    error = math.log(1.1) / math.sqrt(2.0)
    assert rate.before == pytest.approx(math.sqrt(1000 * 1100))
    assert rate.change == pytest.approx(1.0)
    assert math.log1p(rate.low) == pytest.approx(math.log(2.0) - 4.30265 * error, rel=1e-5)
    assert math.log1p(rate.high) == pytest.approx(math.log(2.0) + 4.30265 * error, rel=1e-5)
    assert rate.is_significant


def test_rewards_are_compared_at_the_step_and_at_the_gpu_hours_that_every_run_reached() -> None:
    # The mean of ten steps; the second run of the baseline learns more.
    runs = [run(1, 1000, 1, [0.5] * 10), run(4, 1000, 1, [0.3] * 10), run(1, 1000, 2, [0.7] * 10)]
    (found,) = repeated_settings(runs)
    assert [(row.learned, row.at, row.where) for row in found.learning] == [
        ("reward", "step", 10.0),
        ("reward", "gpu_hours", pytest.approx(20.0 / 3600.0)),
    ]
    reward = found.learning[0].difference
    assert (reward.before, reward.after) == (pytest.approx(0.6), pytest.approx(0.3))
    # One degree of freedom: 0.3 is 12.706 standard errors of sqrt(0.02 * 1.5) or less.
    assert reward.high == pytest.approx(-0.3 + 12.7062 * 0.03**0.5, rel=1e-4)
    assert not reward.is_significant


def test_rewards_that_one_run_did_not_record_are_left_out() -> None:
    assert repeated_settings([run(1, 1000, 1, [0.5] * 10), run(1, 1000, 2), run(4, 1000, 1)])[0].learning == ()


@pytest.mark.parametrize(
    ("before", "after", "scale"),
    [
        ([1.0, None], [2.0, 2.0], "ratio"),
        ([1.0, 0.0], [2.0, 2.0], "ratio"),
        ([1.0], [2.0], "absolute"),
        ([0.1], [2.0, 2.0], "absolute"),
    ],
    ids=["unknown", "no logarithm", "one run each", "no spread"],
)
def test_nothing_is_tested_without_a_value_of_every_run_a_repeat_and_a_spread(before, after, scale) -> None:
    found = difference_of_runs(before, after, scale)
    assert (found.after, found.low, found.p_value, found.is_significant) == (2.0, None, None, False)


def test_repeated_runs_are_a_part_of_the_comparison() -> None:
    compared = compare_runs(run(1, 1000, 1), [run(4, 2000, 1), run(1, 1100, 2), run(4, 2200, 2)])
    (part,) = repeated_parts(compared)
    note, numbers = part.blocks
    assert part.title == "B, D against A, C: repeated runs"
    assert "Each run counts once" in note.text
    assert numbers.columns == ("", "A, C", "B, D", "change", "95% interval")
    assert numbers.rows[0] == ("training throughput", "1.05k tokens/s", "2.1k tokens/s", "+100%*", "+49.7% to +167%")
