"""The steady state of asynchronous layouts: the known sweep, the identities, every limit, and a surplus.

`test_closed_forms.py` simulates what becomes of a surplus, and how old samples get.
"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlscope.model.analytic.engine_time import sampling_of
from rlscope.model.analytic.limits import Refused
from rlscope.model.analytic.steady_state import (
    SteadyState,
    steady_states,
    steady_states_of_each,
    strict_cap,
    surplus_of,
    trained_rates,
)
from rlscope.model.decode.curves import RooflineCurve
from rlscope.model.policies import StalenessPolicy
from rlscope.model.system import Admission, Layout, System, Trainer, TrainerPhase, WeightUpdateCost
from tests.model.golden_system import LENGTHS, engine, layout, load_ratio, system, workload
from tests.model.simulated_systems import with_workload


def state(of: System, at: Layout) -> SteadyState:
    return steady_states(of, [at])[0]


def reason(of: System, at: Layout) -> str | None:
    (found,) = steady_states(of, [at])
    return found.reason if isinstance(found, Refused) else None


GOLDEN = """
    6 10  16.298  9.0543 101.932 163.0 0
    8  8  29.864  9.9546  76.449 238.9 0
    9  7  41.415 10.7372  67.955 289.9 0
    10 6  60.205 12.0409  61.159 361.2 0
    11 5  97.027 14.7010  55.599 485.1 0
    12 4 218.490 24.2767  50.966 874.0 0
    13 3 232.178 25.4147  66.946 696.5 0.297
    14 2 232.178 25.4147 100.419 464.4 0.565
"""


@pytest.mark.parametrize("row", [line.split() for line in GOLDEN.strip().splitlines()], ids=lambda row: f"{row[0]}")
def test_the_known_sweep_is_found_to_the_printed_digits(row: list[str]) -> None:
    found = state(system(), layout(int(row[0])))
    pass_s = float(sampling_of(system()).pass_s(np.array(found.running)))
    assert [found.layout.sampler_gpus, f"{found.running:.3f}", f"{pass_s * 1e3:.4f}"] == [int(row[1]), *row[2:4]]
    assert [f"{found.step_s:.3f}", f"{found.running * found.layout.sampler_gpus:.1f}"] == row[4:6]
    assert round(1 - found.train_s / found.step_s, 3) == float(row[6])


def test_a_surplus_is_held_back_or_dropped_or_queued_for_ever() -> None:
    held = state(system(), layout(6, running=200))
    dropped = state(system(admission=Admission(1024, "drop_oldest")), layout(6, running=200))
    endless = state(system(admission=Admission()), layout(6, running=200))
    assert held.step_s == dropped.step_s == endless.step_s == held.train_s
    assert (f"{held.running:.3f}", dropped.running, endless.running) == ("16.298", 200.0, 200.0)
    assert (held.dropped_ratio, endless.dropped_ratio) == (0.0, 0.0)
    assert dropped.dropped_ratio == pytest.approx(1 - 1 / load_ratio(system(), held.layout))
    assert endless.sample_p95 is None


@pytest.mark.parametrize(
    ("changes", "trainers", "more_s"),
    [
        ({"update": WeightUpdateCost(engine_pause_s=60.0, trainer_blocked_s=60.0)}, 12, 60.0),
        ({"update": WeightUpdateCost(engine_pause_s=7.0)}, 13, 7.0),
        ({"engine": engine(prefill_tokens_per_s=5000.0)}, 13, 1024 / 3 * 200 / 5000.0),
        ({"workload": workload(kept_ratio=0.5)}, 13, 66.946),
    ],
    ids=["a publication that blocks both sides", "a pause of the engines", "prefill", "filtered samples"],
)
def test_what_the_slower_side_does_besides_lengthens_the_step(
    changes: dict[str, object], trainers: int, more_s: float
) -> None:
    found = state(system(**changes), layout(trainers))
    assert found.step_s == pytest.approx(state(system(), layout(trainers)).step_s + more_s, abs=5e-4)
    assert found.trained_tokens_per_s == pytest.approx(1024 * LENGTHS.mean_tokens / found.step_s)


def test_kv_that_is_not_kept_is_computed_again_in_one_pass_at_the_rate_of_prefill() -> None:
    fast = engine(prefill_tokens_per_s=20_000.0, prefill_pass_s=0.01)
    kept = state(system(engine=fast, update=WeightUpdateCost(engine_pause_s=1.0)), layout(13))
    lost = state(system(engine=fast, update=WeightUpdateCost(engine_pause_s=1.0, kv_kept=False)), layout(13))
    assert lost.step_s - kept.step_s == pytest.approx(0.01 + lost.resident_tokens / 20_000.0)


def test_phases_of_the_trainer_shrink_with_its_gpus_or_do_not() -> None:
    phases = (TrainerPhase("logprobs", 6.0, True), TrainerPhase("checkpoint", 2.0, False))
    trainer = Trainer(3000, 8, scaling_exponent=0.5, overhead_s=1.0, phases=phases)
    found = state(system(trainer=trainer), layout(2))
    compute_s = 1024 * LENGTHS.mean_tokens / (3000 * 8 * 0.5)
    assert found.train_s == pytest.approx(compute_s + 1.0 + 6.0 / 0.5 + 2.0)


def test_waits_for_the_environment_leave_the_batch_unfilled() -> None:
    found = state(system(workload=workload(environment_s=300.0)), layout(10, running=48))
    outside = 1024 / found.step_s * 300.0 / 6
    assert found.running + outside == pytest.approx(48.0)
    apart = workload(environment_s=300.0, environment_place_held=False)
    assert state(system(workload=apart), layout(10, running=48)).running == pytest.approx(48.0)


def test_a_cap_on_samples_in_flight_holds_the_batch_down() -> None:
    found = state(system(admission=Admission(max_in_flight_samples=1024)), layout(13))
    # Half a batch is queued; the others run or wait for their group.
    assert found.running * 3 * LENGTHS.group_tail_ratio(8) == pytest.approx(1024 - 512)


@pytest.mark.parametrize(
    "admission",
    [
        Admission(max_in_flight_samples=10_000),
        Admission(max_running_samples=192),  # three engines of 64
        Admission(1024, max_staleness=9),
        Admission(1024, max_staleness=9, staleness_policy="publication_waits"),
    ],
)
def test_a_limit_above_what_the_layout_reaches_changes_nothing(admission: Admission) -> None:
    assert state(system(admission=admission), layout(13, running=64)) == state(system(), layout(13, running=64))


def test_a_cap_on_what_runs_is_shared_by_the_engines_and_counts_no_sample_that_waits_for_its_group() -> None:
    free = layout(13, running=64)  # three engines
    limited = state(system(), layout(13, running=16))
    capped = state(system(admission=Admission(max_running_samples=48)), free)
    assert capped.running == pytest.approx(limited.running) == pytest.approx(16)
    assert capped.step_s == pytest.approx(limited.step_s)
    assert capped.sample_p95 == pytest.approx(limited.sample_p95)


def test_a_staleness_cap_kept_by_admission_leaves_room_for_so_many_steps_ahead() -> None:
    found = state(system(admission=Admission(max_staleness=1)), layout(12))
    waiting = 1 - found.train_s / found.step_s
    assert found.running * 4 * LENGTHS.group_tail_ratio(8) + 512 == pytest.approx((1 + waiting) * 1024)


def test_samples_that_age_out_are_made_again() -> None:
    free = state(system(), layout(13))
    aged = state(system(admission=Admission(staleness_policy="drop", max_staleness=2)), layout(13))
    assert aged.step_s == pytest.approx(free.step_s / (1 - aged.dropped_ratio))
    assert 0.05 < aged.dropped_ratio < 0.5


def test_engines_of_several_gpus_are_one_batch_each() -> None:
    found, single = state(system(engine=engine(gpus=4)), layout(13, 12)), state(system(), layout(13))
    assert (found.running, found.step_s) == (single.running, single.step_s)


@pytest.mark.parametrize(
    ("changes", "at", "why"),
    [
        ({}, layout(0), "no_trainer"),
        ({}, layout(1), None),
        ({}, layout(16, 0), "no_engine"),
        ({"gpus": 4}, layout(8, 3), "no_engine"),
        ({"gpus": 4}, layout(8, 4), None),
        ({"gpus": 4}, layout(8, 6), "engine_granularity"),
        ({}, layout(8, running=0), "no_request"),
        ({}, layout(8, running=1), None),
        ({"max_running": 0}, layout(8), "no_request"),
        ({"kv_capacity_tokens": 8391.0}, layout(8), "kv_memory"),
        ({"kv_capacity_tokens": 8392.0}, layout(8), None),
    ],
)
def test_a_layout_that_cannot_run_is_refused_by_name(changes: dict[str, object], at: Layout, why: str | None) -> None:
    assert reason(system(engine=engine(**changes)), at) == why


@pytest.mark.parametrize(
    ("cap", "ahead", "why"), [(0, 0.0, "synchronous"), (1, 0.0, None), (1, 1.0, "synchronous"), (2, 1.0, None)]
)
def test_a_cap_that_prefetched_batches_leave_no_version_of_is_only_kept_by_a_synchronous_run(
    cap: int, ahead: float, why: str | None
) -> None:
    capped = system(workload=workload(prefetched_batches=ahead), admission=Admission(max_staleness=cap))
    assert reason(capped, layout(8)) == why


ADMISSIONS = [
    Admission(1024),
    Admission(2048, "drop_oldest"),
    Admission(max_in_flight_samples=1500),
    Admission(max_staleness=2),
    Admission(staleness_policy="drop", max_staleness=3),
    Admission(),
]


@given(
    trainer_gpus=st.integers(1, 15),
    running=st.integers(1, 300),
    admission=st.sampled_from(ADMISSIONS),
    pause_s=st.floats(0, 20),
    environment_s=st.sampled_from([0.0, 5.0, 200.0]),
    kv_kept=st.booleans(),
)
def test_the_step_is_that_of_the_slower_side_and_trains_its_samples(
    trainer_gpus: int, running: int, admission: Admission, pause_s: float, environment_s: float, kv_kept: bool
) -> None:
    given_system = system(
        workload=workload(environment_s=environment_s),
        engine=engine(prefill_tokens_per_s=30_000.0),
        update=WeightUpdateCost(pause_s, pause_s / 2, kv_kept=kv_kept),
        admission=admission,
    )
    found = state(given_system, layout(trainer_gpus, running=running))
    assert found.step_s >= found.train_s
    assert found.running <= found.running_limit
    assert found.step_s * found.trained_tokens_per_s == pytest.approx(1024 * LENGTHS.mean_tokens)


DRAWN_CURVES = (
    RooflineCurve(8e-3, 3e-5, 2.0, 1e-3, 4e-8),
    RooflineCurve(9e-3, 4e-5, 3.0, growth=0.02, measured_running=32.0, tilt=-0.1),
    RooflineCurve(7e-3, 2e-5, 1.5, growth=0.01, measured_running=32.0, tilt=0.2),
    RooflineCurve(4e-3, 2e-5, 1.0, 0.0, 3e-8, experts_s=9e-3, hit_rate=0.03),
    RooflineCurve(4e-3, 2e-5, 2.0, 0.0, 3e-8, measured_running=32.0, tilt=0.1, experts_s=6e-3, hit_rate=0.05),
    RooflineCurve(8e-3, 3e-5, 2.0, 1e-3, 4e-8).sped_up(1.1),
    RooflineCurve(8e-3, 3e-5, 2.0, 1e-3, 4e-8, other_s_per_request=1e-5),
    RooflineCurve(9e-3, 3e-5, 2.5, 1e-3, 4e-8, other_s_per_request=3e-5).sped_up(2.0),
)


def drawn_systems(admission: Admission, *, kv_kept: bool = True) -> list[System]:
    """Systems that differ as the draws of a fit do."""
    return [
        system(
            engine=engine(curve=curve, prefill_tokens_per_s=20_000.0 + 900.0 * number, prefill_pass_s=1e-3 * number),
            trainer=Trainer(3000 + 40 * number, 8, 0.9 - 0.01 * number, 0.1 * number, (TrainerPhase("x", 1.0, True),)),
            update=WeightUpdateCost(2.0, 1.0, 3.0, kv_kept),
            admission=admission,
        )
        for number, curve in enumerate(DRAWN_CURVES)
    ]


@pytest.mark.parametrize(
    "admission",
    [
        Admission(1024),
        Admission(max_in_flight_samples=3000, in_flight_until_trained=True),
        Admission(max_staleness=2),
        Admission(max_staleness=2, staleness_policy="publication_waits"),
        Admission(max_staleness=2, staleness_policy="drop"),
    ],
    ids=["queue", "in_flight", "admission", "publication_waits", "drop"],
)
@pytest.mark.parametrize("kv_kept", [True, False])
def test_many_draws_solved_at_once_have_the_rates_that_each_has_alone(admission: Admission, kv_kept: bool) -> None:
    draws, layouts = drawn_systems(admission, kv_kept=kv_kept), [layout(8), layout(16), layout(12, running=60)]
    alone = np.array([trained_rates([each], layouts)[0] for each in draws])
    np.testing.assert_allclose(trained_rates(draws, layouts), alone, rtol=1e-12)
    assert (alone > 0.0).tolist() == [[True, False, True]] * len(draws)


def test_draws_that_differ_in_more_than_their_costs_have_the_rates_that_each_has_alone() -> None:
    draws = [system(admission=Admission(max_in_flight_samples=most)) for most in (700, 900)]
    alone = [trained_rates([each], [layout(13)])[0].tolist() for each in draws]
    assert trained_rates(draws, [layout(13)]).tolist() == alone
    assert alone[0] != alone[1]


def test_more_draws_than_are_solved_at_once_keep_their_order() -> None:
    draws = drawn_systems(Admission(1024)) * 70
    rates = trained_rates(draws, [layout(8), layout(9)])
    assert rates.shape == (len(draws), 2)
    np.testing.assert_array_equal(rates, np.tile(rates[: len(DRAWN_CURVES)], (70, 1)))


@pytest.mark.parametrize("admission", [Admission(1024), Admission(max_staleness=2, staleness_policy="drop")])
def test_many_draws_of_a_layout_have_the_steady_states_that_each_has_alone(admission: Admission) -> None:
    draws = drawn_systems(admission, kv_kept=False)
    at_once = steady_states_of_each(draws, layout(12, running=60))
    for found, each in zip(at_once, draws, strict=True):
        alone = state(each, layout(12, running=60))
        numbers = [(one.step_s, one.running, one.dropped_ratio, one.sample_p95) for one in (found, alone)]
        assert numbers[0] == pytest.approx(numbers[1], rel=1e-12)
    assert [type(each) for each in steady_states_of_each(draws, layout(16))] == [Refused] * len(draws)


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


HELD_UP = layout(13, running=200)
"""Samplers are the slower side."""


@pytest.mark.parametrize("delay_s", [10.0, 100.0])
def test_a_delay_makes_samples_older_and_the_pauses_in_it_do_not(delay_s: float) -> None:
    at_once, late = (
        state(system(update=WeightUpdateCost(engine_pause_s=5.0, delay_s=each)), HELD_UP) for each in (0.0, delay_s)
    )
    pauses = (late.train_s + delay_s) // late.step_s - late.train_s // late.step_s
    lag_s = delay_s - 5.0 * pauses
    assert late.sample_p95 - at_once.sample_p95 == pytest.approx(lag_s / (at_once.step_s - 5.0))


@pytest.mark.parametrize("ahead", [0.25, 1.0, 2.0])
@pytest.mark.parametrize("admission", [Admission(1024), Admission(staleness_policy="drop", max_staleness=6)])
def test_prefetched_batches_age_by_as_many_versions_and_change_no_rate(admission: Admission, ahead: float) -> None:
    plain = system(admission=admission)
    early = with_workload(plain, prefetched_batches=ahead)
    before, after = state(plain, HELD_UP), state(early, HELD_UP)
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
    assert (state(asked, layout(8, running=200)).sample_p95, strict_cap(asked)) == (math.inf, cap)


@pytest.mark.parametrize(("rule", "cap"), [("admission", 2), ("publication_waits", 4)])
def test_what_is_held_ahead_takes_a_version_of_a_cap_that_is_waited_for(rule: StalenessPolicy, cap: int) -> None:
    """A cap with one version ahead leaves the engines what a cap lower by one leaves."""
    capped, shorter = (
        system(admission=Admission(max_staleness=each, staleness_policy=rule)) for each in (cap, cap - 1)
    )
    ahead = with_workload(capped, prefetched_batches=1.0)
    free, *rates = [steady_states(each, [HELD_UP])[0] for each in (system(), ahead, shorter)]
    assert all(isinstance(each, SteadyState) for each in (free, *rates))
    assert rates[0].trained_tokens_per_s < free.trained_tokens_per_s
    assert rates[0].trained_tokens_per_s == pytest.approx(rates[1].trained_tokens_per_s)
