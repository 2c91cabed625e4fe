"""What one per cent buys, in the words of terminal and page."""

from dataclasses import replace

from rlscope.model.forecast.layouts import Spread
from rlscope.model.forecast.sensitivity import Sensitivity
from rlscope.reports.text.model import lever_rows, lever_sentence
from tests.reports.model_fixture import changing_model

LEVERS = (
    Sensitivity("trainer_speed", Spread(0.0098, 0.0097, 0.0099), None, False),
    Sensitivity("response_length", Spread(-0.0022, -0.0022, -0.0022), None, False),
    Sensitivity("forward_speed", Spread(0.0, 0.0, 0.0), "not_limiting", False),
    Sensitivity("staleness_cap", Spread(0.0, 0.0, 0.0), "not_there", False),
    Sensitivity("kv_capacity", None, "not_recorded", False),
)


def test_a_lever_says_what_it_buys_or_why_it_buys_nothing():
    assert [tuple(row) for row in lever_rows(replace(changing_model(), sensitivities=LEVERS))] == [
        ("faster training", "+0.98% (+0.97% to +0.99%)", ""),
        ("shorter responses", "−0.22%", ""),
        ("faster forward passes", "0%", "something else binds"),
        ("later staleness cap", "0%", "the run has none"),
        ("larger KV cache", "no data", "not recorded"),
    ]


def test_where_a_limit_binds_that_the_formulas_hold_for_roughly_it_is_said():
    sure = replace(changing_model(), sensitivities=LEVERS)
    rough = replace(sure, sensitivities=tuple(replace(lever, is_rough=True) for lever in LEVERS))
    assert "rough" not in lever_sentence(sure)
    assert "rough" in lever_sentence(rough)
