"""The bound that no layout beats."""

import pytest

from rlscope.model.analytic.bound import most_tokens_per_s
from rlscope.model.analytic.steady_state import SteadyState, steady_states
from rlscope.model.analytic.synchronous import colocated_step
from rlscope.model.system import Trainer, TrainerPhase, WeightUpdateCost
from tests.model.golden_system import LENGTHS, PNorm, engine, layout, system


def test_the_bound_is_the_work_of_both_sides_over_all_gpus() -> None:
    running = 100.0
    resident = 200 + LENGTHS.second_moment / (2 * LENGTHS.mean_tokens)
    curve = PNorm()
    rate = running / (float(curve.pass_s(running)) + curve.kv_s_per_token * resident * running)
    assert most_tokens_per_s(system(), 16, running) == pytest.approx(16 / (1 / rate + 1 / 3000), rel=1e-9)


@pytest.mark.parametrize("exponent", [1.0, 0.6])
@pytest.mark.parametrize("update", [WeightUpdateCost(), WeightUpdateCost(3.0, 2.0, kv_kept=False)])
def test_no_layout_and_no_synchronous_run_beats_the_bound(exponent: float, update: WeightUpdateCost) -> None:
    phases = (TrainerPhase("logprobs", 4.0, True), TrainerPhase("checkpoint", 1.0, False))
    fast = engine(prefill_tokens_per_s=30_000.0)
    given = system(engine=fast, trainer=Trainer(3000, 8, exponent, 2.0, phases), update=update)
    bound = most_tokens_per_s(given, 16)
    assert bound == most_tokens_per_s(system(engine=fast, trainer=given.trainer), 16)
    states = [each for each in steady_states(given, [layout(n) for n in range(1, 16)]) if isinstance(each, SteadyState)]
    synchronous = colocated_step(given, 16)
    assert len(states) == 15
    assert bound >= max(each.trained_tokens_per_s for each in (*states, synchronous))
