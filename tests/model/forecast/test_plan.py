"""Layouts for a run that has not begun: what its plan says of the system, and what a plan must never say."""

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from rlscope.model.decode.prior import LogNormal
from rlscope.model.forecast.plan import PlanResult, by_split, layouts_of, limits_of, plan_layouts
from rlscope.model.forecast.plan_prior import (
    UNKNOWNS,
    PlanInputs,
    UnplannableError,
    drawn_alone,
    drawn_systems,
    engine_prior,
    is_unsure,
    planned_system,
)
from rlscope.model.forecast.recommend import WORTHWHILE_RATIO
from rlscope.model.system import Layout
from rlscope.planning.build import plan_of
from rlscope.planning.schema import read_plan
from tests.planning.small_plan import SMALL_PLAN, write_plan


def plan_from(folder: Path, text: str) -> PlanInputs:
    return plan_of(read_plan(write_plan(folder, text)))


def split(layout: Layout) -> tuple[int, int]:
    return layout.trainer_gpus, layout.sampler_gpus


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> PlanResult:
    return plan_layouts(plan_from(tmp_path_factory.mktemp("small"), SMALL_PLAN))


def test_no_layout_beats_the_bound_and_asynchronous_beats_taking_turns(small: PlanResult) -> None:
    # A simulation knows its rate to about a hundredth.
    assert max(each.tokens_per_s or 0.0 for each in small.candidates) < 1.02 * small.bound_tokens_per_s
    assert small.best.tokens_per_s > small.synchronous.trained_tokens_per_s
    assert {each.grade for each in small.candidates if each.tokens_per_s} == {"assumed"}


def test_guesses_with_a_spread_make_an_interval_and_odds(small: PlanResult) -> None:
    low, median, high = np.quantile(small.best.drawn_tokens_per_s, [0.05, 0.5, 0.95])
    assert low < 0.8 * median and high > 1.1 * median
    assert sum(small.best_probability.values()) == pytest.approx(1.0)
    assert 0.1 < small.best_probability[small.best.layout] < 1.0
    assert list(small.best_probability) == [
        each.layout for each in small.candidates if each.drawn_tokens_per_s is not None
    ]


def test_what_matters_most_comes_first_and_what_is_certain_does_not_come(small: PlanResult) -> None:
    regrets = [each.regret_ratio for each in small.unknown_costs]
    # Choosing is free of regret where the unknown moves no layout past another.
    assert regrets[-1] == 0.0 < regrets[0] < 0.5
    assert regrets == sorted(regrets, reverse=True)
    effects = {each.unknown: each.rate_ratio for each in small.unknown_costs}
    # The plan is sure of its weight updates and lengths.
    assert {"weight_update", "lengths"} & set(effects) == set()
    assert next(iter(effects)) == "training_rate"
    assert effects["training_rate"].low < -0.1 and effects["training_rate"].high >= 0.0


def test_many_splits_are_tried_in_larger_steps(small: PlanResult) -> None:
    def steps(gpus: int, replica: int = 1) -> set[int]:
        granularity = replace(small.plan.granularity, gpus_per_trainer_replica=replica)
        plan = replace(small.plan, gpus=gpus, granularity=granularity)
        trainers = sorted({layout.trainer_gpus for layout in layouts_of(plan)})
        return {later - earlier for earlier, later in pairwise(trainers)}

    assert (steps(49), steps(50), steps(98)) == ({1}, {2}, {3})
    assert (steps(4 * 49, 4), steps(4 * 50, 4)) == ({4}, {8})


def test_a_tight_cap_is_kept_by_a_low_limit_on_running_requests(small: PlanResult) -> None:
    # A batch of 8 is 1/60 of what the engines may run: 16 times fewer requests are still too many for a cap of 2.
    few = replace(small.plan, workload=replace(small.plan.workload, samples_per_step=8), most_staleness=2)
    limits = limits_of(few)
    assert limits[0] == 1 and all(more <= math.ceil(1.2 * less) for less, more in pairwise(limits))
    best = plan_layouts(few).best
    assert best.layout.max_running < limits[-1] / 16
    assert best.staleness.sample_p95 <= 2


def test_a_limit_that_a_simulation_shows_to_be_too_stale_gives_way_to_a_lower_one(small: PlanResult) -> None:
    plan = replace(small.plan, workload=replace(small.plan.workload, samples_per_step=32), most_staleness=2)
    candidates = plan_layouts(plan).candidates
    (stale,) = (each for each in candidates if each.excluded == "too_stale" and each.tokens_per_s is not None)
    assert stale.staleness.sample_p95 == 3
    (lower,) = (each for each in candidates if split(each.layout) == split(stale.layout) and each is not stale)
    assert lower.staleness.sample_p95 <= 2 and lower.layout.max_running < stale.layout.max_running


def test_trainers_that_do_not_hold_what_they_train_are_out_of_the_question(small: PlanResult) -> None:
    # 16 bytes of 8.19 billion parameters are 131 GB: two GPUs of 80 GB hold them, one does not.
    assert {split(each.layout) for each in small.candidates if each.excluded == "trainer_memory"} == {(1, 5)}
    assert excluded_for(small, 80e9) == set()
    assert excluded_for(small, 80e9 + 1) == {(1, 5)}


def excluded_for(planned: PlanResult, state_bytes: float) -> set[tuple[int, int]]:
    plan = replace(planned.plan, training=replace(planned.plan.training, state_bytes=state_bytes))
    solved = by_split(planned.calibration, plan, layouts_of(plan))
    return {split(each.layout) for each, _ in solved if each.excluded == "trainer_memory"}


def test_a_poor_present_layout_is_left_and_the_best_one_kept(small: PlanResult) -> None:
    poor = plan_layouts(replace(small.plan, present=Layout(2, 4, 2)))
    assert poor.present is not None and poor.advice is not None and poor.best is not None
    assert poor.advice.changes and poor.best is not poor.present
    assert poor.advice.gain_ratio.value >= WORTHWHILE_RATIO
    good = plan_layouts(replace(small.plan, present=small.best.layout))
    assert good.best is good.present and good.advice is not None and not good.advice.changes


def test_a_certain_guess_is_the_same_in_every_draw(small: PlanResult) -> None:
    certain = replace(small.plan.decode, weight_bandwidth_log_sd=0.0)
    flat_s = [each.engine.curve.flat_s for each in drawn_systems(replace(small.plan, decode=certain), 20)]
    # At three quarters of the peak.
    assert flat_s == pytest.approx([2 * 8_190_735_360 / (3.35e12 * 0.75)] * 20)


def test_no_draw_is_faster_than_the_device(small: PlanResult) -> None:
    wide = replace(small.plan.decode, weight_bandwidth_log_sd=1.0, compute_log_sd=1.0, kv_bandwidth_log_sd=1.0)
    plan = replace(small.plan, decode=wide)
    curves = [draw.engine.curve for draw in drawn_systems(plan, 200)]
    weights_s = 2 * 8_190_735_360 / 3.35e12
    flat = np.array([curve.flat_s for curve in curves])
    assert flat.min() == pytest.approx(weights_s) and np.median(flat) == pytest.approx(weights_s / 0.75, rel=0.25)
    assert min(curve.per_request_s for curve in curves) == pytest.approx(2 * 8_190_735_360 / 989e12)
    assert min(curve.kv_s_per_token for curve in curves) == pytest.approx(147_456 / 3.35e12)


def test_an_unknown_alone_moves_nothing_else(small: PlanResult) -> None:
    routed = replace(small.plan.training, routing_s_per_token=LogNormal(1e-4, 0.5))
    plan = replace(small.plan, lengths_log_sd=0.3, update=replace(small.plan.update, seconds=LogNormal(3.0, 0.3)))
    plan = replace(plan, training=routed)
    median = planned_system(plan, {})
    for unknown in UNKNOWNS:
        low, middle, high = drawn_alone(plan, unknown, 3)
        assert middle.engine == median.engine and middle.update == median.update
        changed = {
            "engine": low.engine != high.engine,
            "trainer": low.trainer != high.trainer,
            "update": low.update != high.update,
            "lengths": low.workload.lengths.mean_tokens != high.workload.lengths.mean_tokens,
        }
        expected = {
            "weight_update": {"update"},
            "lengths": {"lengths", "trainer"},
            "training_rate": {"trainer"},
            "expert_routing": {"trainer"},
        }
        moved = expected.get(unknown, {"trainer"} if unknown == "trainer_scaling" else {"engine"})
        assert {name for name, moves in changed.items() if moves} == moved, unknown
        assert is_unsure(plan, unknown)


def test_the_exponent_of_training_stays_inside_what_can_be(small: PlanResult) -> None:
    plan = replace(small.plan, training=replace(small.plan.training, scaling_exponent=0.9, scaling_exponent_sd=1.0))
    exponents = [draw.trainer.scaling_exponent for draw in drawn_systems(plan, 200)]
    assert 0.0 < min(exponents) < 0.2 and 1.0 < max(exponents) <= 1.05


def test_a_training_rate_that_is_stated_is_not_worked_out(small: PlanResult) -> None:
    stated = replace(small.plan, training=replace(small.plan.training, tokens_per_gpu_s=LogNormal(1234.0, 0.1)))
    assert planned_system(stated, {}).trainer.tokens_per_gpu_s == 1234.0
    # 0.35 of 989 TFLOP/s over 3 (2 N + 2 l d s) operations, s = prompt + E[L^2] / E[L].
    lengths = small.plan.workload.lengths
    tokens = 100 + lengths.second_moment / lengths.mean_tokens
    flop = 3 * (2 * 8_190_735_360 + 2 * 36 * 4096 * tokens)
    assert planned_system(small.plan, {}).trainer.tokens_per_gpu_s == pytest.approx(0.35 * 989e12 / flop)


def test_many_gpus_of_an_engine_are_known_less_well_unless_the_plan_says_more(small: PlanResult) -> None:
    two = replace(small.plan, granularity=replace(small.plan.granularity, gpus_per_engine=2))
    assert engine_prior(two).flat_s.log_sd > engine_prior(small.plan).flat_s.log_sd
    sure = replace(two, decode=replace(two.decode, weight_bandwidth_log_sd=0.01))
    assert engine_prior(sure).flat_s.log_sd == 0.01


def test_a_shape_that_says_too_little_is_refused(small: PlanResult) -> None:
    with pytest.raises(UnplannableError, match="parameters of the model, their bytes or its experts"):
        planned_system(replace(small.plan, shape=replace(small.plan.shape, active_parameters=10**9)), {})


EXPERTS = SMALL_PLAN.replace(
    "head_dim = 128",
    "head_dim = 128\nhidden_size = 2048\nexperts = 128\nexperts_per_token = 8\nactive_parameters = 1_200_000_000",
)


def without_routing(plan: PlanInputs) -> PlanInputs:
    return replace(plan, training=replace(plan.training, routing_s_per_token=None))


def routing_cost_s(plan: PlanInputs) -> float:
    """What routing adds to a token's seconds on a GPU."""
    with_it, without = (planned_system(each, {}).trainer.tokens_per_gpu_s for each in (plan, without_routing(plan)))
    return 1.0 / with_it - 1.0 / without


def test_routing_to_experts_costs_training_time_on_top_of_the_arithmetic(tmp_path: Path) -> None:
    plan = plan_from(tmp_path, EXPERTS)
    # 36 layers of 1.8 us and of 8 bytes for each of 8 x 2048 values at 92 GB/s.
    routing_s = 36 * (1.8e-6 + 8 * 8 * 2048 / 92e9)
    assert plan.training.routing_s_per_token.median == pytest.approx(routing_s)
    assert routing_cost_s(plan) == pytest.approx(routing_s)
    assert is_unsure(plan, "expert_routing") and not is_unsure(without_routing(plan), "expert_routing")


def test_every_pass_over_a_token_is_routed(tmp_path: Path) -> None:
    again = EXPERTS + "[training]\nrecompute_activations = true\nextra_forward_passes = 2\n"
    once, twice = (routing_cost_s(plan_from(tmp_path, text)) for text in (EXPERTS, again))
    assert twice == pytest.approx(2.0 * once)  # six forward passes' worth instead of three


@pytest.mark.parametrize("stated", ["mfu_ratio = 0.1", "tokens_per_gpu_s = 5000"])
def test_a_stated_share_of_the_peak_or_rate_has_the_routing_in_it(tmp_path: Path, stated: str) -> None:
    plan = plan_from(tmp_path, f"{EXPERTS}[training]\n{stated}\n")
    assert planned_system(plan, {}).trainer == planned_system(without_routing(plan), {}).trainer
    assert not is_unsure(plan, "expert_routing")


def test_a_dense_model_routes_nothing_and_an_unstated_hidden_size_is_that_of_the_heads(tmp_path: Path) -> None:
    assert plan_from(tmp_path, SMALL_PLAN).training.routing_s_per_token is None
    routing = plan_from(tmp_path, EXPERTS.replace("hidden_size = 2048\n", "")).training.routing_s_per_token
    assert routing.median == pytest.approx(36 * (1.8e-6 + 8 * 8 * 32 * 128 / 92e9))
