"""What changed is named, its share of the gain is the model's, and a promise is compared with what came."""

from dataclasses import dataclass, replace

import numpy as np
import polars as pl
import pytest

import rlscope
from rlscope import format as fmt
from rlscope.comparison.attribution import _measured_causes, _reaches, setting_changes
from rlscope.comparison.engines import engine_speed
from rlscope.comparison.facts import ComparedRun, StateKey, flattened, run_of
from rlscope.comparison.lengths import LengthChange, length_change
from rlscope.comparison.runs import compare_runs
from rlscope.comparison.statistics import Difference
from rlscope.comparison.warnings import CompareWarningKind
from rlscope.model.arrays import Reals
from rlscope.model.estimate import Estimate
from rlscope.model.forecast.actions import Action, ActionWhat
from rlscope.model.forecast.change import Change
from rlscope.model.forecast.price import Price
from rlscope.model.forecast.result import NOT_ASKED
from rlscope.model.forecast.what_if import what_if
from rlscope.model.lengths import LengthLaw
from rlscope.model.system import Layout, WeightUpdateCost
from rlscope.model.warnings import ModelWarning
from rlscope.reports.text.comparison import causes_sentence
from tests.comparison.made_runs import made_run


def laid_out(run: ComparedRun, trainers: int, samplers: int, colocated: int, max_running: int | None) -> ComparedRun:
    """The run on these GPUs, with this limit of running requests."""
    split = {"trainer_gpus": trainers, "sampler_gpus": samplers, "colocated_gpus": colocated}
    return replace(run, run=replace(run.run, **split), max_running=max_running)  # type: ignore[arg-type]


def test_the_first_action_carried_out_is_named_and_its_promise_held(pair: rlscope.Comparison) -> None:
    (found,) = pair.pairs
    rate, said = found.differences.row("tokens_per_s"), found.attribution
    assert rate.is_significant and rate.change > 0.3
    cause = said.causes[0]
    assert (cause.kind, cause.name, cause.before, cause.after) == ("setting", "max_running", "8", "32")
    assert said.promise.rank == 1
    assert said.promise.is_kept and said.promise.is_alone and said.promise.missed_by_ratio == 0.0
    prices = ("dropped_ratio", "staleness_p95_steps", "trained_length_change_ratio", "longest_trained_ratio")
    assert {each.name: each.is_as_predicted for each in said.promise.prices} == dict.fromkeys(prices, True)
    assert "% to max running per engine 8 → 32; measured +" in causes_sentence(found)


def test_a_change_that_was_not_recommended_has_no_promise(pair: rlscope.Comparison) -> None:
    (found,) = compare_runs(pair.pairs[0].run, [pair.baseline]).pairs
    assert found.attribution.promise is None
    assert found.attribution.causes[0].alone_ratio < 0


def capped(run: ComparedRun, cap: int, length_factor: float) -> ComparedRun:
    """The run under another cap, with responses so many times as long."""
    tokens = (run.table.trained_tokens * length_factor).astype(int)
    settings = {**run.settings, "max_output_tokens": cap}
    return replace(run, settings=settings, table=replace(run.table, trained_tokens=tokens))


def test_lengths_that_changed_with_the_cap_are_credited_to_the_cap(before: rlscope.Analysis) -> None:
    """A lower cap cuts the run's own responses; those that it cut itself do not say how long they would have been."""
    run = run_of(before)
    found = [compare_runs(run, [capped(run, *each)]).pairs[0] for each in ((48, 0.5), (192, 1.5))]
    assert all(pair.differences.row("response_tokens").is_significant for pair in found)
    (lower,), (higher,) = (pair.attribution.causes for pair in found)
    assert (lower.name, higher.name) == ("max_output_tokens", "max_output_tokens")
    assert lower.change == Change(max_output_tokens=48)
    assert higher.change.length_factor == pytest.approx(1.5, rel=0.01)
    assert higher.change.max_output_tokens == pytest.approx(1.5 * 96, rel=0.02)
    assert [pair.warnings for pair in found] == [(), ()]


def test_lengths_that_moved_against_the_cap_have_a_cause_of_their_own(before: rlscope.Analysis) -> None:
    run = run_of(before)
    (pair,) = compare_runs(run, [capped(run, 192, 0.5)]).pairs
    assert [each.name for each in pair.attribution.causes] == ["response_lengths", "max_output_tokens"]
    assert pair.attribution.causes[1].alone_ratio == pytest.approx(0.0, abs=1e-6)


def test_passes_that_are_shorter_for_their_shorter_responses_make_no_faster_engine(before: rlscope.Analysis) -> None:
    """Every pass takes 10 ms and 0.1 ms for each 10 tokens of KV: the same engine, with other lengths."""

    def with_lengths(median_tokens: float, base_s: float = 0.010) -> ComparedRun:
        run = run_of(before)
        system, lengths = run.model.calibration.system, LengthLaw.lognormal(median_tokens, 0.5)
        held = system.workload.prompt_tokens + lengths.second_moment / (2 * lengths.mean_tokens)
        engine = replace(system.engine, curve=HeldCurve(1e-5, base_s))
        workload = replace(system.workload, lengths=lengths)
        calibration = replace(run.model.calibration, system=replace(system, engine=engine, workload=workload))
        pass_s = base_s + pl.col("running") * held * 1e-5
        passes = run.answers["pass_latency"].with_columns(pass_mean_s=pass_s, between_mean_s=pl.lit(0.0))
        changed = with_passes(run, passes)
        return replace(changed, model=replace(run.model, calibration=calibration))

    long, short = with_lengths(300.0), with_lengths(75.0)
    assert engine_speed(long, replace(short, model=NOT_ASKED)) is not None  # Unknown lengths: the passes are shorter.
    assert engine_speed(long, short) is None and engine_speed(short, long) is None
    slower = engine_speed(long, with_lengths(75.0, 0.030))
    assert slower < 0.9


def test_a_pass_that_makes_three_tokens_per_request_in_twice_the_time_is_half_as_fast_again(before):
    run = run_of(before)
    drafted = with_pass_s(run, 2.0).answers["pass_latency"].with_columns(pl.col("decode_tokens") * 3)
    assert engine_speed(run, with_passes(run, drafted)) == pytest.approx(1.5)


def with_passes(run: ComparedRun, passes: pl.DataFrame) -> ComparedRun:
    return replace(run, answers={**run.answers, "pass_latency": passes})


def with_pass_s(run: ComparedRun, factor: float) -> ComparedRun:
    """The same run with passes so many times as long at each batch size."""
    longer = run.answers["pass_latency"].with_columns(pl.col("pass_mean_s", "between_mean_s") * factor)
    return with_passes(run, longer)


@dataclass(frozen=True)
class HeldCurve:
    """Decode passes of a known length."""

    kv_s_per_token: float
    base_s: float

    def pass_s(self, running: Reals | float) -> Reals:
        return np.full(np.shape(running), self.base_s)


@pytest.mark.parametrize(
    ("cap", "change", "of_cap", "beyond"),
    [
        ((100, 50), -0.25, -0.25, None),
        ((100, 50), 0.10, 0.0, 0.10),
        ((100, 300), 0.50, 0.50, None),
        ((100, 300), -0.20, 0.0, -0.20),
        ((100, None), 0.50, 0.50, None),
        ((None, 100), -0.50, -0.50, None),
        ((100, 100), 0.50, 0.0, 0.50),
        ((100, 100), 0.005, 0.0, None),  # The interval is a hundredth to either side.
        (("long", 100), 0.50, 0.0, 0.50),
    ],
)
def test_a_change_of_lengths_in_the_direction_of_a_changed_cap_is_credited_to_the_cap(
    cap: tuple[object, object], change: float, of_cap: float, beyond: float | None
) -> None:
    before, after = (made_run(settings={"max_output_tokens": each}) for each in cap)
    measured = Difference(50.0, 50.0 * (1 + change), "ratio", change, change - 0.01, change + 0.01)
    found = length_change(before, after, replace(measured, is_significant=True))
    assert (found.of_cap, found.beyond) == (pytest.approx(of_cap), pytest.approx(beyond))


def test_settings_are_compared_by_dotted_names_and_what_makes_no_run_faster_is_left_out() -> None:
    assert dict(flattened({"a": {"b": 1, "c": {"d": [1]}}, "e": None})) == {"a.b": 1, "a.c.d": [1], "e": None}
    plain = made_run(settings={"max_staleness": 1, "lr": 0.1, "total_steps": 5})
    other = made_run(settings={"max_staleness": None, "note": [1, 2], "total_steps": 9})
    assert setting_changes(plain, other) == {"lr": (0.1, None), "max_staleness": (1, None), "note": (None, "[1, 2]")}


def test_a_change_whose_effect_is_unknown_is_named_with_the_reason() -> None:
    plain = made_run(settings={"lr": 1})
    compared = compare_runs(plain, [made_run(periods_s=[1.0] * 20, settings={"lr": 2})])
    cause = compared.pairs[0].attribution.causes[0]
    assert (cause.name, cause.alone_ratio, cause.unpriced_because) == ("lr", None, "no_model")
    assert causes_sentence(compared.pairs[0]) == (
        "Changed, with an unknown effect: lr 1 → 2, training speed, relative 1 → 2 (no model could be fitted to A)."
    )


@pytest.mark.parametrize(
    ("changed", "reasons"),
    [
        ({}, {"max_running": None}),
        ({"model.parameters": 1}, {"max_running": "other_network", "model.parameters": "other_network"}),
        ({"model.name": "after-sft"}, {"max_running": None, "model.name": "not_modeled"}),
    ],
)
def test_the_model_of_another_network_is_not_asked(
    changed: dict[str, object], reasons: dict[str, str | None], before: rlscope.Analysis
) -> None:
    first = run_of(before)
    assert "model.parameters" in first.settings
    second = replace(first, settings={**first.settings, "max_running": 32, **changed}, max_running=32)
    causes = compare_runs(first, [second]).pairs[0].attribution.causes
    assert {each.name: each.unpriced_because for each in causes} == reasons
    assert all((each.alone_ratio is None) == (each.unpriced_because is not None) for each in causes)


def test_a_model_that_does_not_reproduce_its_own_run_is_not_asked(pair: rlscope.Comparison) -> None:
    first, second = pair.baseline, pair.pairs[0].run
    replay = first.model.replay
    off = replace(replay, compared=(replace(replay.rate, measured=2.0, replayed=1.0), *replay.compared[1:]))
    found = compare_runs(replace(first, model=replace(first.model, replay=off), promised=()), [second]).pairs[0]
    assert found.attribution.promise is None and found.attribution.together_ratio is None
    assert {each.unpriced_because for each in found.attribution.causes} == {"not_reproduced"}


def test_shares_by_a_model_that_missed_its_held_out_steps_are_called_rough(pair: rlscope.Comparison) -> None:
    first, second = pair.baseline, pair.pairs[0].run
    rough = replace(first, model=replace(first.model, warnings=(ModelWarning.PREDICTION_MISSED,)))
    assert [each.kind for each in compare_runs(rough, [second]).pairs[0].warnings] == [CompareWarningKind.MODEL_MISSES]


@pytest.mark.parametrize(
    ("low", "high", "within"), [(0.0, 0.1, True), (0.0, 0.099, False), (0.3, 0.4, True), (0.301, 0.4, False)]
)
def test_a_gain_whose_interval_touches_the_predicted_one_is_within_the_error(
    low: float, high: float, within: bool
) -> None:
    measured, predicted = Difference(1.0, 1.05, "ratio", 0.05, low, high), Estimate(0.2, 0.1, 0.3)
    assert _reaches(measured, predicted) is within
    assert not _reaches(replace(measured, low=None, high=None), predicted)


def promised(what: ActionWhat, after: Layout | float | None) -> Action:
    """An action that is predicted to gain 10% to 30%."""
    gains = np.repeat([0.1, 0.2, 0.3], [10, 80, 10])
    return Action("change", what, "samplers", None, after, gains, Price(), Price(), None)


ACTIONS = (
    promised("running_limit", Layout(1, 1, 32)),
    promised("staleness_cap", 5),
    promised("asynchronous", Layout(1, 1, 8)),
    promised("colocated", None),
)


@pytest.mark.parametrize(
    ("layout", "settings", "rank", "is_alone"),
    [
        ((1, 1, 0, 32), {}, 1, True),
        ((1, 1, 0, 8), {"max_staleness": 5}, 2, True),
        ((1, 1, 0, 8), {"max_staleness": 6}, None, None),
        ((1, 1, 0, 8), {"synchronous": False}, 3, True),
        ((0, 0, 2, 8), {}, 4, True),
        ((1, 1, 0, 32), {"max_staleness": 5}, 1, False),
    ],
)
def test_the_promise_of_any_action_is_recognized(
    layout: tuple[int, int, int, int], settings: dict[str, object], rank: int | None, is_alone: bool | None
) -> None:
    stated = {"max_staleness": 4, "synchronous": True}
    plain = replace(laid_out(made_run(settings=stated), 1, 1, 0, 8), promised=ACTIONS)
    other = replace(laid_out(plain, *layout), settings=stated | settings)
    promise = compare_runs(plain, [other]).pairs[0].attribution.promise
    assert (promise and promise.rank, promise and promise.is_alone) == (rank, is_alone)


def with_checkpoints(run: ComparedRun, seconds: float) -> ComparedRun:
    """The same run with trainers that save for so long in every step."""
    spent = np.full(run.table.step_s.size, seconds * run.run.trainer_gpus)
    states = {**run.table.state_gpu_s, StateKey("trainer", "checkpoint", None): spent}
    return replace(run, table=replace(run.table, step_s=run.table.step_s + seconds, state_gpu_s=states))


def test_checkpoints_that_one_run_writes_are_named_with_what_the_model_makes_of_them(before: rlscope.Analysis) -> None:
    first = run_of(before)
    step_s = float(first.table.step_s.mean())
    second = with_checkpoints(first, 4.0 * step_s)
    (cause,) = compare_runs(first, [second]).pairs[0].attribution.causes
    assert (cause.kind, cause.name, cause.before) == ("measured", "checkpoints", "0")
    assert float(cause.after) == pytest.approx(4.0 * step_s, rel=0.01)
    # The trainer has little else to do while it waits for samples, and then writes for four times as long.
    assert -0.8 < cause.alone_ratio < -0.6


def test_a_recommended_fix_is_recognized_by_what_was_measured(before: rlscope.Analysis) -> None:
    run = replace(run_of(before), promised=(ACTIONS[0], promised("engine_speed", 1.1)))
    found = compare_runs(run, [with_pass_s(run, 0.8)]).pairs[0].attribution
    assert (found.promise.rank, found.promise.target, found.promise.is_fix) == (2, "engine_speed", True)
    assert found.promise.gain_ratio.value == pytest.approx(found.causes[0].alone_ratio)
    assert compare_runs(run, [with_pass_s(run, 1.25)]).pairs[0].attribution.promise is None


@pytest.mark.parametrize(
    ("before_update", "after_update", "told"),
    [
        # An update in the background takes longer to arrive, and holds nobody up.
        (WeightUpdateCost(2.0, 0.5, 1.0), WeightUpdateCost(0.0, 0.0, 9.0), ("2", "0", 0.0)),
        (WeightUpdateCost(0.5, 2.0, 1.0), WeightUpdateCost(0.5, 3.0, 0.0), ("2", "3", 3.0)),
        (WeightUpdateCost(), WeightUpdateCost(0.0, 3.0, 0.0), ("0", "3", 3.0)),
        # The model scales what it has: of an update that only arrives late it knows no other time.
        (WeightUpdateCost(0.0, 0.0, 1.0), WeightUpdateCost(0.0, 3.0, 1.0), ("0", "3", None)),
        (WeightUpdateCost(0.0, 2.0, 1.0), WeightUpdateCost(0.0, 2.0, 9.0), None),
    ],
)
def test_updates_differ_by_the_time_that_they_hold_a_side_up(before_update, after_update, told, before):
    first, second = (updated(run_of(before), each) for each in (before_update, after_update))
    causes = _measured_causes(first, second, first.model, LengthChange(0.0, None, 0.0), None)
    found = [(each.before, each.after, each.change and each.change.weight_update_s) for each in causes]
    assert found == ([] if told is None else [told])


def updated(run: ComparedRun, update: WeightUpdateCost) -> ComparedRun:
    """The run with updates of these times, by its model."""
    calibration = run.model.calibration
    system = replace(calibration.system, update=update)
    return replace(run, model=replace(run.model, calibration=replace(calibration, system=system)))


@pytest.mark.parametrize(("seconds", "named"), [(0.021, ["checkpoints"]), (0.019, [])])
def test_checkpoints_that_take_under_a_hundredth_of_a_step_are_not_named(seconds: float, named: list[str]) -> None:
    plain = made_run()
    causes = compare_runs(plain, [with_checkpoints(plain, seconds)]).pairs[0].attribution.causes
    assert [each.name for each in causes] == named
    assert all(each.unpriced_because == "no_model" for each in causes)


def test_publishing_every_few_steps_is_a_cause_of_its_own_and_several_are_predicted_together_too(
    pair: rlscope.Comparison,
) -> None:
    rarer = replace(pair.pairs[0].run, steps_per_version=2.0)
    (found,) = compare_runs(pair.baseline, [rarer]).pairs
    raised, published = found.attribution.causes
    assert (published.kind, published.name, published.before, published.after) == ("setting", "publish_every", "1", "2")
    assert raised.name == "max_running" and published.alone_ratio is not None
    both = what_if(pair.baseline.model, Change(max_running=32, publish_every=2)).gain_ratio
    assert found.attribution.together_ratio == both.value
    assert f"{fmt.signed_percent(both.value)} to all changes together; measured" in causes_sentence(found)
