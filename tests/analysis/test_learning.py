"""What a run's rewards say of stale and of truncated samples, worked by hand."""

from dataclasses import replace
from typing import Final

import numpy as np
import polars as pl
import pytest

from rlscope.analysis.learning import Learning, RewardDifference, learning_of
from rlscope.analysis.result import Ledger
from rlscope.model.estimate import Estimate
from rlscope.reports.text.learning import learning_sentences, run_sentences
from tests.reports.analysis_fixture import NO_ROWS, empty_analysis

MOMENTS: Final = (
    "step", "length_band", "samples", "reward_sum", "staleness_sum", "staleness_sum2", "tokens_sum", "tokens_sum2",
    "staleness_tokens", "staleness_reward", "tokens_reward",
)  # fmt: skip


def moments(*bands: tuple[int, int, list[tuple[int, int, float]]]) -> pl.DataFrame:
    """The answer of reward_moments for samples of (staleness, tokens, reward), by step and length band."""
    rows = []
    for step, band, samples in bands:
        old, long, good = np.array(samples, dtype=float).T
        sums = [good.sum(), old.sum(), old @ old, long.sum(), long @ long, old @ long, old @ good, long @ good]
        rows.append((step, band, len(samples), *map(float, sums)))
    return pl.DataFrame(rows, MOMENTS, orient="row")


def in_each(steps: int, *samples: tuple[int, int, float], band: int = 1) -> pl.DataFrame:
    return moments(*((step, band, list(samples)) for step in range(steps)))


def test_a_reward_by_hand() -> None:
    # One version staler, 10 tokens longer: 3 less; 20 tokens longer alone: 2 less. So 0.1 per token, 2 per version.
    found = learning_of(in_each(8, (0, 100, 5.0), (1, 110, 2.0), (0, 120, 3.0)))
    assert (found.per_version.reward.value, found.per_version.steps) == (pytest.approx(-2.0), 8)
    assert found.per_version.reward.high - found.per_version.reward.low == pytest.approx(0.0, abs=1e-6)


def test_the_interval_is_as_wide_as_steps_differ() -> None:
    # Eight steps of two samples: the mean of -1 and -3 is -2, its standard error sqrt(8 / 7 / 8) = 0.378.
    bands = [(step, 1, [(0, 100, 5.0), (1, 100, 4.0 if step % 2 else 2.0)]) for step in range(8)]
    found = learning_of(moments(*bands))
    assert found is not None and found.per_version is not None and found.per_version.is_clear
    assert list(found.per_version.reward) == pytest.approx([-2.0, -2.0 - 1.645 / 7**0.5, -2.0 + 1.645 / 7**0.5])


def test_rewards_that_are_all_equal_are_the_same_in_words() -> None:
    found = learning_of(pl.concat([in_each(8, (0, 100, 1.0), (1, 100, 1.0)), in_each(8, (1, 100, 1.0), band=0)]))
    assert found is not None
    assert list(learning_sentences(found)) == [
        "Within a step, stale and fresh samples of similar length have the same reward.",
        "Within a step, truncated and finished responses of equal staleness have the same reward.",
    ]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (in_each(9, (1, 100, 5.0), (1, 110, 2.0)), "one_staleness"),
        (in_each(7, (0, 100, 5.0), (1, 100, 2.0)), "few_steps"),
        (in_each(8, (0, 100, 5.0), (1, 100, 2.0)), None),
        (in_each(9, (0, 100, 5.0), (1, 110, 2.0), (2, 120, 1.0)), "old_is_long"),
    ],
)
def test_where_stale_and_fresh_samples_cannot_be_told_apart_the_reason_is_named(
    given: pl.DataFrame, reason: str | None
) -> None:
    found = learning_of(given)
    assert found is not None and found.inseparable == reason
    assert (found.per_version is None) == (reason is not None)
    (sentence,) = learning_sentences(found)
    assert sentence.startswith("Stale and fresh samples cannot be told apart") == (reason is not None)


@pytest.mark.parametrize(("steps", "is_known"), [(7, False), (8, True)])
def test_truncated_responses_are_compared_at_equal_staleness(steps: int, is_known: bool) -> None:
    # Truncated: 4 less, of which 2 x 1 because they are two versions staler.
    finished = in_each(steps, (0, 100, 5.0), (1, 100, 4.0), (2, 100, 3.0))
    found = learning_of(pl.concat([finished, in_each(steps, (3, 200, 0.0), band=0)]))
    assert found is not None and (found.truncated is not None) == is_known
    if found.truncated is not None:
        assert found.truncated.reward.value == pytest.approx(-2.0)


def test_rewards_that_are_all_equal_do_not_differ_by_their_rounding() -> None:
    finished = in_each(9, (0, 40, 0.4), (1, 40, 0.4), (1, 43, 0.4), (2, 41, 0.4), (2, 40, 0.4))
    found = learning_of(pl.concat([finished, in_each(9, (3, 60, 0.4), (1, 60, 0.4), (0, 60, 0.4), band=0)]))
    assert found is not None and found.per_version is not None and found.truncated is not None
    for difference in (found.per_version, found.truncated):
        assert (*difference.reward, difference.is_clear) == (0.0, 0.0, 0.0, False)


def test_a_run_without_rewards_says_nothing() -> None:
    assert learning_of(pl.DataFrame(schema=dict.fromkeys(MOMENTS, pl.Float64))) is None


def test_the_card_tells_how_reward_and_finished_responses_changed() -> None:
    steps = pl.DataFrame({"step": range(1, 11), "reward_mean": [-0.5] * 5 + [0.75] * 5})
    cut = pl.DataFrame(
        {
            "step": range(1, 11),
            "truncated_ratio": [0.0] * 5 + [0.25] * 5,
            "finished_reward_mean": [-0.5] * 5 + [0.5] * 5,
        }
    )

    def said(**answers: pl.DataFrame) -> list[str]:
        run = replace(empty_analysis().run, gpu_hour_price=2.0, currency="EUR")
        ledger = Ledger(7200 * 10**9, ())
        return list(run_sentences(replace(empty_analysis(), run=run, ledger=ledger, answers={**NO_ROWS, **answers})))

    first, *others = said(training_steps=steps, truncation_by_step=cut)
    assert first == "Mean reward: −0.5 in the first 5 steps, 0.75 in the last 5. The run took 2 GPU-h and 4.00 EUR."
    assert others == [
        "Responses that were not truncated: 100% in the first 5 steps, 75.0% in the last 5.",
        "Their mean reward: −0.5 and 0.5, in the first and last 5 steps that have one.",
    ]
    assert said(training_steps=steps, truncation_by_step=cut.head(5)) == [first]
    assert said(training_steps=steps.head(9), truncation_by_step=cut) == said() == []


@pytest.mark.parametrize(
    ("reward", "is_clear", "said"),
    [
        ((-0.094, -0.14, -0.053), True, "a reward 0.094 lower (90% interval 0.053 to 0.14), compared with samples of"),
        ((0.5, 0.2, 0.8), True, "a reward 0.5 higher (90% interval 0.2 to 0.8), compared"),
        (
            (-0.02, -0.05, 0.01),
            False,
            "do not clearly differ in reward: −0.02 (90% interval −0.05 to +0.01) per version",
        ),
        ((-0.047, -0.079, -0.015), False, "may differ in reward: −0.047 (90% interval −0.079 to −0.015) per version"),
    ],
)
def test_a_difference_is_told_with_its_direction_and_its_interval(
    reward: tuple[float, float, float], is_clear: bool, said: str
) -> None:
    difference = RewardDifference(Estimate(*reward), is_clear, 9)
    (sentence,) = learning_sentences(Learning(difference, None, None))
    assert said in sentence
    (sentence,) = learning_sentences(Learning(None, None, difference))
    assert said.split(", compared")[0].removesuffix(" per version") in sentence
