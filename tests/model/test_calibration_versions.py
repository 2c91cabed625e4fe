"""What makes a version: the steps between two publications and the batches that they take; what engines do besides."""

from dataclasses import replace

import numpy as np
import pytest

from rlscope.model.engine_cost import engine_of
from tests.model.known_run import TRUTH, calibration_of, observed

EVERY_FOURTH = np.array([0, 0, 0, 1] * 9 + [0, 0, 0, 0])


@pytest.mark.parametrize(
    ("batches_per_step", "batches"),
    [(1.0, 4), (0.25, 1), (0.5, 2), (2.0, 8), (1_000.0, 4 * 64)],  # 256 samples of a step are 64 groups
)
def test_steps_of_a_version_take_their_own_batches_or_share_them(batches_per_step: float, batches: int):
    run = observed()
    run = replace(run, steps=replace(run.steps, published=EVERY_FOURTH), batches_per_step=batches_per_step)
    calibration = calibration_of(run, draw_count=20)
    workload = calibration.system.workload
    assert calibration.steps_per_version == 4.0  # not 40 steps over 9 publications
    assert (workload.samples_per_step, workload.batches_per_version) == (4 * 256, batches)


@pytest.mark.parametrize(
    ("published", "per_version"),
    [([1, 1, 1], 1.0), ([0, 0, 1, 0], 4.0), ([1, 0, 0, 1, 1], 2.0), ([0, 0, 0], None)],
)
def test_a_version_lasts_from_one_publication_to_the_next(published: list[int], per_version: float | None):
    assert replace(observed().steps, published=np.array(published)).per_version == per_version


@pytest.mark.parametrize(
    ("state", "is_between"),
    [
        *((state, True) for state in ("eval", "checkpoint", "reward", "logprobs", "train", "other")),
        *((state, False) for state in ("startup", "no_requests", "waiting", "applying_weights")),
    ],
)
def test_what_engines_do_besides_generating_is_time_between_passes_for_each_token(state: str, is_between: bool):
    run, curve = observed(), TRUTH.engine.curve
    spent = replace(run, engine_state_s={**run.engine_state_s, (state, "requests"): 20.3})
    batches = np.array([8.0, 16.0])
    more_s = engine_of(spent, curve).curve.pass_s(batches) - engine_of(run, curve).curve.pass_s(batches)
    assert more_s == pytest.approx(batches * (20.3 if is_between else 0.0) / run.passes.decode_tokens.sum(), abs=1e-12)
