"""Bounds from the phases of a step, worked out by hand, and against simulated runs."""

import pytest

from rlscope.model.simulate import Simulated, simulate
from rlscope.model.step_bounds import StepPhases, step_bounds
from rlscope.model.system import System
from rlscope.reports.text.step_bounds import change_words
from tests.model.simulated_systems import BUSY, LAYOUT, STARVED, with_admission, with_workload


def phases(
    generation_s: float,
    work_s: float,
    update_s: float,
    *,
    is_synchronous: bool | None = True,
    shares_gpus: bool = False,
    mean_length_ratio: float | None = None,
    **other_s: float,
) -> StepPhases:
    """A step of generation, a weight update, and other phases; the rest of the work is training."""
    other_s = {"train": work_s - sum(other_s.values()), **other_s}
    step_s = generation_s + work_s + update_s
    return StepPhases(20, step_s, generation_s, update_s, other_s, shares_gpus, is_synchronous, mean_length_ratio)


def ranges(given: StepPhases) -> dict[str, tuple[float, float, str | None]]:
    """Low, high and what is required, by the change or the phase that it hides."""
    return {
        each.phase or each.change: (each.throughput_ratio_low, each.throughput_ratio_high, each.requires)
        for each in step_bounds(given).bounds
    }


def test_a_staleness_cap_of_1_brings_most_if_updates_stop_only_training() -> None:
    """150 s = 56 generation + 29 training + 65 update. Overlapped: 29 + 65 to max(56, 29) + 65 s."""
    found = step_bounds(phases(56.0, 29.0, 65.0))
    assert ranges(found.phases) == {
        "staleness_cap": (150 / 121, 150 / 94, None),
        "half_update": (150 / 117.5, 150 / 117.5, None),
        "double_generation": (150 / 122, 150 / 122, None),
        "hidden_update": (150 / 56, 150 / 29, "staleness_cap"),
    }
    # 1.24 to 1.60 against 1.28 and 1.23; 2.68 needs the cap as well, so it is no single change.
    assert found.largest.change == "staleness_cap"
    assert list(ranges(found.phases))[-1] == "hidden_update"


def test_steps_that_may_overlap_are_bounded_by_samplers_always_busy_and_busy_only_while_trainers_wait() -> None:
    """10 s = 6 waiting + 3 training + 1 update: samplers are busy for 6 to 10 s of it."""
    assert ranges(phases(6.0, 3.0, 1.0, is_synchronous=None)) == {
        "double_generation": (10 / 7, 10 / 5, None),
        "staleness_cap": (1.0, 10 / 4, None),
        "hidden_update": (1.0, 10 / 9, None),
        "half_update": (1.0, 10 / 9.5, None),
    }
    # 2 s of waiting: twice the speed cannot shorten the 8 s of the trainers.
    assert ranges(phases(2.0, 8.0, 0.0, is_synchronous=False)) == {
        "staleness_cap": (1.0, 10 / 8, None),
        "double_generation": (10 / 9, 10 / 8, None),
    }


def test_full_engines_generate_in_the_time_of_the_mean_response() -> None:
    """150 s = 120 generation + 20 training + 10 update. Responses of half the longest on average leave 60 s."""
    found = ranges(phases(120.0, 20.0, 10.0, mean_length_ratio=0.5))
    assert found["staleness_cap"] == (150 / 130, 150 / 60, None)
    assert found["hidden_update"] == (150 / 120, 150 / 60, "staleness_cap")
    # The trainers need 30 s, whatever the engines do.
    assert ranges(phases(120.0, 20.0, 10.0, mean_length_ratio=0.2))["staleness_cap"] == (150 / 130, 150 / 30, None)


def simulated(system: System, cap: int) -> Simulated:
    return simulate(with_admission(system, max_staleness=cap), LAYOUT, steps=100, seed=1)


@pytest.mark.parametrize("cap", [2, 6])
@pytest.mark.parametrize("system", [STARVED, BUSY, with_workload(BUSY, samples_per_step=96)])
def test_a_cap_gains_no_less_than_the_overlap_and_no_more_than_all_waits(system: System, cap: int) -> None:
    """The longest response of a serial step keeps engines half empty: most of these gain more than the overlap."""
    serial = simulated(system, 0)
    generation_s, update_s = serial.trainer_seconds.wait_samples_s, serial.trainer_seconds.publish_s
    work_s = serial.seconds - generation_s - update_s
    low, high, _ = ranges(phases(generation_s, work_s, update_s))["staleness_cap"]
    gain = simulated(system, cap).trained_tokens_per_s / serial.trained_tokens_per_s
    assert 0.98 * low < gain < 1.01 * high
    lengths = system.workload.lengths
    ratio = lengths.mean_tokens / lengths.longest_of(system.workload.samples_per_step).mean_tokens
    _, high, _ = ranges(phases(generation_s, work_s, update_s, mean_length_ratio=ratio))["staleness_cap"]
    assert gain < 1.01 * high


def test_generation_twice_as_fast_means_tools_too() -> None:
    given = step_bounds(phases(6.0, 3.0, 1.0))
    assert change_words(given.bounds[1], given.phases) == "generation (with tools) twice as fast"


def test_gpus_that_generate_and_train_need_as_many_again_to_overlap() -> None:
    """10 s = 6 generation + 3 work, of it 1 log-probabilities, + 1 update."""
    assert ranges(phases(6.0, 3.0, 1.0, shares_gpus=True, logprobs=1.0)) == {
        "double_generation": (10 / 7, 10 / 7, None),
        "logprobs": (10 / 9, 10 / 9, None),
        "half_update": (10 / 9.5, 10 / 9.5, None),
        "staleness_cap": (10 / 7, 10 / 4, "sampler_gpus"),
    }


@pytest.mark.parametrize(("logprobs_s", "is_listed"), [(1.0, True), (0.99, False)])
def test_a_phase_that_gains_1_percent_is_listed_and_a_shorter_one_is_not(logprobs_s: float, is_listed: bool) -> None:
    """Of 101 s, 1 s less leaves 100 s: 1.01 times."""
    given = phases(0.0, 101.0, 0.0, logprobs=logprobs_s)
    assert ("logprobs" in ranges(given)) is is_listed


def test_neither_training_nor_waits_nor_unknown_time_is_moved_beside_the_other_phases() -> None:
    given = phases(0.0, 10.0, 0.0, unattributed=4.0, waiting=2.0)
    assert ranges(given) == {} and step_bounds(given).largest is None


def test_a_step_of_one_phase_alone_has_no_infinite_bound() -> None:
    assert ranges(phases(0.0, 0.0, 5.0)) == {"half_update": (2.0, 2.0, None)}
