"""What becomes of a surplus, and how old samples get by the closed forms; `test_closed_forms.py` simulates them."""

import math

import pytest

from rlscope.model.analytic.steady_state import SteadyState, steady_states, strict_cap, surplus_of
from rlscope.model.policies import StalenessPolicy
from rlscope.model.system import Admission, System, WeightUpdateCost
from tests.model.golden_system import layout, system, workload
from tests.model.simulated_systems import with_workload


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


def state(of: System, trainers: int = 8) -> SteadyState:
    return steady_states(of, [layout(trainers, running=200)])[0]


@pytest.mark.parametrize("delay_s", [10.0, 100.0])
def test_a_delay_makes_samples_older_and_the_pauses_in_it_do_not(delay_s: float) -> None:
    at_once, late = (
        state(system(update=WeightUpdateCost(engine_pause_s=5.0, delay_s=each)), trainers=13) for each in (0.0, delay_s)
    )
    pauses = (late.train_s + delay_s) // late.step_s - late.train_s // late.step_s
    lag_s = delay_s - 5.0 * pauses
    assert late.sample_p95 - at_once.sample_p95 == pytest.approx(lag_s / (at_once.step_s - 5.0))


@pytest.mark.parametrize("ahead", [0.25, 1.0, 2.0])
@pytest.mark.parametrize("admission", [Admission(1024), Admission(staleness_policy="drop", max_staleness=6)])
def test_prefetched_batches_age_by_as_many_versions_and_change_no_rate(admission: Admission, ahead: float) -> None:
    plain = system(admission=admission)
    early = with_workload(plain, prefetched_batches=ahead)
    before, after = state(plain, trainers=13), state(early, trainers=13)
    assert after.sample_p95 == pytest.approx(before.sample_p95 + ahead)
    assert after.trained_tokens_per_s == before.trained_tokens_per_s


@pytest.mark.parametrize(
    ("policy", "most", "ahead", "cap"),
    [("publication_waits", 5, 0.0, 5), ("drop", 3, 0.25, 4)],
    ids=["kept by publications", "dropped, and then held ahead"],
)
def test_with_a_surplus_only_a_strict_cap_limits_how_old_samples_get(
    policy: StalenessPolicy, most: int, ahead: float, cap: int
) -> None:
    admission = Admission(max_staleness=most, staleness_policy=policy)
    asked = system(workload=workload(prefetched_batches=ahead), admission=admission)
    assert (state(asked).sample_p95, strict_cap(asked)) == (math.inf, cap)


@pytest.mark.parametrize(("rule", "cap"), [("admission", 2), ("publication_waits", 4)])
def test_what_is_held_ahead_takes_a_version_of_a_cap_that_is_waited_for(rule: StalenessPolicy, cap: int) -> None:
    """A cap with one version ahead leaves the engines what a cap lower by one leaves."""
    capped, shorter = (
        system(admission=Admission(max_staleness=each, staleness_policy=rule)) for each in (cap, cap - 1)
    )
    ahead = with_workload(capped, prefetched_batches=1.0)
    free, *rates = [steady_states(each, [layout(13, running=200)])[0] for each in (system(), ahead, shorter)]
    assert all(isinstance(each, SteadyState) for each in (free, *rates))
    assert rates[0].trained_tokens_per_s < free.trained_tokens_per_s
    assert rates[0].trained_tokens_per_s == pytest.approx(rates[1].trained_tokens_per_s)
