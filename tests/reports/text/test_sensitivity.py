"""Sensitivities in the words of terminal and page."""

from dataclasses import replace

from rlscope.model.estimate import Estimate
from rlscope.model.forecast.sensitivity import Sensitivity
from rlscope.reports.text.model import sensitivity_part
from tests.reports.model_fixture import changing_model

SENSITIVITIES = (
    Sensitivity("trainer_speed", Estimate(0.0098, 0.0097, 0.0099), None, False),
    Sensitivity("response_length", Estimate(-0.0022, -0.0022, -0.0022), None, False),
    Sensitivity("engine_speed", Estimate(0.0, 0.0, 0.0), "not_limiting", False),
    Sensitivity("staleness_cap", Estimate(0.0, 0.0, 0.0), "not_there", False),
    Sensitivity("kv_capacity", None, "not_recorded", False),
)


def test_a_sensitivity_has_its_change_or_why_there_is_none():
    table, _ = sensitivity_part(replace(changing_model(), sensitivities=SENSITIVITIES)).blocks
    assert table.rows == [
        ("faster training", "+0.98% (+0.97% to +0.99%)", ""),
        ("shorter responses", "−0.22%", ""),
        ("faster forward passes", "0%", "not the bottleneck"),
        ("higher staleness cap", "0%", "not in this run"),
        ("larger KV cache", "no data", "not recorded"),
    ]


def test_sensitivities_from_rough_closed_forms_are_called_approximate():
    sure = replace(changing_model(), sensitivities=SENSITIVITIES)
    rough = replace(sure, sensitivities=tuple(replace(each, is_rough=True) for each in SENSITIVITIES))
    assert ["Approximate" in sensitivity_part(made).blocks[-1].text for made in (sure, rough)] == [False, True]
