"""What a changed run would do: against the truth that the calibration was made from, and against the recommendation."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from rlscope.errors import ImpossibleChangeError
from rlscope.model.estimate import Estimate
from rlscope.model.forecast.change import (
    Change,
    applied,
    changed_workload,
    timed_update,
    warnings_of,
    with_engine_speed,
    with_trainer_speed,
)
from rlscope.model.forecast.result import ModelResult, model_run
from rlscope.model.forecast.what_if import WhatIf, asked_layouts, what_if
from rlscope.model.lengths import LengthLaw
from rlscope.model.policies import StalenessPolicy
from rlscope.model.system import (
    CHECKPOINTS_PHASE,
    Admission,
    Granularity,
    Layout,
    System,
    Trainer,
    TrainerPhase,
    WeightUpdateCost,
    Workload,
)
from rlscope.model.warnings import ModelWarning
from tests.model.few_draws import few_draws
from tests.model.known_run import QUESTION, TRUTH, candidates_of, observed, steady
from tests.model.simulated_systems import with_admission, with_engine, with_workload

CAPPED = LengthLaw(np.array([100.0, 200.0, 400.0]), np.array([0.5, 0.3, 0.2]), max_output_tokens=400)


@cache
def model() -> ModelResult:
    """Of the known run: two trainer GPUs, six engines of one GPU, trainers the slower side."""
    return model_run(observed(), None, QUESTION)


@cache
def synchronous_model() -> ModelResult:
    run = observed()
    with few_draws():
        return model_run(replace(run, staleness=((0, run.delivered.trained_tokens),)), None, QUESTION)


@cache
def queued_model() -> ModelResult:
    """Of the same run with a queue of two batches."""
    with few_draws():
        return model_run(observed(), None, replace(QUESTION, candidates=candidates_of(Admission(512))))


def rate(found: WhatIf) -> float:
    return found.predicted.tokens_per_s


def changed_by(
    change: Change, system: System, per_version: float = 1.0, policy: StalenessPolicy = "admission"
) -> System:
    return applied(change, system.workload, per_version, policy)(system)


def test_a_change_of_nothing_is_todays_forecast_draw_by_draw():
    for said in (model(), synchronous_model()):
        found = what_if(said, Change())
        today = said.forecasts.today
        assert np.array_equal(found.predicted.drawn_tokens_per_s, today.drawn_tokens_per_s)
        assert found.predicted.tokens_per_s == today.tokens_per_s
        assert (found.predicted.staleness, found.predicted.timing) == (today.staleness, today.timing)
        assert found.gain_ratio == Estimate(0.0, 0.0, 0.0)
        assert found.warnings == (() if said.replay.explains else (ModelWarning.NOT_EXPLAINED,))


@pytest.mark.parametrize(
    "named",
    [("trainer_gpus",), ("sampler_gpus",), ("trainer_gpus", "sampler_gpus"), ("total_gpus", "trainer_gpus")],
)
def test_another_layout_is_forecast_as_the_recommendation_forecasts_it(named: tuple[str, ...]):
    said = model()
    candidate = said.forecasts.rivals[0]
    layout = candidate.layout
    asked = {"trainer_gpus": layout.trainer_gpus, "sampler_gpus": layout.sampler_gpus, "total_gpus": layout.gpus}
    answer = what_if(said, Change(max_running=layout.max_running, **{name: asked[name] for name in named}))
    found = answer.predicted
    assert (found.layout, found.in_flight_limit) == (layout, candidate.in_flight_limit)
    assert found.tokens_per_s == pytest.approx(candidate.tokens_per_s)
    assert found.drawn_tokens_per_s == pytest.approx(candidate.drawn_tokens_per_s)
    assert found.grade == candidate.grade


@pytest.mark.parametrize(
    ("change", "system"),
    [
        (Change(trainer_speed=1.5), replace(TRUTH, trainer=replace(TRUTH.trainer, tokens_per_gpu_s=12_000.0))),
        (Change(engine_speed=0.25), with_engine(TRUTH, curve=TRUTH.engine.curve.sped_up(0.25))),
        (Change(samples_per_step=512), with_workload(TRUTH, samples_per_step=512)),
        (Change(length_factor=1.5), with_workload(TRUTH, lengths=TRUTH.workload.lengths.scaled(1.5))),
        (Change(weight_update_s=1.0), replace(TRUTH, update=WeightUpdateCost(0.5, 1.0))),
        (Change(publish_every=2), with_workload(TRUTH, samples_per_step=512, batches_per_version=2)),
        (Change(max_in_flight_samples=400), with_admission(TRUTH, max_in_flight_samples=400)),
    ],
)
def test_a_changed_run_does_what_the_changed_truth_does(change: Change, system: System):
    found, expected = what_if(model(), change), steady(system)
    # What the fit errs at this context; engines that are slower fill batches beyond those that the run had, where the
    # truth lies in the outer tenth of the draws.
    error_ratio, outside = (0.12, 0.01) if change.engine_speed else (0.07, 0.05)
    assert rate(found) == pytest.approx(expected.trained_tokens_per_s, rel=error_ratio)
    low, high = np.quantile(found.predicted.drawn_tokens_per_s, [outside, 1.0 - outside])
    assert low <= expected.trained_tokens_per_s <= high
    assert found.predicted.timing.step_s == pytest.approx(expected.step_s, rel=error_ratio)
    worked_ratio = (expected.train_s - system.update.trainer_blocked_s) / expected.step_s
    assert found.predicted.timing.trainer_idle_ratio == pytest.approx(1.0 - worked_ratio, abs=0.57 * error_ratio)


def test_gpus_alone_are_split_the_fastest_way():
    said = model()
    with few_draws():
        found = what_if(said, Change(total_gpus=5))
        by_hand = [what_if(said, Change(total_gpus=5, trainer_gpus=trainers)) for trainers in range(1, 5)]
    assert found.chose_layout and not by_hand[0].chose_layout
    assert rate(found) == max(map(rate, by_hand)) > min(map(rate, by_hand))


@pytest.mark.parametrize("said", [model, synchronous_model])
def test_a_target_is_reached_with_the_fewest_gpus_in_their_fastest_split(said: Callable[[], ModelResult]):
    def shown(found: WhatIf) -> float:
        return found.now.tokens_per_s * (1.0 + found.gain_ratio.value)

    asked = said()
    with few_draws():
        by_total = {gpus: what_if(asked, Change(total_gpus=gpus)) for gpus in (5, 6)}
        five, six = map(shown, by_total.values())
        assert five < 0.98 * six
        least = 0.99  # a shortfall of 1% is noise
        for target, gpus in [(five * 0.999999 / least, 5), (five * 1.000001 / least, 6)]:
            found = what_if(asked, Change(target_tokens_per_s=target))
            assert (found.predicted.layout, shown(found)) == (by_total[gpus].predicted.layout, shown(by_total[gpus]))
            assert found.chose_layout


def test_a_target_beyond_what_the_most_gpus_reach_is_refused(monkeypatch):
    monkeypatch.setattr("rlscope.model.forecast.what_if._MOST_GPUS_RATIO", 2)
    reason = r"no split of up to 16 GPUs reaches 1e\+09 trained tokens/s"
    with few_draws(), pytest.raises(ImpossibleChangeError, match=reason):
        what_if(model(), Change(target_tokens_per_s=1e9))


def test_a_run_by_turns_goes_on_by_turns_with_other_gpus():
    found = what_if(synchronous_model(), Change(trainer_gpus=3))
    assert found.predicted.staleness.token_mean == 0.0
    timing = found.predicted.timing
    assert timing.trainer_idle_ratio + timing.sampler_idle_ratio >= 1.0
    assert what_if(synchronous_model(), Change(total_gpus=12)).predicted.staleness == found.predicted.staleness


@pytest.mark.parametrize(
    ("change", "obstacle"),
    [
        (Change(max_staleness=0), "synchronous"),
        (Change(samples_per_step=516), "queue_capacity_samples"),
        (Change(samples_per_step=512), None),  # exactly as many as the queue holds
        (Change(queue_capacity_samples=255), "queue_capacity_samples"),
        (Change(queue_capacity_samples=256), None),  # exactly the samples of a step
        (Change(max_in_flight_samples=252), "in_flight_cap"),
        (Change(max_in_flight_samples=256), None),
        (Change(publish_every=4), None),  # 1,024 samples of a version, taken 256 at a time
    ],
)
def test_what_cannot_run_has_no_rate_and_says_why(change: Change, obstacle: str | None):
    with few_draws():
        found = what_if(queued_model(), change)
    assert found.obstacle == obstacle
    assert (found.predicted.tokens_per_s is None) == (found.gain_ratio is None) == (obstacle is not None)


@pytest.mark.parametrize(
    ("today", "change", "expected"),
    [
        (Admission(512), Change(queue_capacity_samples=256), Admission(256)),
        (Admission(512), Change(queue_capacity_samples=0), Admission()),
        (Admission(512, "drop_oldest"), Change(queue_capacity_samples=0), Admission()),
        (Admission(512, "drop_oldest"), Change(queue_capacity_samples=256), Admission(256, "drop_oldest")),
        (Admission(), Change(queue_capacity_samples=256), Admission(256)),
        (Admission(), Change(max_in_flight_samples=401), Admission(max_in_flight_samples=401)),
        (Admission(max_in_flight_samples=400), Change(max_in_flight_samples=0), Admission()),
        (Admission(max_in_flight_samples=400), Change(), Admission(max_in_flight_samples=400)),
    ],
)
def test_a_limit_is_set_moved_or_removed(today: Admission, change: Change, expected: Admission):
    assert changed_by(change, replace(TRUTH, admission=today)).admission == expected


def test_a_version_of_more_steps_trains_more_batches_and_is_published_once():
    often, rare = TrainerPhase("log-probabilities", 2.0, True), TrainerPhase("checkpoints", 1.0, False, every_steps=10)
    trainer = Trainer(100.0, 2, overhead_s=1.0, phases=(often, rare))
    workload = replace(TRUTH.workload, prefetched_batches=1.0)
    changed = changed_by(Change(publish_every=4), replace(TRUTH, trainer=trainer, workload=workload))
    assert (changed.workload.samples_per_step, changed.workload.samples_per_batch) == (1_024, 256)
    assert changed.workload.prefetched_batches == 0.25
    # What comes every 10 steps comes every 2 or 3 versions of 4 steps.
    phases = replace(often, step_s=8.0), replace(rare, step_s=4.0, every_steps=2)
    assert changed.trainer == replace(trainer, overhead_s=4.0, phases=phases)
    assert changed.update == TRUTH.update


@pytest.mark.parametrize(
    ("change", "other_s"),
    [
        (Change(), 6e-4),
        (Change(samples_per_step=512), 3e-4),
        (Change(length_factor=1.5), 4e-4),
        (Change(samples_per_step=512, length_factor=1.5, publish_every=4), 2e-4),
        (Change(publish_every=4), 6e-4),
    ],
)
def test_an_evaluation_of_the_engines_comes_after_as_many_steps_however_many_tokens_they_have(
    change: Change, other_s: float
):
    system = with_engine(TRUTH, curve=replace(TRUTH.engine.curve, other_s_per_request=6e-4))
    assert changed_by(change, system).engine.curve.other_s_per_request == pytest.approx(other_s)


@pytest.mark.parametrize(
    ("per_version", "added_s", "left_s"),
    [(1.0, 0.5, [2.5]), (4.0, 0.5, [4.0]), (4.0, -0.25, [1.0]), (4.0, -0.5, []), (1.0, -3.0, [])],
)
def test_seconds_of_checkpoints_are_added_to_each_step_of_a_version(
    per_version: float, added_s: float, left_s: list[float]
):
    own = TrainerPhase(CHECKPOINTS_PHASE, 2.0, False, every_steps=5)
    system = replace(TRUTH, trainer=Trainer(100.0, 2, phases=(TrainerPhase("log-probabilities", 1.0, True), own)))
    changed = changed_by(Change(added_checkpoint_s=added_s), system, per_version)
    left = [replace(own, step_s=seconds) for seconds in left_s]
    assert changed.trainer.phases == (TrainerPhase("log-probabilities", 1.0, True), *left)


@pytest.mark.parametrize(
    ("today", "asked", "samples", "batches"),
    [(1.0, 3, 768, 3), (4.0, 8, 512, 2), (4.0, 2, 128, 1), (4.0, 4, 256, 1)],
)
def test_steps_that_share_a_batch_today_go_on_to_share_it(today: float, asked: int, samples: int, batches: int):
    workload = changed_workload(TRUTH.workload, Change(publish_every=asked), today)
    assert (workload.samples_per_step, workload.batches_per_version) == (samples, batches)
    assert changed_workload(TRUTH.workload, Change(samples_per_step=100), today).samples_per_step == 100 * today


PAIRS = Granularity(gpus_per_engine=2, gpus_per_trainer_replica=2)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (Change(), Layout(4, 4, 8)),
        (Change(max_running=16), Layout(4, 4, 16)),
        (Change(trainer_gpus=2), Layout(2, 6, 8)),
        (Change(sampler_gpus=2), Layout(6, 2, 8)),
        (Change(trainer_gpus=2, sampler_gpus=2), Layout(2, 2, 8)),
        (Change(total_gpus=12, sampler_gpus=2), Layout(10, 2, 8)),
        (Change(total_gpus=4), Layout(2, 2, 8)),
    ],
)
def test_the_side_that_is_not_named_gets_the_rest(change: Change, expected: Layout):
    assert asked_layouts(Layout(4, 4, 8), change, PAIRS) == (expected,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (Change(trainer_gpus=3), "3 trainer GPUs of 8: trainer GPUs come in multiples of 2.*the nearest is 2 or 4"),
        (Change(sampler_gpus=5), "3 trainer GPUs of 8"),
        (Change(trainer_gpus=8), "0 sampler GPUs of 8: .*the nearest is 2$"),
        (Change(trainer_gpus=12), "12 trainer GPUs are more than all 8; give both sides, or the total too"),
        (Change(sampler_gpus=12), "12 sampler GPUs are more than all 8"),
        (Change(trainer_gpus=2, sampler_gpus=2, total_gpus=8), "2 trainer and 2 sampler GPUs are not 8 in all"),
        (Change(total_gpus=3), "3 GPUs make no trainer and engine: .*sampler GPUs in multiples of 2"),
    ],
)
def test_gpus_that_make_no_layout_are_refused_with_the_multiple(change: Change, message: str):
    with pytest.raises(ImpossibleChangeError, match=message):
        asked_layouts(Layout(4, 4, 8), change, PAIRS)


@pytest.mark.parametrize("change", [Change(total_gpus=514), Change(trainer_gpus=1, sampler_gpus=513)])
def test_more_engines_than_can_be_simulated_are_refused_unless_the_run_needs_no_simulation(change: Change):
    with pytest.raises(ImpossibleChangeError, match="513 engines; at most 512 can be simulated"):
        what_if(model(), change)
    assert what_if(synchronous_model(), change).predicted.layout.gpus == 514


@pytest.mark.parametrize(
    ("change", "support", "cap"),
    [
        (Change(length_factor=0.5), [50, 100, 200], 400),
        (Change(length_factor=3.0), [300, 400], 400),
        (Change(max_output_tokens=150), [100, 150], 150),
        (Change(max_output_tokens=800), [100, 200, 400], 800),
        (Change(length_factor=2.0, max_output_tokens=800), [200, 400, 800], 800),
        (Change(length_factor=0.5, max_output_tokens=150), [50, 100, 150], 150),
    ],
)
def test_lengths_are_scaled_and_then_cut(change: Change, support: list[int], cap: int):
    law = changed_workload(Workload(CAPPED, 50.0, 4, 64), change, 1.0).lengths
    assert (law.support.tolist(), law.max_output_tokens) == (support, cap)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (Change(max_output_tokens=400), ()),  # the cap that was
        (Change(max_output_tokens=401), ("cut_lengths",)),
        (Change(max_output_tokens=300), ()),
        (Change(length_factor=0.9), ("cut_lengths",)),  # samples at the cap were longer, nobody knows by how much
        (Change(length_factor=2.0), ()),
        (Change(length_factor=2.0, max_output_tokens=801), ("cut_lengths",)),
        (Change(length_factor=2.0, max_output_tokens=800), ()),
        (Change(), ()),
    ],
)
def test_lengths_that_the_cap_hid_are_doubted(change: Change, expected: tuple[str, ...]):
    capped = with_workload(TRUTH, lengths=CAPPED)
    assert warnings_of(change, capped, trainer_gpus=2, new_cap_policy="admission") == expected
    assert warnings_of(change, TRUTH, trainer_gpus=3, new_cap_policy="admission") == ("training_scaling",)


def test_other_tokens_of_a_step_are_doubted_where_its_time_hardly_grew_with_them():
    for change in (Change(samples_per_step=512), Change(length_factor=2.0), Change(max_output_tokens=400)):
        assert warnings_of(change, TRUTH, 2, "admission", flat_steps=True) == ("flat_steps",)
        assert warnings_of(change, TRUTH, 2, "admission") == ()
    assert warnings_of(Change(publish_every=2, trainer_speed=2.0), TRUTH, 2, "admission", flat_steps=True) == ()


def test_a_forecast_that_rests_on_hidden_lengths_is_assumed():
    with few_draws():
        said = model_run(replace(observed(), lengths=CAPPED), None, QUESTION)
        assert what_if(said, Change(max_output_tokens=400)).predicted.grade != "assumed"
        assert what_if(said, Change(max_output_tokens=800)).predicted.grade == "assumed"


def test_a_run_that_drops_what_is_too_old_drops_under_a_new_cap_and_another_one_waits():
    change = Change(max_staleness=2)
    for policy, warnings in (("drop", ()), ("admission", ("cap_by_admission",))):
        assert changed_by(change, TRUTH, policy=policy).admission == Admission(None, "wait", 2, staleness_policy=policy)
        assert warnings_of(change, TRUTH, 2, policy) == warnings


def test_an_update_keeps_its_proportions_and_without_one_both_sides_stand_still():
    assert timed_update(WeightUpdateCost(0.5, 1.0, 1.5), 1.0) == WeightUpdateCost(0.25, 0.5, 0.75)
    assert timed_update(WeightUpdateCost(), 1.0) == WeightUpdateCost(1.0, 1.0, 0.0)
    # It lasts until the slower side goes on.
    assert WeightUpdateCost(0.5, 1.0, 0.4).seconds == 1.0
    assert WeightUpdateCost(0.5, 1.0, 0.6).seconds == 1.1
    found = what_if(model(), Change(weight_update_s=0.0))
    assert found.warnings == ()
    assert rate(found) > rate(what_if(model(), Change()))


def test_a_faster_trainer_computes_faster_and_writes_checkpoints_no_faster():
    phases = TrainerPhase("log-probabilities", 2.0, True), TrainerPhase("checkpoints", 3.0, False)
    expected = TrainerPhase("log-probabilities", 1.0, True), TrainerPhase("checkpoints", 3.0, False)
    slower = replace(TRUTH, trainer=Trainer(100.0, 2, overhead_s=1.0, phases=phases))
    assert with_trainer_speed(slower, 2.0).trainer == Trainer(200.0, 2, overhead_s=0.5, phases=expected)


def test_faster_engines_prefill_faster():
    faster = with_engine_speed(with_engine(TRUTH, prefill_tokens_per_s=1_000.0, prefill_pass_s=0.2), 2.0).engine
    assert (faster.prefill_tokens_per_s, faster.prefill_pass_s) == (2_000.0, 0.1)


def test_the_fastest_split_keeps_the_staleness_cap_where_one_does():
    change = Change(total_gpus=6, max_running=16)
    with few_draws():
        said = (model_run(observed(), None, replace(QUESTION, most_staleness=most)) for most in (None, 1))
        layouts = [what_if(each, change).predicted for each in said]
    assert layouts[0].staleness.sample_p95 > 1 >= layouts[1].staleness.sample_p95
    assert layouts[0].tokens_per_s > layouts[1].tokens_per_s
