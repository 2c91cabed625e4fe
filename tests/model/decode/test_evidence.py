"""Residuals of a decode curve, and the passes over prompts that it is compared with."""

from dataclasses import replace

import numpy as np
import pytest

from rlscope.model.decode.curves import Form
from rlscope.model.decode.evidence import CELL_LOG_SD, DRIFT_LOG_SD, CurveEvidence, prompt_log_sd, prompt_passes
from rlscope.model.decode.measurements import NO_POINTS, DecodePoints
from rlscope.model.decode.prior import ExpertPrior, HardwarePrior, LogNormal

CELLS = DecodePoints.of([8.0, 16.0], [1e-2, 2e-2], kv_tokens=0.0)


def test_prompts_of_like_size_are_one_cell_weighted_by_rows() -> None:
    prompts = DecodePoints.of([64.0, 70.0, 200.0], [2e-2, 4e-2, 5e-2], rows=[3.0, 1.0, 1.0], kv_tokens=[0.0, 8.0, 0.0])
    found = prompt_passes(prompts, CELLS)
    assert found.running.tolist() == [65.5, 200.0]
    assert found.typical_s.tolist() == [pytest.approx(2.5e-2), 5e-2]
    assert found.kv_tokens.tolist() == [2.0, 0.0]


@pytest.mark.parametrize(
    ("tokens", "pass_s", "counts"),
    [
        # The longest pass over no more requests than the prompt has tokens takes 2e-2; 0.6 of it is the least.
        (64.0, 1.2e-2, True),
        (64.0, 1.19e-2, False),
        (12.0, 0.7e-2, True),  # beside the pass over 8 requests
        (64.0, 0.0, False),
    ],
)
def test_a_prompt_much_cheaper_than_decoding_fewer_tokens_says_nothing(
    tokens: float, pass_s: float, counts: bool
) -> None:
    prompts = DecodePoints.of([tokens], [pass_s], kv_tokens=0.0)
    assert len(prompt_passes(prompts, CELLS)) == counts
    assert not len(prompt_passes(prompts, CELLS.where(np.zeros(2, dtype=np.bool_)))), "nothing decoded"


def test_the_ratio_to_decoding_drifts_from_the_median_batch_to_either_side() -> None:
    # The median batch is 12: 3 and 6 are two and one doublings below it, 24 is one above. A doubling has two cells.
    prompts = DecodePoints.of([3.0, 6.0, 24.0], [1e-2, 1e-2, 3e-2], kv_tokens=0.0)
    drift, own = DRIFT_LOG_SD**2, CELL_LOG_SD**2
    variances = 2 * np.array([2 * drift + own, drift + own, drift + own])
    assert prompt_log_sd(prompts, CELLS) ** 2 == pytest.approx(variances)


DENSE = HardwarePrior(
    flat_s=LogNormal(5e-3, 0.3),
    per_request_s=LogNormal(1e-5, 0.2),
    kv_s_per_token=LogNormal(1e-8, 0.1),
    overhead_s=LogNormal(1e-3, 0.3),
    experts=None,
)
EXPERTS = replace(DENSE, experts=ExpertPrior(LogNormal(1e-2, 0.4), LogNormal(0.06, 0.5)))
PASSES = DecodePoints.of([4.0, 16.0, 17.0, 64.0], [1e-2, 1.1e-2, 1.2e-2, 2e-2], rows=50, kv_tokens=[1e3, 4e3, 4e3, 1e4])
PROMPTS = DecodePoints.of([64.0, 512.0], [2e-2, 8e-2], kv_tokens=[0.0, 1e4])


@pytest.mark.parametrize("prior", [None, DENSE, EXPERTS])
@pytest.mark.parametrize("form", ["pnorm", "expert_hit"])
@pytest.mark.parametrize("prompts", [NO_POINTS, PROMPTS])
def test_the_slopes_are_those_of_the_residuals(form: Form, prior: HardwarePrior | None, prompts: DecodePoints) -> None:
    evidence = CurveEvidence(form, PASSES, prior, prompts)
    at, nudge = evidence.starts()[1:2] + 0.1, 1e-6
    here = evidence.linearized(at)
    for number in range(len(evidence.names)):
        there = evidence.linearized(at + nudge * (np.arange(at.shape[1]) == number))
        for values, moved, slopes in ((here[0], there[0], here[2]), (here[1], there[1], here[3])):
            assert slopes[number] == pytest.approx((moved - values) / nudge, abs=1e-3, rel=1e-4)


def test_a_form_is_expected_to_be_as_far_off_elsewhere_as_it_is_in_the_run() -> None:
    running = 2.0 ** np.arange(10)
    even, uneven = (
        CurveEvidence("pnorm", DecodePoints.of(running, 1e-2 * np.exp(off * (-1.0) ** np.arange(10)), rows=1e6), None)
        for off in (0.0, 0.08)
    )
    flat = np.log([1e-2, 1e-12, 2.0, 1e-9])
    order = [("flat_s", "per_request_s", "sharpness", "growth").index(name) for name in even.names]
    assert even.with_own_error(flat[order]).form_log_sd < 0.015
    assert 0.03 < uneven.with_own_error(flat[order]).form_log_sd < 0.08
