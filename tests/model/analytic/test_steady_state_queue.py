"""How long finished samples lie, by what becomes of a surplus: 8 trainers, and 8 engines that need 29.9 requests."""

from dataclasses import replace

import pytest

from rlscope.model.analytic.limits import Refused
from rlscope.model.analytic.staleness import oldest_token_law, updates_at_least
from rlscope.model.analytic.steady_state import SteadyState, steady_states, surplus_of
from rlscope.model.policies import StalenessPolicy
from rlscope.model.system import Admission, WeightUpdateCost
from tests.model.golden_system import LENGTHS, layout, load_ratio, system

IN_FLIGHT = 8 * 29.864 * LENGTHS.group_tail_ratio(8) / 1024
"""Batches that run or wait for their group where the engines just keep up."""


def surplus_state(admission: Admission, running: int = 200, trainers: int = 8) -> SteadyState:
    (found,) = steady_states(system(admission=admission), [layout(trainers, running=running)])
    assert isinstance(found, SteadyState) and found.staleness is not None
    return found


def offset(admission: Admission, running: int = 200) -> float:
    found = surplus_state(admission, running).staleness
    assert found is not None
    return found.offset_versions


@pytest.mark.parametrize(
    ("admission", "surplus"),
    [
        (Admission(), "grows"),
        (Admission(64), "held"),
        (Admission(max_in_flight_samples=64), "held"),
        (Admission(max_staleness=2), "held"),
        (Admission(max_staleness=2, staleness_policy="publication_waits"), "held"),
        (Admission(max_staleness=2, staleness_policy="publication_waits", waits_for_queued=False), "grows"),
        (Admission(max_staleness=2, waits_for_queued=False), "held"),
        (Admission(64, "drop_oldest"), "dropped"),
        (Admission(None, "drop_oldest"), "grows"),
        (Admission(None, "drop_oldest", max_in_flight_samples=64), "held"),
        (Admission(64, max_staleness=2, staleness_policy="drop"), "aged"),
        (Admission(None, staleness_policy="drop"), "grows"),
        (Admission(64, staleness_policy="drop"), "held"),
    ],
)
def test_limits_decide_what_becomes_of_a_surplus(admission: Admission, surplus: str) -> None:
    assert surplus_of(admission) == surplus


def test_what_is_held_back_lies_in_the_queue_and_in_the_places_that_do_not_run() -> None:
    # One batch queued, and the places beside those in flight: no version is older than half a period on top.
    blocked = 8 * 200 / 1024 - IN_FLIGHT
    assert offset(Admission(1024)) == pytest.approx(0.5 + 1 + blocked, abs=1e-3)
    assert offset(Admission(2048)) == pytest.approx(0.5 + 2 + blocked, abs=1e-3)


def test_a_queue_that_little_is_held_back_from_fills_up_anew_for_every_batch() -> None:
    few, some = (load_ratio(system(), layout(8, running=running)) for running in (40, 94))
    assert offset(Admission(1024), running=40) == pytest.approx(0.5 + 1 - 1 / (2 * few))
    blocked = 8 * 94 / 1024 - IN_FLIGHT
    refilled = (1 - 2 * blocked) / (2 * some)
    assert offset(Admission(1024), running=94) == pytest.approx(0.5 + 1 + blocked - refilled, abs=1e-3)


def test_a_queue_of_less_than_a_batch_makes_no_sample_younger_than_its_own_step() -> None:
    assert offset(Admission(256), running=30) == pytest.approx(1.0)


def test_a_cap_on_samples_in_flight_leaves_the_rest_to_the_queue() -> None:
    assert offset(Admission(max_in_flight_samples=3000)) == pytest.approx(0.5 + 3000 / 1024 - IN_FLIGHT, abs=1e-3)


def test_a_staleness_cap_kept_by_admission_leaves_the_rest_of_so_many_steps_to_the_queue() -> None:
    assert offset(Admission(max_staleness=3)) == pytest.approx(0.5 + 3 - IN_FLIGHT, abs=1e-3)


@pytest.mark.parametrize(("trainers", "cap"), [(8, 5), (12, 3)], ids=["a surplus", "none"])
def test_publications_that_wait_let_the_longest_sample_be_just_as_old_as_the_cap(trainers: int, cap: int) -> None:
    found = surplus_state(Admission(max_staleness=cap, staleness_policy="publication_waits"), trainers=trainers)
    assert found.staleness is not None
    longest = LENGTHS.longest_of(1024).mean_tokens * found.staleness.versions_per_token
    assert found.staleness.offset_versions + longest == pytest.approx(cap)
    assert found.staleness_max == cap


def test_the_smaller_of_two_rooms_counts() -> None:
    both = Admission(1024, max_in_flight_samples=1800)
    assert offset(both) == pytest.approx(0.5 + 1800 / 1024 - IN_FLIGHT, abs=1e-3)


def test_with_drops_by_age_a_queue_grows_until_just_the_surplus_is_too_old() -> None:
    found = surplus_state(Admission(staleness_policy="drop", max_staleness=6))
    assert found.staleness is not None and found.dropped_ratio > 0.3
    too_old = updates_at_least(found.staleness, oldest_token_law(LENGTHS, 8), 7)
    assert float(too_old) == pytest.approx(found.dropped_ratio, abs=1e-6)


@pytest.mark.parametrize(("delay_s", "earlier_pauses"), [(0.0, 0), (10.0, 0), (100.0, 2)])
def test_a_pause_makes_no_token_older_and_a_delay_does(delay_s: float, earlier_pauses: int) -> None:
    paused = system(update=WeightUpdateCost(engine_pause_s=5.0, delay_s=delay_s))
    (found,) = steady_states(paused, [layout(13)])
    assert isinstance(found, SteadyState) and found.staleness is not None
    generating_s = found.step_s - 5.0
    lag_s = found.train_s + delay_s - 5.0 * earlier_pauses
    assert found.staleness.offset_versions == pytest.approx(lag_s / generating_s)


@pytest.mark.parametrize("ahead", [0.25, 1.0, 2.0])
def test_what_is_taken_ahead_ages_by_as_many_versions_and_changes_no_rate(ahead: float) -> None:
    for plain in (system(), system(admission=Admission(staleness_policy="drop", max_staleness=6))):
        early = replace(plain, workload=replace(plain.workload, prefetched_batches=ahead))
        before, after = steady_states(plain, [layout(13)])[0], steady_states(early, [layout(13)])[0]
        assert isinstance(before, SteadyState) and isinstance(after, SteadyState)
        assert before.staleness is not None and after.staleness is not None
        assert after.staleness.offset_versions == pytest.approx(before.staleness.offset_versions + ahead)
        assert after.trained_tokens_per_s == before.trained_tokens_per_s


def test_a_drop_for_staleness_is_passed_by_what_is_held_ahead_alone() -> None:
    plain = system(admission=Admission(staleness_policy="drop", max_staleness=3))
    (found,) = steady_states(replace(plain, workload=replace(plain.workload, prefetched_batches=0.25)), [layout(8)])
    assert isinstance(found, SteadyState)
    assert found.staleness_max == 4


@pytest.mark.parametrize(("rule", "cap"), [("admission", 2), ("publication_waits", 4)])
def test_what_is_held_ahead_takes_a_version_of_a_cap_that_is_waited_for(rule: StalenessPolicy, cap: int) -> None:
    """A cap with one version ahead leaves the engines what a cap lower by one leaves."""
    capped, shorter = (
        system(admission=Admission(max_staleness=each, staleness_policy=rule)) for each in (cap, cap - 1)
    )
    ahead = replace(capped, workload=replace(capped.workload, prefetched_batches=1.0))
    free, *rates = [steady_states(each, [layout(13, running=200)])[0] for each in (system(), ahead, shorter)]
    assert all(isinstance(each, SteadyState) for each in (free, *rates))
    assert rates[0].trained_tokens_per_s < free.trained_tokens_per_s
    assert rates[0].trained_tokens_per_s == pytest.approx(rates[1].trained_tokens_per_s)


def test_a_cap_of_which_the_batches_ahead_leave_no_version_is_only_kept_by_turns() -> None:
    capped = system(admission=Admission(max_staleness=1))
    (found,) = steady_states(replace(capped, workload=replace(capped.workload, prefetched_batches=1.0)), [layout(8)])
    assert isinstance(found, Refused) and found.reason == "synchronous"
