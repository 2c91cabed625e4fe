"""The synchronous step: the known drains, waves, limits, and the parts' sum."""

import numpy as np
import pytest

from rlscope.model.analytic.synchronous import colocated_step, decode_batch_s, largest_batch, split_step
from rlscope.model.lengths import LengthLaw
from rlscope.model.system import Layout, WeightUpdateCost
from tests.model.golden_system import KV_S, LENGTHS, Affine, PNorm, engine, system, workload

CONSTANT = LengthLaw(np.array([100.0]), np.array([1.0]))


@pytest.mark.parametrize(
    ("curve", "generation_s"), [(PNorm(0.0), 65.811), (PNorm(KV_S), 73.125)], ids=["without KV", "with KV"]
)
def test_the_known_step_is_found_but_for_the_last_passes(curve: object, generation_s: float) -> None:
    """The known seconds go on to the longest possible sample of 8192 tokens, at last with less than one request."""
    step = colocated_step(system(engine=engine(curve=curve)), 16)
    assert f"{step.train_s:.3f}" == "38.224"
    assert step.generation_s == pytest.approx(generation_s, rel=0.01)


def test_the_parts_of_a_step_add_up() -> None:
    given = system(
        workload=workload(environment_s=5.0),
        engine=engine(prefill_tokens_per_s=4000.0),
        update=WeightUpdateCost(engine_pause_s=2.0, trainer_blocked_s=6.0, delay_s=1.0),
    )
    step = colocated_step(given, 16)
    assert (step.environment_s, step.update_s) == (5.0, 6.0)
    assert step.prefill_s == pytest.approx(64 * 200 / 4000)
    parts_s = step.generation_s + step.prefill_s + step.environment_s + step.train_s + step.update_s
    assert step.step_s == pytest.approx(parts_s)
    assert step.trained_tokens_per_s * step.step_s == pytest.approx(1024 * LENGTHS.mean_tokens)


SHORT_OR_LONG = LengthLaw(np.array([1.0, 512.0]), np.array([0.7, 0.3]))


@pytest.mark.parametrize("limit", [64, 32, 16])
@pytest.mark.parametrize("lengths", [LENGTHS, SHORT_OR_LONG], ids=["lognormal", "short or long"])
def test_a_drain_agrees_with_one_request_after_the_other(lengths: LengthLaw, limit: int) -> None:
    # One engine of 64 requests, from one finish to the next; the standard error of 40 repeats is about 1 %.
    rng = np.random.default_rng(3)
    simulated = [simulated_drain_s(lengths.draw(rng, 64), limit) for _ in range(40)]
    expected = decode_batch_s(PNorm(0.0), lengths, 64, limit, 64, 0)
    error = np.std(simulated) / np.sqrt(len(simulated))
    assert abs(np.mean(simulated) - expected) < 4 * error + 0.01 * expected


def simulated_drain_s(lengths: np.ndarray, limit: int) -> float:
    """Requests start in order as others finish; jumps from one finish to the next."""
    ends = np.sort(lengths[:limit]).tolist()
    waiting, now, seconds = lengths[limit:].tolist(), 0, 0.0
    while ends:
        seconds += (ends[0] - now) * float(PNorm(0.0).pass_s(float(len(ends))))
        now = ends.pop(0)
        if waiting:
            ends = sorted([*ends, now + waiting.pop(0)])
    return seconds


@pytest.mark.parametrize(
    ("curve", "lengths", "requests", "expected_s"),
    [
        # 100 passes over 10 requests that hold 50 to 149 tokens each.
        (Affine(0.01, 0.001, 1e-6), CONSTANT, 10, 100 * (0.01 + 0.01) + 10 * 1e-6 * sum(range(50, 150))),
        (Affine(0.01, 0.0), LENGTHS, 2, 0.01 * LENGTHS.longest_of(2).mean_tokens),
        (Affine(0.01, 0.02), LENGTHS, 1, 0.03 * LENGTHS.mean_tokens),
    ],
    ids=["equal lengths", "two, of which none is the longest possible", "one, which is whole to its end"],
)
def test_the_drain_of_a_few_requests_is_that_by_hand(
    curve: Affine, lengths: LengthLaw, requests: int, expected_s: float
) -> None:
    seconds = decode_batch_s(curve, lengths, requests, requests, requests, prompt_tokens=50)
    assert seconds == pytest.approx(expected_s, rel=1e-3)


def test_the_largest_batch_fills_the_cache_at_its_fullest() -> None:
    # At age 10: 1 request * 60 tokens; at age 20 half of them hold 70.
    law = LengthLaw(np.array([10.0, 20.0]), np.array([0.5, 0.5]))
    assert largest_batch(law, prompt_tokens=50, capacity_tokens=600) == pytest.approx(10.0)
    assert largest_batch(CONSTANT, prompt_tokens=50, capacity_tokens=600) == pytest.approx(4.0)


def test_as_many_places_as_requests_make_no_waves_and_one_fewer_does() -> None:
    plenty, enough, fewer = (colocated_step(system(), 16, max_running=limit) for limit in (65, 64, 63))
    assert plenty == enough
    assert (fewer.running, fewer.generation_s > enough.generation_s) == (63.0, True)


def test_filtered_samples_are_generated_and_not_trained_on() -> None:
    whole, half = (split_step(system(workload=workload(kept_ratio=kept)), Layout(16, 16, 256)) for kept in (1.0, 0.5))
    assert (half.running, half.train_s) == (128.0, whole.train_s)


@pytest.mark.parametrize(("filtered_ratio", "is_predicted"), [(0.0, True), (0.1 / 128, True), (0.101 / 128, False)])
def test_how_a_synchronous_run_replaces_filtered_groups_is_unknown(filtered_ratio: float, is_predicted: bool) -> None:
    given = workload(kept_ratio=1.0 - filtered_ratio)
    assert given.samples_per_step / given.group_size == 128
    assert (colocated_step(system(workload=given), 16) is not None) is is_predicted


@pytest.mark.parametrize("at", [Layout(0, 8, 64), Layout(8, 0, 64), Layout(8, 8, 0)])
def test_a_side_without_gpus_or_places_makes_no_step(at: Layout) -> None:
    assert split_step(system(), at) is None
