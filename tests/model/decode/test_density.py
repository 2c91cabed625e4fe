"""What a curve's vectors are worth before and after passes are seen."""

import math

import numpy as np
import pytest

from rlscope.model.decode.curves import Form
from rlscope.model.decode.density import CurveDensity
from rlscope.model.decode.measurements import DecodePoints
from rlscope.model.decode.posterior import FORM_ERROR, RESIDUAL, ROW_NOISE, FormModel, PassEvidence, Reference
from rlscope.model.decode.prior import ExpertPrior, HardwarePrior, LogNormal

NO_CELLS = DecodePoints.of([], [], kv_tokens=0.0)
CELLS = DecodePoints.of([4.0, 16.0, 64.0], [1e-2, 1.1e-2, 2e-2], rows=50.0, kv_tokens=[1e3, 4e3, 1e4])
EXPERTS = HardwarePrior(
    flat_s=LogNormal(5e-3, 0.3),
    per_request_s=LogNormal(1e-5, 0.2),
    kv_s_per_token=LogNormal(1e-8, 0.1),
    overhead_scale_s=2e-3,
    least_pass_s=None,
    experts=ExpertPrior(LogNormal(1e-2, 0.4), LogNormal(0.06, 0.5)),
)


def normal(log_value: float, expected: LogNormal) -> float:
    deviation = (log_value - math.log(expected.median)) / expected.log_sd
    return -(deviation**2) / 2 - math.log(expected.log_sd * math.sqrt(2 * math.pi))


def test_without_passes_a_vector_is_worth_what_was_expected_of_its_parameters() -> None:
    model = FormModel("expert_hit", EXPERTS, None)
    at = {name: -3.0 + 0.25 * number for number, name in enumerate(model.names)} | {"overhead_s": 1.5}
    expected = (
        normal(at["flat_s"], EXPERTS.flat_s)
        + normal(at["per_request_s"], EXPERTS.per_request_s)
        + normal(at["kv_s_per_token"], EXPERTS.kv_s_per_token or LogNormal(1, 1))
        + normal(at["experts_s"], LogNormal(1e-2, 0.4))
        + normal(at["hit_rate"], LogNormal(0.06, 0.5))
        + normal(at["form_error"], FORM_ERROR)
        + normal(at["row_noise"], ROW_NOISE)
        + normal(at["residual"], RESIDUAL)
        - (1.5e-3 / 2e-3) ** 2 / 2
    )
    density = CurveDensity(model, PassEvidence.of(NO_CELLS))
    assert density(np.array([list(at.values())])).tolist() == [pytest.approx(expected)]


@pytest.mark.parametrize("form", ["pnorm", "softplus", "sigmoid", "expert_hit"])
@pytest.mark.parametrize("prior", [None, EXPERTS])
def test_vectors_asked_together_are_worth_what_each_is_alone(form: Form, prior: HardwarePrior | None) -> None:
    model = FormModel(form, prior, Reference.of(CELLS))
    density = CurveDensity(model, PassEvidence.of(CELLS))
    vectors = model.starts() + np.random.default_rng(1).uniform(0.0, 0.1, model.starts().shape)
    assert density(vectors).tolist() == [pytest.approx(float(density(each[None, :])[0])) for each in vectors]


@pytest.mark.parametrize(("name", "outside"), [("growth", -1e-9), ("flat_s", 30.0), ("hinge", -30.0)])
def test_a_parameter_out_of_its_bounds_is_impossible(name: str, outside: float) -> None:
    model = FormModel("pnorm", None, Reference.of(CELLS))
    vectors = np.repeat(model.starts()[:1], 2, axis=0)
    vectors[1, model.names.index(name)] = outside
    possible, impossible = CurveDensity(model, PassEvidence.of(CELLS))(vectors)
    assert np.isfinite(possible) and impossible == -np.inf


def test_a_curve_that_meets_the_passes_is_likelier_than_one_that_is_a_tenth_off() -> None:
    model = FormModel("pnorm", None, Reference.of(CELLS))
    density = CurveDensity(model, PassEvidence.of(CELLS))
    near = model.starts()[1]
    near[model.names.index("flat_s")] = math.log(1e-2)
    near[model.names.index("hinge")] = math.log(40.0)
    off = model.scaled(near[None, :], 0.3)[0]
    by_curve = density(np.array([near, off]))
    assert by_curve[0] > by_curve[1]
