"""The model replays the run it was fitted to: what is compared, when that explains it, which scheduling is chosen."""

from dataclasses import replace

import numpy as np
import pytest

from rlscope.model.calibration import Calibration, UncalibratableError
from rlscope.model.forecast.replay import (
    UNITS,
    Observable,
    Replay,
    Scheduling,
    measured_of,
    replay_run,
    scheduled,
)
from rlscope.model.observed import Delivered, Observed, SeenLoad, SeenScheduling
from rlscope.model.simulate import Settings, simulate
from rlscope.model.system import Admission
from tests.model.known_run import TODAY, TRUTH, calibrated, calibration_of, load_of, observed

PLAIN = Scheduling("group", Settings(), Admission())


@pytest.mark.parametrize(
    ("replayed", "explains"),
    [(1_000.0, True), (1_100.0, True), (1_100.1, False), (900.0, True), (899.9, False), (None, False)],
)
def test_a_run_is_explained_where_the_replayed_rate_is_within_a_tenth_of_the_measured_one(
    replayed: float | None, explains: bool
):
    rate = {"tokens_per_s": (1_000.0, replayed)}
    compared = tuple(Observable(name, *rate.get(name, (None, None))) for name in UNITS)
    assert Replay(compared, PLAIN, (), "simulation", batch_samples=64.0).explains == explains


@pytest.mark.parametrize(
    ("observable", "misfit_ratio", "misfit"),
    [
        (Observable("tokens_per_s", 1_000.0, 1_100.0), 0.1, 1.0),
        (Observable("step_s", 2.0, 1.8), -0.1, 1.0),
        (Observable("running_per_engine", 20.0, 24.0), 0.2, 2.0),
        (Observable("queued_samples", 36.0, 46.0), 10 / 36, 1.0),  # a tenth of 36 and of a batch of 64
        (Observable("queued_samples", 1.0, 7.5), 6.5, 1.0),
        (Observable("queued_samples", 0.9, 7.39), None, 1.0),  # less than one sample is nothing to compare with
        (Observable("queued_samples", 0.0, 6.4), None, 1.0),
        (Observable("wait_samples_ratio", 0.50, 0.55), None, 1.0),
        (Observable("hold_backpressure_ratio", 0.0, 0.05), None, 1.0),
        (Observable("staleness_mean", 2.5, 3.0), None, 1.0),  # a quarter of a version and a tenth of 2.5
        (Observable("staleness_p95", None, 3.0), None, None),
        (Observable("staleness_p95", 3.0, None), None, None),
    ],
)
def test_each_quantity_is_off_by_a_ratio_or_a_difference_and_has_its_tolerance(
    observable: Observable, misfit_ratio: float | None, misfit: float | None
):
    assert observable.misfit_ratio == (None if misfit_ratio is None else pytest.approx(misfit_ratio))
    assert observable.misfit(batch_samples=64.0) == (None if misfit is None else pytest.approx(misfit))


@pytest.mark.parametrize(("off", "known", "is_rough"), [(3, 12, True), (2, 9, False), (2, 8, True), (0, 1, False)])
def test_a_quarter_of_the_known_quantities_beyond_their_tolerance_is_too_many(off: int, known: int, is_rough: bool):
    values = [(1.0, 2.0)] * off + [(1.0, 1.0)] * (known - off) + [(None, 1.0)] * (len(UNITS) - known)
    compared = tuple(Observable(name, *each) for name, each in zip(reversed(UNITS), values, strict=True))
    assert Replay(compared, PLAIN, (), "simulation", batch_samples=1.0).is_rough is is_rough


def test_what_a_stretch_measured_is_read_side_by_side():
    run = replace(
        observed(),
        load=SeenLoad(running_samples=60.0, in_flight_samples=80.0, queued_samples=12.0, wait_samples_ratio=0.25),
        engine_state_s={
            ("no_requests", "backpressure"): 3.0,
            ("no_requests", "staleness_cap"): 2.0,
            ("no_requests", "requests"): 1.0,
            ("no_requests", "barrier"): 0.5,
        },
        staleness=((0, 50), (1, 40), (2, 10)),
    )
    engine_s = run.engines * run.seconds
    measured = measured_of(run)
    assert measured["tokens_per_s"] == run.trained_tokens_per_s
    assert measured["running_per_engine"] == 10.0  # six engines
    assert (measured["in_flight_samples"], measured["queued_samples"]) == (80.0, 12.0)
    assert (measured["wait_samples_ratio"], measured["wait_staleness_cap_ratio"]) == (0.25, None)
    assert measured["hold_backpressure_ratio"] == pytest.approx(3.0 / engine_s)
    assert measured["hold_staleness_cap_ratio"] == pytest.approx(2.0 / engine_s)
    assert measured["hold_other_ratio"] == pytest.approx(1.5 / engine_s)
    assert (measured["staleness_mean"], measured["staleness_p95"]) == (pytest.approx(0.6), 2.0)
    without_versions = measured_of(replace(run, staleness=()))
    assert (without_versions["staleness_mean"], without_versions["staleness_p95"]) == (None, None)


@pytest.mark.parametrize(("unattributed_ratio", "held_ratio"), [(0.1, 0.0), (0.101, None)])
def test_time_without_requests_is_not_recorded_where_a_tenth_of_the_engines_time_is_in_no_state(
    unattributed_ratio: float, held_ratio: float | None
):
    run = observed()
    states = {("unattributed", None): unattributed_ratio * (run.engines * run.seconds)}
    assert measured_of(replace(run, engine_state_s=states))["hold_backpressure_ratio"] == held_ratio


def test_where_no_sample_has_a_start_the_passes_tell_how_many_requests_ran():
    run = replace(observed(), load=SeenLoad())
    running = np.full(len(run.passes.running), 8)
    lasting_s = np.full(len(running), run.engines * run.seconds / (4 * len(running)))
    passes = replace(run.passes, running=running, busy_s=lasting_s, between_s=lasting_s)
    assert measured_of(replace(run, passes=passes))["running_per_engine"] == pytest.approx(4.0)
    assert measured_of(replace(run, passes=replace(passes, running=0 * running)))["running_per_engine"] is None


CAPPED = replace(PLAIN, admission=Admission(max_in_flight_samples=280))


def capped_run(scheduling: Scheduling) -> tuple[Calibration, Observed]:
    """A run of that scheduling with fast trainers: its loads and rate are those of a simulation with another seed."""
    fast = replace(TRUTH, trainer=replace(TRUTH.trainer, tokens_per_gpu_s=80_000.0))
    run = observed(fast)
    calibration = calibration_of(run)
    system = scheduled(calibration, scheduling).system
    truth = simulate(system, TODAY, steps=60, seed=77, settings=scheduling.settings)
    factor = truth.step_s / float(run.steps.period_s.mean())
    steps = replace(run.steps, period_s=run.steps.period_s * factor)
    return calibration, replace(run, steps=steps, load=load_of(truth), staleness=truth.staleness.tokens.counts)


@pytest.mark.parametrize(
    ("truth", "other"),
    [
        (CAPPED, replace(CAPPED, delivery="sample")),
        (replace(CAPPED, delivery="sample"), CAPPED),
        (replace(PLAIN, settings=Settings(dequeue="as_they_come")), PLAIN),
    ],
    ids=["whole groups", "samples by themselves", "taken as they come"],
)
def test_of_what_the_facts_leave_open_the_scheduling_that_fits_is_chosen(truth: Scheduling, other: Scheduling):
    calibration, run = capped_run(truth)
    replay = replay_run(calibration, run, (other, truth))
    assert replay.scheduling == truth
    assert (replay.explains, replay.method) == (True, "simulation")
    assert [each.scheduling for each in replay.candidates] == [truth, other]
    assert replay.candidates[0].misfit < replay.candidates[1].misfit - 0.1


def test_of_two_that_fit_alike_the_first_is_chosen():
    unlimited = replace(PLAIN, settings=Settings(queue_order="oldest_first"))
    calibration, run = capped_run(PLAIN)
    assert replay_run(calibration, run, (unlimited, PLAIN)).scheduling == unlimited
    assert replay_run(calibration, run, (PLAIN, unlimited)).scheduling == PLAIN


@pytest.mark.parametrize(("delivery_s", "ratio"), [(0.5, 0.25), (None, 1.0), (9.0, 1.0)])
def test_places_that_stay_empty_between_two_samples_deliver_them_when_the_run_did(
    delivery_s: float | None, ratio: float
):
    calibration, run = capped_run(replace(PLAIN, turnaround_s=2.0, delivered_after_ratio=ratio))
    finished = round(run.finished_samples * run.seconds / float(run.steps.period_s.sum()))  # as slow as its steps
    run = replace(run, scheduling=SeenScheduling(delivery_s=delivery_s), finished_samples=finished)
    found = replay_run(calibration, run, (PLAIN,)).scheduling
    assert found.turnaround_s == pytest.approx(2.0, rel=0.1)
    assert found.delivered_after_ratio == pytest.approx(ratio, rel=0.1)


IMPOSSIBLE = replace(PLAIN, admission=Admission(max_in_flight_samples=TRUTH.workload.samples_per_step - 1))


def test_a_scheduling_that_lets_no_step_start_is_tried_and_not_chosen():
    replay = replay_run(calibrated(), observed(), (IMPOSSIBLE, PLAIN))
    assert replay.scheduling == PLAIN
    assert replay.candidates[1].scheduling == IMPOSSIBLE
    assert replay.candidates[1].misfit == float("inf")
    assert replay.candidates[1].rate_misfit_ratio is None


def test_a_layout_that_never_trains_under_the_limits_of_the_run_has_no_model_and_the_limit_is_named():
    with pytest.raises(UncalibratableError, match="under its limits: max_in_flight_samples of 255 samples holds fewer"):
        replay_run(calibrated(), observed(), (IMPOSSIBLE,))


def test_a_synchronous_run_is_replayed_by_the_closed_form_of_its_step():
    synchronous = replace(observed(), staleness=((0, 1_000),))
    calibration = calibration_of(synchronous)
    replay = replay_run(calibration, synchronous, (PLAIN,))
    assert replay.method == "synchronous_form"
    by_name = {each.name: each.replayed for each in replay.compared}
    assert by_name["staleness_mean"] == 0.0
    assert by_name["running_per_engine"] is None
    assert by_name["wait_samples_ratio"] is not None
    assert 0.0 < by_name["wait_samples_ratio"] < 1.0


def test_samples_that_none_of_the_deliveries_names_cannot_be_calibrated():
    run = replace(observed(), delivered=Delivered(trained_tokens=0, dropped_tokens=0, filtered_tokens=0))
    with pytest.raises(UncalibratableError, match="do `samples` and `deliveries` use the same"):
        calibration_of(run)
