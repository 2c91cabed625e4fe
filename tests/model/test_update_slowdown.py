"""Updates that do not pause the engines, but slow their passes."""

from dataclasses import fields, replace

import numpy as np
import pytest

from rlscope.model.observed import Observed, PassCosts
from rlscope.model.update_slowdown import FEWEST_ROWS_DURING, SLOWS_RATIO, slowdown_during_updates
from rlscope.model.warnings import ModelWarning
from tests.model.known_run import TRUTH, calibrated, calibration_of, observed, pass_costs

CURVE = TRUTH.engine.curve
RUNNING = np.array([8, 16])
SHARE = 0.2


def passes(slowdown: float, rows: int = FEWEST_ROWS_DURING) -> PassCosts:
    """As many passes outside of updates as inside, over twice as many requests and so many times as long."""
    pass_s = CURVE.pass_s(RUNNING.astype(np.float64)) * np.array([1.0, slowdown])
    return pass_costs(RUNNING, np.zeros(2), np.array([rows, rows]), pass_s, in_update=np.array([False, True]))


def slowed_by_updates(run: Observed, slowdown: float) -> Observed:
    """The run, with a fifth of its passes during updates, which take so many times as long."""
    parts = [part(run.passes, 1.0 - SHARE, 1.0), part(run.passes, SHARE, slowdown)]
    names = [each.name for each in fields(PassCosts) if each.name not in ("engine_names", "in_update")]
    both = {name: np.concatenate([getattr(each, name) for each in parts]) for name in names}
    in_update = np.repeat([False, True], run.passes.engine.size)
    return replace(run, passes=PassCosts(**both, in_update=in_update))


def part(costs: PassCosts, share: float, slowdown: float) -> PassCosts:
    counts = {name: np.rint(share * getattr(costs, name)).astype(int) for name in ("rows", "passes", "decode_tokens")}
    times = {"busy_s": share * slowdown * costs.busy_s, "pass_p50_s": slowdown * costs.pass_p50_s}
    return replace(costs, **counts, **times)


@pytest.mark.parametrize(
    ("slowdown", "rows", "found"),
    [
        (1.5, FEWEST_ROWS_DURING, 1.5),
        (1.5, FEWEST_ROWS_DURING - 1, 1.0),
        (SLOWS_RATIO + 1e-9, FEWEST_ROWS_DURING, SLOWS_RATIO),
        (SLOWS_RATIO - 1e-9, FEWEST_ROWS_DURING, 1.0),
        (0.5, FEWEST_ROWS_DURING, 1.0),
    ],
    ids=["slower", "too few rows", "on the threshold", "below the threshold", "faster"],
)
def test_updates_slow_passes_that_take_longer_than_the_curve_says_of_the_others(slowdown, rows, found):
    assert slowdown_during_updates(passes(slowdown, rows), CURVE) == pytest.approx(found)


def test_what_passes_take_longer_during_updates_is_a_cost_of_the_update_and_not_of_a_pass():
    run, expected = observed(), calibrated().system
    found = calibration_of(slowed_by_updates(run, 1.5))
    lost_s = 0.5 * SHARE * float(run.passes.busy_s.sum()) / (run.publications * run.engines)
    assert ModelWarning.UPDATES_SLOW_PASSES in found.warnings
    assert found.system.update.engine_pause_s == pytest.approx(expected.update.engine_pause_s + lost_s)
    assert found.system.engine.curve.pass_s(RUNNING) == pytest.approx(expected.engine.curve.pass_s(RUNNING), rel=0.01)
