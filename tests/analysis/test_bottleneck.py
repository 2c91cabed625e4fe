"""The one word of a run, from rows of the ledger over time, and why there sometimes is none."""

from typing import Any

import numpy as np
import polars as pl
import pytest

from rlscope.analysis.bottleneck import dropped_ratio, full_auxiliary, judge, judged_interval, measure_losses
from rlscope.analysis.interval import Interval
from rlscope.analysis.result import Loss, SteadyWindow, Verdict
from rlscope.model.causes import LossCause
from rlscope.model.estimate import Estimate
from rlscope.model.forecast.ranking import CauseLoss, Ranking

SECOND = 10**9
State = tuple[str, str, str | None, float]
"""role, state, reason, GPU-seconds."""
WITHOUT = "in the stretch that is judged, and no GPU-second of the"
HIDDEN = 90.0
"""GPU-seconds of samplers in no recorded state, in a log that hides the samplers."""
BUSY: list[State] = [("trainer", "train", None, 100.0), ("sampler", "decoding", None, 100.0)]


def timeline(states: list[State], bucket_start_ns: int = 50 * SECOND) -> pl.DataFrame:
    rows = [(role, state, reason, "judge-0", bucket_start_ns, gpu_s) for role, state, reason, gpu_s in states]
    texts = dict.fromkeys(("role", "state", "reason", "worker_id"), pl.String)
    names = {**texts, "bucket_start_ns": pl.Int64, "gpu_s": float}
    return pl.DataFrame(rows, schema=names, orient="row")


def steps(*ends_s: int) -> pl.DataFrame:
    return pl.DataFrame({"end_ns": [end * SECOND for end in ends_s]}, schema={"end_ns": pl.Int64})


def filled(*lost: State) -> list[State]:
    """Both sides of 100 GPU-seconds: what is lost, and work for the rest."""
    trainer = sum(gpu_s for role, _, _, gpu_s in lost if role == "trainer")
    sampler = sum(gpu_s for role, _, _, gpu_s in lost if role == "sampler")
    return [*lost, ("trainer", "train", None, 100.0 - trainer), ("sampler", "decoding", None, 100.0 - sampler)]


JUDGED = Interval(10 * SECOND, 100 * SECOND)


def clipped(states: pl.DataFrame) -> pl.DataFrame:
    """Buckets of ten seconds, from second 10 to second 100."""
    return JUDGED.clip(states, 10 * SECOND)


def judged(
    states: pl.DataFrame, dropped_tokens_ratio: float = 0.0, ranking: Ranking | None = None, **changes: Any
) -> Verdict:
    inside = clipped(states)
    losses = measure_losses(inside, dropped_tokens_ratio)
    facts = {"total_gpus": 2, "steps": 3} | changes
    hides_samplers = bool(facts.get("hides_samplers"))
    return judge(
        *(facts["total_gpus"], facts["steps"], inside, JUDGED, losses, ranking),
        hides_samplers=hides_samplers,
    )


def lost_to(states: list[State]) -> dict[str, float]:
    """GPU-seconds by cause, without those that cost nothing."""
    losses = measure_losses(clipped(timeline(states)), 0.0)
    return {loss.cause: pytest.approx(loss.gpu_s) for loss in losses if loss.gpu_s}


@pytest.mark.parametrize(
    ("reward_gpu_s", "waiting_gpu_s", "is_full"),
    [(90.0, 10.0, True), (89.99, 10.0, False), (90.0, 9.99, False), (100.0, 0.0, False), (100.0, 100.0, True)],
)
def test_a_judge_that_has_no_idle_time_while_trainers_wait_may_limit_the_samples(
    reward_gpu_s: float, waiting_gpu_s: float, is_full: bool
) -> None:
    rest: list[State] = [("auxiliary", "no_requests", None, 100.0 - reward_gpu_s)]
    states = [*filled(("trainer", "waiting_for_samples", "samples", waiting_gpu_s)), *rest]
    found = full_auxiliary(clipped(timeline([*states, ("auxiliary", "reward", None, reward_gpu_s)])))
    assert (found is not None) is is_full
    # An engine that always decodes may have room for more requests.
    assert full_auxiliary(clipped(timeline([*states, ("auxiliary", "decoding", None, 100.0)]))) is None


@pytest.mark.parametrize(
    ("judges", "is_full"),
    [
        # Of two stages, the one that is full holds the samples up, however idle the other is.
        ({"judge-0": 95.0, "ranker-0": 5.0}, True),
        ({"judge-0": 95.0, "judge-1": 95.0, "ranker-0": 5.0}, True),
        # Work that is spread unevenly over judges of one kind leaves room.
        ({"judge-0": 95.0, "judge-1": 5.0}, False),
        ({"judge-7b-0.5f3a2c": 95.0, "judge-7b-12": 5.0}, False),
        ({"judge-7b": 95.0, "judge-72b": 5.0}, True),
    ],
)
def test_each_kind_of_judge_is_full_on_its_own(judges: dict[str, float], is_full: bool) -> None:
    waits = timeline(filled(("trainer", "waiting_for_samples", "samples", 50.0)))
    own = [
        timeline([("auxiliary", "reward", None, busy), ("auxiliary", "no_requests", None, 100.0 - busy)]).with_columns(
            worker_id=pl.lit(name)
        )
        for name, busy in judges.items()
    ]
    assert (full_auxiliary(clipped(pl.concat([waits, *own]))) is not None) is is_full


def test_trainers_that_wait_for_a_full_judge_are_no_bottleneck_however_long_samplers_wait_too() -> None:
    waits: list[State] = [
        ("trainer", "waiting_for_samples", "samples", 80.0),
        ("sampler", "no_requests", "requests", 90.0),
    ]
    alone = judged(timeline(filled(*waits)))
    assert (alone.bottleneck, alone.waits_for_auxiliary) == ("trainers", False)
    beside = timeline([*filled(*waits), ("auxiliary", "reward", None, 100.0)])
    verdict = judged(beside)
    assert (verdict.bottleneck, verdict.tied_with, verdict.waits_for_auxiliary) == ("samplers", (), True)
    assert not judged(beside, steps=2).waits_for_auxiliary  # Too few steps to say anything.


def ranking_of(gains: dict[LossCause, float]) -> Ranking:
    """A ranking in which each cause costs as much in every draw."""
    losses = [CauseLoss(cause, Estimate(gain, gain, gain), np.full(20, gain)) for cause, gain in gains.items()]
    return Ranking((), tuple(losses))


def word(states: list[State], dropped_tokens_ratio: float = 0.0, **changes: Any) -> str:
    return judged(timeline(states), dropped_tokens_ratio, None, **changes).bottleneck


@pytest.mark.parametrize(
    ("lost", "bottleneck"),
    [
        ([("trainer", "waiting_for_samples", "samples", 11.0)], "samplers"),
        ([("sampler", "no_requests", "backpressure", 11.0)], "trainers"),
        ([("sampler", "no_requests", "barrier", 11.0)], "trainers"),
        ([("sampler", "no_requests", "requests", 11.0)], "trainers"),
        ([("trainer", "waiting_for_staleness_cap", "staleness_cap", 11.0)], "staleness_cap"),
        ([("sampler", "no_requests", "staleness_cap", 11.0)], "staleness_cap"),
        ([("trainer", "publishing_weights", None, 11.0)], "weight_updates"),
        ([("sampler", "applying_weights", None, 11.0)], "weight_updates"),
        ([("sampler", "transferring_weights", None, 11.0)], "weight_updates"),
        ([("trainer", "waiting", "weights", 11.0)], "weight_updates"),
        ([("sampler", "no_requests", "environment", 11.0)], "environment"),
        ([("trainer", "checkpoint", None, 11.0)], "checkpoints"),
        ([("trainer", "checkpoint", None, 6.0), ("trainer", "eval", None, 5.0)], "checkpoints"),
        # A side that loses exactly a tenth is balanced, and a little more is not.
        ([("trainer", "waiting_for_samples", "samples", 10.0)], "balanced"),
        ([("trainer", "waiting_for_samples", "samples", 10.001)], "samplers"),
        ([("sampler", "no_requests", "backpressure", 10.0)], "balanced"),
        # The losses of one side add up, and those of two sides do not.
        ([("trainer", "waiting_for_samples", "samples", 6.0), ("sampler", "no_requests", "backpressure", 6.0)],
         "balanced"),
        ([("trainer", "waiting_for_samples", "samples", 6.0), ("trainer", "publishing_weights", None, 5.0)],
         "samplers"),
        # Samplers that evaluate lose nothing.
        ([("sampler", "eval", None, 60.0)], "balanced"),
    ],
)  # fmt: skip
def test_the_word_is_what_most_of_the_lost_gpu_seconds_wait_for(lost: list[State], bottleneck: str) -> None:
    assert word(filled(*lost)) == bottleneck


def test_what_is_dropped_for_its_age_counts_as_held_back_by_the_trainers() -> None:
    assert word(BUSY, dropped_tokens_ratio=0.10) == "balanced"
    assert word(BUSY, dropped_tokens_ratio=0.11) == "trainers"
    assert word(filled(("sampler", "no_requests", "backpressure", 6.0)), dropped_tokens_ratio=0.05) == "trainers"


def test_drops_are_not_the_trainers_fault_while_they_wait_for_samples_longer_than_samplers_for_them() -> None:
    waits = filled(("trainer", "waiting_for_samples", "samples", 30.0))
    verdict = judged(timeline(waits), dropped_tokens_ratio=0.5)
    assert (verdict.bottleneck, verdict.losses[0].cause, verdict.tied_with) == ("samplers", "trainers", ())
    assert word(filled(("trainer", "waiting_for_samples", "samples", 10.0)), dropped_tokens_ratio=0.5) == "trainers"
    held: State = ("sampler", "no_requests", "backpressure", 30.0)
    assert word([*waits[:1], held, *filled()], dropped_tokens_ratio=0.5) == "trainers"


def test_the_dearest_loss_names_the_bottleneck_and_all_are_listed_dearest_first() -> None:
    states = filled(
        ("trainer", "waiting_for_samples", "samples", 20.0),
        ("sampler", "no_requests", "backpressure", 5.0),
        ("sampler", "no_requests", "staleness_cap", 30.0),
        ("sampler", "applying_weights", None, 10.0),
    )
    verdict = judged(timeline(states))
    assert verdict.bottleneck == "staleness_cap"
    assert [(loss.cause, loss.gpu_s, loss.side_share_ratio) for loss in verdict.losses] == [
        ("staleness_cap", 30.0, 0.15),
        ("samplers", 20.0, 0.2),
        ("weight_updates", 10.0, 0.05),
        ("trainers", 5.0, 0.05),
        ("lockstep", 0.0, 0.0),
        ("environment", 0.0, 0.0),
        ("checkpoints", 0.0, 0.0),
    ]


def test_gpus_that_both_sides_share_lose_what_they_save_and_wait_for() -> None:
    states = [("colocated", "train", None, 40.0), ("colocated", "generating", None, 30.0)]
    verdict = judged(timeline([*states, ("colocated", "checkpoint", None, 30.0)]))
    assert verdict.bottleneck == "checkpoints"
    assert (verdict.losses[0].gpu_s, verdict.losses[0].side_share_ratio) == (30.0, pytest.approx(0.3))
    assert word([*states, ("colocated", "waiting_for_samples", "samples", 30.0)]) == "samplers"


def test_a_bucket_counts_by_its_share_inside_the_interval() -> None:
    waits: list[State] = [("trainer", "waiting_for_samples", "samples", 90.0)]
    before, edge, after = timeline(waits, 0), timeline(waits, 95 * SECOND), timeline(waits, 100 * SECOND)
    verdict = judged(pl.concat([before, timeline(BUSY), edge, after]))
    assert (verdict.losses[0].cause, verdict.losses[0].gpu_s) == ("samplers", 45.0)


def test_the_window_is_judged_else_what_lies_between_the_first_and_the_last_step_else_the_run() -> None:
    window = SteadyWindow(start_ns=20 * SECOND, end_ns=60 * SECOND, first_step=1, last_step=20)
    whole = Interval(0, 200 * SECOND)
    assert judged_interval(window, steps(10, 50, 100), whole) == (20 * SECOND, 60 * SECOND)
    assert judged_interval(None, steps(10, 50, 100), whole) == (10 * SECOND, 100 * SECOND)
    assert judged_interval(None, steps(10, 50), whole) == whole


def test_what_no_cause_covers_makes_the_verdict_unknown_when_it_is_the_larger_part() -> None:
    barrier: State = ("trainer", "waiting", "barrier", 30.0)
    verdict = judged(timeline(filled(barrier)))
    assert verdict.bottleneck == "unknown"
    assert verdict.unknown_reason is not None and "(barrier)" in verdict.unknown_reason
    assert word(filled(barrier, ("trainer", "waiting_for_samples", "samples", 30.0))) == "unknown"
    assert word(filled(barrier, ("trainer", "waiting_for_samples", "samples", 31.0))) == "samplers"
    assert word(filled(("trainer", "waiting", None, 10.0))) == "balanced"
    assert word(filled(("trainer", "waiting", "weights", 30.0))) == "weight_updates"


def test_the_dropped_share_is_stale_and_abandoned_tokens_over_all_that_left_the_queue() -> None:
    outcomes = pl.DataFrame({"outcome": ["abandoned", "dropped_stale", "filtered", "trained"], "tokens": [1, 2, 3, 4]})
    assert dropped_ratio(outcomes) == 0.3
    assert dropped_ratio(outcomes.clear()) == 0.0


@pytest.mark.parametrize(
    ("states", "changes", "reason"),
    [
        (BUSY, {"total_gpus": 0}, "no sampler or trainer owns a GPU, so there are no GPU-seconds to judge"),
        (BUSY, {"steps": 2}, "the run has 2 training steps; a verdict needs 3"),
        (BUSY, {"steps": 1}, "the run has 1 training step; a verdict needs 3"),
        (BUSY[:1], {}, f"only the trainers were recorded {WITHOUT} samplers"),
        (BUSY[1:], {}, f"only the samplers were recorded {WITHOUT} trainers"),
        (
            [("controller", "unattributed", None, 9.0)],
            {},
            "no GPU-second of either side was recorded in the stretch that is judged",
        ),
        (
            filled(("sampler", "unattributed", None, 51.0), ("trainer", "unattributed", None, 60.0)),
            {},
            "60% of the trainers' GPU time (60 of 100 GPU-seconds) is in no recorded state",
        ),
    ],
)
def test_unknown_says_why(states: list[State], changes: dict[str, Any], reason: str) -> None:
    verdict = judged(timeline(states), **changes)
    assert (verdict.bottleneck, verdict.unknown_reason) == ("unknown", reason)


@pytest.mark.parametrize(
    ("waits_gpu_s", "of_trainers_gpu_s", "of_samplers_gpu_s", "bottleneck", "side"),
    [
        (0.0, 0.0, 10.0, "balanced", None),
        (0.0, 0.0, 10.001, "unknown", "samplers"),  # with more than a tenth nothing is called balanced
        (20.0, 0.0, 50.0, "samplers", None),
        (20.0, 0.0, 50.1, "unknown", "samplers"),
        (20.0, 50.1, 0.0, "unknown", "trainers"),
        # A log that hides the samplers is judged by its trainers.
        (10.001, 0.0, HIDDEN, "samplers", None),
        (10.001, 50.0, HIDDEN, "samplers", None),
        (10.001, 50.1, HIDDEN, "unknown", "trainers"),
        (10.0, 10.0, HIDDEN, "trainers", None),
        (10.0, 10.1, HIDDEN, "unknown", "trainers"),
    ],
)
def test_a_side_is_judged_by_what_was_recorded_unless_that_is_less_than_half(
    waits_gpu_s: float, of_trainers_gpu_s: float, of_samplers_gpu_s: float, bottleneck: str, side: str | None
) -> None:
    lost: list[State] = [
        ("trainer", "waiting_for_samples", "samples", waits_gpu_s),
        ("trainer", "unattributed", None, of_trainers_gpu_s),
        ("sampler", "unattributed", None, of_samplers_gpu_s),
    ]
    verdict = judged(timeline(filled(*lost)), hides_samplers=of_samplers_gpu_s == HIDDEN)
    assert (verdict.bottleneck, verdict.unrecorded_side) == (bottleneck, side)


def test_gpus_that_sample_and_train_in_turn_hide_no_samplers() -> None:
    assert word([("colocated", "train", None, 100.0)], hides_samplers=True) == "balanced"


def turns(waits_gpu_s: float, barrier_gpu_s: float) -> list[State]:
    """Trainers that wait for samples, and samplers that wait at the barrier, each of 100 GPU-seconds."""
    return filled(
        ("trainer", "waiting_for_samples", "samples", waits_gpu_s), ("sampler", "no_requests", "barrier", barrier_gpu_s)
    )


@pytest.mark.parametrize(
    ("waits_gpu_s", "barrier_gpu_s", "lost"),
    [
        (40.0, 40.0, {"lockstep": 80.0}),
        (40.0, 60.0, {"lockstep": 80.0, "trainers": 20.0}),
        (60.0, 40.0, {"lockstep": 80.0, "samplers": 20.0}),
        (40.0, 10.0, {"lockstep": 20.0, "samplers": 30.0}),
        (40.0, 9.9, {"samplers": 40.0, "trainers": 9.9}),
        (9.9, 40.0, {"samplers": 9.9, "trainers": 40.0}),
    ],
    ids=["alike", "samplers wait longer", "trainers wait longer", "on the threshold", "below it", "below it, trainers"],
)
def test_what_both_sides_wait_for_each_other_is_lost_to_lockstep_and_the_rest_to_the_slower_side(
    waits_gpu_s: float, barrier_gpu_s: float, lost: dict[str, float]
) -> None:
    assert lost_to(turns(waits_gpu_s, barrier_gpu_s)) == lost


@pytest.mark.parametrize(
    ("second_gpu_s", "tied"), [(18.0, ("weight_updates",)), (17.9, ()), (20.0, ("weight_updates",))]
)
def test_without_a_ranking_causes_within_a_tenth_of_the_largest_are_tied_with_it(
    second_gpu_s: float, tied: tuple[str, ...]
) -> None:
    states = filled(
        ("trainer", "waiting_for_samples", "samples", 20.0), ("sampler", "applying_weights", None, second_gpu_s)
    )
    verdict = judged(timeline(states))
    assert (verdict.bottleneck, verdict.tied_with) == ("samplers", tied)


def test_the_ranking_decides_the_word_and_the_order_whatever_waited_longest() -> None:
    waits = timeline(filled(("trainer", "waiting_for_samples", "samples", 40.0)))
    verdict = judged(waits, ranking=ranking_of({"weight_updates": 0.30, "samplers": 0.10}))
    assert verdict.bottleneck == "weight_updates"
    assert [loss.cause for loss in verdict.losses[:2]] == ["weight_updates", "samplers"]
    assert verdict.losses[1] == Loss("samplers", 40.0, 0.4, Estimate(0.10, 0.10, 0.10))
    # Those that the ranking lacks follow, as measured.
    assert [loss.gain_ratio for loss in verdict.losses[2:]] == [None] * 5


@pytest.mark.parametrize(
    ("gains", "bottleneck", "tied"),
    [
        ({"samplers": 0.05}, "samplers", ()),
        ({"samplers": 0.0499}, "balanced", ()),
        ({"samplers": 0.30, "trainers": 0.30}, "samplers", ("trainers",)),
        ({"samplers": 0.30, "weight_updates": 0.30}, "samplers", ()),
    ],
    ids=["worth 5%", "a little less", "a tie", "a tie that cost nothing"],
)
def test_the_ranking_says_balanced_below_5_percent_and_names_ties(
    gains: dict[LossCause, float], bottleneck: str, tied: tuple[str, ...]
) -> None:
    waits = filled(("trainer", "waiting_for_samples", "samples", 40.0), ("sampler", "no_requests", "backpressure", 1.0))
    verdict = judged(timeline(waits), ranking=ranking_of(gains))
    assert (verdict.bottleneck, verdict.tied_with) == (bottleneck, tied)
    assert verdict.cause == (None if bottleneck == "balanced" else bottleneck)
