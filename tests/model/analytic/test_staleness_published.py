"""Published step times and staleness figures that the equations must agree with.

Step times: verl's documentation of its fully asynchronous and one-step-off recipes (H20, Qwen2.5-Math-7B), vime's
issue 358 (Qwen3-4B). Staleness: Dong, Goel and Yu (Applied Compute, 2026).
"""

import numpy as np
import pytest

from rlscope.model.analytic.synchronous import SynchronousBatch, decode_batch_s
from rlscope.model.lengths import LengthLaw
from rlscope.model.system import Trainer, TrainerPhase, WeightUpdateCost
from rlscope.model.training.step_time import trained_tokens_per_step, trainer_step
from tests.model.analytic.published_staleness import PUBLISHED_TOLERANCE_VERSIONS, group_staleness, in_queue_staleness
from tests.model.golden_system import Affine, workload


@pytest.mark.parametrize(
    ("gpus", "step_s", "sampling_s", "logprobs_s", "update_s", "left_ratio"),
    [
        (32, 790.10, 357.41, 107.71, 269.80, 0.070),
        (64, 365.28, 150.72, 70.26, 133.41, 0.030),
        (128, 356.30, 177.85, 53.92, 113.81, 0.030),
        (32, 189.26, 28.46, 0.0, 156.98, 0.020),
        (64, 150.63, 33.14, 0.0, 113.16, 0.029),
    ],
    ids=["colocated 32", "colocated 64", "colocated 128", "32:32", "64:64"],
)
def test_a_step_is_its_wait_and_the_trainers_phases_but_for_a_few_per_cent(
    gpus: int, step_s: float, sampling_s: float, logprobs_s: float, update_s: float, left_ratio: float
) -> None:
    work = workload()
    rate = trained_tokens_per_step(work) / update_s / gpus
    trainer = Trainer(rate, gpus, phases=(TrainerPhase("logprobs", logprobs_s, True),))
    explained_s = sampling_s + float(trainer_step(trainer, work, WeightUpdateCost(), float(gpus)).total_s)
    assert 1 - explained_s / step_s == pytest.approx(left_ratio, abs=5e-4)


@pytest.mark.parametrize(
    ("cap", "pass_s", "work_s", "on_16_s", "on_4_s", "slower"),
    [(20_480, 8.6e-3, 70.0, 247, 458, 1.85), (8_192, 6.0e-3, 113.0, 162, 501, 3.09)],
    ids=["FSDP2, long tail", "Megatron, short cap"],
)
def test_a_quarter_of_the_generators_slows_a_drain_by_less_where_its_tail_is_long(
    cap: int, pass_s: float, work_s: float, on_16_s: float, on_4_s: float, slower: float
) -> None:
    # A tail of cap passes, and work that is shared: the two terms that the documentation's numbers give.
    lengths = LengthLaw.lognormal(900, 0.8, cap)
    curve = Affine(pass_s, work_s / (512 * lengths.mean_tokens))
    seconds = [
        decode_batch_s(
            curve, lengths, SynchronousBatch(512 * 16 / gpus, 10**6, 512 * 16, 0), horizon="longest_possible"
        )
        for gpus in (16, 4)
    ]
    assert seconds == pytest.approx([on_16_s, on_4_s], rel=0.005)
    assert seconds[1] / seconds[0] == pytest.approx(slower, abs=0.02)


@pytest.mark.parametrize(
    ("concurrency", "batch", "queue", "load", "tail", "formula", "measured"),
    [(120, 240, 2, 0.63, 1.42, "1.34", 1.26), (240, 120, 2, 0.92, 1.43, "3.78", 3.59)],
)
def test_the_staleness_form_is_a_little_above_what_was_measured(
    concurrency: float, batch: float, queue: float, load: float, tail: float, formula: str, measured: float
) -> None:
    found = group_staleness(concurrency, batch, tail, load, queue)
    assert f"{found:.2f}" == formula
    assert measured < found < measured + PUBLISHED_TOLERANCE_VERSIONS


def test_the_queue_s_part_meets_both_branches_at_a_load_of_one_for_a_queue_of_one() -> None:
    assert in_queue_staleness(1.0, 1.0) == 1.0
    assert in_queue_staleness(np.nextafter(1.0, 0.0), 1.0) == pytest.approx(1.0)
    assert in_queue_staleness(1.0, 2.0) == 2.0
