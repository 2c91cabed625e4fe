"""What can be done about a run, in which order, and what each cause costs."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from rlscope.model.arrays import Reals
from rlscope.model.calibration import Calibration
from rlscope.model.estimate import Estimate
from rlscope.model.forecast.actions import (
    Action,
    ActionKind,
    ActionWhat,
    Cause,
    Counterfactuals,
    _saves,
    keeps_rate,
)
from rlscope.model.forecast.layouts import Forecast, Forecasts
from rlscope.model.forecast.predict import predict, predict_layouts
from rlscope.model.forecast.price import Price, StalenessForecast
from rlscope.model.forecast.ranking import (
    CauseLoss,
    Ranking,
    _listed,
    _losses,
    _measured,
    _tested_first,
    _with_keeping,
    rank_actions,
)
from rlscope.model.forecast.recommend import Grounds, Recommendation, recommend
from rlscope.model.observed import Observed
from rlscope.model.system import Admission, Granularity, Layout, System, WeightUpdateCost, possible_layouts
from rlscope.reports.text.actions import what_to_do
from tests.model.few_draws import few_draws
from tests.model.known_run import TODAY, TRUTH, calibrated, calibration_of, observed, slowed
from tests.model.simulated_systems import with_workload

DRAWS = 60
PLAIN = Grounds(long_enough=True, current_p95_steps=1)
CAPPED = replace(PLAIN, capped=True)
"""Where staleness keeps no layout from being recommended."""


def action(
    gain: float,
    what: ActionWhat = "layout",
    cause: Cause = "samplers",
    kind: ActionKind = "change",
    *,
    is_staler: bool = False,
) -> Action:
    """Something that brings as much in every draw."""
    return Action(
        kind=kind,
        what=what,
        cause=cause,
        before=None,
        after=None,
        gains=np.full(DRAWS, gain),
        price_before=Price(),
        price=Price(),
        grade="measured",
        is_staler=is_staler,
    )


def gains_of(low: float, median: float) -> Reals:
    """Gains of this median, and this low end of the interval."""
    return np.interp(np.linspace(0.0, 1.0, 1001), [0.0, 0.05, 0.5, 1.0], [low, low, median, median])


def loss(cause: Cause, gain: float) -> CauseLoss:
    """A cause that costs as much in every draw."""
    return CauseLoss(cause, Estimate(gain, gain, gain), np.full(DRAWS, gain))


# The order of the list


def test_settings_come_first_and_what_is_staler_last_and_in_between_what_takes_engineering_each_by_gain():
    sure, more = action(0.06), action(0.09, "staleness_cap", "staleness_cap")
    probe, fix = action(0.20, kind="probe"), action(0.40, "weight_updates", "weight_updates", "fix")
    overlap, staler = action(0.30, "asynchronous", "lockstep"), action(0.90, is_staler=True)
    assert _listed([staler, overlap, fix, probe, sure, more]) == (more, sure, probe, overlap, fix, staler)


def test_of_settings_that_gain_as_much_one_that_cannot_cost_throughput_comes_before_one_that_can():
    risky, safe = action(0.12, "layout", "trainers", "probe"), action(0.11, "staleness_cap", "staleness_cap", "probe")
    risky, safe = replace(risky, gains=gains_of(-0.08, 0.12)), replace(safe, gains=gains_of(0.02, 0.11))
    sure = action(0.35, "publish_every", "staleness_cap")
    assert _listed([risky, safe, sure]) == (sure, safe, risky)
    more = replace(risky, gains=gains_of(-0.08, 0.14))
    assert _listed([more, safe, sure]) == (sure, more, safe)


def test_what_brings_less_than_5_percent_is_not_listed():
    just, under = action(0.05), action(0.0499)
    assert _listed([under, just]) == (just,)


@pytest.mark.parametrize("what", ["engine_speed", "trainer_speed"])
def test_a_faster_side_is_listed_only_where_no_setting_is_set_against_the_same_cause(what: ActionWhat):
    cause: Cause = "samplers" if what == "engine_speed" else "trainers"
    faster = action(0.09, what, cause, "fix")
    assert _listed([faster]) == (faster,)
    for kind in ("change", "probe"):
        setting = action(0.06, "layout", cause, kind)
        assert _listed([faster, setting]) == (setting,)
        useless = action(0.04, "layout", cause, kind)
        assert _listed([faster, useless]) == (faster,)
    elsewhere = action(0.06, "staleness_cap", "staleness_cap")
    assert _listed([faster, elsewhere]) == (elsewhere, faster)
    engines = action(0.2, "slow_engines", "samplers", "fix")
    assert _listed([faster, engines]) == (engines, faster)


def test_a_costly_change_is_a_probe_and_says_so_in_its_first_sentence_and_a_fix_is_no_probe():
    costly = replace(action(0.3, "running_limit"), before=4, after=8, price=Price(None, Estimate.exactly(0.11)))
    drops = "Raise the limit on running requests per engine from 4 to 8 (drops 11% of generated tokens"
    assert what_to_do(_tested_first(costly, {})) == f"{drops}: test it for 20 steps first)"
    assert what_to_do(_tested_first(replace(costly, kind="fix"), {})) == f"{drops})"


# What a cause costs


FIX = action(0.3, "weight_updates", "weight_updates", "fix")
COLOCATED = action(0.3, "colocated", "trainers", "fix")


@pytest.mark.parametrize(
    ("removed", "actions", "expected"),
    [
        (
            {"samplers": 0.2, "trainers": 0.1},
            [action(0.15), action(0.4, "layout", "trainers"), FIX],
            [("trainers", 0.4), ("weight_updates", 0.3), ("samplers", 0.2)],
        ),
        ({"samplers": 0.0, "trainers": 0.001}, [], [("trainers", 0.001)]),
        # Another kind of run names a cause only if nothing else does.
        ({"samplers": 0.2, "trainers": 0.04}, [COLOCATED], [("samplers", 0.2), ("trainers", 0.04)]),
        ({"trainers": 0.04}, [COLOCATED], [("trainers", 0.3)]),
    ],
)
def test_a_cause_costs_what_its_removal_brings_or_the_best_action_against_it_if_more(
    removed: Mapping[Cause, float], actions: list[Action], expected: list[tuple[Cause, float]]
):
    gains = {cause: np.full(DRAWS, gain) for cause, gain in removed.items()}
    assert [(each.cause, each.gain_ratio.value) for each in _losses(gains, actions, {})] == expected


@pytest.mark.parametrize(("ahead_in", "tied"), [(53, ("trainers",)), (54, ())])
def test_causes_are_tied_unless_nine_draws_in_ten_tell_them_apart(ahead_in: int, tied: tuple[Cause, ...]):
    largest = np.full(DRAWS, 0.10)
    largest[:ahead_in] = 0.40
    losses = (CauseLoss("samplers", Estimate.of(largest), largest), loss("trainers", 0.10))
    assert Ranking((), losses).tied_with == tied


@pytest.mark.parametrize(
    ("first", "second", "cause", "tied"),
    [
        (0.30, 0.28, "samplers", ("trainers",)),  # 2% of the rate behind
        (0.30, 0.2799, "samplers", ()),
        (0.06, 0.05, "samplers", ("trainers",)),
        (0.06, 0.0499, "samplers", ()),  # too little to be tied with anything
        (0.05, 0.0, "samplers", ()),
        (0.0499, 0.0, None, ()),
    ],
)
def test_a_cause_is_named_from_5_percent_on_and_tied_with_those_within_2_percent(
    first: float, second: float, cause: Cause | None, tied: tuple[Cause, ...]
):
    ranking = Ranking((), (loss("samplers", first), loss("trainers", second)))
    assert (ranking.cause, ranking.tied_with) == (cause, tied)


def test_of_tied_causes_the_one_that_most_was_measured_to_be_lost_to_is_named():
    removed: dict[Cause, Reals] = {
        "samplers": np.full(DRAWS, 0.30),
        "trainers": np.full(DRAWS, 0.29),
        "weight_updates": np.full(DRAWS, 0.20),
    }
    lost_gpu_s = {"trainers": 9.0, "samplers": 3.0, "weight_updates": 100.0}
    ranking = Ranking((), _losses(removed, [], lost_gpu_s))
    assert [each.cause for each in ranking.losses] == ["trainers", "samplers", "weight_updates"]
    assert (ranking.cause, ranking.tied_with) == ("trainers", ("samplers",))


@pytest.mark.parametrize(
    ("waited_gpu_s", "most"),
    [(None, 1.0), (0.0, 0.0), (20.0, 0.25), (50.0, 1.0), (100.0, 1.0)],
    ids=["not known", "no waits", "a fifth", "a half", "all of the time"],
)
def test_faster_samplers_bring_no_more_than_the_trainers_waits_for_samples(waited_gpu_s: float | None, most: float):
    run = replace(observed(), end_ns=50 * 10**9, trainer_gpus=2)
    removed: Mapping[Cause, Reals] = {"samplers": np.full(DRAWS, 1.0), "trainers": np.full(DRAWS, 0.7)}
    lost = {} if waited_gpu_s is None else {"samplers": waited_gpu_s}
    found = _measured(removed, run, lost)
    assert found["samplers"] == pytest.approx(np.full(DRAWS, most))
    assert found["trainers"] is removed["trainers"]


def test_the_largest_gain_of_a_setting_leaves_fixes_out():
    ranking = Ranking((action(0.1), action(0.2, "weight_updates", "weight_updates", "fix")))
    assert ranking.reached(100.0) == pytest.approx((110.0,))


# Of runs


SMALL = replace(with_workload(TRUTH, samples_per_step=64), update=WeightUpdateCost(0.02, trainer_blocked_s=0.02))
WHOLE = Granularity(gpus_per_engine=8, gpus_per_trainer_replica=8)
"""No GPU can be spared."""
STARVED = Layout(trainer_gpus=6, sampler_gpus=2, max_running=8)


def ranked(
    run: Observed, layouts: Callable[[Layout], tuple[Layout, ...]] = lambda today: (), grounds: Grounds = PLAIN
) -> tuple[Ranking, Recommendation, Forecasts]:
    """What is said of a run of which only these other layouts are possible."""
    with few_draws():
        found = calibration_of(run)
        found = replace(found, draws=found.draws[:20])
        forecasts = predict_layouts(found, layouts(found.layout))
        advice = recommend(found, forecasts, grounds)
        return rank_actions(found, run, forecasts, advice, grounds, WHOLE), advice, forecasts


@cache
def of_small(name: str) -> Observed:
    slow = replace(SMALL, update=WeightUpdateCost(engine_pause_s=1.0, trainer_blocked_s=0.5))
    systems: dict[str, tuple[System, Layout]] = {
        "trainers": (SMALL, TODAY),
        "samplers": (SMALL, STARVED),
        "updates": (slow, STARVED),
    }
    system, layout = systems[name]
    batches = tuple(layout.max_running * share // 8 for share in (1, 2, 4, 6, 8))
    return observed(system, layout, batches=batches, steps=24)


def counterfactuals(
    found: Calibration, grounds: Grounds = PLAIN, *, run: Observed | None = None, worked_ratio: float = 0.0
) -> Counterfactuals:
    """What changes of a run would do, by few draws; worked_ratio: share of the time that trainers work, if known."""
    run, found = run or observed(), replace(found, draws=found.draws[:3])
    nothing = 0.0 * run.steps.period_s
    worked = {"train_s": worked_ratio * run.steps.period_s, "logprobs_s": nothing, "publish_s": nothing}
    run = replace(run, steps=replace(run.steps, **worked))
    return Counterfactuals(found, run, predict(found, found.layout), grounds)


def gaining(solver: Counterfactuals, gain: float, price: Price) -> Forecast:
    """What gains as much over the current layout in every draw."""
    now = solver._now.drawn_tokens_per_s
    return replace(solver._now, drawn_tokens_per_s=now * (1.0 + gain), price=price)


@pytest.mark.parametrize(
    ("what", "gain"),
    [
        ("queue_capacity_samples", 0.25),
        ("engine_speed", 0.25),
        ("trainer_speed", 0.5),
        ("checkpoints", 0.5),
        ("colocated", 0.5),
    ],
)
def test_what_leaves_the_work_of_trainers_alone_is_held_to_trainers_that_never_wait(what: ActionWhat, gain: float):
    """They wait for a fifth of the time."""
    solver = counterfactuals(calibrated(), worked_ratio=0.8)
    made = solver._action("fix", what, "samplers", None, None, gaining(solver, 0.5, Price()))
    assert made.gain_ratio.value == pytest.approx(gain, rel=0.1 if gain == 0.5 else 1e-6)


@pytest.mark.parametrize(("cause", "gain"), [("staleness_cap", 0.25), ("trainers", 0.5)])
def test_what_is_removed_brings_no_more_than_trainers_that_never_wait_but_faster_trainers_do(cause: Cause, gain: float):
    solver = counterfactuals(calibrated(), worked_ratio=0.8)
    removed = solver._removal(cause, gaining(solver, 0.5, Price()))
    assert np.median(removed) == pytest.approx(gain, rel=0.1 if gain == 0.5 else 1e-6)


def test_trainers_that_never_wait_bring_more_where_longer_samples_are_trained():
    # They do 10% more tokens in the same time, or any part of that.
    solver = counterfactuals(calibrated(), worked_ratio=0.8)
    longer = gaining(solver, 0.5, Price())
    longer = replace(longer, tokens_per_s=1.1 * (longer.tokens_per_s or 0.0))
    made = solver._action("change", "queue_capacity_samples", "samplers", None, None, longer)
    assert made.gain_ratio.value == pytest.approx(1.1**0.5 * 1.25 - 1.0)
    assert 0.25 < made.gain_ratio.low < made.gain_ratio.high < 1.1 * 1.25 - 1.0


def first_of(ranking: Ranking, what: ActionWhat) -> Action:
    return next(each for each in ranking.actions if each.what == what)


def splits(today: Layout) -> tuple[Layout, ...]:
    return possible_layouts(8, Granularity(1), (today.max_running,))


def limits(today: Layout) -> tuple[Layout, ...]:
    return tuple(replace(today, max_running=running) for running in (8, 11, 16))


def trainer_and_limit(today: Layout) -> tuple[Layout, ...]:
    """A GPU for the trainers, and engines that run four times the requests."""
    return (Layout(today.trainer_gpus + 1, today.sampler_gpus - 1, 4 * today.max_running),)


def trainers_and_limit(today: Layout) -> tuple[Layout, ...]:
    """Most GPUs for the trainers: engines that keep up only with four times the requests, which alone gain nothing."""
    return (Layout(today.sampler_gpus, today.trainer_gpus, 4 * today.max_running),)


@pytest.mark.parametrize(
    ("name", "layouts", "what", "cause"),
    [
        ("trainers", splits, "layout", "trainers"),
        ("trainers", trainers_and_limit, "layout", "trainers"),
        ("samplers", splits, "layout", "samplers"),
        ("samplers", limits, "running_limit", "samplers"),
        ("trainers", trainer_and_limit, "layout", "trainers"),
        ("samplers", trainer_and_limit, "layout", "samplers"),
    ],
)
def test_a_layout_is_against_the_side_that_it_makes_faster(
    name: str, layouts: Callable[[Layout], tuple[Layout, ...]], what: ActionWhat, cause: Cause
):
    ranking, advice, forecasts = ranked(of_small(name), layouts=layouts, grounds=CAPPED)
    assert advice.advice in ("change", "probe")
    found = first_of(ranking, what)
    assert (found.kind, found.cause, found.before) == (advice.advice, cause, forecasts.today.layout)
    assert found.after == advice.best.layout
    assert found.gain_ratio == advice.gain_ratio
    assert ranking.cause == cause


def test_a_layout_that_is_too_stale_is_an_action_beside_a_run_that_stays():
    ranking, advice, _ = ranked(of_small("trainers"), layouts=splits)
    assert (advice.advice, advice.staler is not None) == ("keep", True)
    found = first_of(ranking, "layout")
    assert (found.kind, found.is_staler, found.after) == ("change", True, advice.staler.layout)
    assert ranking.actions[-1] is found


def test_a_gain_of_a_short_stretch_exceeds_the_model_s_error_to_be_sure_and_a_model_that_misses_the_run_says_nothing():
    short = replace(CAPPED, long_enough=False)
    found = first_of(ranked(of_small("updates"), grounds=short)[0], "publish_every")
    assert (found.kind, found.gain_ratio.value < 1.05 * 1.15 - 1.0) == ("probe", True)
    found = first_of(ranked(of_small("trainers"), layouts=splits, grounds=short)[0], "layout")
    assert (found.kind, (found.gains > 1.05 * 1.15 - 1.0).mean() >= 0.9) == ("change", True)
    ranking, advice, _ = ranked(of_small("trainers"), layouts=splits, grounds=replace(CAPPED, replayed=False))
    assert (ranking.actions, ranking.losses, advice.advice) == ((), (), "unknown")


# Lower limits


def priced(dropped: float, p95: int, longest: float = 1.0) -> Price:
    """A price without intervals."""
    ratio, trained = (Estimate(each, each, each) for each in (dropped, longest))
    return Price(StalenessForecast(1.0, p95, p95), ratio, None, trained)


@pytest.mark.parametrize(
    ("before", "after", "saves"),
    [
        (priced(0.20, 4), priced(0.15, 4), True),  # 5 points fewer dropped
        (priced(0.20, 4), priced(0.151, 4), False),
        (priced(0.0, 4), priced(0.0, 3), True),  # a step, which is a quarter
        (priced(0.0, 5), priced(0.0, 4), False),  # a step, but a fifth
        (priced(0.20, 4), priced(0.10, 5), False),  # staler
        (priced(0.0, 4), priced(0.01, 2), False),  # drops more
        (priced(0.20, 4, 0.9), priced(0.05, 2, 0.45), False),  # loses half of the longest
        (priced(0.20, 4), Price(), False),  # unknown
    ],
)
def test_a_lower_limit_saves_drops_or_staleness_and_costs_neither(before: Price, after: Price, saves: bool):
    assert _saves(after, before) is saves


@pytest.mark.parametrize(
    ("median", "low", "keeps"), [(-0.01, -0.06, True), (-0.0101, -0.02, False), (0.0, -0.061, False)]
)
def test_a_rate_is_kept_up_to_a_loss_of_1_percent_and_6_at_the_low_end(median: float, low: float, keeps: bool):
    assert keeps_rate(gains_of(low, median)) is keeps


def test_what_keeps_the_rate_comes_after_leading_settings_and_before_fixes_and_staler_settings():
    lower, smaller = action(0.0, "in_flight_limit", "trainers", "fresher"), action(0.0, kind="cheaper")
    sure, probe = action(0.3), action(0.1, kind="probe")
    fix, stale = action(0.2, "weight_updates", "weight_updates", "fix"), action(0.9, is_staler=True)
    assert _with_keeping((sure, probe, fix, stale), [lower, smaller]) == (sure, probe, lower, smaller, fix, stale)
    assert _with_keeping((fix, probe), [lower]) == (lower, fix, probe)
    assert _with_keeping((stale,), [lower]) == (lower, stale)
    assert _with_keeping((), [lower]) == (lower,)


@pytest.mark.parametrize(
    ("gains", "dropped", "most"),
    [
        ({512: 0.0, 256: 0.0}, {512: 0.2, 256: 0.1}, 256),
        ({512: 0.0, 256: -0.02}, {512: 0.2, 256: 0.1}, 512),  # the tighter limit costs throughput
        ({512: 0.0, 256: 0.0}, {512: 0.2, 256: 0.16}, 512),  # and saves hardly more
        ({512: -0.02, 256: 0.0}, {512: 0.2, 256: 0.1}, None),
    ],
)
def test_a_limit_is_lowered_as_long_as_the_rate_is_kept_and_more_is_saved(
    monkeypatch: pytest.MonkeyPatch, gains: Mapping[int, float], dropped: Mapping[int, float], most: int | None
):
    """A batch has 256 samples, and the queue holds four."""
    found = counterfactuals(calibration_of(observed(), Admission(queue_capacity_samples=1024)))
    found._today = replace(found._today, price=priced(0.4, 4))

    def solved(change: Callable[[System], System]) -> Forecast:
        queue = change(found._calibration.system).admission.queue_capacity_samples
        if queue not in gains:
            return Forecast(found._layout, "never_trains")
        return gaining(found, gains[queue], priced(dropped[queue], 4))

    monkeypatch.setattr(found, "_solve", solved)
    lower = found.fresher()
    assert (lower and (lower.kind, lower.what, lower.before, lower.after, lower.is_staler)) == (
        most and ("fresher", "queue_capacity_samples", 1024, most, False)
    )


def with_a_slow_engine() -> Observed:
    layout = replace(STARVED, trainer_gpus=5, sampler_gpus=3)
    return slowed(observed(SMALL, layout, batches=(4, 8, 8, 8, 4, 8, 8, 8, 4), steps=24), 3.0)


def with_an_environment() -> Observed:
    run = of_small("samplers")
    return replace(run, environment_samples=2.0 * run.finished_samples / run.seconds)


@pytest.mark.parametrize(
    ("run", "what", "cause", "before", "after"),
    [
        # Seconds until both sides go on.
        (lambda: of_small("updates"), "weight_updates", "weight_updates", pytest.approx(1.0, abs=0.01), None),
        (lambda: of_small("updates"), "engine_speed", "samplers", 1.0, 1.1),
        (lambda: of_small("trainers"), "trainer_speed", "trainers", 1.0, 1.1),
        (with_a_slow_engine, "slow_engines", "samplers", None, None),
        (with_an_environment, "environment", "environment", pytest.approx(2.0), None),
        (lambda: of_small("samplers"), "colocated", "samplers", None, None),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_removed_or_made_faster_is_a_fix_of_its_cause(
    run: Callable[[], Observed], what: ActionWhat, cause: Cause, before: Any, after: float | None
):
    found = first_of(ranked(run())[0], what)
    assert (found.kind, found.cause, found.before, found.after) == ("fix", cause, before, after)
    assert not found.is_staler
    assert what != "colocated" or found.staleness == StalenessForecast(0.0, 0, 0)
    assert what != "trainer_speed" or found.gain_ratio.value == pytest.approx(0.1, abs=0.03)


@pytest.mark.parametrize(("gain", "listed"), [(0.155, ["layout", "colocated"]), (0.1549, ["layout"])])
def test_colocated_gpus_come_after_settings_and_must_bring_5_percent_more(gain: float, listed: list[str]):
    probe, shared = action(0.1, kind="probe"), action(gain + 1e-12, "colocated", kind="fix")
    assert [each.what for each in _listed([shared, probe])] == listed
    assert [each.what for each in _listed([shared])] == ["colocated"]


def saving(run: Observed, seconds: float, rewards_s: float = 0.0) -> tuple[Observed, Grounds]:
    """The run with trainers that also save, and compute rewards, for so long in each step; and what that cost."""
    steps = run.steps
    longer = replace(steps, other_s=steps.other_s + seconds + rewards_s, period_s=steps.period_s + seconds + rewards_s)
    lost_gpu_s = {"checkpoints": run.trainer_gpus * seconds * len(steps.period_s)}
    return replace(run, steps=longer), replace(PLAIN, lost_gpu_s=lost_gpu_s)


def test_checkpoints_of_a_run_that_trains_all_the_time_are_worth_their_share_of_the_step():
    plain = of_small("trainers")
    step_s = float(plain.steps.period_s.mean())
    run, grounds = saving(plain, step_s)
    ranking, _, forecasts = ranked(run, grounds=grounds)
    found = first_of(ranking, "checkpoints")
    assert (found.kind, found.cause, found.after) == ("fix", "checkpoints", None)
    assert found.before == pytest.approx(step_s)
    without = ranked(plain)[2].today.tokens_per_s
    assert found.gain_ratio.value == pytest.approx(without / forecasts.today.tokens_per_s - 1.0, rel=0.02)
    assert found.gain_ratio.value > 0.5
    assert ranking.cause == "checkpoints"


def test_only_the_part_of_the_phase_that_saves_or_evaluates_can_be_removed():
    run, grounds = saving(of_small("trainers"), 1.0, rewards_s=3.0)
    found = calibration_of(run)
    assert counterfactuals(found, grounds, run=run)._checkpoint_s() == pytest.approx(1.0)
    assert counterfactuals(found, run=run)._checkpoint_s() == 0.0


def test_every_limit_is_moved_by_a_step():
    admission = Admission(64, max_staleness=1, max_in_flight_samples=96, max_running_samples=48)
    moved = [each for each in counterfactuals(calibration_of(of_small("samplers"), admission))._limits({}) if each]
    assert {each.what: (each.cause, each.before, each.after) for each in moved} == {
        "staleness_cap": ("staleness_cap", 1, 2),
        "in_flight_limit": ("staleness_cap", 96, 192),
        "running_samples_limit": ("staleness_cap", 48, 96),
        "publish_every": ("weight_updates", 1.0, 2.0),
        "queue_capacity_samples": ("trainers", 64, 128),
    }


@pytest.mark.parametrize(
    ("what", "setting", "is_staler"),
    [
        ("in_flight_limit", (64, 128), False),
        ("staleness_cap", (4, 6), False),
        ("staleness_cap", (4, 7), True),
        # Three versions of two steps each are six steps, four are eight.
        ("publish_every", (1.0, 2.0), False),
        ("publish_every", (1.0, 3.0), True),
    ],
)
def test_a_cap_does_not_excuse_what_loosens_it(what: ActionWhat, setting: tuple[float, float], is_staler: bool):
    found = calibration_of(of_small("samplers"), Admission(128, max_staleness=4))
    grounds = replace(PLAIN, capped=True, current_p95_steps=4)
    p95 = int(setting[1]) if what == "staleness_cap" else 3 if what == "publish_every" else 1_000
    staleness = StalenessForecast(float(p95), p95, p95)
    solver = counterfactuals(found, grounds)
    made = solver._action("change", what, "staleness_cap", *setting, gaining(solver, 0.5, Price(staleness)))
    assert made.is_staler is is_staler


def test_a_synchronous_run_without_another_split_is_told_to_overlap_in_its_own():
    own = Layout(4, 4, 16)
    run = replace(observed(SMALL, own, batches=(2, 4, 8, 16), steps=24), staleness=((0, 1_000),))
    ranking, advice, _ = ranked(run)
    assert advice.reason == "no_other_layout"
    found = first_of(ranking, "asynchronous")
    assert (found.cause, found.before, found.after, found.is_staler) == ("lockstep", own, own, False)
    assert found.staleness.sample_p95 <= 4
    assert ranking.first is found


@pytest.mark.parametrize(
    ("gain", "p95", "kind", "first"),
    [
        (0.100, 4, "change", "staleness_cap"),
        (0.099, 4, "change", "queue_capacity_samples"),
        (0.110, 5, "change", "queue_capacity_samples"),
        (0.110, 4, "fix", "queue_capacity_samples"),
        (0.130, 9, "change", "queue_capacity_samples"),
        (0.150, 9, "change", "staleness_cap"),
    ],
    ids=["as much and fresher", "less", "as fresh", "no setting", "as much and staler", "more"],
)
def test_of_settings_that_bring_as_much_the_one_that_keeps_samples_fresher_goes_first(gain, p95, kind, first):
    queue = replace(action(0.12, "queue_capacity_samples"), price=Price(StalenessForecast(1.0, 5, 5)))
    cap = replace(action(gain, "staleness_cap", kind=kind), price=Price(StalenessForecast(1.0, p95, p95)))
    assert _listed([queue, cap])[0].what == first
