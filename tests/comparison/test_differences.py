"""Breakdowns close exactly, quantities are compared over one stretch, and what is not known is not invented."""

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlscope
from rlscope.comparison import differences
from rlscope.comparison.differences import Breakdown, Differences, differences_of
from rlscope.comparison.facts import (
    NOT_RUNNING,
    ComparedRun,
    GpuTime,
    StateKey,
    _closed,
    _dropped_ratio,
    _dropping_ratio,
    run_of,
)
from rlscope.comparison.runs import compare_runs, named
from rlscope.comparison.warnings import CompareWarningKind
from rlscope.reports.text.comparison import warning_words
from tests.comparison.made_runs import DECODE, EVEN, IDLE, WAIT, WORK, made_run
from tests.kept import analysis_of


def breakdown(differences: Differences, name: str, role: str | None = None) -> Breakdown:
    return next(each for each in differences.breakdowns if each.name == name and each.role == role)


def test_the_step_period_is_what_the_trainers_did() -> None:
    """2 s a step, 1.5 s of it waiting; then 1 s without any wait."""
    slow = made_run(states={WORK: [0.5] * 20, WAIT: [1.5] * 20, DECODE: EVEN})
    fast = made_run(periods_s=[1.0] * 20, states={WORK: [1.0] * 20, DECODE: [1.0] * 20})
    found = breakdown(differences_of(slow, fast), "step_s")
    assert (found.before, found.after, found.change) == (2.0, 1.0, -1.0)
    assert [(part.name, part.before, part.after, part.change) for part in found.parts] == [
        ("waiting_for_samples", 1.5, 0.0, -1.5),
        ("train", 0.5, 1.0, 0.5),
    ]


gpu_ns = st.integers(0, 10**15)


@given(
    first=st.lists(gpu_ns, min_size=4, max_size=4).filter(lambda each: min(each[0] + each[1], each[2] + each[3]) > 0),
    second=st.lists(gpu_ns, min_size=4, max_size=4).filter(lambda each: min(each[0] + each[1], each[2] + each[3]) > 0),
    tokens=st.tuples(st.integers(1, 10**12), st.integers(1, 10**12)),
)
def test_every_breakdown_of_gpu_time_closes(first: list[int], second: list[int], tokens: tuple[int, int]) -> None:
    runs: list[ComparedRun] = []
    for spent, trained in zip((first, second), tokens, strict=True):
        run = made_run()
        states = dict(zip((WORK, WAIT, DECODE, IDLE), spent, strict=True))
        time = GpuTime(states, {"trainer": 1, "sampler": 1}, 10**9, trained, 7)
        runs.append(replace(run, table=None, steady=None, whole=time))
    for each in differences_of(*runs).breakdowns:
        sizes = [1e-300, *(abs(part.before) + abs(part.after) for part in each.parts)]
        assert math.fsum(part.change for part in each.parts) == pytest.approx(each.change, abs=1e-12 * max(sizes))
        assert each.after - each.before == pytest.approx(each.change, abs=1e-12 * max(sizes))


def test_the_ledgers_of_recorded_stretches_are_all_of_their_gpu_time_and_say_their_step_periods_and_costs(
    pair: rlscope.Comparison,
) -> None:
    found = pair.pairs[0].differences
    row, period, cost = found.row("step_s"), breakdown(found, "step_s"), breakdown(found, "gpu_s_per_1k_tokens")
    assert (period.before, period.after) == (pytest.approx(row.before), pytest.approx(row.after))
    for run, gpu_s in zip(pair.runs, (cost.before, cost.after), strict=True):
        steady, window = run.steady, run.run.window
        assert all(steady.of_role(role) == gpus * steady.length_ns for role, gpus in steady.gpus.items())
        assert steady.length_ns == window.end_ns - window.start_ns
        assert run.table.step_s.sum() == pytest.approx(steady.length_ns / 1e9)
        assert steady.tokens / (steady.length_ns / 1e9) == pytest.approx(run.throughput.steady_tokens_per_s)
        assert gpu_s == pytest.approx(run.run.policy_gpus * 1000.0 / run.throughput.steady_tokens_per_s)


def test_without_a_steady_state_whole_runs_are_compared_by_totals_without_an_interval() -> None:
    """A steady rate, here 900, is never compared with that of a whole run: 1,000 tokens each 1 s, and each 2 s."""
    run = made_run(periods_s=[1.0] * 20)
    steady = replace(run, throughput=replace(run.throughput, steady_tokens_per_s=900.0))
    found = differences_of(steady, replace(made_run(), table=None, steady=None))
    rate = found.row("tokens_per_s")
    assert (found.basis, found.tested, rate.before, rate.change) == ("whole", 0, 1000.0, -0.5)
    assert (rate.low, rate.is_significant) == (None, False)


def test_rewards_are_compared_where_both_runs_had_got_to() -> None:
    """20 steps of 2 s against 10 of 1 s, one reward more a step in both; the first ten steps are equal."""
    long = made_run(rewards=[float(step) for step in range(20)])
    short = made_run(periods_s=[1.0] * 10, rewards=[float(step) for step in range(10)])
    by_step, by_hours = differences_of(long, short).learning
    assert (by_step.at, by_step.where) == ("step", 10.0)
    assert (by_step.difference.before, by_step.difference.after) == (4.5, 4.5)
    assert (by_hours.at, by_hours.where) == ("gpu_hours", pytest.approx(20 / 3600))
    assert (by_hours.difference.before, by_hours.difference.after) == (2.0, 4.5)  # Five steps against ten.


def test_throughput_per_gpu_is_compared_only_where_the_numbers_of_gpus_differ() -> None:
    one = made_run()
    two = made_run(periods_s=[1.0] * 20, gpus={"trainer": 2, "sampler": 2}, states={WORK: EVEN, DECODE: EVEN})
    names = [row.quantity for row in differences_of(one, two).quantities]
    assert "tokens_per_gpu_s" in names and "tokens_per_gpu_s" not in [
        row.quantity for row in differences_of(one, one).quantities
    ]
    assert differences_of(one, two).row("tokens_per_gpu_s").change == pytest.approx(0.0)


def kinds(first: ComparedRun, second: ComparedRun) -> list[CompareWarningKind]:
    return [each.kind for each in compare_runs(first, [second]).pairs[0].warnings]


@pytest.mark.parametrize(
    ("more", "cause"),
    [
        ({"settings": {"model.name": "b"}}, ("model.name", "a", "b")),
        ({"devices": {"trainer": "H200"}}, ("trainer device", "H100", "H200")),
        ({"gpus": {"trainer": 2, "sampler": 2}}, ("layout", "1:1", "2:2")),
    ],
)
def test_what_differs_between_the_runs_is_a_cause_and_no_warning_too(
    more: dict[str, object], cause: tuple[str, ...]
) -> None:
    plain = made_run(settings={"model.name": "a"}, devices={"trainer": "H100"})
    given = {"settings": {"model.name": "a"}, "devices": {"trainer": "H100"}} | more
    (pair,) = compare_runs(plain, [made_run(**given)]).pairs
    assert [(each.name, each.before, each.after) for each in pair.attribution.causes] == [cause]
    assert pair.warnings == ()


@pytest.mark.parametrize(("first_step", "found"), [(11, []), (12, [CompareWarningKind.OTHER_STEPS])])
def test_stretches_with_half_of_their_steps_in_common_are_of_one_age(
    first_step: int, found: list[CompareWarningKind]
) -> None:
    assert kinds(made_run(), made_run(first_step=first_step)) == found


@pytest.mark.parametrize(("parameters", "is_same"), [(1050, True), (1051, False), (950, False)])
def test_a_size_within_five_percent_is_that_of_one_network(parameters: int, is_same: bool) -> None:
    # A table of positions grows with the longest context that is allowed.
    plain, other = (made_run(settings={"model.parameters": each}) for each in (1000, parameters))
    (pair,) = compare_runs(plain, [other]).pairs
    assert (pair.attribution.causes == ()) is is_same


def test_runs_of_one_id_get_names_of_their_own() -> None:
    runs = [made_run("same") for _ in range(2)]
    assert [run.name for run in named(runs, [Path("/runs/a"), Path("/runs/b")])] == ["a", "b"]
    assert [run.name for run in named(runs, [Path("/runs/a"), Path("/others/a")])] == ["same #1", "same #2"]
    assert [run.name for run in named([runs[0], made_run("other")], [Path("/a"), Path("/b")])] == ["same", "other"]


def test_a_run_against_itself_differs_in_nothing_and_is_named(before: rlscope.Analysis) -> None:
    run = run_of(before)
    (pair,) = compare_runs(run, [run]).pairs
    assert all(row.difference.change in (0.0, None) for row in pair.differences.quantities)
    assert not any(row.difference.is_significant for row in pair.differences.quantities)
    assert pair.attribution.causes == () and pair.attribution.promise is None
    assert [each.kind for each in pair.warnings] == [CompareWarningKind.SAME_RUN]


def test_steps_whose_loss_is_no_number_are_left_out() -> None:
    curve = pl.DataFrame({"step": [1, 2, 3, 4], "samples": [2] * 4, "loss": [1.0, float("nan"), float("inf"), None]})
    reached = differences._reached(curve, "step", 4.0, "loss")
    assert reached is not None and (list(reached.numerators), list(reached.denominators)) == ([2.0], [2.0])
    assert differences._reached(curve[1:], "step", 4.0, "loss") is None


def test_nothing_to_compare_is_refused(before: rlscope.Analysis) -> None:
    with pytest.raises(rlscope.RlscopeError, match="a baseline and one run or more"):
        rlscope.compare(before)


def test_time_in_which_no_worker_was_there_is_a_part_of_its_own() -> None:
    """A sampler that stops in the middle of the stretch: half of one of two GPUs is not running."""
    closed = _closed({DECODE: 150 * 10**9}, {"sampler": 2}, 100 * 10**9)
    assert closed == {DECODE: 150 * 10**9, StateKey("sampler", NOT_RUNNING, None): 50 * 10**9}
    assert _closed({DECODE: 200 * 10**9 - 5}, {"sampler": 2}, 100 * 10**9) == {DECODE: 200 * 10**9}
    assert np.sum(list(_closed({}, {"trainer": 1}, 10).values())) == 10


def test_engines_that_stop_are_a_reason_for_the_change() -> None:
    """Two sampler GPUs all the time, then one of them for the second half of every step only."""

    def run(decoding_s: float) -> ComparedRun:
        made = made_run(states={WORK: EVEN, DECODE: [decoding_s] * 20}, gpus={"trainer": 1, "sampler": 2})
        states = _closed(made.steady.states, made.steady.gpus, made.steady.length_ns)
        return replace(made, steady=replace(made.steady, states=states))

    share = breakdown(differences_of(run(4.0), run(3.0)), "role_share", "sampler")
    (stopped,) = (part for part in share.parts if part.name == NOT_RUNNING)
    assert (stopped.change, stopped.difference.change, stopped.is_significant) == (0.25, 0.25, True)


def aged(versions: float, steps_per_version: float, count: int = 20) -> ComparedRun:
    """A run whose tokens are that stale, nine tenths of it from the queue, with a little noise."""
    wobble = [1000.0 * versions * (1.0 + 0.02 * (-1) ** step) for step in range(count)]
    run = made_run(
        periods_s=[2.0] * count, in_flight=[0.1 * each for each in wobble], in_queue=[0.9 * each for each in wobble]
    )
    return replace(run, steps_per_version=steps_per_version)


def test_where_publish_intervals_differ_staleness_is_compared_in_optimizer_steps() -> None:
    """1.88 versions of one step, then 1.22 of three: fresher in versions, and staler in fact."""
    (pair,) = compare_runs(aged(1.88, 1.0), [aged(1.22, 3.0)]).pairs
    in_steps = pair.differences.row("staleness_mean_steps")
    assert (in_steps.before, in_steps.after) == (pytest.approx(1.88), pytest.approx(3.66))
    assert in_steps.is_significant and in_steps.low > 0
    assert "staleness_mean" not in [row.quantity for row in pair.differences.quantities]
    assert [each.name for each in pair.attribution.causes] == ["publish_every"]


@pytest.mark.parametrize(("steps_per_version", "in_steps"), [(1.24, False), (1.25, True)])
def test_versions_of_nearly_as_many_steps_are_one_unit(steps_per_version: float, in_steps: bool) -> None:
    found = differences_of(aged(2.0, 1.0), aged(2.0, steps_per_version))
    assert ("staleness_mean_steps" in [row.quantity for row in found.quantities]) is in_steps
    assert ("staleness_mean" in [row.quantity for row in found.quantities]) is not in_steps


def test_a_run_says_how_many_optimizer_steps_a_version_of_it_lasts(before: rlscope.Analysis) -> None:
    """Publications of one run wait for its staleness cap, those of the other for nothing."""
    waiting = analysis_of("capped_staleness")
    window = waiting.run.window
    inside = waiting.answers["training_steps"].filter(pl.col("step").is_between(window.first_step, window.last_step))
    published = inside.filter(pl.col("version_out") > pl.col("version_in"))["step"].to_list()
    spans = [then - first for first, then in pairwise(published)]
    assert run_of(waiting).steps_per_version == pytest.approx(sum(spans) / len(spans)) and sum(spans) > 2 * len(spans)
    assert run_of(before).steps_per_version == 1.0


def test_trained_lengths_that_dropping_shortened_are_an_effect_and_no_warning() -> None:
    """Both generate 100 tokens a sample; where the long ones are dropped, 80 of them are trained."""
    plain = made_run(settings={"max_staleness": 4})
    fresh = made_run(settings={"max_staleness": 1}, tokens=[800] * 20)
    (pair,) = compare_runs(plain, [replace(fresh, dropping_ratio=-0.2)]).pairs
    assert [each.kind for each in pair.warnings] == [CompareWarningKind.DROPPED_LENGTHS]
    assert "response_lengths" not in [each.name for each in pair.attribution.causes]
    assert pair.attribution.lengths.beyond is None
    said = warning_words(pair.warnings[0], "B")
    assert "20.0% shorter in B because long samples are dropped more often: an effect of the change" in said


def test_generated_lengths_that_changed_beside_dropping_are_a_cause() -> None:
    """120 tokens a sample were generated, and 96 of them trained."""
    plain = made_run()
    other = replace(made_run(tokens=[960] * 20), dropping_ratio=-0.2)
    (pair,) = compare_runs(plain, [other]).pairs
    assert [(each.name, each.before, each.after) for each in pair.attribution.causes] == [
        ("response_lengths", "100", "120")
    ]


def test_what_dropping_does_to_lengths_is_counted_from_the_deliveries() -> None:
    """10 tokens are trained; 40 are dropped as stale, and 100 filtered, which is no loss of staleness."""
    lengths = {"trained": 10, "dropped_stale": 40, "filtered": 100}
    columns = {"outcome": [*lengths], "tokens": [*lengths.values()], "mean_output_tokens": [*lengths.values()]}
    outcomes = pl.DataFrame({**columns, "samples": 1})
    assert _dropping_ratio(outcomes) == pytest.approx(10 / 25 - 1)
    assert _dropped_ratio(outcomes) == pytest.approx(40 / 150)
    assert (_dropping_ratio(outcomes.head(1)), _dropped_ratio(outcomes.clear())) == (0.0, None)
